//! Attacks of the author of a namespaced policy, with a real API server and its controllers.

mod limits;
mod recorder;
mod servers;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Api;
use kube::api::{Patch, PatchParams};
use proviso_e2e::{Kubectl, until};
use serde_json::{Value, json};

use crate::test_cluster::{POD, TIMEOUT, TestCluster};
use recorder::Recorder;

const TEAM: &str = "team";
/// The name of the webhook configuration of the policy `attack`.
const WEBHOOK: &str = "proviso-ns.team.attack";

/// Returns a spec whose rules cover everything.
fn wildcard(fields: &Value) -> Value {
    let mut spec = json!({
        "program": {"cel": {"validations": [{"expression": "true"}]}},
        "admission": {"failurePolicy": "Fail", "rules": [
            {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]},
        ]},
    });
    for (key, value) in fields.as_object().unwrap() {
        match (spec[key].as_object_mut(), value.as_object()) {
            (Some(known), Some(new)) if key == "admission" => known.extend(new.clone()),
            _ => spec[key] = value.clone(),
        }
    }
    spec
}

async fn apply(cluster: &TestCluster, kind: &str, name: &str, spec: &Value) -> Result<i64> {
    let object = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": kind, "metadata": {"name": name, "namespace": TEAM}, "spec": spec,
    });
    let api = cluster.dynamic("proviso.dev/v1alpha1", kind, Some(TEAM));
    let written = api.patch(name, &PatchParams::apply("tenant").force(), &Patch::Apply(object)).await?;
    written.metadata.generation.context("its generation")
}

/// Waits until a condition of an object in the namespace of the tenant has this status and reason. Returns its message.
async fn until_condition(
    cluster: &TestCluster,
    (kind, name): (&str, &str),
    condition: &str,
    (status, reason): (&str, &str),
) -> Result<String> {
    let api = cluster.dynamic("proviso.dev/v1alpha1", kind, Some(TEAM));
    until(&format!("{name}: {condition} {status}, {reason}"), 2 * TIMEOUT, async || {
        let object = api.get(name).await?;
        let conditions = object.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.iter().find(|it| it["type"] == condition).context("no such condition")?;
        ensure!(found["status"] == status && found["reason"] == reason, "{found}");
        Ok(found["message"].as_str().unwrap_or_default().to_owned())
    })
    .await
}

/// Returns kubectl of a cluster administrator who is not in the group system:masters.
async fn administrator(cluster: &TestCluster) -> Result<Kubectl> {
    let arguments = ["create", "clusterrolebinding", "admins", "--clusterrole=cluster-admin", "--group=admins"];
    cluster.kubectl.run(&arguments).await?;
    Ok(cluster.kubectl.by("ann", &["admins", "system:authenticated"]))
}

/// Waits until the policy is asked about the requests of ann.
async fn until_asked(ann: &Kubectl, recorder: &Recorder) -> Result<()> {
    let mut number = 0;
    until("a request of a person", TIMEOUT, async || {
        number += 1;
        ann.run(&["-n", TEAM, "create", "configmap", &format!("probe-{number}")]).await?;
        recorder.expect("CREATE configmaps by ann")
    })
    .await
}

#[tokio::test]
async fn a_mutating_policy_for_everything_does_not_raise_its_authors_power() -> Result<()> {
    let mut cluster = TestCluster::start("tenant-attacks").await?;
    cluster.start_operator(&[])?;
    cluster.apply_server("default", json!({"replicas": 1, "namespacedMutation": true})).await?;
    until("the replica", TIMEOUT, async || cluster.make_ready(POD).await).await?;
    cluster.kubectl.run(&["create", "namespace", TEAM]).await?;
    let ann = administrator(&cluster).await?;
    // The policy server is the attacker's program at its best: it sees every request, and turns each role into cluster-admin.
    let recorder = Recorder::start(&cluster).await?;
    apply(&cluster, "Policy", "attack", &wildcard(&json!({"admission": {"mutating": true}}))).await?;
    cluster.serve("ns.team.attack-1", POD).await?;
    let webhooks = Api::<MutatingWebhookConfiguration>::all(cluster.client.clone());
    until("the webhook", TIMEOUT, async || Ok(webhooks.get(WEBHOOK).await?)).await?;
    until_asked(&ann, &recorder).await?;

    // A cluster administrator creates objects that define what the tenant may do.
    recorder.clear();
    for command in [
        "create rolebinding readers --clusterrole=view --user=tenant",
        "create role nothing --verb=get --resource=pods",
        "create quota small --hard=pods=3",
        "create secret generic password --from-literal=a=b",
        "create token default",
        "auth can-i list pods --as=tenant",
    ] {
        let arguments = ["-n", TEAM].into_iter().chain(command.split(' ')).collect::<Vec<_>>();
        ann.run(&arguments)
            .await
            .or_else(|error| if command.starts_with("auth") { Ok(String::new()) } else { Err(error) })?;
    }
    let network = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "closed", "namespace": TEAM},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
    });
    let limits = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small", "namespace": TEAM},
        "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]},
    });
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "seen", "namespace": TEAM},
        "involvedObject": {"namespace": TEAM}, "reason": "Seen",
    });
    for object in [network, limits, event] {
        let file = cluster.plane.folder().path().join("object.json");
        std::fs::write(&file, object.to_string())?;
        ann.run(&["create", "-f", file.to_str().context("its path")?]).await?;
    }
    let bindings = Api::<RoleBinding>::namespaced(cluster.client.clone(), TEAM);
    ensure!(bindings.get("readers").await?.role_ref.name == "view", "the tenant is cluster-admin now");
    // The request of an administrator for a usual object is recorded, so the recorder was asked all the time.
    ann.run(&["-n", TEAM, "create", "configmap", "last"]).await?;
    recorder.expect("CREATE configmaps by ann")?;
    for resource in [
        "rolebindings",
        "roles",
        "resourcequotas",
        "limitranges",
        "networkpolicies",
        "secrets",
        "serviceaccounts/token",
        "events",
    ] {
        ensure!(!recorder.has(|line| line.contains(&format!(" {resource} "))), "{resource}: {:?}", recorder.lines());
    }
    Ok(())
}

#[tokio::test]
async fn a_policy_is_asked_about_pods_of_a_deployment_but_not_about_system_requests() -> Result<()> {
    let cluster = TestCluster::with_policy_server("tenant-system-requests").await?;
    cluster.kubectl.run(&["create", "namespace", TEAM]).await?;
    let ann = administrator(&cluster).await?;
    let recorder = Recorder::start(&cluster).await?;
    apply(&cluster, "Policy", "attack", &wildcard(&json!({}))).await?;
    cluster.serve("ns.team.attack-1", POD).await?;
    cluster.until_path(WEBHOOK, "/validate/ns.team.attack/1").await?;
    until_asked(&ann, &recorder).await?;

    // The controllers of Kubernetes create the objects of a workload. Without them, each Pod would escape the policy.
    ann.run(&["-n", TEAM, "create", "deployment", "web", "--image=web"]).await?;
    ann.run(&["-n", TEAM, "create", "cronjob", "report", "--image=report", "--schedule=* * * * *"]).await?;
    ann.run(&["-n", TEAM, "create", "job", "now", "--from=cronjob/report"]).await?;
    let controller = |name: &str| format!("by system:serviceaccount:kube-system:{name}");
    until("the objects of the workloads", TIMEOUT, async || {
        recorder.expect(&format!("CREATE replicasets {}", controller("deployment-controller")))?;
        recorder.expect(&format!("CREATE pods {}", controller("replicaset-controller")))?;
        recorder.expect(&format!("CREATE pods {}", controller("job-controller")))
    })
    .await?;

    // The tests themselves are system:masters.
    cluster.kubectl.run(&["-n", TEAM, "create", "configmap", "of-masters"]).await?;
    cluster.kubectl.run(&["-n", TEAM, "delete", "configmap", "of-masters"]).await?;
    let unasked = ["garbage-collector", "namespace-controller", "root-ca-cert-publisher", "service-account-controller"];
    let is_system = |line: &str| line.contains("kubernetes-admin") || unasked.iter().any(|name| line.contains(name));
    ensure!(!recorder.has(is_system), "{:?}", recorder.lines());

    // The administrator of the policy server permits them.
    cluster.apply_server("default", json!({"replicas": 1, "namespacedSystemRequests": true})).await?;
    let mut number = 0;
    until("a request of system:masters", TIMEOUT, async || {
        number += 1;
        cluster.kubectl.run(&["-n", TEAM, "create", "configmap", &format!("master-{number}")]).await?;
        recorder.expect("CREATE configmaps by kubernetes-admin")
    })
    .await
}
