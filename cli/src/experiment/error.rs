//! The errors of actions on experiments.

use std::path::PathBuf;

use proviso_core::PolicyId;

/// The error of an action on an experiment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExperimentError {
    #[error(
        "{experiment} was not {}: this cluster does not serve actions.proviso.dev/v1alpha1{}",
        done(action), because(cause.as_ref())
    )]
    NoActions { experiment: PolicyId, action: &'static str, cause: Option<String> },
    #[error("{experiment} was not {}: {cause}", undone(action))]
    Refused { experiment: PolicyId, action: &'static str, refusal: Refusal, cause: String },
    #[error("the server failed while {experiment} was being {}: {cause}", done(action))]
    Failed { experiment: PolicyId, action: &'static str, cause: String },
    #[error("{experiment} was not {}: {what} has another version: its etag is {is}, not {wanted}", undone("commit"))]
    Etag { experiment: PolicyId, what: PolicyId, is: String, wanted: String },
    #[error("{experiment} is an experiment of {policy}, which does not exist")]
    NoPolicy { experiment: PolicyId, policy: PolicyId },
    #[error("{object} is being deleted")]
    Deleted { object: PolicyId },
    #[error("{file} exists already", file = file.display())]
    FileExists { file: PathBuf },
}

/// The reason of a refusal, as far as the remedy depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The experiment or the policy has another version than the request names, or another client changed it at the same time.
    Changed,
    /// Another commit of the experiment is in progress.
    CommitUnderWay,
    /// The server has not prepared the version yet.
    NotPrepared,
    /// The version does not work.
    DoesNotWork,
    Other,
}

impl Refusal {
    /// Returns the refusal with this HTTP status and reason (AIP-193, `ErrorInfo.reason`). `None` if the server gives no reason.
    fn new(status: u16, reason: Option<&str>) -> Self {
        match (reason, status) {
            (Some("COMMIT_UNDER_WAY"), _) => Self::CommitUnderWay,
            (Some("NOT_PREPARED"), _) => Self::NotPrepared,
            (Some("DOES_NOT_WORK"), _) => Self::DoesNotWork,
            (Some("COMMIT_ABORTED"), _) => Self::Other,
            (Some("ETAG_MISMATCH" | "CONCURRENT_CHANGE"), _) | (_, 409 | 412) => Self::Changed,
            _ => Self::Other,
        }
    }
}

fn done(action: &str) -> &'static str {
    match action {
        "start" => "started",
        "stop" => "stopped",
        "delete" => "deleted",
        _ => "committed",
    }
}

/// Returns the participle of an action that was refused. Only a commit might have changed something else.
fn undone(action: &str) -> &'static str {
    match done(action) {
        "committed" => "committed, and nothing was changed",
        done => done,
    }
}

fn because(cause: Option<&String>) -> String {
    cause.map_or_else(String::new, |cause| format!(" now: {cause}"))
}

impl ExperimentError {
    /// Returns the error for an action that a server answered with this HTTP status. `reason` is the reason of the error (AIP-193);
    /// `None` if the server gives none.
    #[must_use]
    pub fn answered(
        experiment: PolicyId,
        action: &'static str,
        status: u16,
        reason: Option<&str>,
        cause: String,
    ) -> Self {
        match status {
            500.. => Self::Failed { experiment, action, cause },
            _ => Self::Refused { experiment, action, refusal: Refusal::new(status, reason), cause },
        }
    }

    /// Returns true if the action may have been done nevertheless.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::Failed { .. })
    }

    /// Returns advice for the user; `None` if the message of the error has it.
    #[must_use]
    pub fn remedy(&self, program: &str) -> Option<String> {
        Some(match self {
            Self::NoActions { experiment, action, .. } => {
                let api = "The operator serves this API, unless the chart's `operator.aggregatedApi` is false: `kubectl get \
                           apiservice v1alpha1.actions.proviso.dev` shows its status.";
                format!("{api} {}", without_actions(experiment, action, program))
            }
            Self::Refused { refusal: Refusal::Changed, experiment, .. } | Self::Etag { experiment, .. } => {
                format!("See the current differences: {program} experiment diff {experiment}.")
            }
            Self::Refused { refusal: Refusal::CommitUnderWay, experiment, .. } => format!(
                "Wait until the other commit has ended, at most two minutes: it has succeeded if {program} experiment status \
                 {experiment} finds no experiment. Otherwise try again."
            ),
            Self::Refused { refusal: Refusal::NotPrepared, experiment, .. } => {
                format!("Try again, or start the preview first: {program} experiment start {experiment} --wait.")
            }
            Self::Refused { refusal: Refusal::DoesNotWork, experiment, .. } => format!(
                "Correct the experiment's spec.policy, and preview it again: {program} experiment start {experiment} --wait."
            ),
            Self::Failed { experiment, action, .. } => {
                let done = done(action);
                format!("Check whether the experiment was {done}: {program} experiment status {experiment}.")
            }
            Self::NoPolicy { experiment, .. } => {
                format!("Create the policy, or delete the experiment: {program} experiment delete {experiment}.")
            }
            Self::FileExists { .. } => {
                "It may have changes of yours. Name a new file, or write to standard output: --to-file -".to_owned()
            }
            Self::Refused { refusal: Refusal::Other, .. } | Self::Deleted { .. } => return None,
        })
    }
}

/// Returns advice on how to do the same with kubectl, without the API.
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
            "Without it, `autoStart: false` stops an experiment that the operator started: {}; to stop any other \
             experiment, delete it: {program} experiment delete {experiment}",
            patch(false)
        ),
        _ => format!(
            "Without it, write the policy with the experiment's spec to a file, apply the file, and delete the experiment: \
             {program} experiment commit {experiment} --to-file FILE"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stricter() -> PolicyId {
        PolicyId::namespaced("team", "stricter").unwrap()
    }

    #[test]
    fn without_the_actions_api_the_remedy_names_kubectl() {
        let error = |action, cause| ExperimentError::NoActions { experiment: stricter(), action, cause };
        let start = error("start", None);
        let wanted = "ns.team.stricter was not started: this cluster does not serve actions.proviso.dev/v1alpha1";
        assert_eq!(start.to_string(), wanted);
        let patch = "kubectl patch policyexperiment stricter -n team --type merge -p '{\"spec\":{\"autoStart\":true}}'";
        assert!(start.remedy("proviso").unwrap().ends_with(patch), "{start:?}");
        let stop = error("stop", Some("service unavailable".to_owned()));
        assert!(stop.to_string().ends_with("v1alpha1 now: service unavailable"), "{stop}");
        assert!(stop.remedy("proviso").unwrap().contains("proviso experiment delete ns.team.stricter"), "{stop:?}");
        let commit = "proviso experiment commit ns.team.stricter --to-file FILE";
        assert!(error("commit", None).remedy("proviso").unwrap().ends_with(commit));
    }

    #[test]
    fn each_refusal_of_a_commit_says_that_nothing_was_changed_and_has_a_remedy() {
        for (status, reason, remedy) in [
            (409, Some("ETAG_MISMATCH"), "experiment diff ns.team.stricter"),
            (409, Some("CONCURRENT_CHANGE"), "experiment diff ns.team.stricter"),
            (409, Some("POLICY_CHANGED"), "experiment diff ns.team.stricter"),
            (409, None, "experiment diff ns.team.stricter"),
            (409, Some("COMMIT_UNDER_WAY"), "until the other commit has ended"),
            (400, Some("NOT_PREPARED"), "start the preview first: proviso experiment start ns.team.stricter --wait"),
            (400, Some("DOES_NOT_WORK"), "Correct the experiment's spec.policy"),
        ] {
            let error = ExperimentError::answered(stricter(), "commit", status, reason, "because".to_owned());
            let wanted = "ns.team.stricter was not committed, and nothing was changed: because";
            assert_eq!((error.to_string().as_str(), error.is_unanswered()), (wanted, false), "{reason:?}");
            let found = error.remedy("proviso").unwrap();
            assert!(found.contains(remedy), "{reason:?}: {found}");
        }
        let other = ExperimentError::answered(stricter(), "start", 400, None, "because".to_owned());
        assert_eq!(other.to_string(), "ns.team.stricter was not started: because");
        // The message has the remedy.
        let aborted =
            ExperimentError::answered(stricter(), "commit", 409, Some("COMMIT_ABORTED"), "because".to_owned());
        assert_eq!(aborted.remedy("proviso"), None);
    }

    #[test]
    fn a_server_that_failed_may_have_committed() {
        let error = ExperimentError::answered(stricter(), "commit", 504, None, "timeout".to_owned());
        assert_eq!(error.to_string(), "the server failed while ns.team.stricter was being committed: timeout");
        assert!(error.is_unanswered());
        let wanted = "Check whether the experiment was committed: proviso experiment status ns.team.stricter.";
        assert_eq!(error.remedy("proviso").as_deref(), Some(wanted));
    }
}
