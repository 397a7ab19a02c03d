//! The steps that change policies and experiments.

use anyhow::{Context as _, Result, ensure};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use proviso_crds::names::ROLLBACK_TO;
use proviso_e2e::torture::history::{PreviewCount, Verdict};
use proviso_e2e::torture::plan::{Spec, Step};
use proviso_e2e::{Registry, until_with};
use serde_json::{Value, json};

use super::{ATTEMPT_TIMEOUT, STEP_TIMEOUT, World};
use crate::objects::object;
use crate::specs::{TAG, experiment_name, module_of, policy_name, policy_spec};

impl World {
    /// Executes a step that changes a policy or an experiment.
    pub(super) async fn change_policy(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Edit { policy, spec } => self.write(&policy_name(policy), spec).await,
            Step::RollBack { policy, by } => self.roll_back(&policy_name(policy), by).await,
            Step::StartExperiment { policy, spec } => self.start_experiment(&policy_name(policy), spec).await,
            Step::CommitExperiment { policy } => self.commit_experiment(&policy_name(policy)).await,
            Step::DeleteExperiment { policy } => self.delete_experiment(&policy_name(policy)).await,
            _ => Ok(()),
        }
    }

    /// Pushes the module of a spec, and writes the spec of a policy. A refused spec must be one that does not work.
    pub(super) async fn write(&self, policy: &str, spec: Spec) -> Result<()> {
        self.push_module(spec).await?;
        let desired = policy_spec(policy, spec, &self.registry_address());
        let written = until_with("the write of a policy", STEP_TIMEOUT, ATTEMPT_TIMEOUT, async || {
            match self.objects.replace_spec(policy, &desired).await {
                Err(kube::Error::Api(status)) if is_refusal(status.code, &status.message) => {
                    Ok(Err(status.message.clone()))
                }
                result => Ok(Ok(result?)),
            }
        });
        match written.await? {
            Ok(generation) => self.recorder.note(format!("{policy}: generation {generation:?} has {spec}")),
            Err(message) if spec.program.verdict() == Verdict::Fails => {
                self.recorder.note(format!("{policy}: {spec} is refused: {message}"));
            }
            Err(message) => self.recorder.refusal(format!("{policy}: {spec} is refused: {message}")),
        }
        Ok(())
    }

    /// Pushes the module of a spec, past the network between the replicas and the registry.
    async fn push_module(&self, spec: Spec) -> Result<()> {
        if let Some((repository, content)) = module_of(spec) {
            self.registry.push(&repository, TAG, Registry::MODULE, &content).await?;
        }
        Ok(())
    }

    async fn roll_back(&self, policy: &str, by: u64) -> Result<()> {
        let by = usize::try_from(by)?;
        let generation = self.recorder.with(|history| {
            let known = history.policies.get(policy)?;
            known.generations.keys().rev().nth(by).copied()
        });
        let generation = generation.context("the policy has fewer generations")?;
        let annotation = json!({"metadata": {"annotations": {ROLLBACK_TO: generation.to_string()}}});
        self.objects.policies.patch(policy, &PatchParams::default(), &Patch::Merge(annotation)).await?;
        self.recorder.note(format!("{policy}: rollback to generation {generation}"));
        Ok(())
    }

    pub(super) async fn start_experiment(&mut self, policy: &str, spec: Spec) -> Result<()> {
        self.push_module(spec).await?;
        let experiment = object(json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicyExperiment",
            "metadata": {"name": experiment_name(policy)},
            "spec": {
                "policyRef": {"name": policy},
                "policy": policy_spec(policy, spec, &self.registry_address()),
                "autoStart": true,
            },
        }))?;
        // Only requests that are answered before the creation are certainly not previewed.
        let before = self.recorder.counts(policy);
        self.objects.experiments.create(&PostParams::default(), &experiment).await?;
        self.previews.insert(policy.to_owned(), before);
        Ok(())
    }

    async fn commit_experiment(&self, policy: &str) -> Result<()> {
        let experiment = self.objects.experiments.get(&experiment_name(policy)).await?;
        self.record_preview(policy, &experiment, false);
        let etag = experiment.data["status"]["etag"].as_str().context("the experiment has no etag yet")?;
        let body = json!({"apiVersion": "actions.proviso.dev/v1alpha1", "kind": "ExperimentCommit", "etag": etag});
        let path =
            format!("/apis/actions.proviso.dev/v1alpha1/clusterpolicyexperiments/{}/commit", experiment_name(policy));
        let request = http::Request::post(path).header("content-type", "application/json");
        let done: Value = self.client.request(request.body(serde_json::to_vec(&body)?)?).await?;
        ensure!(done["status"] == "Success", "{done}");
        self.recorder.note(format!("{policy}: the experiment is committed"));
        Ok(())
    }

    pub(super) async fn delete_experiment(&self, policy: &str) -> Result<()> {
        // The operator may end a late commit at the same time, which deletes the experiment.
        let Some(experiment) = self.objects.experiments.get_opt(&experiment_name(policy)).await? else { return Ok(()) };
        self.record_preview(policy, &experiment, false);
        match self.objects.experiments.delete(&experiment_name(policy), &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    /// Records the counts of an experiment, and the number of requests that it may have counted. Returns the former.
    pub(super) fn record_preview(&self, policy: &str, experiment: &DynamicObject, is_complete: bool) -> u64 {
        let divergence = &experiment.data["status"]["divergence"];
        let counted = ["evaluated", "dropped"].iter().filter_map(|name| divergence[*name].as_u64()).sum();
        // An experiment whose creation had an unknown result has no entry: all requests may be previewed.
        let before = self.previews.get(policy).copied().unwrap_or_default();
        let requests = self.recorder.counts(policy).begun.saturating_sub(before.answered);
        // While a policy turns from validating to mutating, or back, both webhooks evaluate a request.
        let requests = if is_complete { requests } else { 2 * requests };
        let experiment = experiment_name(policy);
        let count = PreviewCount { at: self.recorder.now(), experiment, counted, requests, is_complete };
        self.recorder.with(|history| history.previews.push(count));
        counted
    }
}

/// Returns true if the API server or the operator refuses an object, and another attempt cannot succeed.
fn is_refusal(code: u16, message: &str) -> bool {
    code == 422 || message.contains("denied the request")
}
