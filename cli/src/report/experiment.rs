//! Reports about experiments.

mod state;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use proviso_core::{Failure, PolicyId};
use proviso_crds::reasons;
use proviso_crds::{
    Canary, DivergenceCounts, DivergenceSample, PreviewLogging, PreviewMetadata, PreviewState, ReplicaCount, StopCause,
};
use serde::Serialize;

use super::advice;
use super::divergence::{coverage, ratio};
use super::evidence::{self, EvidenceWarning, Expected};
use super::next_step::NextStep;
use crate::found::{Found, Omitted};
use crate::kinds::Pair;
use crate::objects::ExperimentObject;

/// The state of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentReport {
    /// The id of the experiment.
    pub experiment: PolicyId,
    pub kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    /// The id of its policy.
    pub policy: PolicyId,
    /// The state of the preview; `None` before the first start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<PreviewState>,
    /// The time since when the experiment is in this state; `None` if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The state in a sentence.
    pub summary: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// The etag of this version, which a commit names.
    pub etag: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_etag: Option<String>,
    pub auto_start: bool,
    /// The share of the requests that are previewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_rate: Option<f64>,
    /// The previewed requests that are logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logging: Option<PreviewLogging>,
    /// The time from a start until the preview stops by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preview_metadata: Option<PreviewReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<ReplicaCount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub divergence: Option<DivergenceCounts>,
    /// The share of the requests that the experiment evaluated, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coverage: Option<f64>,
    pub samples: Vec<DivergenceSample>,
    /// The components that get the candidate of a configuration policy, while it is previewed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub canaries: Vec<Canary>,
    /// The reasons why the counts and samples say less than they seem to.
    pub warnings: Vec<EvidenceWarning>,
    /// The time at which a commit began that is in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub committing_since: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Failure>,
    pub conditions: Vec<Condition>,
}

/// The preview that was started last.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PreviewReport {
    pub state: PreviewState,
    pub log_prefix: String,
    pub start_time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_time: Option<Time>,
    /// The time at which the preview stops by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_time: Option<Time>,
    /// The cause of the stop; `None` if a caller stopped the preview.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_cause: Option<StopCause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

impl PreviewReport {
    fn new(preview: PreviewMetadata) -> Self {
        let PreviewMetadata { state, log_prefix, start_time, stop_time, expire_time, stop_cause, generation } = preview;
        let generation = known(generation);
        Self { state, log_prefix, start_time, stop_time, expire_time, stop_cause, generation }
    }
}

/// Returns a generation; `None` if it is 0, which means unknown.
fn known(generation: i64) -> Option<i64> {
    Some(generation).filter(|generation| *generation > 0)
}

/// The state of many experiments.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExperimentOverview {
    pub experiments: Vec<ExperimentReport>,
    pub unseen: Vec<Omitted>,
}

/// One experiment, and the next steps of the user.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentDetail {
    #[serde(flatten)]
    pub experiment: ExperimentReport,
    pub next_steps: Vec<NextStep>,
}

impl ExperimentReport {
    #[must_use]
    pub fn new(experiment: &ExperimentObject) -> Self {
        let status = &experiment.status;
        let (state, problem) = (experiment.state(), state::problem(experiment));
        let [namespaced, cluster] = <ExperimentObject as Pair>::KINDS;
        let sample_rate = experiment.sample_rate;
        let report = Self {
            experiment: experiment.id.clone(),
            kind: if experiment.id.namespace().is_some() { namespaced } else { cluster },
            namespace: experiment.id.namespace().map(str::to_owned),
            name: experiment.id.name().to_owned(),
            policy: experiment.policy.clone(),
            state,
            since: state::since(experiment),
            summary: state::summary(experiment, problem.as_ref()),
            generation: known(experiment.generation),
            etag: experiment.etag.clone(),
            live_etag: status.live_etag.clone(),
            auto_start: experiment.auto_start,
            sample_rate,
            logging: experiment.logging,
            ttl: experiment.ttl.clone(),
            preview_metadata: status.preview_metadata.clone().map(PreviewReport::new),
            replicas: status.replicas.clone().filter(|_| state == Some(PreviewState::Active)),
            divergence: status.divergence.clone(),
            coverage: status.divergence.as_ref().and_then(|counts| ratio(counts, sample_rate.unwrap_or(1.0))),
            samples: status.samples.clone(),
            canaries: status.canaries.clone(),
            warnings: Vec::new(),
            committing_since: status.commit.as_ref().map(|commit| commit.since.clone()),
            created: experiment.created.map(Time),
            problem,
            conditions: status.conditions.clone(),
        };
        report.compared_with(status.live_etag.as_deref())
    }

    /// Returns the report with the warnings for a policy with this etag; `None` if it is unknown, or no version is live.
    #[must_use]
    pub fn compared_with(self, live_etag: Option<&str>) -> Self {
        let (etag, policy) = (self.etag.as_str(), self.policy.as_str());
        let expected = Expected { etag, policy, live_etag, sample_rate: self.sample_rate };
        let warnings = self.divergence.as_ref().map(|counts| evidence::warnings(counts, expected));
        Self { warnings: warnings.unwrap_or_default(), ..self }
    }

    /// Returns `policyexperiment/NAME` or `clusterpolicyexperiment/NAME`.
    #[must_use]
    pub fn reference(&self) -> String {
        format!("{}/{}", self.kind.to_ascii_lowercase(), self.name)
    }

    /// Returns the cause for which the preview is stopped; `None` if it is not stopped, or a caller stopped it.
    #[must_use]
    pub fn stop_cause(&self) -> Option<&StopCause> {
        let preview = self.preview_metadata.as_ref().filter(|_| self.state == Some(PreviewState::Suspended));
        preview.and_then(|preview| preview.stop_cause.as_ref())
    }

    /// Returns the state as AIP-236 writes it.
    #[must_use]
    pub fn state_label(&self) -> &'static str {
        match self.state {
            None => "not started",
            Some(PreviewState::Active) => "ACTIVE",
            Some(PreviewState::Suspended) => "SUSPENDED",
        }
    }
}

impl ExperimentOverview {
    /// Returns the report about the experiments, sorted by namespace and name. `policy` limits it to the experiments of one
    /// policy.
    #[must_use]
    pub fn new(found: &Found<ExperimentObject>, policy: Option<&PolicyId>) -> Self {
        let items = found.items.iter().filter(|experiment| policy.is_none_or(|policy| experiment.policy == *policy));
        let mut experiments: Vec<_> = items.map(ExperimentReport::new).collect();
        experiments.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        Self { experiments, unseen: found.unseen.clone() }
    }
}

impl ExperimentDetail {
    /// Returns the report about an experiment. `program` is the name by which the user calls this program.
    #[must_use]
    pub fn new(experiment: &ExperimentObject, program: &str) -> Self {
        let report = ExperimentReport::new(experiment);
        let next_steps = if experiment.is_being_deleted { Vec::new() } else { next_steps(&report, program) };
        Self { experiment: report, next_steps }
    }
}

fn next_steps(report: &ExperimentReport, program: &str) -> Vec<NextStep> {
    let id = &report.experiment;
    let command = |what: &str, command: String| NextStep { what: what.to_owned(), command: Some(command) };
    let mut steps = Vec::new();
    if let Some(Failure { reason, .. }) = &report.problem {
        if *reason == reasons::POLICY_NOT_FOUND {
            steps.push(NextStep { what: format!("Create the policy {}", report.policy), command: None });
        } else if *reason == reasons::TOO_MANY {
            let policy = match &report.namespace {
                Some(namespace) => format!("policy/{} -n {namespace}", report.policy.name()),
                None => format!("clusterpolicy/{}", report.policy.name()),
            };
            steps.push(command("Find one to delete", format!("{program} experiment status {policy}")));
        } else {
            steps.extend(advice::for_reason(reason));
        }
    }
    match report.state {
        Some(PreviewState::Active) => {
            if report.problem.is_none() {
                steps.push(command("Follow it", format!("{program} experiment status {id} --watch")));
            }
            steps.push(command("See what a commit would change", format!("{program} experiment diff {id}")));
            if report.problem.is_none() {
                steps.push(command("Commit it", format!("{program} experiment commit {id}")));
            }
            steps.push(command("Stop it", format!("{program} experiment stop {id}")));
        }
        _ if report.problem.is_none() => {
            steps.push(command("See what it would change", format!("{program} experiment diff {id}")));
            steps.push(command("Preview it", format!("{program} experiment start {id} --wait")));
        }
        Some(PreviewState::Suspended) => {
            steps.push(command("Then start it again", format!("{program} experiment start {id} --wait")));
        }
        None => {}
    }
    steps
}

impl ExperimentReport {
    /// Returns the report as one line of a log.
    #[must_use]
    pub fn line(&self, now: Timestamp) -> String {
        let state = self.state.map_or("NOT_STARTED", |_| self.state_label());
        let mut words = vec![format!("{now:.0}"), self.experiment.to_string(), state.to_owned()];
        if let Some(counts) = &self.divergence {
            let fields = [
                ("evaluated", counts.evaluated),
                ("same", counts.same),
                ("newlyDenied", counts.newly_denied),
                ("newlyAllowed", counts.newly_allowed),
                ("mutationDiffers", counts.mutation_differs),
                ("messageDiffers", counts.message_differs),
                ("detailsDiffer", counts.details_differ),
                ("errors", counts.errors),
                ("dropped", counts.dropped),
            ];
            words.extend(fields.iter().map(|(name, count)| format!("{name}={count}")));
            words.push(format!("coverage={}", coverage(counts).as_deref().unwrap_or("-")));
        }
        words.extend(self.replicas.as_ref().map(|replicas| format!("replicas={}", replicas.summary)));
        words.extend(self.stop_cause().map(|cause| format!("stopCause={}", cause.reason)));
        words.extend(self.problem.as_ref().map(|problem| format!("problem={}", problem.reason)));
        if !self.warnings.is_empty() {
            let reasons: Vec<_> = self.warnings.iter().map(|warning| warning.reason).collect();
            words.push(format!("warnings={}", reasons.join(",")));
        }
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{NOW, condition, experiment, previewing};
    use serde_json::{Value, json};

    #[test]
    fn a_line_has_state_counts_and_replicas() {
        let now = NOW.parse().unwrap();
        let line = ExperimentReport::new(&experiment(1, &previewing(1))).line(now);
        assert_eq!(
            line,
            "2026-11-21T10:00:00Z ns.team.stricter ACTIVE evaluated=1200 same=1187 newlyDenied=10 newlyAllowed=0 \
             mutationDiffers=0 messageDiffers=2 detailsDiffer=0 errors=1 dropped=6 coverage=99.5% replicas=2/2 \
             warnings=Dropped"
        );
        let line = ExperimentReport::new(&experiment(1, &Value::Null)).line(now);
        assert_eq!(line, "2026-11-21T10:00:00Z ns.team.stricter NOT_STARTED");
        let mut failed = previewing(1);
        failed["previewMetadata"]["state"] = json!("SUSPENDED");
        failed["previewMetadata"]["stopCause"] = json!({"reason": "NoReplicas", "message": "no"});
        failed["divergence"] = Value::Null;
        let line = ExperimentReport::new(&experiment(1, &failed)).line(now);
        assert!(line.ends_with(" SUSPENDED stopCause=NoReplicas problem=NoReplicas"), "{line}");
    }

    #[test]
    fn the_coverage_is_a_share_of_all_requests() {
        let mut sampled = experiment(1, &previewing(1));
        assert_eq!(ExperimentReport::new(&sampled).coverage, Some(1200.0 / 1206.0));
        sampled.sample_rate = Some(0.5);
        let report = ExperimentReport::new(&sampled);
        assert_eq!(report.coverage, Some(600.0 / 1206.0));
        assert_eq!(report.warnings.iter().map(|it| it.reason).collect::<Vec<_>>(), ["Sampled", "Dropped"]);
        // A commit replaces the version of the policy that was read.
        let report = report.compared_with(Some("\"another\""));
        assert_eq!(report.warnings[0].reason, "OtherLiveVersion");
    }

    #[test]
    fn the_next_step_depends_on_the_state() {
        let steps = |status: &Value| {
            let detail = ExperimentDetail::new(&experiment(1, status), "proviso");
            detail.next_steps.into_iter().filter_map(|step| step.command).collect::<Vec<_>>().join("\n")
        };
        assert!(steps(&previewing(1)).contains("proviso experiment commit ns.team.stricter\n"));
        assert!(steps(&Value::Null).ends_with("proviso experiment start ns.team.stricter --wait"));
        let mut many = previewing(1);
        many["conditions"][0] = condition("Accepted", "False", "TooMany", "", 1);
        assert!(steps(&many).contains("proviso experiment status policy/labels -n team"));
        let mut failed = previewing(1);
        failed["previewMetadata"]["state"] = json!("SUSPENDED");
        failed["previewMetadata"]["stopCause"] = json!({"reason": "CompileError", "message": "no"});
        assert_eq!(steps(&failed), "proviso experiment start ns.team.stricter --wait");
    }
}
