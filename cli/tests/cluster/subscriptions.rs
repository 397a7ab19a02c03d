//! Tests of `proviso subscriptions` with a cluster. The test acts as the operator: it writes the status and the stored policies.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use proviso_core::configuration::{Audience, ConfigurationPolicy, Item, Version};
use proviso_crds::fixtures::condition;
use proviso_crds::{Policy, PolicySubscription};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::test_cluster::{TEAM, TestCluster, WAIT_TIMEOUT, run};

fn subscriptions(cluster: &TestCluster) -> Api<PolicySubscription> {
    Api::namespaced(cluster.client.clone(), TEAM)
}

async fn create(cluster: &TestCluster) -> Result<PolicySubscription> {
    let subscription = json!({
        "metadata": {"name": "collector"},
        "spec": {
            "component": {"kind": "Deployment", "name": "collector"},
            "policies": [{"filter": {"configName": "memory"}}],
            "delivery": {
                "configMap": "collector-policies", "notify": {"exec": {"command": ["/component", "reconfigure"]}},
            },
        },
    });
    Ok(subscriptions(cluster).create(&PostParams::default(), &serde_json::from_value(subscription)?).await?)
}

async fn policy(cluster: &TestCluster, name: &str, configuration: Value) -> Result<i64> {
    let policy = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy", "metadata": {"name": name},
        "spec": {"configuration": configuration},
    });
    let policies = Api::<Policy>::namespaced(cluster.client.clone(), TEAM);
    let written = policies.patch(name, &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?;
    written.metadata.generation.context("a generation")
}

/// Returns the body of a policy, as the operator makes it.
fn item(name: &str, generation: i64, content: &Value) -> Result<Item> {
    let facts = ConfigurationPolicy {
        id: format!("ns.{TEAM}.{name}").parse()?,
        version: Version::of(generation),
        config_name: "memory".to_owned(),
        owner: None,
        attributes: [].into(),
        is_confidential: false,
        audience: Audience::All,
    };
    Ok(Item::new(&facts, content)?)
}

async fn write_status(cluster: &TestCluster, status: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"status": status}));
    subscriptions(cluster).patch_status("collector", &PatchParams::default(), &patch).await?;
    Ok(())
}

fn conditions(delivered: &str, reason: &str) -> Value {
    json!([condition("Resolved", "True", "Resolved", "m", 1), condition("Delivered", delivered, reason, "m", 1)])
}

#[tokio::test]
async fn the_bodies_of_a_component_are_compared_with_the_policies() -> Result<()> {
    let cluster = TestCluster::with_kinds("cli-subscriptions").await?;
    let output = cluster.proviso(&["subscriptions", "list"]).await?;
    ensure!(output.code == Some(0) && output.out.contains("no PolicySubscription in the namespace default"));
    let subscription = create(&cluster).await?;
    let output = cluster.proviso(&["subscriptions", "status", "collector", "-n", TEAM]).await?;
    ensure!(output.code == Some(3) && output.out.contains("it has not been processed yet"), "{output:?}");

    policy(&cluster, "memory", json!({"configName": "memory", "content": {"min_memory": 64}})).await?;
    policy(&cluster, "memory", json!({"configName": "memory", "content": {"min_memory": 128}})).await?;
    policy(&cluster, "level", json!({"configName": "memory", "template": {"cel": "{'level': component.name}"}}))
        .await?;
    let old = item("memory", 1, &json!({"min_memory": 64}))?;
    let stored = |name: &str, owner: Option<&str>, text: &str| {
        let uid = subscription.uid().unwrap_or_default();
        let owners: Vec<_> = owner
            .map(|uid| {
                json!({
                    "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicySubscription", "name": "collector", "uid": uid,
                    "controller": true,
                })
            })
            .into_iter()
            .collect();
        json!({
            "metadata": {"name": name, "labels": {"proviso.dev/subscription-uid": uid}, "ownerReferences": owners},
            "data": {"event": "{}", "items.ns.team.memory": text},
        })
    };
    let maps = Api::<ConfigMap>::namespaced(cluster.client.clone(), TEAM);
    let uid = subscription.uid();
    for (name, owner, text) in [
        ("collector-policies", uid.as_deref(), &**old.body()),
        // Another user has set the label.
        ("foreign", None, r#"{"policyVersion":"1","config":{"min_memory":1}}"#),
    ] {
        maps.create(&PostParams::default(), &serde_json::from_value(stored(name, owner, text))?).await?;
    }
    let digest = old.entry().digest.to_string();
    let rejected = item("memory", 2, &json!({"min_memory": 128}))?.entry().digest.to_string();
    let message = "exit code 3: min_memory is too large";
    let status = json!({
        "observedGeneration": 1, "conditions": conditions("False", "Rejected"), "summary": "1/2",
        "policies": [{"id": "ns.team.memory", "version": "1", "digest": digest}],
        "pending": [{"id": "ns.team.level", "version": "1"}, {"id": "ns.team.memory", "version": "2"}],
        "rejected": [{"id": "ns.team.memory", "version": "2", "digest": rejected, "message": message}],
        "lastUpdate": {"id": "u", "time": "2026-11-21T09:59:00Z", "result": "Rejected", "message": message},
    });
    write_status(&cluster, status).await?;

    let output = cluster.proviso(&["subscriptions", "list", "-A"]).await?;
    let row = output.out.lines().nth(1).context("a row")?;
    let cells: Vec<_> = row.split_whitespace().take(4).collect();
    ensure!(cells == ["team/collector", "Deployment/collector", "1/2", "Rejected"], "{output:?}");
    let output = cluster.proviso(&["sub", "status", "pvsub/collector", "-n", TEAM, "--diff"]).await?;
    ensure!(output.code == Some(1), "{output:?}");
    for wanted in [
        "ns.team.memory  1    2            Rejected  exit code 3: min_memory is too large\n",
        "-  min_memory: 64\n+  min_memory: 128\n",
        "+policyVersion: '2'\n",
        "ns.team.level: the body of version 1 (should have): a template computes it for each component\n",
        "proviso rollback ns.team.memory\n",
    ] {
        ensure!(output.out.contains(wanted), "{wanted}: {}", output.out);
    }
    // A user who may not read the ConfigMaps and Secrets sees the versions, and what is missing.
    let reader = cluster.user("reader", "get,list", "policysubscriptions.proviso.dev,policies.proviso.dev").await?;
    let output = run("proviso", &reader, &["subscriptions", "status", "collector", "-n", TEAM, "--diff"]).await?;
    for wanted in [
        "ns.team.memory: the body of version 1 (has): it is not stored in a ConfigMap or Secret that you may read\n",
        "Not shown: the stored policies: you may not list configmaps in the namespace team.\n",
        "Not shown: confidential policies: you may not list secrets in the namespace team.\n",
    ] {
        ensure!(output.out.contains(wanted), "{wanted}: {}", output.out);
    }
    let output = cluster.proviso(&["subscriptions", "status", "colector"]).await?;
    ensure!(output.code == Some(1) && output.err.contains("Did you mean collector -n team?"), "{output:?}");

    // The overview of policies shows configuration policies without a server and replicas.
    let output = cluster.proviso(&["status", "ns.team.memory", "-o", "json"]).await?.json()?;
    ensure!(output.get("policyServer").is_none() && output.get("replicas").is_none(), "{output:#}");
    Ok(())
}

#[tokio::test]
async fn a_resend_is_requested_by_an_annotation_and_waits_for_its_result() -> Result<()> {
    let cluster = TestCluster::with_kinds("cli-resend").await?;
    create(&cluster).await?;
    let operator = async {
        let value = until("the request", WAIT_TIMEOUT, async || {
            let subscription = subscriptions(&cluster).get("collector").await?;
            let manager = subscription.managed_fields().iter().any(|it| it.manager.as_deref() == Some("proviso-cli"));
            ensure!(manager, "no field manager");
            subscription.annotations().get("proviso.dev/resend").cloned().context("no annotation")
        })
        .await?;
        // The policies are on their way, so the program waits.
        let mut status = json!({
            "observedGeneration": 1, "conditions": conditions("False", "Delivering"), "observedResend": value,
            "unconfirmed": ["ns.team.memory"],
        });
        write_status(&cluster, status.clone()).await?;
        (status["conditions"], status["unconfirmed"]) = (conditions("True", "Delivered"), json!(null));
        write_status(&cluster, status).await
    };
    let arguments = ["subscriptions", "resend", "collector", "-n", TEAM];
    let (output, operator) = tokio::join!(cluster.proviso(&arguments), operator);
    operator?;
    let output = output?;
    ensure!(output.code == Some(0), "{output:?}");
    ensure!(output.out.ends_with("team/collector: the component has all its policies\n"), "{output:?}");
    // Without an operator, the wait has an end.
    let output = cluster.proviso(&[&arguments[..], &["--timeout", "1s"]].concat()).await?;
    ensure!(output.code == Some(1) && output.out.contains("no answer in time"), "{output:?}");
    let reader = cluster.user("reader", "get,list", "policysubscriptions.proviso.dev").await?;
    let output = run("proviso", &reader, &arguments).await?;
    let refused = "you may not patch policysubscriptions.proviso.dev in the namespace team";
    ensure!(output.code == Some(1) && output.err.contains(refused), "{output:?}");
    Ok(())
}
