//! The users of a policy server, and the uses of namespaced policies on it: at `kubectl apply`, and before each generation.

use anyhow::{Result, ensure};
use proviso_crds::PolicyRevision;
use proviso_e2e::until;
use serde_json::{Value, json};

use super::{TEAM, apply, until_condition, wildcard};
use crate::admission::AdmissionClient;
use crate::test_cluster::{POD, TIMEOUT, TestCluster};

/// Returns a policy that decides about pods.
fn pods(fields: &Value) -> Value {
    let mut spec = wildcard(fields);
    spec["admission"]["rules"] =
        json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]);
    spec
}

#[tokio::test]
async fn a_policy_cannot_choose_a_server_with_weaker_verification() -> Result<()> {
    let cluster = TestCluster::with_policy_server("tenant-servers").await?;
    cluster.kubectl.run(&["create", "namespace", TEAM]).await?;
    cluster.apply_server("weak", json!({"replicas": 0})).await?;
    let revision = |name: &str| format!("ns.{TEAM}.{name}");
    let revisions = cluster.api::<PolicyRevision>();
    apply(&cluster, "Policy", "own", &pods(&json!({"policyServer": "weak"}))).await?;
    let refused = ("False", "NamespaceNotAllowed");
    let message = until_condition(&cluster, ("Policy", "own"), "Scheduled", refused).await?;
    ensure!(message.contains("does not allow Policies of the namespace team"), "{message}");
    ensure!(message.contains("no generation answers requests"), "{message}");
    until_condition(&cluster, ("Policy", "own"), "Live", refused).await?;
    until("the Event", TIMEOUT, async || {
        let described = cluster.kubectl.run(&["-n", TEAM, "describe", "policy", "own"]).await?;
        ensure!(described.contains("Warning  NamespaceNotAllowed"), "{described}");
        Ok(())
    })
    .await?;
    ensure!(revisions.get_opt(&format!("{}-1", revision("own"))).await?.is_none(), "it has a revision");

    // An administrator selects the namespace by its labels.
    let selected = json!({"replicas": 0, "allowedNamespaces": {"selector": {"matchLabels": {"tenant": "trusted"}}}});
    cluster.apply_server("weak", selected).await?;
    cluster.kubectl.run(&["label", "namespace", TEAM, "tenant=trusted"]).await?;
    until("the revision", TIMEOUT, async || Ok(revisions.get(&format!("{}-1", revision("own"))).await?)).await?;

    // A live generation stays live after the permission has ended, but the next generation is not scheduled.
    apply(&cluster, "Policy", "live", &pods(&json!({}))).await?;
    cluster.serve(&format!("{}-1", revision("live")), POD).await?;
    let webhook = format!("proviso-{}", revision("live"));
    cluster.until_path(&webhook, "/validate/ns.team.live/1").await?;
    cluster.apply_server("default", json!({"replicas": 1, "allowedNamespaces": {"matchNames": ["other"]}})).await?;
    let message = until_condition(&cluster, ("Policy", "live"), "Scheduled", refused).await?;
    ensure!(message.contains("requests are answered by it"), "{message}");
    until_condition(&cluster, ("Policy", "live"), "Live", ("True", "Live")).await?;
    apply(&cluster, "Policy", "live", &pods(&json!({"settings": {"a": 1}}))).await?;
    let message = until_condition(&cluster, ("Policy", "live"), "Live", refused).await?;
    ensure!(message.contains("generation 1 goes on answering"), "{message}");
    ensure!(revisions.get_opt(&format!("{}-2", revision("live"))).await?.is_none(), "it has a revision");
    ensure!(cluster.path(&webhook).await?.as_deref() == Some("/validate/ns.team.live/1"));
    cluster.apply_server("default", json!({"replicas": 1, "allowedNamespaces": {"matchNames": [TEAM]}})).await?;
    until("the next revision", TIMEOUT, async || Ok(revisions.get(&format!("{}-2", revision("live"))).await?)).await?;
    Ok(())
}

#[tokio::test]
async fn uses_that_the_server_does_not_permit_are_not_scheduled_and_not_previewed() -> Result<()> {
    let cluster = TestCluster::with_policy_server("tenant-uses").await?;
    cluster.kubectl.run(&["create", "namespace", TEAM]).await?;
    let revisions = cluster.api::<PolicyRevision>();
    for (name, fields, words) in [
        ("mutating", json!({"admission": {"mutating": true}}), "spec.admission.mutating"),
        ("calling", json!({"hostCapabilities": ["net/*"]}), "spec.hostCapabilities: grants net/v1/dns_lookup_host"),
        (
            "reading",
            json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "ConfigMap"}]}),
            "spec.contextAwareResources",
        ),
    ] {
        apply(&cluster, "Policy", name, &pods(&fields)).await?;
        let message = until_condition(&cluster, ("Policy", name), "Scheduled", ("False", "NotPermitted")).await?;
        ensure!(message.contains(words) && message.contains("PolicyServer default"), "{message}");
        ensure!(revisions.get_opt(&format!("ns.{TEAM}.{name}-1")).await?.is_none(), "{name} has a revision");
    }
    // The experiment of a permitted policy sees and does no more than the policy.
    apply(&cluster, "Policy", "plain", &pods(&json!({}))).await?;
    cluster.serve(&format!("ns.{TEAM}.plain-1"), POD).await?;
    let calling = pods(&json!({"hostCapabilities": ["net/*"]}));
    let experiment = json!({"policyRef": {"name": "plain"}, "policy": calling, "autoStart": true});
    apply(&cluster, "PolicyExperiment", "next", &experiment).await?;
    let refused = ("False", "NotPermitted");
    let message = until_condition(&cluster, ("PolicyExperiment", "next"), "Accepted", refused).await?;
    ensure!(message.contains("spec.policy.hostCapabilities"), "{message}");
    ensure!(revisions.get_opt(&format!("experiment.ns.{TEAM}.next-1")).await?.is_none(), "it has a candidate");

    let permitted = json!({"replicas": 1, "namespacedMutation": true, "namespacedCapabilities": ["*"]});
    cluster.apply_server("default", permitted).await?;
    for revision in ["ns.team.mutating-1", "ns.team.calling-1", "ns.team.reading-1", "experiment.ns.team.next-1"] {
        until(revision, TIMEOUT, async || Ok(revisions.get(revision).await?)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn attacks_of_a_tenant_are_refused_at_apply_with_field_and_remedy() -> Result<()> {
    let mut cluster = TestCluster::start("tenant-admission").await?;
    cluster.start_operator(&[])?;
    cluster.kubectl.run(&["create", "namespace", TEAM]).await?;
    cluster.apply_server("default", json!({"replicas": 0, "namespacedRegistries": ["ghcr.io/team"]})).await?;
    cluster.apply_server("weak", json!({"replicas": 0})).await?;
    let admission = AdmissionClient::start(&cluster).await?;
    let object = |kind: &str, spec: &Value| {
        json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": kind, "metadata": {"name": "attack", "namespace": TEAM},
            "spec": spec,
        })
    };
    let rule = |group: &str, resource: &str| {
        let rules = json!([
            {"operations": ["*"], "apiGroups": [group], "apiVersions": ["*"], "resources": [resource]},
        ]);
        json!({"admission": {"rules": rules}})
    };
    let wasm = |module: &str| json!({"program": {"wasm": {"module": module}}});
    let secret = json!({"program": {"wasm": {
        "module": "registry://ghcr.io/team/a:v1", "imagePullSecrets": [{"name": "platform"}],
    }}});
    let reading = json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "Pod"}]});
    for (fields, words) in [
        (
            json!({"policyServer": "weak"}),
            "policyServer: PolicyServer weak does not allow Policies of the namespace team",
        ),
        (json!({"admission": {"mutating": true}}), "admission.mutating: is true"),
        (json!({"hostCapabilities": ["*"]}), "hostCapabilities: grants crypto/v1/is_certificate_trusted"),
        (reading, "contextAwareResources: has kinds"),
        (secret, "program.wasm.imagePullSecrets: has platform"),
        (wasm("registry://internal:5000/a:v1"), "program.wasm.module: comes from a server that is not permitted"),
        (rule("rbac.authorization.k8s.io", "*"), "admission.rules[0].apiGroups: has rbac.authorization.k8s.io"),
        (rule("*", "rolebindings"), "admission.rules[0].resources: has rolebindings"),
        (rule("", "secrets"), "admission.rules[0].resources: has secrets"),
        (rule("", "pods/exec"), "admission.rules[0].resources: has pods/exec"),
        (rule("", "resourcequotas"), "admission.rules[0].resources: has resourcequotas"),
    ] {
        let spec = super::wildcard(&fields);
        let refusal = admission.refusal("CREATE", &object("Policy", &spec), None).await?;
        ensure!(refusal.contains(&format!("spec.{words}")), "{words}: {refusal}");
        ensure!(refusal.contains("use a ClusterPolicy") || refusal.contains("ask an administrator"), "{refusal}");
        let experiment = json!({"policyRef": {"name": "attack"}, "policy": spec});
        let refusal = admission.refusal("CREATE", &object("PolicyExperiment", &experiment), None).await?;
        ensure!(refusal.contains(&format!("spec.policy.{words}")), "{words}: {refusal}");
    }
    for permitted in [json!({}), wasm("registry://ghcr.io/team/a:v1")] {
        let spec = super::wildcard(&permitted);
        let refusal = admission.refusal("CREATE", &object("Policy", &spec), None).await?;
        ensure!(refusal.is_empty(), "{refusal}");
    }
    Ok(())
}
