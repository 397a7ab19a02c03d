//! Unique names and priorities of request policies, with a real API server.

use anyhow::{Context as _, Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use proviso_crds::{ClusterPolicy, PolicyPhase, PolicyRevision};
use proviso_e2e::{until, until_after};
use serde_json::{Value, json};

use crate::admission::AdmissionClient;
use crate::test_cluster::{POD, TIMEOUT, TestCluster};

fn policy(name: &str, request: &Value) -> Value {
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name},
        "spec": {"program": {"cel": {"validations": [{"expression": "true"}]}}, "request": request},
    })
}

/// Waits until a condition of a policy has this status and reason. Returns its message.
async fn until_condition(
    policies: &Api<ClusterPolicy>,
    name: &str,
    condition: &str,
    (status, reason): (&str, &str),
) -> Result<String> {
    until(&format!("{name}: {condition} {status}, {reason}"), TIMEOUT, async || {
        let conditions = policies.get(name).await?.status.context("no status")?.conditions;
        let found = conditions.iter().find(|it| it.type_ == condition).context("no such condition")?;
        ensure!(found.status == status && found.reason == reason, "{found:?}");
        Ok(found.message.clone())
    })
    .await
}

/// Returns an error unless the policy is live with this generation.
async fn until_live(policies: &Api<ClusterPolicy>, name: &str, generation: i64) -> Result<()> {
    until(&format!("{name}: generation {generation} live"), TIMEOUT, async || {
        let status = policies.get(name).await?.status.context("no status")?;
        ensure!(status.live_generation == Some(generation), "{status:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn one_of_two_creations_at_the_same_time_is_rolled_out() -> Result<()> {
    let mut cluster = TestCluster::with_policy_server("unique-race").await?;
    let (policies, revisions) = (Api::<ClusterPolicy>::all(cluster.client.clone()), cluster.api::<PolicyRevision>());
    // No webhook is registered in this test, so that both creations pass.
    let (a, b) = (serde_json::from_value(policy("a", &json!({})))?, serde_json::from_value(policy("b", &json!({})))?);
    let parameters = PostParams::default();
    let (first, second) = tokio::join!(policies.create(&parameters, &a), policies.create(&parameters, &b));
    let (first, second) = (first?, second?);
    let age = |policy: &ClusterPolicy| (policy.creation_timestamp().map(|time| time.0), policy.uid());
    let (winner, loser) = if age(&first) < age(&second) { ("a", "b") } else { ("b", "a") };
    let in_use = ("False", "PriorityInUse");
    let message = until_condition(&policies, loser, "Scheduled", in_use).await?;
    let expected = format!("spec.request.priority: 500 is in use by policy cluster.{winner} among the Global policies");
    ensure!(message.starts_with(&expected), "{message}");
    cluster.serve(&format!("cluster.{winner}-1"), POD).await?;
    until_live(&policies, winner, 1).await?;
    ensure!(revisions.get_opt(&format!("cluster.{loser}-1")).await?.is_none(), "the loser has a revision");

    // A restart of the operator changes nothing.
    cluster.operators.clear();
    cluster.start_operator(&[])?;
    let patch = json!({"metadata": {"labels": {"a": "b"}}});
    policies.patch(loser, &PatchParams::default(), &Patch::Merge(patch)).await?;
    cluster.calls_when_idle().await?;
    let lost = policies.get(loser).await?.status.context("no status")?;
    ensure!(lost.phase == Some(PolicyPhase::Failed) && lost.live_generation.is_none(), "{lost:?}");
    ensure!(revisions.get_opt(&format!("cluster.{loser}-1")).await?.is_none(), "the loser has a revision");

    // The winner changes its priority to that of a third policy: its live generation keeps the first priority.
    let third = serde_json::from_value(policy("c", &json!({"priority": 7})))?;
    policies.create(&parameters, &third).await?;
    cluster.serve("cluster.c-1", POD).await?;
    until_live(&policies, "c", 1).await?;
    let priority = |priority: u32| Patch::Merge(json!({"spec": {"request": {"priority": priority}}}));
    policies.patch(winner, &PatchParams::default(), &priority(7)).await?;
    let message = until_condition(&policies, winner, "Scheduled", in_use).await?;
    ensure!(
        message.contains("7 is in use by policy cluster.c") && message.contains("generation 1 goes on"),
        "{message}"
    );
    until_live(&policies, winner, 1).await?;
    until_condition(&policies, loser, "Scheduled", in_use).await?;

    // After the deletion of the winner, the loser is rolled out.
    policies.delete(winner, &DeleteParams::default()).await?;
    cluster.serve(&format!("cluster.{loser}-1"), POD).await?;
    until_live(&policies, loser, 1).await?;
    until_condition(&policies, loser, "Scheduled", ("True", "RevisionCreated")).await?;
    Ok(())
}

#[tokio::test]
async fn a_name_or_a_priority_in_use_is_refused_when_it_is_applied() -> Result<()> {
    let mut cluster = TestCluster::start("unique-admission").await?;
    cluster.start_operator(&[])?;
    let admission = AdmissionClient::start(&cluster).await?;
    let policies = Api::<ClusterPolicy>::all(cluster.client.clone());
    let parameters = PostParams::default();
    let create = async |name: &str, request: Value| -> Result<Value> {
        let created = policies.create(&parameters, &serde_json::from_value(policy(name, &request))?).await?;
        Ok(serde_json::to_value(created)?)
    };
    let used = create("a", json!({"displayName": "billing", "priority": 7})).await?;
    let response = until("the refusal", TIMEOUT, async || {
        let other = policy("b", &json!({"displayName": "billing", "priority": 7}));
        let response = admission.ask("CREATE", &other, None).await?;
        ensure!(response["allowed"] == false, "the cache is late");
        Ok(response)
    })
    .await?;
    let status = &response["status"];
    ensure!(status["code"] == 422 && status["reason"] == "Invalid", "{status}");
    let causes = status["details"]["causes"].as_array().context("causes")?;
    ensure!(causes.len() == 2 && causes.iter().all(|cause| cause["reason"] == "FieldValueDuplicate"), "{status}");
    ensure!(causes[0]["field"] == "spec.request.displayName" && causes[1]["field"] == "spec.request.priority");
    let message = status["message"].as_str().context("a message")?;
    let expected =
        "spec.request.priority: 7 is in use by policy cluster.a among the Global policies: choose another number";
    ensure!(message.contains(expected), "{message}");

    let refusal = async |operation: &str, request: Value, old: Option<&Value>| {
        let name = old.and_then(|old| old["metadata"]["name"].as_str()).unwrap_or("b");
        admission.refusal(operation, &policy(name, &request), old).await
    };
    // Other names and priorities, the policy itself, and another level.
    for (operation, request, old) in [
        ("CREATE", json!({"displayName": "costs", "priority": 8}), None),
        ("UPDATE", json!({"displayName": "billing", "priority": 7, "serviceTypes": ["vm"]}), Some(&used)),
        ("UPDATE", json!({"displayName": "costs", "priority": 8}), Some(&used)),
        ("CREATE", json!({"displayName": "billing", "priority": 7, "user": "ana"}), None),
    ] {
        let refusal = refusal(operation, request.clone(), old).await?;
        ensure!(refusal.is_empty(), "{request}: {refusal}");
    }
    // A policy that lost a race can be changed, but not to another value in use.
    let lost = create("c", json!({"displayName": "costs", "priority": 7})).await?;
    let changed = json!({"displayName": "costs", "priority": 7, "description": "corrected"});
    ensure!(refusal("UPDATE", changed, Some(&lost)).await?.is_empty());
    let refused = refusal("UPDATE", json!({"displayName": "billing", "priority": 7}), Some(&lost)).await?;
    ensure!(refused.contains("displayName") && !refused.contains("priority"), "{refused}");
    ensure!(refusal("UPDATE", json!({"displayName": "costs", "priority": 8}), Some(&lost)).await?.is_empty());
    // A deleted policy has no values any more, also while its finalizer waits.
    policies.delete("c", &DeleteParams::default()).await?;
    policies.delete("a", &DeleteParams::default()).await?;
    until("the free values", TIMEOUT, async || {
        let refused = refusal("CREATE", json!({"displayName": "billing", "priority": 7}), None).await?;
        ensure!(refused.is_empty(), "{refused}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn another_tenant_of_a_namespace_takes_no_priority_from_a_live_policy() -> Result<()> {
    let cluster = TestCluster::with_policy_server("unique-tenants").await?;
    let create = async |namespace: &str| {
        cluster.kubectl.run(&["create", "namespace", namespace]).await?;
        let mut object = policy("defaults", &json!({}));
        object["kind"] = "Policy".into();
        object["metadata"]["namespace"] = namespace.into();
        let api = cluster.dynamic("proviso.dev/v1alpha1", "Policy", Some(namespace));
        api.patch("defaults", &PatchParams::apply("test").force(), &Patch::Apply(object)).await?;
        cluster.serve(&format!("ns.{namespace}.defaults-1"), POD).await?;
        // The policy of the next namespace is younger.
        until_after(&api.get("defaults").await?.creation_timestamp().context("its age")?).await
    };
    let status = async |namespace: &str| -> Result<Value> {
        let api = cluster.dynamic("proviso.dev/v1alpha1", "Policy", Some(namespace));
        Ok(api.get("defaults").await?.data["status"].clone())
    };
    for namespace in ["blue", "green"] {
        create(namespace).await?;
        until(&format!("{namespace} live"), TIMEOUT, async || {
            let status = status(namespace).await?;
            ensure!(status["liveGeneration"] == 1, "{status}");
            Ok(())
        })
        .await?;
    }
    // Both policies are live for the same tenant now: both keep deciding, and the younger one has the conditions of the conflict.
    let scheduled = async |reason: &str| {
        until(reason, TIMEOUT, async || {
            let status = status("green").await?;
            let conditions = status["conditions"].as_array().context("no conditions")?;
            let scheduled = conditions.iter().find(|it| it["type"] == "Scheduled").context("no condition")?;
            ensure!(scheduled["reason"] == reason && status["liveGeneration"] == 1, "{status}");
            Ok(())
        })
        .await
    };
    cluster.kubectl.run(&["label", "namespace", "green", "proviso.dev/tenant=blue"]).await?;
    scheduled("NameInUse").await?;
    ensure!(status("blue").await?["liveGeneration"] == 1);
    cluster.kubectl.run(&["label", "namespace", "green", "proviso.dev/tenant-"]).await?;
    scheduled("RevisionCreated").await
}
