//! The life of an experiment (AIP-236), with a real API server and the operator's real program. The policy server and the
//! API that starts, stops and commits are played by the test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod support;

use anyhow::{Context as _, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt as _};
use proviso_crds::{
    ClusterPolicyExperiment, ExperimentStatus, PolicyRevision, PreviewMetadata, PreviewState, RevisionRole,
};
use proviso_e2e::until;
use serde_json::{Value, json};
use support::{NAMESPACE, PATIENCE, Stage};

/// The one replica of the policy server `default`.
const POD: &str = "policy-server-default-0";

/// As [`Stage::policy`] writes it.
fn policy(expression: &str) -> Value {
    json!({
        "program": {"cel": {"validations": [{"expression": expression}]}},
        "admission": {"rules": [
            {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"]},
        ]},
    })
}

/// The same about other requests.
fn about(resource: &str, expression: &str) -> Value {
    let mut spec = policy(expression);
    spec["admission"]["rules"][0]["resources"] = json!([resource]);
    spec
}

impl Stage {
    /// With a policy server of one Ready replica.
    async fn serving(name: &str) -> Result<Self> {
        let mut stage = Self::start(name).await?;
        stage.start_operator(&[])?;
        stage.server("default", json!({"replicas": 1})).await?;
        until("the replica", PATIENCE, async || Ok(stage.api::<Pod>().get(POD).await?)).await?;
        stage.ready(POD).await?;
        Ok(stage)
    }

    /// Makes a generation of the policy live.
    async fn live(&self, name: &str, expression: &str) -> Result<()> {
        let generation = self.policy(name, "default", expression).await?;
        self.serve(&format!("cluster.{name}-{generation}"), POD).await?;
        self.until_path(&format!("proviso-cluster.{name}"), &format!("/validate/cluster.{name}/{generation}")).await
    }

    fn experiments(&self) -> Api<ClusterPolicyExperiment> {
        Api::all(self.client.clone())
    }

    fn webhooks(&self) -> Api<ValidatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }

    /// Creates the experiment, or makes it this; its generation.
    async fn experiment(&self, name: &str, of: &str, spec: &Value, auto_start: bool) -> Result<i64> {
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
        until(&format!("the experiment {name}"), PATIENCE, async || {
            let status = self.experiment_status(name).await?;
            ensure!(is(&status), "{status:#?}");
            Ok(status)
        })
        .await
    }

    /// Waits until a condition of the experiment is this.
    async fn until_told(&self, name: &str, condition: &str, status: &str, reason: &str) -> Result<ExperimentStatus> {
        let generation = self.experiments().get(name).await?.metadata.generation;
        self.until_experiment(name, |said| {
            let found = said.conditions.iter().find(|it| it.type_ == condition);
            found.is_some_and(|it| it.status == status && it.reason == reason && it.observed_generation == generation)
        })
        .await
    }

    /// Starts or stops the preview, as the API does.
    async fn set_preview(&self, name: &str, starts: bool) -> Result<PreviewMetadata> {
        until("the preview to be changed", PATIENCE, async || {
            let experiment = self.experiments().get(name).await?;
            let before = experiment.status.clone().and_then(|status| status.preview_metadata);
            let (generation, now) = (experiment.metadata.generation.context("generation")?, Time(Timestamp::now()));
            let after = match before {
                before if starts => PreviewMetadata::start(before.as_ref(), generation, now),
                before => before.context("it was never started")?.stop(now),
            };
            let patch = json!({
                "metadata": {"resourceVersion": experiment.resource_version()}, "status": {"previewMetadata": after},
            });
            self.experiments().patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            Ok(after)
        })
        .await
    }

    async fn candidate(&self, experiment: &str, generation: i64) -> Result<PolicyRevision> {
        let name = format!("experiment.cluster.{experiment}-{generation}");
        until(&name, PATIENCE, async || Ok(self.api::<PolicyRevision>().get(&name).await?)).await
    }

    async fn until_no_revision(&self, name: &str) -> Result<()> {
        until(&format!("the end of {name}"), PATIENCE, async || {
            ensure!(self.api::<PolicyRevision>().get_opt(name).await?.is_none(), "it is still there");
            Ok(())
        })
        .await
    }

    /// Says what the replica has counted: so many requests that would be denied from now on.
    async fn counted(&self, revision: &str, denied: u64) -> Result<()> {
        let (time, uid) = ("2026-11-20T09:14:07Z", self.api::<Pod>().get(POD).await?.uid());
        let counts = json!({
            "evaluated": denied + 1, "same": 1, "newlyDenied": denied, "newlyAllowed": 0, "mutationDiffers": 0,
            "messageDiffers": 0, "errors": 0, "dropped": 2, "since": time,
        });
        let samples = json!([{
            "divergence": "NewlyDenied", "kind": "Secret", "namespace": "team", "user": "ann", "count": denied,
            "name": "password", "message": "no", "firstSeen": time, "lastSeen": time,
        }]);
        let replica = json!({
            "name": POD, "podUID": uid, "serverVersion": "0.1.0", "ready": "True", "reason": "Loaded",
            "lastTransitionTime": time, "preview": {"counts": counts, "samples": samples},
        });
        let status = json!({"replicas": [replica]});
        let patch = json!({"apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision", "status": status});
        let revisions = self.api::<PolicyRevision>();
        revisions.patch_status(revision, &PatchParams::apply(POD).force(), &Patch::Apply(patch)).await?;
        Ok(())
    }

    /// Waits until this webhook asks this path.
    async fn until_path(&self, name: &str, wanted: &str) -> Result<()> {
        until(&format!("{name} at {wanted}"), PATIENCE, async || {
            let found = self.webhooks().get_opt(name).await?;
            let path = found.and_then(|it| it.webhooks?.pop()?.client_config.service?.path);
            ensure!(path.as_deref() == Some(wanted), "{path:?}");
            Ok(())
        })
        .await
    }

    async fn until_no_webhook(&self, name: &str) -> Result<()> {
        until(&format!("the end of {name}"), PATIENCE, async || {
            ensure!(self.webhooks().get_opt(name).await?.is_none(), "it is still there");
            Ok(())
        })
        .await
    }

    async fn until_described(&self, experiment: &str, words: &str) -> Result<()> {
        until(words, PATIENCE, async || {
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
}

/// Waits until Kubernetes tells now from this: it counts in seconds.
async fn until_after(time: &Time) -> Result<()> {
    until("another second", PATIENCE, async || {
        ensure!(Timestamp::now().as_second() > time.0.as_second());
        Ok(())
    })
    .await
}

fn state(status: &ExperimentStatus) -> Option<PreviewState> {
    status.preview_metadata.as_ref().map(|preview| preview.state)
}

#[tokio::test]
async fn an_experiment_is_started_stopped_and_suspended_by_an_update() -> Result<()> {
    let stage = Stage::serving("experiment-states").await?;
    stage.live("a", "true").await?;
    stage.experiment("e", "a", &policy("1 < 2"), false).await?;
    let status = stage.until_told("e", "Accepted", "True", "Accepted").await?;
    ensure!(status.preview_metadata.is_none() && status.divergence.is_none(), "{status:#?}");
    let (experiment, live) =
        (stage.experiments().get("e").await?, stage.api::<PolicyRevision>().get("cluster.a-1").await?);
    let etag = |uid: Option<String>| Some(proviso_core::experiment::etag(&uid.unwrap(), 1));
    ensure!(status.etag == etag(experiment.uid()), "{status:#?}");
    ensure!(status.live_etag == etag(Some(live.spec.policy_ref.uid.clone())), "{status:#?}");
    stage.until_told("e", "Previewing", "False", "NotStarted").await?;
    ensure!(stage.api::<PolicyRevision>().get_opt("experiment.cluster.e-1").await?.is_none());

    let started = stage.set_preview("e", true).await?;
    let candidate = stage.candidate("e", 1).await?;
    ensure!(candidate.spec.role == RevisionRole::Candidate && candidate.spec.enabled, "{candidate:#?}");
    ensure!(candidate.spec.data == experiment.spec.0.policy && candidate.spec.policy_ref.generation == 1);
    let of = candidate.spec.experiment_ref.clone().context("its experiment")?;
    ensure!((of.name.as_str(), Some(of.uid), of.generation) == ("e", experiment.uid(), 1));
    let labels = candidate.labels();
    ensure!(labels.get("proviso.dev/experiment-uid") == experiment.uid().as_ref(), "{labels:?}");
    ensure!(labels["proviso.dev/policy-server"] == "default" && !labels.contains_key("proviso.dev/policy-uid"));
    stage.until_told("e", "Previewing", "False", "Preparing").await?;
    stage.serve("experiment.cluster.e-1", POD).await?;
    let status = stage.until_told("e", "Previewing", "True", "Previewing").await?;
    ensure!(
        status.replicas.context("replicas")?.summary == "1/1"
            && state(&stage.experiment_status("e").await?) == Some(PreviewState::Active)
    );
    // It rides on the calls of its policy.
    ensure!(stage.webhooks().get_opt("proviso-preview-cluster.e").await?.is_none());
    stage.until_described("e", "Normal  Previewing").await?;

    stage.counted("experiment.cluster.e-1", 3).await?;
    let status = stage.until_experiment("e", |it| it.divergence.as_ref().is_some_and(|it| it.evaluated == 4)).await?;
    let counts = status.divergence.context("counts")?;
    ensure!((counts.newly_denied, counts.same, counts.dropped) == (3, 1, 2), "{counts:?}");
    ensure!(counts.since.0.as_second() == started.start_time.0.as_second(), "{counts:?}");
    ensure!(status.samples.len() == 1 && status.samples[0].name == "password", "{:?}", status.samples);

    // What was counted stays when it is stopped, and begins anew when it is started.
    let stopped = stage.set_preview("e", false).await?;
    stage.until_no_revision("experiment.cluster.e-1").await?;
    let status = stage.until_told("e", "Previewing", "False", "Suspended").await?;
    ensure!(status.divergence.is_some_and(|it| it.evaluated == 4) && status.replicas.is_none());
    let metadata = status.preview_metadata.context("metadata")?;
    ensure!(metadata.state == PreviewState::Suspended && metadata.stop_time.is_some(), "{metadata:?}");
    ensure!(stopped.start_time.0.as_second() == started.start_time.0.as_second());
    until_after(&started.start_time).await?;
    let again = stage.set_preview("e", true).await?;
    let candidate = stage.candidate("e", 1).await?;
    stage.until_experiment("e", |it| it.divergence.as_ref().is_some_and(|it| it.evaluated == 0)).await?;
    // Also when it is started while it is previewed.
    until_after(&again.start_time).await?;
    stage.set_preview("e", true).await?;
    until("another candidate", PATIENCE, async || {
        ensure!(stage.candidate("e", 1).await?.uid() != candidate.uid());
        Ok(())
    })
    .await?;

    // An update suspends it, by whomever it was started.
    stage.serve("experiment.cluster.e-1", POD).await?;
    stage.counted("experiment.cluster.e-1", 7).await?;
    stage.until_experiment("e", |it| it.divergence.as_ref().is_some_and(|it| it.newly_denied == 7)).await?;
    ensure!(stage.experiment("e", "a", &policy("2 < 3"), false).await? == 2);
    let status = stage.until_experiment("e", |it| state(it) == Some(PreviewState::Suspended)).await?;
    let metadata = status.preview_metadata.context("metadata")?;
    ensure!(metadata.stop_time.is_some_and(|it| it >= metadata.start_time) && metadata.generation == 1);
    stage.until_no_revision("experiment.cluster.e-1").await?;
    stage.until_experiment("e", |it| it.divergence.is_none() && it.samples.is_empty()).await?;
    stage.until_described("e", "Normal  PreviewSuspended").await?;

    // It is of one policy.
    let moved = stage.experiment("e", "b", &policy("2 < 3"), false).await;
    ensure!(format!("{:#}", moved.err().context("it was moved")?).contains("an experiment is of one policy"));
    // What is deleted leaves nothing.
    stage.set_preview("e", true).await?;
    stage.candidate("e", 2).await?;
    stage.experiments().delete("e", &DeleteParams::default()).await?;
    stage.until_no_revision("experiment.cluster.e-2").await?;
    until("the end of the experiment", PATIENCE, async || {
        ensure!(stage.experiments().get_opt("e").await?.is_none());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_starts_by_itself_does_so_after_creation_and_after_each_update() -> Result<()> {
    let mut stage = Stage::serving("experiment-auto-start").await?;
    stage.live("a", "true").await?;
    stage.experiment("e", "a", &policy("1 < 2"), true).await?;
    let status = stage.until_experiment("e", |it| state(it) == Some(PreviewState::Active)).await?;
    let metadata = status.preview_metadata.context("metadata")?;
    ensure!(metadata.generation == 1 && metadata.stop_time.is_none(), "{metadata:?}");
    ensure!(metadata.log_prefix == "PolicyPreviewLog");
    stage.serve("experiment.cluster.e-1", POD).await?;
    stage.until_told("e", "Previewing", "True", "Previewing").await?;

    stage.experiment("e", "a", &policy("2 < 3"), true).await?;
    let status =
        stage.until_experiment("e", |it| it.preview_metadata.as_ref().is_some_and(|it| it.generation == 2)).await?;
    let metadata = status.preview_metadata.context("metadata")?;
    ensure!(metadata.state == PreviewState::Active && metadata.stop_time.is_some(), "{metadata:?}");
    let candidate = stage.candidate("e", 2).await?;
    stage.until_no_revision("experiment.cluster.e-1").await?;
    stage.until_told("e", "Previewing", "False", "Preparing").await?;

    // Killed after it made the candidate and before it said so, the operator goes on where it was.
    stage.operators.clear();
    let nothing = json!({"apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicyExperiment", "status": {}});
    let as_operator = PatchParams::apply("proviso-operator").force();
    stage.experiments().patch_status("e", &as_operator, &Patch::Apply(nothing)).await?;
    ensure!(stage.experiment_status("e").await?.conditions.is_empty());
    stage.serve("experiment.cluster.e-2", POD).await?;
    stage.start_operator(&[])?;
    stage.until_told("e", "Previewing", "True", "Previewing").await?;
    ensure!(stage.candidate("e", 2).await?.uid() == candidate.uid(), "the candidate was made anew");

    // A program that does not work is told where its owner looks.
    stage.experiment("e", "a", &policy("3 < 4"), true).await?;
    stage.candidate("e", 3).await?;
    let failed = json!({"conditions": [{
        "type": "Initialized", "status": "False", "reason": "CompileError", "message": "spec.program.cel: no such thing",
        "lastTransitionTime": "2026-11-20T09:14:07Z",
    }]});
    let patch = json!({"apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision", "status": failed});
    let leader = PatchParams::apply("proviso-leader").force();
    stage.api::<PolicyRevision>().patch_status("experiment.cluster.e-3", &leader, &Patch::Apply(patch)).await?;
    stage.until_told("e", "Initialized", "False", "CompileError").await?;
    stage.until_described("e", "Warning  CompileError").await?;

    // Who stops it has the last word until the next update.
    stage.set_preview("e", false).await?;
    stage.until_told("e", "Previewing", "False", "Suspended").await?;
    stage.until_no_revision("experiment.cluster.e-3").await?;
    stage.annotate("clusterpolicyexperiment", "e", "example.com/note", "seen").await?;
    stage.live("a", "4 < 5").await?;
    ensure!(state(&stage.experiment_status("e").await?) == Some(PreviewState::Suspended));
    stage.experiment("e", "a", &policy("5 < 6"), true).await?;
    stage.candidate("e", 4).await?;
    Ok(())
}

#[tokio::test]
async fn an_operator_that_is_killed_at_any_step_leaves_nothing_behind() -> Result<()> {
    let mut stage = Stage::serving("experiment-killed").await?;
    stage.live("a", "true").await?;
    let webhook = "proviso-preview-cluster.e";
    // What is seen of each round before the operator is killed: less and less of what it has to do.
    for round in 0..4 {
        let spec = about(["pods", "services"][round % 2], &format!("{round} < 9"));
        let generation = stage.experiment("e", "a", &spec, true).await?;
        let candidate = format!("experiment.cluster.e-{generation}");
        if stage.operators.is_empty() {
            stage.start_operator(&[])?;
        }
        let is_started =
            |it: &ExperimentStatus| it.preview_metadata.as_ref().is_some_and(|it| it.generation == generation);
        stage.until_experiment("e", is_started).await?;
        if round < 3 {
            stage.candidate("e", generation).await?;
        }
        if round < 2 {
            stage.serve(&candidate, POD).await?;
        }
        if round < 1 {
            stage.until_path(webhook, &format!("/preview/cluster.a/e/{generation}")).await?;
        }
        stage.operators.clear();
    }
    // The last of these generations is what there is in the end, and nothing of the others.
    stage.start_operator(&[])?;
    stage.candidate("e", 4).await?;
    stage.serve("experiment.cluster.e-4", POD).await?;
    stage.until_path(webhook, "/preview/cluster.a/e/4").await?;
    for generation in 1..4 {
        stage.until_no_revision(&format!("experiment.cluster.e-{generation}")).await?;
    }
    // Also when it was told of the end, and came no further.
    stage.operators.clear();
    stage.kubectl.run(&["delete", "clusterpolicy", "a", "--wait=false"]).await?;
    stage.kubectl.run(&["delete", "clusterpolicyexperiment", "e", "--wait=false"]).await?;
    stage.start_operator(&[])?;
    stage.until_no_webhook(webhook).await?;
    stage.operators.clear();
    stage.start_operator(&[])?;
    until("everything to go", PATIENCE, async || {
        let revisions = stage.api::<PolicyRevision>().list(&ListParams::default()).await?.items;
        let policies = stage.dynamic("proviso.dev/v1alpha1", "ClusterPolicy", None);
        ensure!(revisions.is_empty() && policies.get_opt("a").await?.is_none(), "{} revisions", revisions.len());
        ensure!(stage.experiments().get_opt("e").await?.is_none());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn ten_experiments_of_a_policy_are_previewed_and_the_eleventh_waits_for_room() -> Result<()> {
    let stage = Stage::serving("experiment-too-many").await?;
    stage.live("a", "true").await?;
    for number in 0..10 {
        stage.experiment(&format!("e{number}"), "a", &policy("1 < 2"), true).await?;
    }
    until_after(&stage.experiments().get("e9").await?.creation_timestamp().context("its age")?).await?;
    stage.experiment("late", "a", &policy("1 < 2"), true).await?;
    // Those of another policy do not count.
    stage.live("b", "true").await?;
    stage.experiment("other", "b", &policy("1 < 2"), true).await?;
    for name in (0..10).map(|number| format!("e{number}")).chain(["other".to_owned()]) {
        stage.candidate(&name, 1).await?;
        stage.serve(&format!("experiment.cluster.{name}-1"), POD).await?;
        stage.until_told(&name, "Previewing", "True", "Previewing").await?;
    }
    let status = stage.until_told("late", "Accepted", "False", "TooMany").await?;
    ensure!(status.preview_metadata.is_none(), "{status:#?}");
    stage.until_described("late", "Warning  TooMany").await?;
    ensure!(stage.api::<PolicyRevision>().get_opt("experiment.cluster.late-1").await?.is_none());
    stage.experiments().delete("e3", &DeleteParams::default()).await?;
    stage.candidate("late", 1).await?;
    stage.until_told("late", "Accepted", "True", "Accepted").await?;
    Ok(())
}

#[tokio::test]
async fn an_experiment_waits_for_its_policy_and_goes_with_it() -> Result<()> {
    let stage = Stage::serving("experiment-cascade").await?;
    stage.experiment("e", "a", &about("pods", "true"), true).await?;
    let status = stage.until_told("e", "Accepted", "False", "PolicyNotFound").await?;
    ensure!(status.preview_metadata.is_none(), "{status:#?}");
    stage.experiment("of-another", "b", &policy("true"), false).await?;
    stage.live("a", "true").await?;
    stage.candidate("e", 1).await?;
    stage.serve("experiment.cluster.e-1", POD).await?;
    stage.until_path("proviso-preview-cluster.e", "/preview/cluster.a/e/1").await?;

    // One of a namespace, whose policy has the same name.
    let namespaced = |kind: &str| stage.dynamic("proviso.dev/v1alpha1", kind, Some("default"));
    let apply = async |kind: &str, name: &str, spec: Value| -> Result<()> {
        let object = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
        });
        namespaced(kind).patch(name, &PatchParams::apply("owner").force(), &Patch::Apply(object)).await?;
        Ok(())
    };
    apply("Policy", "a", about("pods", "true")).await?;
    stage.serve("ns.default.a-1", POD).await?;
    let ours = json!({"policyRef": {"name": "a"}, "policy": about("configmaps", "true"), "autoStart": true});
    apply("PolicyExperiment", "e", ours).await?;
    stage.serve("experiment.ns.default.e-1", POD).await?;
    stage.until_path("proviso-preview-ns.default.e", "/preview/ns.default.a/e/1").await?;
    let webhook = stage.webhooks().get("proviso-preview-ns.default.e").await?.webhooks.context("webhooks")?.remove(0);
    let selector = serde_json::to_string(&webhook.namespace_selector)?;
    ensure!(selector.contains(r#""values":["default"]"#), "{selector}");
    ensure!(webhook.rules.context("rules")?[0].scope.as_deref() == Some("Namespaced"));

    stage.kubectl.run(&["delete", "clusterpolicy", "a", "--wait=false"]).await?;
    stage.until_no_webhook("proviso-preview-cluster.e").await?;
    stage.until_no_revision("experiment.cluster.e-1").await?;
    until("the experiment and its policy to go", PATIENCE, async || {
        let policies = stage.dynamic("proviso.dev/v1alpha1", "ClusterPolicy", None);
        ensure!(stage.experiments().get_opt("e").await?.is_none() && policies.get_opt("a").await?.is_none());
        Ok(())
    })
    .await?;
    // Others stay.
    ensure!(stage.experiments().get("of-another").await?.metadata.deletion_timestamp.is_none());
    let other: DynamicObject = namespaced("PolicyExperiment").get("e").await?;
    ensure!(other.metadata.deletion_timestamp.is_none());
    stage.until_path("proviso-preview-ns.default.e", "/preview/ns.default.a/e/1").await
}

#[tokio::test]
async fn what_covers_other_requests_than_its_policy_has_a_webhook_that_stops_nobody() -> Result<()> {
    let stage = Stage::serving("experiment-webhook").await?;
    stage.live("a", "true").await?;
    stage.experiment("e", "a", &about("pods", "false"), true).await?;
    stage.candidate("e", 1).await?;
    let (name, path) = ("proviso-preview-cluster.e", "/preview/cluster.a/e/1");
    ensure!(stage.webhooks().get_opt(name).await?.is_none(), "nobody has loaded it yet");
    stage.serve("experiment.cluster.e-1", POD).await?;
    stage.until_path(name, path).await?;
    let found = stage.webhooks().get(name).await?;
    ensure!(found.labels().get("proviso.dev/experiment-uid") == stage.experiments().get("e").await?.uid().as_ref());
    let webhook = found.webhooks.context("webhooks")?.remove(0);
    ensure!(webhook.failure_policy.as_deref() == Some("Ignore") && webhook.timeout_seconds == Some(1), "{webhook:?}");
    ensure!(webhook.side_effects == "None" && webhook.name == "cluster.e.preview.proviso.dev", "{webhook:?}");
    let conditions = serde_json::to_string(&webhook.match_conditions)?;
    ensure!(conditions.contains(NAMESPACE) && conditions.contains("leases"), "{conditions}");
    ensure!(webhook.client_config.service.context("service")?.name == "policy-server-default");
    let bundle = webhook.client_config.ca_bundle.context("a bundle")?;
    ensure!(String::from_utf8(bundle.0)? == stage.secret("proviso-ca", "bundle.crt").await?);

    // By hand: restored.
    for change in [
        json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"}]),
        json!([{"op": "replace", "path": "/webhooks/0/clientConfig/service/path", "value": "/nowhere"}]),
    ] {
        let change: Patch<()> = Patch::Json(serde_json::from_value(change)?);
        stage.webhooks().patch(name, &PatchParams::default(), &change).await?;
        until("the webhook to be restored", PATIENCE, async || {
            let webhook = stage.webhooks().get(name).await?.webhooks.context("webhooks")?.remove(0);
            let service = webhook.client_config.service.context("service")?;
            ensure!(webhook.failure_policy.as_deref() == Some("Ignore") && service.path.as_deref() == Some(path));
            Ok(())
        })
        .await?;
    }
    stage.webhooks().delete(name, &DeleteParams::default()).await?;
    stage.until_path(name, path).await?;

    // A policy that covers the same brings it along.
    let apply = async |spec: &Value| -> Result<i64> {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "a"}, "spec": spec,
        });
        let policies = stage.dynamic("proviso.dev/v1alpha1", "ClusterPolicy", None);
        let written = policies.patch("a", &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?;
        written.metadata.generation.context("generation")
    };
    let generation = apply(&about("pods", "true")).await?;
    stage.serve(&format!("cluster.a-{generation}"), POD).await?;
    stage.until_no_webhook(name).await?;
    stage.until_told("e", "Previewing", "True", "Previewing").await?;
    // And one that is disabled brings nothing: what it would be like on again is asked by a webhook.
    let mut disabled = about("pods", "true");
    disabled["enabled"] = json!(false);
    apply(&disabled).await?;
    stage.until_path(name, path).await?;
    stage.until_experiment("e", |it| it.live_etag.is_none()).await?;

    // What turns the policy off says nothing about other requests.
    let mut off = about("services", "true");
    off["enabled"] = json!(false);
    stage.experiment("e", "a", &off, true).await?;
    stage.until_no_webhook(name).await?;
    stage.candidate("e", 2).await?;
    stage.serve("experiment.cluster.e-2", POD).await?;
    stage.until_told("e", "Previewing", "True", "Previewing").await?;
    ensure!(stage.webhooks().get_opt(name).await?.is_none());
    Ok(())
}

#[tokio::test]
async fn a_commit_that_was_interrupted_is_brought_to_its_end() -> Result<()> {
    let stage = Stage::serving("experiment-commit").await?;
    stage.live("a", "true").await?;
    for name in ["e", "kept"] {
        stage.experiment(name, "a", &policy("1 < 2"), true).await?;
        stage.candidate(name, 1).await?;
    }
    let uid = async |name: &str| -> Result<String> { stage.experiments().get(name).await?.uid().context("uid") };
    let committed = |name: &str, uid: &str, generation: i64| {
        json!({"name": name, "uid": uid, "generation": generation, "etag": "\"x\""}).to_string()
    };
    let commit = async |annotation: &str, expression: &str| -> Result<i64> {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy",
            "metadata": {"name": "a", "annotations": {"proviso.dev/committed-experiment": annotation}},
            "spec": policy(expression),
        });
        let policies = stage.dynamic("proviso.dev/v1alpha1", "ClusterPolicy", None);
        let written = policies.patch("a", &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?;
        written.metadata.generation.context("generation")
    };

    // Somebody is about to commit: that is not forgotten while it may be true.
    let ago = |seconds: i64| (Timestamp::now() - SignedDuration::from_secs(seconds)).to_string();
    stage.annotate("clusterpolicyexperiment", "kept", "proviso.dev/commit-intent", &ago(20)).await?;
    stage.annotate("clusterpolicyexperiment", "e", "proviso.dev/commit-intent", &ago(70)).await?;
    until("what was long ago to be forgotten", PATIENCE, async || {
        ensure!(!stage.experiments().get("e").await?.annotations().contains_key("proviso.dev/commit-intent"));
        Ok(())
    })
    .await?;
    ensure!(stage.experiments().get("kept").await?.annotations().contains_key("proviso.dev/commit-intent"));

    // Another generation of it, or another one of its name, was committed: it stays.
    let generation = commit(&committed("kept", &uid("kept").await?, 2), "2 < 3").await?;
    stage.serve(&format!("cluster.a-{generation}"), POD).await?;
    stage.until_path("proviso-cluster.a", &format!("/validate/cluster.a/{generation}")).await?;
    let generation = commit(&committed("kept", "another", 1), "3 < 4").await?;
    stage.serve(&format!("cluster.a-{generation}"), POD).await?;
    stage.until_path("proviso-cluster.a", &format!("/validate/cluster.a/{generation}")).await?;

    // The policy says that it is this one, and whoever wrote that came no further.
    let named = uid("e").await?;
    let generation = commit(&committed("e", &named, 1), "1 < 2").await?;
    until("the experiment to go", PATIENCE, async || {
        ensure!(stage.experiments().get_opt("e").await?.is_none());
        Ok(())
    })
    .await?;
    stage.until_no_revision("experiment.cluster.e-1").await?;
    ensure!(stage.experiments().get("kept").await?.metadata.deletion_timestamp.is_none());
    stage.candidate("kept", 1).await?;
    // The revision says where it came from; the next one comes from somewhere else.
    let next = stage.policy("a", "default", "5 < 6").await?;
    let revisions = stage.api::<PolicyRevision>();
    let revision = async |generation: i64| {
        let name = format!("cluster.a-{generation}");
        until(&name, PATIENCE, async || Ok(revisions.get(&name).await?)).await
    };
    let of = revision(generation).await?.spec.experiment_ref.context("its experiment")?;
    ensure!((of.name.as_str(), of.uid.as_str(), of.generation) == ("e", named.as_str(), 1));
    ensure!(next == generation + 1);
    let next = commit(&committed("e", &named, 1), "6 < 7").await?;
    ensure!(revision(next).await?.spec.experiment_ref.is_none());
    let all = revisions.list(&ListParams::default()).await?.items;
    let of_e = all.iter().filter(|it| it.spec.experiment_ref.as_ref().is_some_and(|it| it.uid == named));
    ensure!(of_e.count() == 1);
    Ok(())
}
