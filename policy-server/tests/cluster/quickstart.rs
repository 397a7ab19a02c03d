//! The quickstart with webhooks of a real API server: users and pipelines call kubectl and see the verdicts of the policies. The
//! reviews that the API server sends are recorded in `examples/reviews`.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use proviso_e2e::pki::Authority;
use proviso_e2e::{Cluster, ControlPlane, Kubectl, Temporary, Webhook, until, until_with};
use serde_json::{Value, json};

use crate::support::recording::Recorder;
use crate::support::recording_proxy::{Exchange, RecordingProxy};
use crate::support::{Folder, Server, example, manifest};

const WAIT_TIMEOUT: Duration = Duration::from_mins(1);
/// The path of a policy that allows everything. Its webhook is called first for every request.
const RECORDED: &str = "/validate/cluster.recorded";

/// A control plane with webhooks for the policies of the quickstart.
struct Quickstart {
    // The fields are dropped in this order.
    _webhooks: Vec<Temporary>,
    server: Server,
    proxy: RecordingProxy,
    admin: Kubectl,
    recorder: Recorder,
    _plane: ControlPlane,
}

impl Quickstart {
    async fn start() -> Result<Self> {
        let folder = Folder::new();
        let mut policies = Vec::new();
        for entry in std::fs::read_dir(example("quickstart"))? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            // The references to modules are relative to the manifests, which are copied to another folder.
            let text = std::fs::read_to_string(&path)?
                .replace("file://../policies", &format!("file://{}", example("policies").display()));
            folder.write(path.file_name().and_then(|name| name.to_str()).unwrap(), &text);
            let is_policy = |document: &Value| document["kind"] == "ClusterPolicy" || document["kind"] == "Policy";
            policies.extend(documents(&text)?.into_iter().filter(is_policy));
        }
        let recorded = json!({
            "program": {"cel": {"validations": []}},
            "admission": {"mutating": true, "failurePolicy": "Fail", "rules": [
                {"apiGroups": ["", "apps"], "apiVersions": ["v1"], "operations": ["*"],
                    "resources": ["namespaces", "pods", "services", "deployments", "deployments/scale"]},
            ]},
        });
        folder.write("recorded.json", manifest("ClusterPolicy", "recorded", &recorded));
        policies.push(json!({"metadata": {"name": "recorded"}, "spec": recorded}));
        // `until_asked` depends on this order.
        policies.sort_by_key(|policy| policy["metadata"]["name"].to_string());
        let server = Server::start(folder, &[]).await;

        let plane = ControlPlane::start("quickstart").await?;
        // The controllers fill the role `admin`, and create the service accounts of pods.
        plane.ensure_controllers()?;
        let cluster = Cluster::of(&plane).await?;
        let admin = cluster.kubectl()?;
        admin.run(&["create", "-f", example("quickstart/namespaces.yaml").to_str().unwrap()]).await?;
        admin.run(&["create", "namespace", "ci"]).await?;
        admin.run(&["create", "serviceaccount", "deployer", "--namespace=ci"]).await?;
        let people = ["--user=mara@example.com", "--serviceaccount=ci:deployer", "--clusterrole=admin"];
        admin.run(&[&["create", "clusterrolebinding", "people"], &people[..]].concat()).await?;

        let authority = Authority::new("webhook", &plane.folder().path().join("pki"))?;
        let proxy = RecordingProxy::start(&server.listen, &authority.server("policy-server", &["127.0.0.1"])?).await;
        let mut webhooks = Vec::new();
        for policy in &policies {
            webhooks.push(webhook(policy, proxy.port, &authority).register(&cluster).await?);
        }
        let quickstart =
            Self { _webhooks: webhooks, server, proxy, admin, recorder: Recorder::default(), _plane: plane };
        quickstart.until_asked().await?;
        Ok(quickstart)
    }

    /// Waits until the API server calls every webhook: until it calls the last mutating and the last validating webhook.
    async fn until_asked(&self) -> Result<()> {
        let attempt_timeout = Duration::from_secs(30);
        until_with("the API server to ask the policies", WAIT_TIMEOUT, attempt_timeout, async || {
            for path in ["/validate/cluster.team-pods", "/validate/cluster.trusted-registries"] {
                let dry_run = self.by_mara().run(&["create", "--dry-run=server", "-f", &workload("pod")]).await;
                ensure!(!self.proxy.exchanges(path).is_empty(), "{path}: {dry_run:?}");
            }
            Ok(())
        })
        .await
    }

    fn by_mara(&self) -> Kubectl {
        self.admin.by("mara@example.com", &["payments", "system:authenticated"])
    }

    fn by_ci(&self) -> Kubectl {
        self.admin.by("system:serviceaccount:ci:deployer", &[])
    }

    /// Runs kubectl, and compares the review of its request with the recording of this name. Returns the output of kubectl, or
    /// its error.
    async fn record(&mut self, name: &str, kubectl: &Kubectl, arguments: &[&str]) -> Result<String> {
        let before = self.proxy.exchanges(RECORDED).len();
        let output = kubectl.run(arguments).await;
        let exchanges = self.proxy.exchanges(RECORDED);
        let review = exchanges[before..]
            .iter()
            .find(|exchange| is_by_us(exchange))
            .with_context(|| format!("no review of {name}: {output:?}"))?;
        self.recorder.check(name, &review.review);
        output
    }

    /// Does the same as [`Self::record`], and checks that this policy denied the request with this text. If several policies
    /// deny, kubectl shows only one denial.
    async fn record_denied(
        &mut self,
        name: &str,
        kubectl: &Kubectl,
        arguments: &[&str],
        (policy, text): (&str, &str),
    ) -> Result<()> {
        let error = match self.record(name, kubectl, arguments).await {
            Ok(output) => anyhow::bail!("{name} was not denied: {output}"),
            Err(error) => format!("{error:#}"),
        };
        ensure!(error.contains("denied the request"), "{name}: {error}");
        self.check_denied(policy, text).with_context(|| name.to_owned())
    }

    /// Returns an error unless this policy denied its last request with this text.
    fn check_denied(&self, policy: &str, text: &str) -> Result<()> {
        let exchanges = self.proxy.exchanges(&format!("/validate/{policy}"));
        let last = exchanges.iter().rfind(|exchange| is_by_us(exchange));
        let answer = &last.with_context(|| format!("{policy} was not asked"))?.answer["response"];
        ensure!(answer["allowed"] == false && answer.to_string().contains(text), "{policy}: {answer}");
        Ok(())
    }
}

/// Returns true unless a controller has sent the request, which controllers do at the same time.
fn is_by_us(exchange: &Exchange) -> bool {
    let user = &exchange.request()["userInfo"]["username"];
    !user.as_str().unwrap().starts_with("system:serviceaccount:kube-system:")
}

fn documents(text: &str) -> Result<Vec<Value>> {
    use serde::Deserialize as _;
    serde_yaml::Deserializer::from_str(text).map(|document| Ok(Value::deserialize(document)?)).collect()
}

fn workload(name: &str) -> String {
    example(&format!("workloads/{name}.yaml")).to_str().unwrap().to_owned()
}

/// Returns the webhook for the `admission` section of a policy.
fn webhook(policy: &Value, port: u16, authority: &Authority) -> Webhook {
    let name = policy["metadata"]["name"].as_str().unwrap();
    let admission = &policy["spec"]["admission"];
    let or_all = |selector: &Value| if selector.is_null() { json!({}) } else { selector.clone() };
    let (id, namespace_selector) = match policy["metadata"]["namespace"].as_str() {
        Some(namespace) => {
            (format!("ns.{namespace}.{name}"), json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}}))
        }
        None => (format!("cluster.{name}"), or_all(&admission["namespaceSelector"])),
    };
    Webhook {
        // The API server calls mutating webhooks in the order of their names: `recorded` comes before `safe-defaults`.
        name: name.to_owned(),
        client: json!({"url": format!("https://127.0.0.1:{port}/validate/{id}")}),
        authority: authority.pem(),
        mutating: admission["mutating"] == true,
        rules: admission["rules"].clone(),
        failure_policy: if admission["failurePolicy"] == "Ignore" { "Ignore" } else { "Fail" },
        namespace_selector,
        object_selector: or_all(&admission["objectSelector"]),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_shows_verdicts_and_the_recorded_reviews_are_current() -> Result<()> {
    let mut quickstart = Quickstart::start().await?;
    let (admin, mara, ci) = (quickstart.admin.clone(), quickstart.by_mara(), quickstart.by_ci());

    quickstart.record("namespace-create", &admin, &["create", "-f", &workload("namespace")]).await?;
    quickstart.record("pod-create", &mara, &["apply", "-f", &workload("pod")]).await?;
    let path = "jsonpath={.spec.securityContext.runAsNonRoot} {.metadata.labels.proviso\\.dev/safe-defaults} \
                {.metadata.labels.team}";
    let defaults = mara.run(&["get", "pod/api", "--namespace=payments", "-o", path]).await?;
    ensure!(defaults == "true v1 unknown", "safe-defaults or team-pods has not changed the pod: {defaults}");
    let untrusted = &["apply", "-f", &workload("pod-untrusted-image")];
    quickstart
        .record_denied(
            "pod-create-untrusted-image",
            &mara,
            untrusted,
            ("cluster.trusted-registries", "acme-tools/toolbox"),
        )
        .await?;

    quickstart.record("deployment-create", &ci, &["apply", "-f", &workload("deployment")]).await?;
    // The experiment would have denied the deployment. The preview line has the uid of the request.
    let asked = quickstart.proxy.exchanges("/validate/cluster.required-labels");
    let asked = asked.iter().find(|exchange| exchange.request()["name"] == "ledger").context("required-labels")?;
    let uid = asked.request()["uid"].clone();
    ensure!(asked.answer["response"]["uid"] == uid);
    let line = until("the preview line", WAIT_TIMEOUT, async || {
        let lines = quickstart.server.previews();
        lines.into_iter().find(|line| line.to_string().contains(uid.as_str().unwrap())).context("no line")
    });
    let line = line.await?.to_string();
    ensure!(line.contains("required-labels-cost-center") && line.contains("NewlyDenied"), "{line}");

    let unlabelled = &["apply", "-f", &workload("deployment-unlabelled")];
    quickstart
        .record_denied("deployment-create-unlabelled", &mara, unlabelled, ("cluster.required-labels", "owner"))
        .await?;
    // The API server calls all validating webhooks, even if one has denied.
    quickstart.check_denied("cluster.required-probes", "container web of Deployment web has no readinessProbe")?;

    quickstart.record("deployment-update", &ci, &["apply", "-f", &workload("deployment-next")]).await?;
    let scale = &["scale", "deployment/ledger", "--namespace=payments", "--replicas=200"];
    quickstart.record_denied("deployment-scale", &mara, scale, ("cluster.replica-limit", "more replicas")).await?;
    let delete = &["delete", "deployment/ledger", "--namespace=payments"];
    quickstart
        .record_denied("deployment-delete", &mara, delete, ("ns.payments.protected-objects", "protected"))
        .await?;
    let delete = &["delete", "namespace/payments"];
    quickstart
        .record_denied("namespace-delete", &admin, delete, ("cluster.protected-namespaces", "production namespace"))
        .await?;
    let large = &["apply", "-f", &workload("pod-large")];
    quickstart.record_denied("pod-create-large", &mara, large, ("cluster.team-pods", "at most 4Gi of memory")).await?;
    let service = &["apply", "-f", &workload("service")];
    quickstart.record_denied("service-create", &mara, service, ("cluster.service-types", "LoadBalancer")).await?;

    // API servers do not send raw requests.
    let database = std::fs::read(example("reviews/raw-database.json"))?;
    let answer = quickstart.server.post("/validate_raw/cluster.approved-regions", database).await;
    ensure!(!answer.is_allowed() && answer.message().contains("not in us-1"), "{}", answer.text);
    Ok(())
}
