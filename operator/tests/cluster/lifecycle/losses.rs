//! Lost and missing parts: reports that do not arrive, rollbacks that the API server refuses, and objects without an
//! owner.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use proviso_crds::fixtures::condition;
use proviso_crds::{PolicyPhase, PolicyRevision};
use proviso_e2e::{manifests, until};
use serde_json::json;

use super::{PolicyCluster, TEAM, WEBHOOK, spec};
use crate::test_cluster::{NAMESPACE, POD, TIMEOUT, TestCluster};

/// The time limit for a status that appears when a report is missing for a minute.
const REPORT_BOUND: Duration = Duration::from_mins(3);

#[tokio::test]
async fn missing_reports_of_the_leader_and_of_a_replica_are_named() -> Result<()> {
    let cluster = PolicyCluster::start("operator-missing-reports").await?;
    cluster.write(&spec("true")).await?;
    let message = cluster.until_policy_condition("Ready", "False", "NotPrepared", REPORT_BOUND).await?;
    ensure!(message.contains("PolicyServer default") && message.contains("LeaderElected"), "{message}");
    cluster.until_policy_condition("Initialized", "Unknown", "NotPrepared", TIMEOUT).await?;
    ensure!(cluster.status().await?.phase == Some(PolicyPhase::Pending));
    cluster.until_described("Warning  NotPrepared").await?;

    // The leader has prepared it long ago, and one of two replicas reports nothing.
    let mut initialized = condition("Initialized", "True", "Prepared", "", 1);
    initialized["lastTransitionTime"] = json!("2020-01-01T00:00:00Z");
    let revision = cluster.revision(1).await?;
    cluster.apply_revision_status(&revision, "proviso-leader", json!({"conditions": [initialized]})).await?;
    cluster.report_loaded(1, "server-0", "True", "Loaded").await?;
    until("the name of the silent replica", TIMEOUT, async || {
        let message = cluster.until_policy_condition("Ready", "False", "ReplicaSilent", TIMEOUT).await?;
        ensure!(message.contains("server-1") && !message.contains("server-0"), "{message}");
        Ok(())
    })
    .await?;
    ensure!(cluster.status().await?.phase == Some(PolicyPhase::Pending));
    cluster.until_described("Warning  ReplicaSilent").await?;

    // The report arrives, with a restriction: the generation goes live, and the status names the restriction.
    cluster.report_loaded(1, "server-1", "True", "LoadedBefore").await?;
    cluster.until_live(1).await?;
    let message = cluster.until_policy_condition("Ready", "True", "LoadedBefore", TIMEOUT).await?;
    ensure!(message.contains("server-1: LoadedBefore"), "{message}");
    cluster.until_described("Warning  LoadedBefore").await?;
    cluster.report_loaded(1, "server-1", "True", "Loaded").await?;
    cluster.until_policy_condition("Ready", "True", "Loaded", TIMEOUT).await?;
    Ok(())
}

#[tokio::test]
async fn a_rollback_that_the_api_server_refuses_is_reported_and_the_policy_goes_on() -> Result<()> {
    let cluster = PolicyCluster::start("operator-refused-rollback").await?;
    let mut old = spec("true");
    old["settings"] = json!({"old": true});
    cluster.write(&old).await?;
    cluster.serve(1).await?;
    cluster.until_live(1).await?;
    cluster.write(&spec("true")).await?;
    cluster.serve(2).await?;
    cluster.until_live(2).await?;
    let rules = json!([{
        "operations": ["UPDATE"], "apiGroups": ["proviso.dev"], "apiVersions": ["*"], "resources": ["policies"],
    }]);
    let refusing = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "no-old-settings"},
        "spec": {
            "failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules},
            "validations": [{
                "expression": "!has(object.spec.settings) || !has(object.spec.settings.old)",
                "message": "old settings are no longer permitted",
            }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "no-old-settings"},
        "spec": {"policyName": "no-old-settings", "validationActions": ["Deny"]},
    });
    for object in [refusing, binding] {
        manifests::apply(&cluster.client, &object.to_string()).await?;
    }
    let policy = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy", "metadata": {"name": "labels"}, "spec": old,
    });
    until("the refusal of old settings", TIMEOUT, async || {
        let dry_run = PatchParams::apply("owner").force().dry_run();
        let written = cluster.policies().patch("labels", &dry_run, &Patch::Apply(&policy)).await;
        ensure!(written.is_err(), "the ValidatingAdmissionPolicy is not in force");
        Ok(())
    })
    .await?;

    cluster.kubectl.run(&["annotate", "policy", "labels", "proviso.dev/rollback-to=1", "--namespace", TEAM]).await?;
    let message = cluster.until_policy_condition("RolledBack", "False", "RollbackRefused", TIMEOUT).await?;
    ensure!(message.contains("generation 1") && message.contains("no longer permitted"), "{message}");
    cluster.until_described("Warning  RollbackRefused").await?;
    until("the end of the request", TIMEOUT, async || {
        let policy = cluster.policies().get("labels").await?;
        ensure!(!policy.annotations().contains_key("proviso.dev/rollback-to"), "the annotation is left");
        ensure!(policy.metadata.generation == Some(2), "{policy:?}");
        Ok(())
    })
    .await?;
    cluster.set_path("/nowhere").await?;
    cluster.until_live(2).await?;

    // The refusal is about the second generation, and ends with it.
    cluster.write(&spec("3 > 2")).await?;
    cluster.serve(3).await?;
    cluster.until_live(3).await?;
    until("the end of the condition", TIMEOUT, async || {
        let status = cluster.status().await?;
        ensure!(status.conditions.iter().all(|it| it.type_ != "RolledBack"), "{status:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn objects_without_a_policy_are_deleted() -> Result<()> {
    let mut cluster = PolicyCluster::start("operator-orphans").await?;
    cluster.write(&spec("true")).await?;
    cluster.serve(1).await?;
    cluster.until_live(1).await?;
    let until_swept = async |cluster: &PolicyCluster, webhook: &str, revision: &str| {
        until(&format!("the end of {webhook} and {revision}"), 2 * TIMEOUT, async || {
            let found = (cluster.path(webhook).await?, cluster.revisions().get_opt(revision).await?);
            ensure!(found.0.is_none() && found.1.is_none(), "{found:?}");
            Ok(())
        })
        .await
    };
    // A client of another version wrote objects of a policy that was deleted.
    let mut webhook = cluster.webhooks().get(WEBHOOK).await?;
    let mut revision = cluster.revision(1).await?;
    for metadata in [&mut webhook.metadata, &mut revision.metadata] {
        metadata.labels = Some([("proviso.dev/policy-uid".to_owned(), "gone".to_owned())].into());
        (metadata.uid, metadata.resource_version, metadata.managed_fields) = (None, None, None);
    }
    webhook.metadata.name = Some("proviso-cluster.gone".to_owned());
    revision.metadata.name = Some("cluster.gone-1".to_owned());
    (revision.spec.policy_ref.name, revision.spec.policy_ref.uid) = ("gone".to_owned(), "gone".to_owned());
    cluster.revisions().create(&PostParams::default(), &revision).await?;
    cluster.webhooks().create(&PostParams::default(), &webhook).await?;
    until_swept(&cluster, "proviso-cluster.gone", "cluster.gone-1").await?;
    cluster.until_live(1).await?;

    // Somebody removes the finalizer of a policy while no operator runs.
    cluster.operators.clear();
    cluster.policies().delete("labels", &DeleteParams::default()).await?;
    let forced = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    cluster.policies().patch("labels", &PatchParams::default(), &forced).await?;
    ensure!(cluster.policies().get_opt("labels").await?.is_none());
    cluster.start_operator(&[])?;
    until_swept(&cluster, WEBHOOK, "ns.team.labels-1").await
}

#[tokio::test]
async fn a_live_revision_is_deleted_only_with_its_policy_or_its_namespace() -> Result<()> {
    let mut cluster = TestCluster::start("operator-live-revision").await?;
    cluster.start_reachable_operator(&["--aggregated-api", "false"]).await?;
    cluster.apply_server("default", json!({"replicas": 1})).await?;
    until("the replica", TIMEOUT, async || Ok(cluster.api::<Pod>().get(POD).await?)).await?;
    cluster.make_ready(POD).await?;
    // The webhook may be registered a moment before its Service can be reached.
    for (name, expression) in [("a", "true"), ("a", "2 > 1"), ("b", "true")] {
        until("the policy to be admitted", TIMEOUT, async || cluster.apply_policy(name, "default", expression).await)
            .await?;
        cluster.make_live(name, expression).await?;
    }
    let revisions = cluster.api::<PolicyRevision>();
    let delete = async |name: &str, is_dry_run: bool| {
        let params = DeleteParams { dry_run: is_dry_run, ..DeleteParams::default() };
        revisions.delete(name, &params).await.map(drop)
    };
    until("a refusal", TIMEOUT, async || {
        let refused = delete("cluster.a-2", true).await.err().context("the deletion is permitted")?;
        ensure!(refused.to_string().contains("generation 2 of a is live"), "{refused}");
        Ok(())
    })
    .await?;
    ensure!(delete("cluster.a-2", false).await.is_err() && revisions.get_opt("cluster.a-2").await?.is_some());
    until("the deletion of a replaced revision", TIMEOUT, async || Ok(delete("cluster.a-1", false).await?)).await?;

    // The deletion of the policy, and of the namespace, is not held up.
    cluster.kubectl.run(&["delete", "clusterpolicy", "a", "--wait=false"]).await?;
    Api::<Namespace>::all(cluster.client.clone()).delete(NAMESPACE, &DeleteParams::default()).await?;
    for name in ["cluster.a-2", "cluster.b-1"] {
        until(&format!("the end of {name}"), 2 * TIMEOUT, async || {
            ensure!(revisions.get_opt(name).await?.is_none(), "it is still there");
            Ok(())
        })
        .await?;
    }
    Ok(())
}
