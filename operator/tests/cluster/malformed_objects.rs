//! Malformed objects, such as objects that another version of the CRDs admitted, with a real API server and the
//! operator's binary. Each is reported once and skipped, and all other objects are reconciled.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use proviso_crds::{PolicyPhase, PolicyStatus};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::test_cluster::{NAMESPACE, POD, TIMEOUT, TestCluster};

impl TestCluster {
    /// Starts a cluster with a policy server with one Ready replica, and CRDs that accept any spec.
    async fn without_schemas(name: &str) -> Result<Self> {
        let mut cluster = Self::start(name).await?;
        for kind in ["policies", "clusterpolicies", "policyservers", "policyrevisions", "clusterpolicyexperiments"] {
            let anything = json!([{
                "op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec",
                "value": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            }]);
            let crd = format!("{kind}.proviso.dev");
            cluster.kubectl.run(&["patch", "crd", &crd, "--type=json", "-p", &anything.to_string()]).await?;
        }
        cluster.start_with_policy_server().await?;
        Ok(cluster)
    }

    fn kind(&self, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
        self.dynamic("proviso.dev/v1alpha1", kind, namespace)
    }

    fn cluster_policies(&self) -> Api<DynamicObject> {
        self.kind("ClusterPolicy", None)
    }

    /// Waits until the webhook calls this generation.
    async fn until_generation(&self, policy: &str, generation: i64) -> Result<()> {
        self.until_path(&format!("proviso-cluster.{policy}"), &format!("/validate/cluster.{policy}/{generation}")).await
    }

    /// Writes a field, even with a value that the original schema forbids. Retries until the API server has loaded
    /// the new schema.
    async fn overwrite(&self, api: &Api<DynamicObject>, name: &str, pointer: &str, value: Value) -> Result<()> {
        let change = json!([{"op": "add", "path": pointer, "value": value}]);
        let change: Patch<()> = Patch::Json(serde_json::from_value(change)?);
        until(&format!("{pointer} of {name} to be written"), TIMEOUT, async || {
            Ok(api.patch(name, &PatchParams::default(), &change).await.map(drop)?)
        })
        .await
    }

    /// Returns the notes of the Events about a malformed object.
    async fn malformed_events(&self, kind: &str, name: &str) -> Result<Vec<String>> {
        let events = Api::<Event>::all(self.client.clone()).list(&ListParams::default()).await?;
        let about = events.into_iter().filter(|event| {
            let object = event.regarding.clone().unwrap_or_default();
            event.reason.as_deref() == Some("Malformed")
                && (object.kind.as_deref(), object.name.as_deref()) == (Some(kind), Some(name))
        });
        Ok(about.filter_map(|event| event.note).collect())
    }

    async fn until_malformed_event(&self, kind: &str, name: &str, field: &str) -> Result<()> {
        until(&format!("the Event about {kind} {name}"), TIMEOUT, async || {
            let notes = self.malformed_events(kind, name).await?;
            ensure!(notes.iter().any(|note| note.contains(field)), "{notes:?}");
            Ok(())
        })
        .await
    }

    async fn until_gone(&self, api: &Api<DynamicObject>, name: &str) -> Result<()> {
        until(&format!("the end of {name}"), TIMEOUT, async || {
            ensure!(api.get_opt(name).await?.is_none(), "it is still there");
            Ok(())
        })
        .await
    }
}

#[tokio::test]
async fn a_malformed_policy_is_reported_and_its_live_generation_stays() -> Result<()> {
    let mut cluster = TestCluster::without_schemas("malformed-policy").await?;
    let policies = cluster.cluster_policies();
    cluster.make_live("was-good", "true").await?;
    cluster.overwrite(&policies, "was-good", "/spec/program", json!({"newer": {}})).await?;
    cluster.until_malformed_event("ClusterPolicy", "was-good", "spec.program: ").await?;
    let described = cluster.kubectl.run(&["describe", "clusterpolicy", "was-good"]).await?;
    ensure!(described.contains("Warning  Malformed") && described.contains("needs exactly one of"), "{described}");
    // A policy of each scope that was never readable gets an Event in a namespace that its owner can read.
    let bad = |kind: &str| {
        let metadata = json!({"name": "bad", "finalizers": ["example.com/mine"]});
        json!({"apiVersion": "proviso.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": {"program": 7}})
    };
    for (kind, namespace) in [("ClusterPolicy", None), ("Policy", Some("default"))] {
        let bad = serde_json::from_value(bad(kind))?;
        cluster.kind(kind, namespace).create(&PostParams::default(), &bad).await?;
        cluster.until_malformed_event(kind, "bad", "spec.program: ").await?;
    }
    let log = cluster.log()?;
    let line = log.lines().find(|line| line.contains("object skipped") && line.contains(r#""name":"bad""#));
    ensure!(line.is_some_and(|line| line.contains("spec.program: ")), "{line:?}");

    // An operator that finds the malformed objects at its start also reconciles the others.
    cluster.operators.clear();
    cluster.start_operator(&[])?;
    cluster.make_live("later", "true").await?;
    until("the Event of the second operator", TIMEOUT, async || {
        ensure!(cluster.malformed_events("ClusterPolicy", "was-good").await?.len() == 2);
        Ok(())
    })
    .await?;
    // The webhook of the live generation is restored, and no report is repeated.
    for _ in 0..2 {
        cluster.webhooks().delete("proviso-cluster.was-good", &DeleteParams::default()).await?;
        cluster.until_generation("was-good", 1).await?;
    }
    let events = cluster.malformed_events("ClusterPolicy", "was-good").await?;
    ensure!(events.len() == 2, "{events:?}");

    // The repaired policy is rolled out like any other generation.
    cluster.overwrite(&policies, "was-good", "/spec/program", json!({"cel": {"validations": []}})).await?;
    cluster.serve("cluster.was-good-3", POD).await?;
    cluster.until_generation("was-good", 3).await?;
    // A policy that becomes malformed again is reported again. It can be deleted with all its objects.
    cluster.overwrite(&policies, "was-good", "/spec/program", json!({"newer": {}})).await?;
    until("the next Event", TIMEOUT, async || {
        ensure!(cluster.malformed_events("ClusterPolicy", "was-good").await?.len() == 3);
        Ok(())
    })
    .await?;
    policies.delete("was-good", &DeleteParams::default()).await?;
    cluster.until_gone(&policies, "was-good").await?;
    ensure!(cluster.path("proviso-cluster.was-good").await?.is_none());
    let revisions = cluster.kind("PolicyRevision", Some(NAMESPACE)).list(&ListParams::default()).await?;
    let left: Vec<_> = revisions.iter().map(ResourceExt::name_any).collect();
    ensure!(left == ["cluster.later-1"], "{left:?}");
    cluster.until_generation("later", 1).await
}

#[tokio::test]
async fn a_malformed_revision_is_reported_and_its_policy_keeps_working() -> Result<()> {
    let cluster = TestCluster::without_schemas("malformed-revision").await?;
    let revisions = cluster.kind("PolicyRevision", Some(NAMESPACE));
    cluster.make_live("a", "true").await?;
    cluster.overwrite(&revisions, "cluster.a-1", "/spec/data", json!(7)).await?;
    cluster.until_malformed_event("PolicyRevision", "cluster.a-1", "spec.data: ").await?;
    let described = cluster.kubectl.run(&["describe", "pvr", "cluster.a-1", "--namespace", NAMESPACE]).await?;
    ensure!(described.contains("Warning  Malformed"), "{described}");
    // The malformed revision stays live: the policy server loaded it before.
    cluster.until_generation("a", 1).await?;
    cluster.make_live("b", "true").await?;
    cluster.apply_policy("a", "default", "2 > 1").await?;
    cluster.serve("cluster.a-2", POD).await?;
    cluster.until_generation("a", 2).await?;
    ensure!(revisions.get_opt("cluster.a-1").await?.is_some());

    // If the newest revision is malformed, the status of the policy reports the reason.
    cluster.apply_policy("a", "default", "3 > 2").await?;
    until("cluster.a-3", TIMEOUT, async || Ok(revisions.get("cluster.a-3").await?)).await?;
    cluster.overwrite(&revisions, "cluster.a-3", "/spec/enabled", json!("perhaps")).await?;
    until("the status of the policy", TIMEOUT, async || {
        let policy = cluster.cluster_policies().get("a").await?;
        let status: PolicyStatus = serde_json::from_value(policy.data["status"].clone())?;
        ensure!(status.phase == Some(PolicyPhase::Failed) && status.live_generation == Some(2), "{status:?}");
        let condition = status.conditions.iter().find(|it| it.type_ == "Initialized").context("Initialized")?;
        ensure!(condition.reason == "Malformed" && condition.message.contains("spec.enabled: "), "{condition:?}");
        ensure!(condition.message.contains("delete cluster.a-3"), "{condition:?}");
        Ok(())
    })
    .await?;
    cluster.until_generation("a", 2).await?;
    // The remedy in the message works.
    revisions.delete("cluster.a-3", &DeleteParams::default()).await?;
    cluster.serve("cluster.a-3", POD).await?;
    cluster.until_generation("a", 3).await?;

    // The deletion of the policy also deletes its malformed revisions.
    let policies = cluster.cluster_policies();
    policies.delete("a", &DeleteParams::default()).await?;
    cluster.until_gone(&policies, "a").await?;
    let left = revisions.list(&ListParams::default()).await?;
    let left: Vec<_> = left.iter().map(ResourceExt::name_any).collect();
    ensure!(left == ["cluster.b-1"], "{left:?}");
    Ok(())
}

#[tokio::test]
async fn a_malformed_experiment_is_reported_and_its_preview_continues() -> Result<()> {
    let cluster = TestCluster::without_schemas("malformed-experiment").await?;
    let (experiments, revisions) =
        (cluster.kind("ClusterPolicyExperiment", None), cluster.kind("PolicyRevision", Some(NAMESPACE)));
    cluster.make_live("a", "true").await?;
    let create = async |name: &str| -> Result<DynamicObject> {
        let policy = cluster.cluster_policies().get("a").await?.data["spec"].clone();
        let experiment = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicyExperiment", "metadata": {"name": name},
            "spec": {"policyRef": {"name": "a"}, "policy": policy, "autoStart": true},
        });
        experiments.create(&PostParams::default(), &serde_json::from_value(experiment)?).await?;
        let candidate = format!("experiment.cluster.{name}-1");
        until(&candidate, TIMEOUT, async || Ok(revisions.get(&candidate).await?)).await
    };
    let candidate = create("e").await?;
    cluster.overwrite(&experiments, "e", "/spec/policy/program", json!({"newer": {}})).await?;
    cluster.until_malformed_event("ClusterPolicyExperiment", "e", "spec.policy.program: ").await?;
    create("other").await?;
    ensure!(revisions.get("experiment.cluster.e-1").await?.uid() == candidate.uid(), "the candidate was created again");

    // A malformed candidate is created again.
    let malformed = revisions.get("experiment.cluster.other-1").await?;
    cluster.overwrite(&revisions, "experiment.cluster.other-1", "/spec/data", json!(7)).await?;
    until("another candidate", TIMEOUT, async || {
        ensure!(revisions.get("experiment.cluster.other-1").await?.uid() != malformed.uid());
        Ok(())
    })
    .await?;
    // A malformed experiment can be deleted with all its objects.
    experiments.delete("e", &DeleteParams::default()).await?;
    cluster.until_gone(&experiments, "e").await?;
    cluster.until_gone(&revisions, "experiment.cluster.e-1").await
}

#[tokio::test]
async fn a_malformed_policy_server_is_reported_and_its_replicas_stay() -> Result<()> {
    let mut cluster = TestCluster::without_schemas("malformed-server").await?;
    let servers = cluster.kind("PolicyServer", None);
    cluster.make_live("a", "true").await?;
    let before = cluster.dynamic("apps/v1", "StatefulSet", Some(NAMESPACE)).get("policy-server-default").await?;
    cluster.overwrite(&servers, "default", "/spec/logLevel", json!("whispered")).await?;
    cluster.until_malformed_event("PolicyServer", "default", "spec.logLevel: ").await?;
    cluster.operators.clear();
    cluster.start_operator(&[])?;
    // Other policy servers are created, and policies of this policy server still go live.
    cluster.apply_server("other", json!({})).await?;
    until("the other one", TIMEOUT, async || {
        Ok(cluster.api::<ConfigMap>().get("policy-server-other-sources").await.map(drop)?)
    })
    .await?;
    cluster.make_live("b", "true").await?;
    let after = cluster.dynamic("apps/v1", "StatefulSet", Some(NAMESPACE)).get("policy-server-default").await?;
    ensure!((before.uid(), &before.data["spec"]) == (after.uid(), &after.data["spec"]), "{after:?}");

    // The repaired policy server waits for its policies when it is deleted. The revisions of a malformed policy
    // count.
    cluster.overwrite(&servers, "default", "/spec/logLevel", json!("info")).await?;
    servers.delete("default", &DeleteParams::default()).await?;
    let policies = cluster.cluster_policies();
    cluster.overwrite(&policies, "b", "/spec/policyServer", json!(7)).await?;
    cluster.until_malformed_event("ClusterPolicy", "b", "spec.policyServer: ").await?;
    policies.delete("a", &DeleteParams::default()).await?;
    until("one policy to wait for", TIMEOUT, async || {
        let message = cluster.until_condition("default", "Terminating", "True", "PoliciesRemain").await?;
        ensure!(message.contains(": cluster.b;"), "{message}");
        Ok(())
    })
    .await?;
    // A malformed policy server is deleted after its policies.
    cluster.overwrite(&servers, "default", "/spec/logLevel", json!("shouted")).await?;
    cluster.until_malformed_event("PolicyServer", "default", "`shouted`").await?;
    policies.delete("b", &DeleteParams::default()).await?;
    cluster.until_gone(&policies, "b").await?;
    cluster.until_gone(&servers, "default").await
}
