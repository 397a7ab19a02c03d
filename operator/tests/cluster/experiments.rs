//! The lifecycle of an experiment (AIP-236). The tests play the policy server, and the API that starts, stops and
//! commits.

mod commits;
mod configuration;
mod endings;
mod policies;
mod states;
mod webhooks;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use proviso_core::experiment::etag;
use proviso_crds::fixtures::{TIME, condition, replica};
use proviso_crds::{
    ClusterPolicyExperiment, ExperimentStatus, PolicyRevision, PreviewMetadata, PreviewState, StopCause,
};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::test_cluster::{POD, TIMEOUT, TestCluster};

/// Returns the spec that [`TestCluster::apply_policy`] writes.
fn policy(expression: &str) -> Value {
    json!({
        "program": {"cel": {"validations": [{"expression": expression}]}},
        "admission": {"rules": [
            {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"]},
        ]},
    })
}

/// Returns the same spec for another resource.
fn about(resource: &str, expression: &str) -> Value {
    let mut spec = policy(expression);
    spec["admission"]["rules"][0]["resources"] = json!([resource]);
    spec
}

impl TestCluster {
    fn experiments(&self) -> Api<ClusterPolicyExperiment> {
        Api::all(self.client.clone())
    }

    /// Creates or updates the experiment. Returns its generation.
    async fn apply_experiment(&self, name: &str, of: &str, spec: &Value, auto_start: bool) -> Result<i64> {
        let experiment = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicyExperiment", "metadata": {"name": name},
            "spec": {"policyRef": {"name": of}, "policy": spec, "autoStart": auto_start},
        });
        let written =
            self.experiments().patch(name, &PatchParams::apply("owner").force(), &Patch::Apply(experiment)).await?;
        written.metadata.generation.context("its generation")
    }

    async fn experiment_status(&self, name: &str) -> Result<ExperimentStatus> {
        Ok(self.experiments().get(name).await?.status.unwrap_or_default())
    }

    async fn until_experiment(&self, name: &str, is: impl Fn(&ExperimentStatus) -> bool) -> Result<ExperimentStatus> {
        until(&format!("the experiment {name}"), TIMEOUT, async || {
            let status = self.experiment_status(name).await?;
            ensure!(is(&status), "{status:#?}");
            Ok(status)
        })
        .await
    }

    /// Waits until a condition of the experiment has this status and reason.
    async fn until_experiment_condition(
        &self,
        name: &str,
        condition: &str,
        status: &str,
        reason: &str,
    ) -> Result<ExperimentStatus> {
        let generation = self.experiments().get(name).await?.metadata.generation;
        self.until_experiment(name, |current| {
            let found = current.conditions.iter().find(|it| it.type_ == condition);
            found.is_some_and(|it| it.status == status && it.reason == reason && it.observed_generation == generation)
        })
        .await
    }

    /// Starts or stops the preview, as the API does.
    async fn set_preview(&self, name: &str, starts: bool) -> Result<PreviewMetadata> {
        until("the preview to be changed", TIMEOUT, async || {
            let experiment = self.experiments().get(name).await?;
            let before = experiment.status.clone().and_then(|status| status.preview_metadata);
            let (generation, now) = (experiment.metadata.generation.context("generation")?, Time(Timestamp::now()));
            let ttl = experiment.spec.0.time_to_live().map_err(anyhow::Error::msg)?;
            let after = match before {
                before if starts => PreviewMetadata::start(before.as_ref(), generation, now, ttl),
                before => before.context("it was never started")?.stop(now, None),
            };
            let patch = json!({
                "metadata": {"resourceVersion": experiment.resource_version()},
                "status": {"previewMetadata": after.to_merge_patch()},
            });
            self.experiments().patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            Ok(after)
        })
        .await
    }

    /// Writes the intent of a commit, as the API does.
    async fn intend_commit(&self, name: &str, id: &str) -> Result<()> {
        until("the commit intent to be written", TIMEOUT, async || {
            let experiment = self.experiments().get(name).await?;
            let intent = json!({
                "id": id, "generation": experiment.metadata.generation, "policyGeneration": 1,
                "since": Time(Timestamp::now()),
            });
            let patch = json!({
                "metadata": {"resourceVersion": experiment.resource_version()}, "status": {"commit": intent},
            });
            self.experiments().patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            Ok(())
        })
        .await
    }

    /// Waits until the operator has suspended the preview for this reason. Returns the cause.
    async fn until_suspended(&self, name: &str, reason: &str) -> Result<StopCause> {
        until(&format!("{name} to be suspended"), 3 * TIMEOUT, async || {
            let metadata = self.experiment_status(name).await?.preview_metadata.context("it was never started")?;
            ensure!(metadata.state == PreviewState::Suspended && metadata.stop_time.is_some(), "{metadata:?}");
            let cause = metadata.stop_cause.context("no cause")?;
            ensure!(cause.reason == reason, "{cause:?}");
            Ok(cause)
        })
        .await
    }

    async fn candidate(&self, experiment: &str, generation: i64) -> Result<PolicyRevision> {
        let name = format!("experiment.cluster.{experiment}-{generation}");
        until(&name, TIMEOUT, async || Ok(self.api::<PolicyRevision>().get(&name).await?)).await
    }

    async fn until_no_revision(&self, name: &str) -> Result<()> {
        until(&format!("the end of {name}"), TIMEOUT, async || {
            ensure!(self.api::<PolicyRevision>().get_opt(name).await?.is_none(), "it is still there");
            Ok(())
        })
        .await
    }

    /// Waits until replicas have to stop evaluating the candidate.
    async fn until_disabled(&self, revision: &str) -> Result<()> {
        until(&format!("{revision} to be disabled"), TIMEOUT, async || {
            ensure!(!self.api::<PolicyRevision>().get(revision).await?.spec.enabled, "it is enabled");
            Ok(())
        })
        .await
    }

    /// Writes the counts of the replica: `denied` requests that are newly denied by the current live version.
    async fn report_counts(&self, revision: &str, denied: u64) -> Result<()> {
        self.report(revision, denied, "Loaded").await
    }

    /// Writes the final counts of the replica, which evaluates the candidate no more.
    async fn report_final_counts(&self, revision: &str, denied: u64) -> Result<()> {
        self.report(revision, denied, "Suspended").await
    }

    async fn report(&self, revision: &str, denied: u64, reason: &str) -> Result<()> {
        let (time, uid) = (TIME, self.api::<Pod>().get(POD).await?.uid().unwrap_or_default());
        let candidate = self.api::<PolicyRevision>().get(revision).await?;
        let since = candidate.annotations().get("proviso.dev/preview-start").context("the start")?;
        let of = candidate.spec.experiment_ref.as_ref().context("its experiment")?;
        let counts = json!({
            "evaluated": denied + 1, "same": 1, "newlyDenied": denied, "newlyAllowed": 0, "mutationDiffers": 0,
            "messageDiffers": 0, "errors": 0, "dropped": 2, "since": since, "etag": etag(&of.uid, of.generation),
            "liveEtag": self.experiment_status(&of.name).await?.live_etag,
        });
        let samples = json!([{
            "divergence": "NewlyDenied", "kind": "Secret", "namespace": "team", "user": "ann", "count": denied,
            "name": "password", "message": "no", "firstSeen": time, "lastSeen": time,
        }]);
        let mut replica = replica(POD, &uid, "True", reason);
        replica["preview"] = json!({"counts": counts, "samples": samples});
        let status = json!({"replicas": [replica]});
        let patch = json!({"apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision", "status": status});
        let revisions = self.api::<PolicyRevision>();
        revisions.patch_status(revision, &PatchParams::apply(POD).force(), &Patch::Apply(patch)).await?;
        Ok(())
    }

    async fn until_no_webhook(&self, name: &str) -> Result<()> {
        until(&format!("the end of {name}"), TIMEOUT, async || {
            ensure!(self.webhooks().get_opt(name).await?.is_none(), "it is still there");
            Ok(())
        })
        .await
    }

    async fn until_described(&self, experiment: &str, words: &str) -> Result<()> {
        until(words, TIMEOUT, async || {
            let described = self.kubectl.run(&["describe", "clusterpolicyexperiment", experiment]).await?;
            ensure!(described.contains(words), "{described}");
            Ok(())
        })
        .await
    }

    async fn annotate(&self, kind: &str, name: &str, annotation: &str, value: &str) -> Result<()> {
        let annotation = format!("{annotation}={value}");
        self.kubectl.run(&["annotate", "--overwrite", kind, name, &annotation]).await.map(drop)
    }

    /// Writes the failure of the leader's preparation.
    async fn fail_preparation(&self, revision: &str) -> Result<()> {
        let failed = json!({"conditions": [condition("Initialized", "False", "CompileError", "no such thing", 1)]});
        let patch = json!({"apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision", "status": failed});
        let leader = PatchParams::apply("proviso-leader").force();
        self.api::<PolicyRevision>().patch_status(revision, &leader, &Patch::Apply(patch)).await?;
        Ok(())
    }
}

fn state(status: &ExperimentStatus) -> Option<PreviewState> {
    status.preview_metadata.as_ref().map(|preview| preview.state)
}
