//! The quickstart as webhooks of a real API server: people and pipelines call kubectl, and see what the policies say.
//! What the API server sends on the way are the recorded reviews of `examples/reviews`.
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use proviso_e2e::pki::Authority;
use proviso_e2e::{Cluster, ControlPlane, Kubectl, Temporary, Webhook, until};
use serde_json::{Value, json};

use crate::support::recording::Recorder;
use crate::support::tap::{Passed, Tap};
use crate::support::{Folder, Server, example, manifest};

const PATIENCE: Duration = Duration::from_mins(1);
/// A policy that allows everything; its webhook sees every request first.
const RECORDED: &str = "/validate/cluster.recorded";

/// The quickstart, served to a control plane by webhooks that its policies describe.
struct Quickstart {
    /// Fields are dropped in this order.
    _webhooks: Vec<Temporary>,
    server: Server,
    tap: Tap,
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
            // Modules are named relative to the manifests.
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
        // `until_asked` counts on this order.
        policies.sort_by_key(|policy| policy["metadata"]["name"].to_string());
        let server = Server::start(folder, &[]).await;

        let plane = ControlPlane::start("quickstart").await?;
        // They fill the role `admin`, and make the service accounts of pods.
        plane.ensure_controllers()?;
        let cluster = Cluster::of(&plane).await?;
        let admin = cluster.kubectl()?;
        admin.run(&["create", "-f", example("quickstart/namespaces.yaml").to_str().unwrap()]).await?;
        admin.run(&["create", "namespace", "ci"]).await?;
        admin.run(&["create", "serviceaccount", "deployer", "--namespace=ci"]).await?;
        let people = ["--user=mara@example.com", "--serviceaccount=ci:deployer", "--clusterrole=admin"];
        admin.run(&[&["create", "clusterrolebinding", "people"], &people[..]].concat()).await?;

        let authority = Authority::new("webhook", &plane.folder().path().join("pki"))?;
        let tap = Tap::start(&server.listen, &authority.server("policy-server", &["127.0.0.1"])?).await;
        let mut webhooks = Vec::new();
        for policy in &policies {
            webhooks.push(webhook(policy, tap.port, &authority).register(&cluster).await?);
        }
        let quickstart = Self { _webhooks: webhooks, server, tap, admin, recorder: Recorder::default(), _plane: plane };
        quickstart.until_asked().await?;
        Ok(quickstart)
    }

    /// Waits until the API server knows every webhook: the last mutating and the last validating one are asked.
    async fn until_asked(&self) -> Result<()> {
        until("the API server to ask the policies", PATIENCE, async || {
            for path in ["/validate/cluster.team-pods", "/validate/cluster.trusted-registries"] {
                let dry_run = self.by_mara().run(&["create", "--dry-run=server", "-f", &workload("pod")]).await;
                ensure!(!self.tap.passed(path).is_empty(), "{path}: {dry_run:?}");
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

    /// Does something by kubectl, and compares the review that this leads to with the recording of this name. What
    /// kubectl said, on failure too.
    async fn record(&mut self, name: &str, kubectl: &Kubectl, arguments: &[&str]) -> Result<String> {
        let before = self.tap.passed(RECORDED).len();
        let said = kubectl.run(arguments).await;
        // Controllers ask for things meanwhile.
        let by_us = |passed: &&Passed| {
            !passed.request()["userInfo"]["username"]
                .as_str()
                .unwrap()
                .starts_with("system:serviceaccount:kube-system:")
        };
        let passed = self.tap.passed(RECORDED);
        let review =
            passed[before..].iter().find(by_us).with_context(|| format!("nobody was asked about {name}: {said:?}"))?;
        self.recorder.check(name, &review.review);
        said
    }

    /// As [`Self::record`], and denied: by this policy, with this text. Of several denials kubectl shows one.
    async fn record_denied(
        &mut self,
        name: &str,
        kubectl: &Kubectl,
        arguments: &[&str],
        (policy, text): (&str, &str),
    ) -> Result<()> {
        let said = match self.record(name, kubectl, arguments).await {
            Ok(said) => anyhow::bail!("{name} was not denied: {said}"),
            Err(error) => format!("{error:#}"),
        };
        ensure!(said.contains("denied the request"), "{name}: {said}");
        self.was_denied(policy, text).with_context(|| name.to_owned())
    }

    /// Whether what this policy was asked last, it denied with this text.
    fn was_denied(&self, policy: &str, text: &str) -> Result<()> {
        let passed = self.tap.passed(&format!("/validate/{policy}"));
        let answer = &passed.last().with_context(|| format!("{policy} was not asked"))?.answer["response"];
        ensure!(answer["allowed"] == false && answer.to_string().contains(text), "{policy}: {answer}");
        Ok(())
    }
}

fn documents(text: &str) -> Result<Vec<Value>> {
    use serde::Deserialize as _;
    serde_yaml::Deserializer::from_str(text).map(|document| Ok(Value::deserialize(document)?)).collect()
}

fn workload(name: &str) -> String {
    example(&format!("workloads/{name}.yaml")).to_str().unwrap().to_owned()
}

/// As the `admission` section of a policy says.
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
        // Mutating webhooks are asked in the order of their names; `recorded` comes before `safe-defaults`.
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
async fn people_see_the_verdicts_and_the_recordings_are_what_the_api_server_sends() -> Result<()> {
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
    // The experiment would have denied that. Its line names the uid that the policy was asked with.
    let asked = quickstart.tap.passed("/validate/cluster.required-labels");
    let asked = asked.iter().find(|passed| passed.request()["name"] == "ledger").context("required-labels")?;
    let uid = asked.request()["uid"].clone();
    ensure!(asked.answer["response"]["uid"] == uid);
    let line = until("the preview line", PATIENCE, async || {
        let lines = quickstart.server.previews();
        lines.into_iter().find(|line| line.to_string().contains(uid.as_str().unwrap())).context("no line")
    });
    let line = line.await?.to_string();
    ensure!(line.contains("required-labels-cost-center") && line.contains("NewlyDenied"), "{line}");

    let unlabelled = &["apply", "-f", &workload("deployment-unlabelled")];
    quickstart
        .record_denied("deployment-create-unlabelled", &mara, unlabelled, ("cluster.required-labels", "owner"))
        .await?;
    // All validating webhooks are asked about a request.
    quickstart.was_denied("cluster.required-probes", "container web of Deployment web has no readinessProbe")?;

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

    // No API server sends these.
    let database = std::fs::read(example("reviews/raw-database.json"))?;
    let answer = quickstart.server.post("/validate_raw/cluster.approved-regions", database).await;
    ensure!(!answer.is_allowed() && answer.message().contains("not in us-1"), "{}", answer.text);
    Ok(())
}
