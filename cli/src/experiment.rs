//! What may be done to an experiment, and how far its preview is. Pure; the operator does the work.

use proviso_core::PolicyId;
use proviso_crds::{ConditionType, PreviewState};

use crate::objects::{ExperimentObject, PolicyObject};
use crate::report::{ExperimentReport, Problem};

/// Why something was not done to an experiment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExperimentError {
    #[error("{experiment} was not {}: this cluster does not serve actions.proviso.dev/v1alpha1{}", done(action), because(cause.as_ref()))]
    NoActions { experiment: PolicyId, action: &'static str, cause: Option<String> },
    #[error("{experiment} was not {}: {cause}", done(action))]
    Changed { experiment: PolicyId, action: &'static str, cause: String },
    #[error("{experiment} was not {}: {cause}", done(action))]
    Refused { experiment: PolicyId, action: &'static str, cause: String },
    #[error("{what} is another version: its etag is {is}, not {wanted}")]
    Etag { experiment: PolicyId, what: PolicyId, is: String, wanted: String },
    #[error("{experiment} is an experiment of {policy}, which is not there")]
    NoPolicy { experiment: PolicyId, policy: PolicyId },
    #[error("{object} is being deleted")]
    Deleted { object: PolicyId },
}

fn done(action: &str) -> &'static str {
    match action {
        "start" => "started",
        "stop" => "stopped",
        "delete" => "deleted",
        _ => "committed",
    }
}

fn because(cause: Option<&String>) -> String {
    cause.map_or_else(String::new, |cause| format!(" now: {cause}"))
}

impl ExperimentError {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self, program: &str) -> Option<String> {
        Some(match self {
            Self::NoActions { experiment, action, .. } => {
                let whole = "The operator serves it, unless the chart's `operator.aggregatedApi` is false: `kubectl get \
                             apiservice v1alpha1.actions.proviso.dev` says where it stands.";
                format!("{whole} {}", without_actions(experiment, action, program))
            }
            Self::Changed { experiment, .. } | Self::Etag { experiment, .. } => {
                format!("See what it is now: {program} experiment diff {experiment}.")
            }
            Self::NoPolicy { experiment, .. } => {
                format!("Create the policy, or delete the experiment: {program} experiment delete {experiment}.")
            }
            Self::Refused { .. } | Self::Deleted { .. } => return None,
        })
    }
}

/// How the same is done with the objects alone.
fn without_actions(experiment: &PolicyId, action: &str, program: &str) -> String {
    let object = match experiment.namespace() {
        Some(namespace) => format!("policyexperiment {} -n {namespace}", experiment.name()),
        None => format!("clusterpolicyexperiment {}", experiment.name()),
    };
    let patch = |auto_start: bool| {
        format!("kubectl patch {object} --type merge -p '{{\"spec\":{{\"autoStart\":{auto_start}}}}}'")
    };
    match action {
        "start" => format!("Without it, `autoStart: true` in the experiment's spec starts it: {}", patch(true)),
        "stop" => format!(
            "Without it, `autoStart: false` stops an experiment that started by itself: {}; another one is deleted: \
             {program} experiment delete {experiment}",
            patch(false)
        ),
        _ => "Without it, put the experiment's spec.policy into the policy's spec, apply the policy, and delete the \
              experiment."
            .to_owned(),
    }
}

/// What a commit is about to do, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitPlan {
    pub etag: String,
    pub parent_etag: String,
}

/// The versions that a commit names: those that were read, and no others if a person named some.
///
/// # Errors
/// When they are others, or one is being deleted.
pub fn plan_commit(
    experiment: &ExperimentObject,
    policy: &PolicyObject,
    etag: Option<&str>,
    parent_etag: Option<&str>,
) -> Result<CommitPlan, ExperimentError> {
    for (object, is_being_deleted) in
        [(&experiment.id, experiment.is_being_deleted), (&policy.id, policy.is_being_deleted)]
    {
        if is_being_deleted {
            return Err(ExperimentError::Deleted { object: object.clone() });
        }
    }
    let plan = CommitPlan { etag: experiment.etag.clone(), parent_etag: policy.etag.clone() };
    for (what, is, wanted) in [(&experiment.id, &plan.etag, etag), (&policy.id, &plan.parent_etag, parent_etag)] {
        if let Some(wanted) = wanted.filter(|wanted| !is_same_etag(is, wanted)) {
            let (experiment, is) = (experiment.id.clone(), is.clone());
            return Err(ExperimentError::Etag { experiment, what: what.clone(), is, wanted: wanted.to_owned() });
        }
    }
    Ok(plan)
}

/// A shell takes the quotes of an etag away.
fn is_same_etag(is: &str, wanted: &str) -> bool {
    is == wanted || is.trim_matches('"') == wanted
}

/// How far a preview is that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    Waiting(String),
    /// It does not get on by itself.
    Stuck(Problem),
    /// On every replica.
    Previewing,
    /// Somebody stopped or changed it.
    Stopped,
    Gone,
}

/// Looks at the experiment of this uid, in the version that was started.
#[must_use]
pub fn progress(uid: &str, generation: i64, now: Option<&ExperimentObject>) -> Progress {
    let Some(experiment) = now.filter(|experiment| experiment.uid == uid) else { return Progress::Gone };
    if experiment.generation != generation || experiment.state() != Some(PreviewState::Active) {
        return Progress::Stopped;
    }
    if !experiment.is_observed() {
        return Progress::Waiting("the operator has not taken it up yet".to_owned());
    }
    let report = ExperimentReport::new(experiment);
    match (report.problem, experiment.condition(ConditionType::Previewing)) {
        (Some(problem), _) => Progress::Stuck(problem),
        (None, Some(previewing)) if previewing.status == "True" => Progress::Previewing,
        (None, previewing) => {
            let what = previewing.map_or("the operator is at work", |condition| condition.message.as_str());
            let replicas = experiment.status.replicas.as_ref();
            let replicas = replicas.map_or_else(String::new, |it| format!(" ({} replicas)", it.summary));
            Progress::Waiting(format!("{what}{replicas}"))
        }
    }
}

impl Progress {
    /// For people.
    #[must_use]
    pub fn in_words(&self) -> String {
        match self {
            Self::Waiting(what) => what.clone(),
            Self::Stuck(Problem { reason, message }) => format!("{reason}: {message}"),
            Self::Previewing => "every replica previews it".to_owned(),
            Self::Stopped => "somebody changed or stopped it".to_owned(),
            Self::Gone => "it was deleted or committed".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{active, condition, experiment, policy, previewing};
    use serde_json::{Value, json};

    #[test]
    fn a_commit_names_the_versions_that_were_read() {
        let (experiment, policy) = (experiment(3, &Value::Null), policy(2, &active(2)));
        let plan = plan_commit(&experiment, &policy, None, None).unwrap();
        assert_eq!((&plan.etag, &plan.parent_etag), (&experiment.etag, &policy.etag));
        let bare = plan.etag.trim_matches('"');
        assert_eq!(plan_commit(&experiment, &policy, Some(bare), Some(&plan.parent_etag)), Ok(plan.clone()));
        let error = plan_commit(&experiment, &policy, Some("\"old\""), None).unwrap_err();
        let told = format!("ns.team.stricter is another version: its etag is {}, not \"old\"", plan.etag);
        assert_eq!(error.to_string(), told);
        let error = plan_commit(&experiment, &policy, None, Some("old")).unwrap_err();
        assert!(error.to_string().starts_with("ns.team.labels is another version"), "{error}");
        assert_eq!(error.remedy("proviso").unwrap(), "See what it is now: proviso experiment diff ns.team.stricter.");
    }

    #[test]
    fn what_is_being_deleted_is_not_committed() {
        let (experiment, mut policy) = (experiment(3, &Value::Null), policy(2, &active(2)));
        policy.is_being_deleted = true;
        let error = plan_commit(&experiment, &policy, None, None).unwrap_err();
        assert_eq!(error.to_string(), "ns.team.labels is being deleted");
    }

    #[test]
    fn without_the_api_there_is_another_way() {
        let experiment = experiment(1, &Value::Null).id;
        let error = |action, cause| ExperimentError::NoActions { experiment: experiment.clone(), action, cause };
        let start = error("start", None);
        let told = "ns.team.stricter was not started: this cluster does not serve actions.proviso.dev/v1alpha1";
        assert_eq!(start.to_string(), told);
        let patch = "kubectl patch policyexperiment stricter -n team --type merge -p '{\"spec\":{\"autoStart\":true}}'";
        assert!(start.remedy("proviso").unwrap().ends_with(patch), "{start:?}");
        let stop = error("stop", Some("service unavailable".to_owned()));
        assert!(stop.to_string().ends_with("v1alpha1 now: service unavailable"), "{stop}");
        assert!(stop.remedy("proviso").unwrap().contains("proviso experiment delete ns.team.stricter"), "{stop:?}");
        assert!(error("commit", None).remedy("proviso").unwrap().contains("apply the policy, and delete"));
    }

    fn at(status: &Value) -> Progress {
        progress("x", 1, Some(&experiment(1, status)))
    }

    #[test]
    fn a_start_is_followed_until_every_replica_previews() {
        assert_eq!(at(&previewing(1)), Progress::Previewing);
        let mut before = previewing(1);
        before["previewMetadata"]["startTime"] = json!("2026-11-21T09:59:00Z");
        assert_eq!(at(&before), Progress::Waiting("the operator has not taken it up yet".to_owned()));
        let mut loading = previewing(1);
        loading["conditions"][2] =
            condition("Previewing", "False", "Loading", "not every Ready replica has loaded it", 1);
        loading["replicas"] = json!({"ready": 1, "total": 2, "summary": "1/2"});
        assert_eq!(at(&loading).in_words(), "not every Ready replica has loaded it (1/2 replicas)");
        let mut failed = previewing(1);
        failed["conditions"][1] = condition("Initialized", "False", "CompileError", "no", 1);
        assert_eq!(at(&failed).in_words(), "CompileError: no");
    }

    #[test]
    fn what_somebody_else_does_ends_the_waiting() {
        assert_eq!(progress("x", 1, Some(&experiment(2, &previewing(1)))), Progress::Stopped);
        assert_eq!(progress("another", 1, Some(&experiment(1, &previewing(1)))), Progress::Gone);
        assert_eq!(progress("x", 1, None), Progress::Gone);
    }
}
