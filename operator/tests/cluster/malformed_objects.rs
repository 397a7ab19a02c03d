//! Objects that make no sense to the operator, as another version of the kinds would let them in, with a real API server
//! and the operator's real program: each is reported once and skipped, and all others go on.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use proviso_crds::{PolicyPhase, PolicyStatus};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::stage::{NAMESPACE, PATIENCE, POD, Stage};

impl Stage {
    /// With a policy server of one Ready replica, and kinds that let anything in.
    async fn loose(name: &str) -> Result<Self> {
        let mut stage = Self::start(name).await?;
        for kind in ["policies", "clusterpolicies", "policyservers", "policyrevisions", "clusterpolicyexperiments"] {
            let anything = json!([{
                "op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec",
                "value": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            }]);
            let crd = format!("{kind}.proviso.dev");
            stage.kubectl.run(&["patch", "crd", &crd, "--type=json", "-p", &anything.to_string()]).await?;
        }
        stage.start_to_serve().await?;
        Ok(stage)
    }

    fn kind(&self, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
        self.dynamic("proviso.dev/v1alpha1", kind, namespace)
    }

    fn cluster_policies(&self) -> Api<DynamicObject> {
        self.kind("ClusterPolicy", None)
    }

    /// Waits until the API server asks this generation.
    async fn until_generation(&self, policy: &str, generation: i64) -> Result<()> {
        self.until_path(&format!("proviso-cluster.{policy}"), &format!("/validate/cluster.{policy}/{generation}")).await
    }

    /// Puts a value where the schema would not have it, once the API server has learnt that anything goes.
    async fn spoil(&self, api: &Api<DynamicObject>, name: &str, pointer: &str, value: Value) -> Result<()> {
        let change = json!([{"op": "add", "path": pointer, "value": value}]);
        let change: Patch<()> = Patch::Json(serde_json::from_value(change)?);
        until(&format!("{name} to be spoilt"), PATIENCE, async || {
            Ok(api.patch(name, &PatchParams::default(), &change).await.map(drop)?)
        })
        .await
    }

    /// What was said about a malformed object, in the order in which it was said.
    async fn complaints(&self, kind: &str, name: &str) -> Result<Vec<String>> {
        let events = Api::<Event>::all(self.client.clone()).list(&ListParams::default()).await?;
        let about = events.into_iter().filter(|event| {
            let object = event.regarding.clone().unwrap_or_default();
            event.reason.as_deref() == Some("Malformed")
                && (object.kind.as_deref(), object.name.as_deref()) == (Some(kind), Some(name))
        });
        Ok(about.filter_map(|event| event.note).collect())
    }

    async fn until_complaint(&self, kind: &str, name: &str, field: &str) -> Result<()> {
        until(&format!("the complaint about {kind} {name}"), PATIENCE, async || {
            let notes = self.complaints(kind, name).await?;
            ensure!(notes.iter().any(|note| note.contains(field)), "{notes:?}");
            Ok(())
        })
        .await
    }

    async fn until_gone(&self, api: &Api<DynamicObject>, name: &str) -> Result<()> {
        until(&format!("the end of {name}"), PATIENCE, async || {
            ensure!(api.get_opt(name).await?.is_none(), "it is still there");
            Ok(())
        })
        .await
    }
}

#[tokio::test]
async fn a_malformed_policy_is_reported_and_what_it_was_before_goes_on_like_all_others() -> Result<()> {
    let mut stage = Stage::loose("malformed-policy").await?;
    let policies = stage.cluster_policies();
    stage.live("was-good", "true").await?;
    stage.spoil(&policies, "was-good", "/spec/program", json!({"newer": {}})).await?;
    stage.until_complaint("ClusterPolicy", "was-good", "spec.program: ").await?;
    let described = stage.kubectl.run(&["describe", "clusterpolicy", "was-good"]).await?;
    ensure!(described.contains("Warning  Malformed") && described.contains("needs exactly one of"), "{described}");
    // One that never made sense, of each scope; somewhere that its owner can see it.
    let bad = |kind: &str| {
        let metadata = json!({"name": "bad", "finalizers": ["example.com/mine"]});
        json!({"apiVersion": "proviso.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": {"program": 7}})
    };
    for (kind, namespace) in [("ClusterPolicy", None), ("Policy", Some("default"))] {
        let bad = serde_json::from_value(bad(kind))?;
        stage.kind(kind, namespace).create(&PostParams::default(), &bad).await?;
        stage.until_complaint(kind, "bad", "spec.program: ").await?;
    }
    let log = stage.log()?;
    let line = log.lines().find(|line| line.contains("object skipped") && line.contains(r#""name":"bad""#));
    ensure!(line.is_some_and(|line| line.contains("spec.program: ")), "{line:?}");

    // Also for an operator that finds them all when it starts.
    stage.operators.clear();
    stage.start_operator(&[])?;
    stage.live("later", "true").await?;
    until("the second operator's complaint", PATIENCE, async || {
        ensure!(stage.complaints("ClusterPolicy", "was-good").await?.len() == 2);
        Ok(())
    })
    .await?;
    // What answers is kept up, and nothing is said twice.
    for _ in 0..2 {
        stage.webhooks().delete("proviso-cluster.was-good", &DeleteParams::default()).await?;
        stage.until_generation("was-good", 1).await?;
    }
    let said = stage.complaints("ClusterPolicy", "was-good").await?;
    ensure!(said.len() == 2, "{said:?}");

    // Mended, it is a generation like any other.
    stage.spoil(&policies, "was-good", "/spec/program", json!({"cel": {"validations": []}})).await?;
    stage.serve("cluster.was-good-3", POD).await?;
    stage.until_generation("was-good", 3).await?;
    // Spoilt again, it is told again; and it can go, with all that was made of it.
    stage.spoil(&policies, "was-good", "/spec/program", json!({"newer": {}})).await?;
    until("the next complaint", PATIENCE, async || {
        ensure!(stage.complaints("ClusterPolicy", "was-good").await?.len() == 3);
        Ok(())
    })
    .await?;
    policies.delete("was-good", &DeleteParams::default()).await?;
    stage.until_gone(&policies, "was-good").await?;
    ensure!(stage.path("proviso-cluster.was-good").await?.is_none());
    let revisions = stage.kind("PolicyRevision", Some(NAMESPACE)).list(&ListParams::default()).await?;
    let left: Vec<_> = revisions.iter().map(ResourceExt::name_any).collect();
    ensure!(left == ["cluster.later-1"], "{left:?}");
    stage.until_generation("later", 1).await
}

#[tokio::test]
async fn a_malformed_revision_is_reported_and_its_policy_goes_on() -> Result<()> {
    let stage = Stage::loose("malformed-revision").await?;
    let revisions = stage.kind("PolicyRevision", Some(NAMESPACE));
    stage.live("a", "true").await?;
    stage.spoil(&revisions, "cluster.a-1", "/spec/data", json!(7)).await?;
    stage.until_complaint("PolicyRevision", "cluster.a-1", "spec.data: ").await?;
    let described = stage.kubectl.run(&["describe", "pvr", "cluster.a-1", "--namespace", NAMESPACE]).await?;
    ensure!(described.contains("Warning  Malformed"), "{described}");
    // It is asked, and it is left alone: whoever serves it has read it.
    stage.until_generation("a", 1).await?;
    stage.live("b", "true").await?;
    stage.policy("a", "default", "2 > 1").await?;
    stage.serve("cluster.a-2", POD).await?;
    stage.until_generation("a", 2).await?;
    ensure!(revisions.get_opt("cluster.a-1").await?.is_some());

    // The newest one is what a policy waits for, and its owner sees why.
    stage.policy("a", "default", "3 > 2").await?;
    until("cluster.a-3", PATIENCE, async || Ok(revisions.get("cluster.a-3").await?)).await?;
    stage.spoil(&revisions, "cluster.a-3", "/spec/enabled", json!("perhaps")).await?;
    until("the policy to say so", PATIENCE, async || {
        let policy = stage.cluster_policies().get("a").await?;
        let status: PolicyStatus = serde_json::from_value(policy.data["status"].clone())?;
        ensure!(status.phase == Some(PolicyPhase::Failed) && status.live_generation == Some(2), "{status:?}");
        let condition = status.conditions.iter().find(|it| it.type_ == "Initialized").context("Initialized")?;
        ensure!(condition.reason == "Malformed" && condition.message.contains("spec.enabled: "), "{condition:?}");
        ensure!(condition.message.contains("delete cluster.a-3"), "{condition:?}");
        Ok(())
    })
    .await?;
    stage.until_generation("a", 2).await?;
    // What the message says works.
    revisions.delete("cluster.a-3", &DeleteParams::default()).await?;
    stage.serve("cluster.a-3", POD).await?;
    stage.until_generation("a", 3).await?;

    // With the policy goes also what nobody can read.
    let policies = stage.cluster_policies();
    policies.delete("a", &DeleteParams::default()).await?;
    stage.until_gone(&policies, "a").await?;
    let left = revisions.list(&ListParams::default()).await?;
    let left: Vec<_> = left.iter().map(ResourceExt::name_any).collect();
    ensure!(left == ["cluster.b-1"], "{left:?}");
    Ok(())
}

#[tokio::test]
async fn a_malformed_experiment_is_reported_and_what_is_previewed_goes_on() -> Result<()> {
    let stage = Stage::loose("malformed-experiment").await?;
    let (experiments, revisions) =
        (stage.kind("ClusterPolicyExperiment", None), stage.kind("PolicyRevision", Some(NAMESPACE)));
    stage.live("a", "true").await?;
    let create = async |name: &str| -> Result<DynamicObject> {
        let policy = stage.cluster_policies().get("a").await?.data["spec"].clone();
        let experiment = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicyExperiment", "metadata": {"name": name},
            "spec": {"policyRef": {"name": "a"}, "policy": policy, "autoStart": true},
        });
        experiments.create(&PostParams::default(), &serde_json::from_value(experiment)?).await?;
        let candidate = format!("experiment.cluster.{name}-1");
        until(&candidate, PATIENCE, async || Ok(revisions.get(&candidate).await?)).await
    };
    let candidate = create("e").await?;
    stage.spoil(&experiments, "e", "/spec/policy/program", json!({"newer": {}})).await?;
    stage.until_complaint("ClusterPolicyExperiment", "e", "spec.policy.program: ").await?;
    create("other").await?;
    ensure!(revisions.get("experiment.cluster.e-1").await?.uid() == candidate.uid(), "it was made anew");

    // A candidate that nobody can read is made anew.
    let spoilt = revisions.get("experiment.cluster.other-1").await?;
    stage.spoil(&revisions, "experiment.cluster.other-1", "/spec/data", json!(7)).await?;
    until("another candidate", PATIENCE, async || {
        ensure!(revisions.get("experiment.cluster.other-1").await?.uid() != spoilt.uid());
        Ok(())
    })
    .await?;
    // It can go, with all that was made of it.
    experiments.delete("e", &DeleteParams::default()).await?;
    stage.until_gone(&experiments, "e").await?;
    stage.until_gone(&revisions, "experiment.cluster.e-1").await
}

#[tokio::test]
async fn a_malformed_policy_server_is_reported_and_its_replicas_stay() -> Result<()> {
    let mut stage = Stage::loose("malformed-server").await?;
    let servers = stage.kind("PolicyServer", None);
    stage.live("a", "true").await?;
    let before = stage.dynamic("apps/v1", "StatefulSet", Some(NAMESPACE)).get("policy-server-default").await?;
    stage.spoil(&servers, "default", "/spec/logLevel", json!("whispered")).await?;
    stage.until_complaint("PolicyServer", "default", "spec.logLevel: ").await?;
    stage.operators.clear();
    stage.start_operator(&[])?;
    // Others are made, and policies on this one still go live.
    stage.server("other", json!({})).await?;
    until("the other one", PATIENCE, async || {
        Ok(stage.api::<ConfigMap>().get("policy-server-other-sources").await.map(drop)?)
    })
    .await?;
    stage.live("b", "true").await?;
    let after = stage.dynamic("apps/v1", "StatefulSet", Some(NAMESPACE)).get("policy-server-default").await?;
    ensure!((before.uid(), &before.data["spec"]) == (after.uid(), &after.data["spec"]), "{after:?}");

    // Mended and deleted, it waits for its policies; of one that nobody can read, what it was counts.
    stage.spoil(&servers, "default", "/spec/logLevel", json!("info")).await?;
    servers.delete("default", &DeleteParams::default()).await?;
    let policies = stage.cluster_policies();
    stage.spoil(&policies, "b", "/spec/policyServer", json!(7)).await?;
    stage.until_complaint("ClusterPolicy", "b", "spec.policyServer: ").await?;
    policies.delete("a", &DeleteParams::default()).await?;
    until("one policy to wait for", PATIENCE, async || {
        let message = stage.until_condition("default", "Terminating", "True", "PoliciesRemain").await?;
        ensure!(message.contains(": cluster.b;"), "{message}");
        Ok(())
    })
    .await?;
    // Also one that nobody can read goes after them.
    stage.spoil(&servers, "default", "/spec/logLevel", json!("shouted")).await?;
    stage.until_complaint("PolicyServer", "default", "`shouted`").await?;
    policies.delete("b", &DeleteParams::default()).await?;
    stage.until_gone(&policies, "b").await?;
    stage.until_gone(&servers, "default").await
}
