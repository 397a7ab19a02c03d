//! Reports about experiments.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use proviso_core::{Failure, PolicyId, Reason};
use proviso_crds::conditions::failure;
use proviso_crds::reasons;
use proviso_crds::{
    ConditionStatus, ConditionType, DivergenceCounts, DivergenceSample, PreviewMetadata, PreviewState, ReplicaCount,
};
use serde::Serialize;

use super::advice;
use super::divergence::{self, coverage, ratio};
use super::next_step::NextStep;
use crate::found::{Found, Omitted};
use crate::kinds::Pair;
use crate::objects::ExperimentObject;

/// The reasons of `Previewing=False` that a user must solve. The other reasons are steps of the start.
const BLOCKING_REASONS: [Reason; 2] = [reasons::NO_REPLICAS, reasons::LOADING_FAILED];

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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

impl PreviewReport {
    fn new(preview: PreviewMetadata) -> Self {
        let PreviewMetadata { state, log_prefix, start_time, stop_time, generation } = preview;
        Self { state, log_prefix, start_time, stop_time, generation: known(generation) }
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
        let (state, problem) = (experiment.state(), problem(experiment));
        let [namespaced, cluster] = <ExperimentObject as Pair>::KINDS;
        Self {
            experiment: experiment.id.clone(),
            kind: if experiment.id.namespace().is_some() { namespaced } else { cluster },
            namespace: experiment.id.namespace().map(str::to_owned),
            name: experiment.id.name().to_owned(),
            policy: experiment.policy.clone(),
            state,
            since: since(experiment),
            summary: summary(experiment, problem.as_ref()),
            generation: known(experiment.generation),
            etag: experiment.etag.clone(),
            live_etag: status.live_etag.clone(),
            auto_start: experiment.auto_start,
            preview_metadata: status.preview_metadata.clone().map(PreviewReport::new),
            replicas: status.replicas.clone().filter(|_| state == Some(PreviewState::Active)),
            divergence: status.divergence.clone(),
            coverage: status.divergence.as_ref().and_then(ratio),
            samples: status.samples.clone(),
            created: experiment.created.map(Time),
            problem,
            conditions: status.conditions.clone(),
        }
    }

    /// Returns `policyexperiment/NAME` or `clusterpolicyexperiment/NAME`.
    #[must_use]
    pub fn reference(&self) -> String {
        format!("{}/{}", self.kind.to_ascii_lowercase(), self.name)
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

/// Returns the time since when the experiment is in its state. The time of a suspension by an update is unknown until the
/// operator has written it.
fn since(experiment: &ExperimentObject) -> Option<Time> {
    let preview = experiment.status.preview_metadata.as_ref()?;
    match (experiment.state()?, preview.state) {
        (PreviewState::Active, _) => Some(preview.start_time.clone()),
        (PreviewState::Suspended, PreviewState::Suspended) => preview.stop_time.clone(),
        (PreviewState::Suspended, PreviewState::Active) => None,
    }
}

fn problem(experiment: &ExperimentObject) -> Option<Failure> {
    if let Some(failure) = &experiment.failure {
        return Some(failure.clone());
    }
    let refused = experiment.condition(ConditionType::Accepted);
    let broken =
        experiment.condition(ConditionType::Initialized).filter(|_| experiment.state() == Some(PreviewState::Active));
    let stuck = experiment
        .condition(ConditionType::Previewing)
        .filter(|it| BLOCKING_REASONS.iter().any(|reason| it.reason == *reason));
    let failed = [refused, broken, stuck]
        .into_iter()
        .flatten()
        .find(|condition| condition.status == ConditionStatus::False.as_str())?;
    Some(failure(failed))
}

fn summary(experiment: &ExperimentObject, problem: Option<&Failure>) -> String {
    if experiment.is_being_deleted {
        return "it is being deleted".to_owned();
    }
    let (generation, is_in_cluster) = (experiment.generation, experiment.is_in_cluster);
    let started = experiment.status.preview_metadata.as_ref().map(|preview| preview.generation);
    match (experiment.state(), started) {
        (None | Some(PreviewState::Suspended), _) if experiment.auto_start && problem.is_none() && is_in_cluster => {
            "the operator has not started it yet".to_owned()
        }
        (None, _) => "it was not started, and is not previewed".to_owned(),
        (Some(PreviewState::Suspended), Some(started)) if started != generation => {
            format!("it was changed after its start: generation {generation} is not previewed")
        }
        (Some(PreviewState::Suspended), _) if !is_in_cluster => "it is not previewed".to_owned(),
        (Some(PreviewState::Suspended), _) => "it was stopped, and is not previewed".to_owned(),
        (Some(PreviewState::Active), _) if problem.is_some() => {
            "it was started, but its preview has a problem".to_owned()
        }
        (Some(PreviewState::Active), _) if !is_in_cluster => match &experiment.status.divergence {
            None => "it is previewed; this server has no counts, but its log has a line for each verdict".to_owned(),
            counts => divergence::summary(counts.as_ref()),
        },
        (Some(PreviewState::Active), _) if !experiment.is_observed() => {
            "it was started; the operator has not processed it yet".to_owned()
        }
        (Some(PreviewState::Active), _) => {
            let is_everywhere = experiment.condition(ConditionType::Previewing).is_some_and(|it| it.status == "True");
            let loading = if is_everywhere { "" } else { "not every replica previews it yet; " };
            format!("{loading}{}", divergence::summary(experiment.status.divergence.as_ref()))
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
        _ => {}
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
                ("errors", counts.errors),
                ("dropped", counts.dropped),
            ];
            words.extend(fields.iter().map(|(name, count)| format!("{name}={count}")));
            words.push(format!("coverage={}", coverage(counts).as_deref().unwrap_or("-")));
        }
        words.extend(self.replicas.as_ref().map(|replicas| format!("replicas={}", replicas.summary)));
        words.extend(self.problem.as_ref().map(|problem| format!("problem={}", problem.reason)));
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{NOW, condition, experiment, previewing};
    use serde_json::{Value, json};

    fn summary_of(generation: i64, status: &Value) -> String {
        ExperimentReport::new(&experiment(generation, status)).summary
    }

    #[test]
    fn each_state_has_a_summary() {
        let mut stopped = previewing(1);
        stopped["previewMetadata"]["state"] = json!("SUSPENDED");
        let mut unobserved = previewing(1);
        unobserved["previewMetadata"]["startTime"] = json!("2026-11-21T09:59:00Z");
        let mut loading = previewing(1);
        loading["conditions"][2] = condition("Previewing", "False", "Loading", "", 1);
        loading["divergence"]["evaluated"] = json!(0);
        let mut same = previewing(1);
        for count in ["newlyDenied", "messageDiffers", "errors"] {
            same["divergence"][count] = json!(0);
        }
        let mut failed = previewing(1);
        failed["conditions"][1] = condition("Initialized", "False", "CompileError", "no", 1);
        for (generation, status, wanted) in [
            (1, Value::Null, "it was not started, and is not previewed"),
            (1, previewing(1), "its verdict differs for 13 of 1200 requests"),
            (1, same, "its verdict is the same for all 1200 requests"),
            (1, loading, "not every replica previews it yet; no request was evaluated yet"),
            (1, unobserved, "it was started; the operator has not processed it yet"),
            (1, failed, "it was started, but its preview has a problem"),
            (1, stopped, "it was stopped, and is not previewed"),
            (2, previewing(1), "it was changed after its start: generation 2 is not previewed"),
        ] {
            assert_eq!(summary_of(generation, &status), wanted);
        }
    }

    #[test]
    fn a_step_of_the_start_is_not_a_problem() {
        let with = |index: usize, condition: Value| {
            let mut status = previewing(1);
            status["conditions"][index] = condition;
            ExperimentReport::new(&experiment(1, &status)).problem.map(|problem| problem.reason)
        };
        for (index, name, status, reason, is_problem) in [
            (0, "Accepted", "False", "TooMany", true),
            (1, "Initialized", "False", "CompileError", true),
            (1, "Initialized", "Unknown", "Preparing", false),
            (2, "Previewing", "False", "Loading", false),
            (2, "Previewing", "False", "NoReplicas", true),
        ] {
            let wanted = is_problem.then(|| Reason::new(reason));
            assert_eq!(with(index, condition(name, status, reason, "", 1)), wanted, "{name} {reason}");
            assert_eq!(with(index, condition(name, status, reason, "", 0)), None, "it is about an earlier version");
        }
    }

    #[test]
    fn a_line_has_state_counts_and_replicas() {
        let now = NOW.parse().unwrap();
        let line = ExperimentReport::new(&experiment(1, &previewing(1))).line(now);
        assert_eq!(
            line,
            "2026-11-21T10:00:00Z ns.team.stricter ACTIVE evaluated=1200 same=1187 newlyDenied=10 newlyAllowed=0 \
             mutationDiffers=0 messageDiffers=2 errors=1 dropped=6 coverage=99.5% replicas=2/2"
        );
        let line = ExperimentReport::new(&experiment(1, &Value::Null)).line(now);
        assert_eq!(line, "2026-11-21T10:00:00Z ns.team.stricter NOT_STARTED");
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
    }
}
