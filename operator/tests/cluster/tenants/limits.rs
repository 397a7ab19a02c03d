//! The limits of each namespace: at `kubectl apply`, and before each generation.

use anyhow::{Context as _, Result, ensure};
use kube::api::DeleteParams;
use proviso_crds::PolicyRevision;
use proviso_e2e::until;
use serde_json::{Value, json};

use super::{TEAM, apply, until_condition, wildcard};
use crate::admission::AdmissionClient;
use crate::test_cluster::{POD, TIMEOUT, TestCluster};

fn spec(settings: &Value) -> Value {
    let mut spec = wildcard(&json!({"settings": settings}));
    spec["admission"]["rules"] =
        json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]);
    spec
}

fn policy(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy", "metadata": {"name": name, "namespace": TEAM},
        "spec": spec,
    })
}

#[tokio::test]
async fn a_namespace_has_a_limited_number_and_size_of_policies() -> Result<()> {
    let mut cluster = TestCluster::start("tenant-limits").await?;
    cluster.start_operator(&["--max-policies-per-namespace=2", "--max-mib-per-namespace=1"])?;
    cluster.create_policy_server().await?;
    for namespace in [TEAM, "other"] {
        cluster.kubectl.run(&["create", "namespace", namespace]).await?;
    }
    let admission = AdmissionClient::start(&cluster).await?;
    let revisions = cluster.api::<PolicyRevision>();
    for name in ["a", "b"] {
        let refusal = admission.refusal("CREATE", &policy(name, &spec(&json!({}))), None).await?;
        ensure!(refusal.is_empty(), "{refusal}");
        apply(&cluster, "Policy", name, &spec(&json!({}))).await?;
        until(name, TIMEOUT, async || Ok(revisions.get(&format!("ns.{TEAM}.{name}-1")).await?)).await?;
    }
    let refusal = until("the limit", TIMEOUT, async || {
        let refusal = admission.refusal("CREATE", &policy("c", &spec(&json!({}))), None).await?;
        ensure!(!refusal.is_empty(), "it is admitted");
        Ok(refusal)
    })
    .await?;
    ensure!(refusal.contains("the namespace team has 2 policies already"), "{refusal}");
    ensure!(refusal.contains("--max-policies-per-namespace"), "{refusal}");
    // Policies can be changed, and policies of other namespaces and of the cluster do not count.
    let changed = policy("a", &spec(&json!({"a": 1})));
    ensure!(admission.refusal("UPDATE", &changed, Some(&policy("a", &spec(&json!({}))))).await?.is_empty());
    let mut other = policy("c", &spec(&json!({})));
    other["metadata"]["namespace"] = json!("other");
    ensure!(admission.refusal("CREATE", &other, None).await?.is_empty());

    // Concurrent creations may exceed the limit: no webhook is registered in this test. The third policy is not scheduled.
    apply(&cluster, "Policy", "c", &spec(&json!({}))).await?;
    let full = ("False", "NamespaceFull");
    until_condition(&cluster, ("Policy", "c"), "Scheduled", full).await?;
    ensure!(revisions.get_opt(&format!("ns.{TEAM}.c-1")).await?.is_none(), "it has a revision");
    let policies = cluster.dynamic("proviso.dev/v1alpha1", "Policy", Some(TEAM));
    policies.delete("b", &DeleteParams::default()).await?;
    until("room for the third", 2 * TIMEOUT, async || Ok(revisions.get(&format!("ns.{TEAM}.c-1")).await?)).await?;

    // The revisions of large generations count too.
    let large = |number: usize| spec(&json!({"number": number, "text": "a".repeat(250 * 1024)}));
    let mut live = 0;
    for number in 1..=3 {
        live = apply(&cluster, "Policy", "a", &large(number)).await?;
        cluster.serve(&format!("ns.{TEAM}.a-{live}"), POD).await?;
        cluster.until_path("proviso-ns.team.a", &format!("/validate/ns.team.a/{live}")).await?;
    }
    let refusal = until("the size limit", TIMEOUT, async || {
        let refusal =
            admission.refusal("UPDATE", &policy("c", &large(3)), Some(&policy("c", &spec(&json!({}))))).await?;
        ensure!(!refusal.is_empty(), "it is admitted");
        Ok(refusal)
    })
    .await?;
    ensure!(refusal.contains("would take more than 1 MiB") && refusal.contains("revisionHistoryLimit"), "{refusal}");
    apply(&cluster, "Policy", "a", &large(4)).await?;
    let message = until_condition(&cluster, ("Policy", "a"), "Scheduled", full).await?;
    ensure!(message.contains(&format!("generation {live} goes on answering")), "{message}");
    Ok(())
}

#[tokio::test]
async fn the_api_server_refuses_a_history_of_more_than_fifty_revisions() -> Result<()> {
    let cluster = TestCluster::start("tenant-history").await?;
    cluster.kubectl.run(&["create", "namespace", TEAM]).await?;
    let with = |limit: u32| {
        let mut spec = spec(&json!({}));
        spec["revisionHistoryLimit"] = json!(limit);
        spec
    };
    apply(&cluster, "Policy", "a", &with(50)).await?;
    let refused = apply(&cluster, "Policy", "a", &with(51)).await.err().context("51 revisions are accepted")?;
    ensure!(refused.to_string().contains("spec.revisionHistoryLimit"), "{refused}");
    Ok(())
}
