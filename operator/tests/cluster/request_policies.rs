//! Request policies with the operator and replicas of the real policy server: their lifecycle, the permissions of an installation, and
//! the checks of the admission webhook. No kubelet runs: the tests start the replicas of the pods.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::config::AuthInfo;
use kube::{Api, Client, Config, ResourceExt as _};
use proviso_crds::{ClusterPolicy, ClusterPolicyExperiment, PolicyPhase, PolicyRevision};
use proviso_e2e::{program, until};
use serde_json::{Value, json};

use crate::admission::AdmissionClient;
use crate::test_cluster::{NAMESPACE, TIMEOUT, TestCluster};

/// The `ServiceAccount` of the replicas of the policy server `default`.
const REPLICA: &str = "policy-server-default";
/// A replica in a debug build takes longer than the API server.
const BOUND: std::time::Duration = std::time::Duration::from_mins(2);

/// A replica of the policy server `default`. Its process ends with this value.
struct Replica {
    process: Child,
    /// The file of its log.
    log: PathBuf,
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Replica {
    /// Starts the replica of a pod with the `ServiceAccount` of the policy server.
    async fn start(cluster: &TestCluster, pod: &str) -> Result<Self> {
        let uid =
            until(pod, TIMEOUT, async || Ok(cluster.api::<Pod>().get(pod).await?)).await?.uid().context("no uid")?;
        let log = cluster.plane.folder().log(pod);
        let process = Command::new(program::program("policy-server")?)
            .args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-format", "json"])
            .args(["--policy-server", "default", "--namespace", NAMESPACE, "--pod-name", pod, "--pod-uid", &uid])
            // At the idle priority, and within the default time limit, previews might get no CPU time on a busy machine.
            .args(["--evaluation-timeout", "20s", "--preview-priority", "normal"])
            .env("KUBECONFIG", cluster.kubeconfig_of(REPLICA)?)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()?;
        Ok(Self { process, log })
    }

    /// Returns the address of the replica.
    async fn address(&self) -> Result<String> {
        until("the address of a replica", BOUND, async || {
            let log = std::fs::read_to_string(&self.log)?;
            let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let started = lines.find(|line| line["message"] == "policy server started").context("not started")?;
            Ok(started["listen"].as_str().context("no address")?.to_owned())
        })
        .await
    }

    /// Sends a request with this token. Returns the status and the answer.
    async fn evaluate(&self, token: &str, body: &Value) -> Result<(u16, Value)> {
        let mut config = Config::new(self.address().await?.parse()?);
        config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
        let request = http::Request::post("/api/v1/engine/evaluate").header("content-type", "application/json");
        let request = request.body(kube::client::Body::from(serde_json::to_vec(body)?))?;
        let response = Client::try_from(config)?.send(request).await?;
        let status = response.status().as_u16();
        Ok((status, serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?))
    }
}

/// A control plane with the permissions of an installation, an operator, and two replicas.
struct Installation {
    // Replicas end first, because they would log the end of the control plane.
    replicas: Vec<Replica>,
    cluster: TestCluster,
}

impl Installation {
    async fn start(name: &str) -> Result<Self> {
        let mut cluster = TestCluster::start(name).await?;
        cluster.grant().await?;
        let kubeconfig = cluster.service_account_kubeconfig()?;
        cluster.start_operator_at("127.0.0.1".parse()?, &kubeconfig, &[])?;
        cluster.apply_server("default", json!({"replicas": 2})).await?;
        let mut replicas = Vec::new();
        for number in 0..2 {
            let pod = format!("{REPLICA}-{number}");
            let replica = Replica::start(&cluster, &pod).await?;
            replica.address().await?;
            cluster.make_ready(&pod).await?;
            replicas.push(replica);
        }
        Ok(Self { replicas, cluster })
    }

    /// Creates a `ServiceAccount`, and binds it to a `ClusterRole` of the installation. Returns its token.
    async fn account(&self, namespace: &str, name: &str, role: &str) -> Result<String> {
        let kubectl = &self.cluster.kubectl;
        kubectl.run(&["create", "serviceaccount", name, "--namespace", namespace]).await?;
        let (binding, account) = (format!("{namespace}-{name}"), format!("--serviceaccount={namespace}:{name}"));
        let role = format!("--clusterrole={role}");
        kubectl.run(&["create", "clusterrolebinding", &binding, &role, &account]).await?;
        Ok(kubectl.run(&["create", "token", name, "--namespace", namespace]).await?.trim().to_owned())
    }

    fn policies(&self) -> Api<ClusterPolicy> {
        Api::all(self.cluster.client.clone())
    }

    /// Applies the global policy `sizes`. Returns its generation.
    async fn write(&self, spec: &Value) -> Result<i64> {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "sizes"}, "spec": spec,
        });
        let written =
            self.policies().patch("sizes", &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?;
        written.metadata.generation.context("its generation")
    }

    /// Waits until each replica answers this body with this status and these words.
    async fn until_answered(&self, token: &str, body: &Value, status: u16, words: &[&str]) -> Result<()> {
        for replica in &self.replicas {
            until(&format!("{status} {words:?}"), BOUND, async || {
                let (found, answer) = replica.evaluate(token, body).await?;
                let text = answer.to_string();
                ensure!(found == status && words.iter().all(|words| text.contains(words)), "{found} {answer:#}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    }
}

/// Returns the spec of a global request policy that forbids more CPUs than this.
fn limit(cpus: u32) -> Value {
    let result = format!("{{'constraints': {{'cpu': {{'maximum': {cpus}}}}}}}");
    json!({"request": {"serviceTypes": ["vm"]}, "program": {"cel": {"result": result}}})
}

fn machine(cpus: u32) -> Value {
    json!({"payload": {"service_type": "vm", "cpu": cpus}})
}

#[tokio::test]
async fn a_request_policy_goes_through_its_lifecycle_without_webhooks() -> Result<()> {
    let installed = Installation::start("request-lifecycle").await?;
    let cluster = &installed.cluster;
    cluster.kubectl.run(&["create", "namespace", "team-blue"]).await?;
    cluster.kubectl.run(&["label", "namespace", "team-blue", "proviso.dev/tenant=blue"]).await?;
    cluster.kubectl.run(&["create", "namespace", "portals"]).await?;
    let app = installed.account("team-blue", "app", "proviso-request-evaluator").await?;
    let portal = installed.account("portals", "portal", "proviso-request-portal").await?;

    // The replicas of the installation may review callers.
    installed.until_answered(&app, &machine(8), 200, &["APPROVED"]).await?;
    ensure!(installed.write(&limit(4)).await? == 1);
    cluster.until_active("sizes", 1).await?;
    installed.until_answered(&app, &machine(8), 403, &["cluster.sizes", "generation 1", "maximum of 4"]).await?;
    let source = "package p\nimport rego.v1\nresult := {\"patch\": {\"owner\": input.tenant}}";
    let tenant = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy", "metadata": {"name": "owner", "namespace": "team-blue"},
        "spec": {"request": {}, "program": {"rego": {"dialect": "Request", "source": source}}},
    });
    proviso_e2e::manifests::apply(&cluster.client, &tenant.to_string()).await?;
    installed.until_answered(&app, &machine(2), 200, &["\"owner\":\"blue\"", "ns.team-blue.owner"]).await?;
    let mut of_others = machine(2);
    (of_others["user"], of_others["tenant"]) = (json!("ana"), json!("blue"));
    installed.until_answered(&portal, &of_others, 200, &["\"owner\":\"blue\""]).await?;
    installed.until_answered(&app, &of_others, 403, &["PERMISSION_DENIED", "user: is \\\"ana\\\""]).await?;
    of_others["tenant"] = json!("green");
    installed.until_answered(&portal, &of_others, 200, &["APPROVED"]).await?;

    // An update takes effect without a restart.
    ensure!(installed.write(&limit(16)).await? == 2);
    cluster.until_active("sizes", 2).await?;
    installed.until_answered(&app, &machine(8), 200, &["cluster.sizes", "\"generation\":2"]).await?;
    installed.until_answered(&app, &machine(17), 403, &["generation 2", "maximum of 16"]).await?;

    // The last generation that works keeps answering. The webhook of the operator, which would refuse the program, is not registered.
    let broken = json!({"request": {"serviceTypes": ["vm"]}, "program": {"cel": {"result": "{"}}});
    ensure!(installed.write(&broken).await? == 3);
    let status = until("a failed generation", BOUND, async || {
        let status = installed.policies().get("sizes").await?.status.context("no status")?;
        ensure!(status.phase == Some(PolicyPhase::Failed), "{status:?}");
        Ok(status)
    })
    .await?;
    ensure!(status.live_generation == Some(2) && status.mode.is_none(), "{status:?}");
    let initialized = status.conditions.iter().find(|it| it.type_ == "Initialized").context("Initialized")?;
    ensure!(initialized.reason == "CompileError" && initialized.message.contains("spec.program.cel"), "{status:?}");
    installed.until_answered(&app, &machine(17), 403, &["generation 2"]).await?;

    // A rollback restores the spec of the first generation as a new one.
    let rollback = json!({"metadata": {"annotations": {"proviso.dev/rollback-to": "1"}}});
    installed.policies().patch("sizes", &PatchParams::default(), &Patch::Merge(rollback)).await?;
    cluster.until_active("sizes", 4).await?;
    installed.until_answered(&app, &machine(8), 403, &["generation 4", "maximum of 4"]).await?;

    // An experiment previews the chain with its candidate, on the requests that the replicas answer.
    let experiment = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicyExperiment", "metadata": {"name": "smaller"},
        "spec": {"policyRef": {"name": "sizes"}, "autoStart": true, "policy": limit(1)},
    });
    proviso_e2e::manifests::apply(&cluster.client, &experiment.to_string()).await?;
    let experiments = Api::<ClusterPolicyExperiment>::all(cluster.client.clone());
    until("a divergence", BOUND, async || {
        installed.until_answered(&app, &machine(2), 200, &["ns.team-blue.owner"]).await?;
        let status = experiments.get("smaller").await?.status.context("no status")?;
        let counts = status.divergence.as_ref().context("no counts")?;
        ensure!(counts.newly_denied > 0 && counts.errors == 0, "{status:?}");
        let sample = status.samples.first().context("no sample")?;
        ensure!(sample.kind == "vm" && sample.namespace == "blue", "{sample:?}");
        Ok(())
    })
    .await?;
    experiments.delete("smaller", &DeleteParams::default()).await?;

    // No webhook asks about a request policy.
    for name in ["proviso-cluster.sizes", "proviso-ns.team-blue.owner", "proviso-preview-cluster.smaller"] {
        ensure!(cluster.webhooks().get_opt(name).await?.is_none(), "{name}");
    }
    let status = tokio::process::Command::new(program::program("proviso")?)
        .args(["status", "-A"])
        .env("KUBECONFIG", cluster.plane.kubeconfig())
        .output()
        .await?;
    let status = String::from_utf8(status.stdout)?;
    ensure!(status.contains("sizes") && status.contains("owner") && !status.contains("webhook"), "{status}");

    // A disabled policy decides about no requests. The others go on.
    let disabled = json!({"spec": {"enabled": false}});
    installed.policies().patch("sizes", &PatchParams::default(), &Patch::Merge(disabled)).await?;
    installed.until_answered(&app, &machine(17), 200, &["ns.team-blue.owner"]).await?;
    let enabled = json!({"spec": {"enabled": true}});
    installed.policies().patch("sizes", &PatchParams::default(), &Patch::Merge(enabled)).await?;
    installed.until_answered(&app, &machine(17), 403, &["generation 6"]).await?;

    installed.policies().delete("sizes", &DeleteParams::default()).await?;
    installed.until_answered(&app, &machine(17), 200, &["ns.team-blue.owner"]).await?;
    until("the end of the policy", BOUND, async || {
        ensure!(installed.policies().get_opt("sizes").await?.is_none(), "the policy still exists");
        Ok(())
    })
    .await?;
    let revisions = cluster.api::<PolicyRevision>().list(&kube::api::ListParams::default()).await?;
    let left: Vec<_> = revisions.iter().map(kube::ResourceExt::name_any).filter(|it| it.contains("sizes")).collect();
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

#[tokio::test]
async fn a_request_policy_that_cannot_work_is_refused_with_its_field() -> Result<()> {
    let mut cluster = TestCluster::start("admission-of-requests").await?;
    cluster.start_operator(&[])?;
    let admission = AdmissionClient::start(&cluster).await?;
    let policy = |namespace: Option<&str>, request: &Value, program: &Value| {
        let kind = if namespace.is_some() { "Policy" } else { "ClusterPolicy" };
        json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": kind, "metadata": {"name": "a", "namespace": namespace},
            "spec": {"request": request, "program": program},
        })
    };
    let good = json!({"cel": {"result": "{}"}});
    let rego = |dialect: &str, source: &str| json!({"rego": {"dialect": dialect, "source": source}});
    let many: Vec<_> = (0..101).map(|number| number.to_string()).collect();
    let (cluster_scoped, team) = (None, Some("team"));
    for (namespace, request, program, field) in [
        (cluster_scoped, json!({"level": "Tenant"}), &good, "spec.request.level: is Tenant"),
        (team, json!({"level": "Global"}), &good, "spec.request.level: is Global"),
        (team, json!({"level": "Tenant", "user": "ana"}), &good, "spec.request.user: "),
        (team, json!({"user": ""}), &good, "spec.request.user: "),
        (team, json!({"priority": 0}), &good, "spec.request.priority: is 0"),
        (team, json!({"priority": 1001}), &good, "spec.request.priority: is 1001"),
        (team, json!({"serviceTypes": many}), &good, "spec.request.serviceTypes: has 101 items"),
        (team, json!({"serviceTypes": ["vm", ""]}), &good, "spec.request.serviceTypes[1]: "),
        (team, json!({"displayName": ""}), &good, "spec.request.displayName: "),
        (team, json!({"description": "a".repeat(2049)}), &good, "spec.request.description: must have at most 2048"),
        (
            team,
            json!({"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
            &good,
            "spec.request.selector.matchExpressions[0]: ",
        ),
        (team, json!({}), &json!({"cel": {"result": "{"}}), "spec.program.cel: "),
        (team, json!({}), &rego("Request", "package p\nresult := {"), "spec.program.rego.source: "),
        (team, json!({}), &rego("Admission", "package p\nresult := {}"), "spec.program.rego.dialect: must be Request"),
        (team, json!({}), &json!({"wasm": {"module": "file:///a"}}), "spec.program.wasm.module: is a file"),
        (team, json!({}), &json!({"wasm": {"module": "https://a", "mode": "gatekeeper"}}), "spec.program.wasm.mode: "),
    ] {
        let refusal = admission.refusal("CREATE", &policy(namespace, &request, program), None).await?;
        ensure!(refusal.contains(field), "{field}: {refusal}");
    }
    for (namespace, request) in [
        (cluster_scoped, json!({})),
        (cluster_scoped, json!({"level": "User"})),
        (team, json!({"user": "ana", "serviceTypes": ["vm"], "displayName": "a", "description": "b", "priority": 1})),
    ] {
        let refusal = admission.refusal("CREATE", &policy(namespace, &request, &good), None).await?;
        ensure!(refusal.is_empty(), "{request}: {refusal}");
    }
    let experiment = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicyExperiment", "metadata": {"name": "e"},
        "spec": {"policyRef": {"name": "a"}, "policy": {"request": {}, "program": good}},
    });
    let refusal = admission.refusal("CREATE", &experiment, None).await?;
    ensure!(refusal.is_empty(), "{refusal}");
    Ok(())
}
