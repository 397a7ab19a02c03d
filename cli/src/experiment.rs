//! Checks the commit of an experiment, and computes the progress of its preview. Pure.

pub mod error;

use proviso_core::Failure;
use proviso_crds::{ConditionType, PreviewState};

use self::error::ExperimentError;
use crate::objects::{ExperimentObject, PolicyObject};
use crate::report::ExperimentReport;

/// The versions of the experiment and the policy that a commit names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitPlan {
    pub etag: String,
    pub parent_etag: String,
}

/// Returns the commit of the versions that were read. `etag` and `parent_etag` are the versions that the user requires; `None`
/// accepts any version.
///
/// # Errors
/// When the user requires other versions, or an object is being deleted.
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

/// Compares two etags. The quotes around `wanted` may be missing, because a shell removes them.
fn is_same_etag(is: &str, wanted: &str) -> bool {
    is == wanted || is.trim_matches('"') == wanted
}

/// The progress of a preview.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The preview has not started on every replica; with the reason.
    Waiting(String),
    /// The preview has a problem that a user must solve.
    Stuck(Failure),
    /// Every replica previews the experiment.
    Previewing,
    /// A user stopped or changed the experiment.
    Stopped,
    /// The experiment no longer exists.
    Gone,
}

/// Returns the progress of the preview of the experiment with this uid. `generation` is the version that was started.
#[must_use]
pub fn progress(uid: &str, generation: i64, now: Option<&ExperimentObject>) -> Progress {
    let Some(experiment) = now.filter(|experiment| experiment.uid == uid) else { return Progress::Gone };
    if experiment.generation != generation || experiment.state() != Some(PreviewState::Active) {
        return Progress::Stopped;
    }
    if !experiment.is_observed() {
        return Progress::Waiting("the operator has not processed it yet".to_owned());
    }
    let report = ExperimentReport::new(experiment);
    match (report.problem, experiment.condition(ConditionType::Previewing)) {
        (Some(problem), _) => Progress::Stuck(problem),
        (None, Some(previewing)) if previewing.status == "True" => Progress::Previewing,
        (None, previewing) => {
            let message = previewing.map_or("the operator is processing it", |condition| condition.message.as_str());
            let replicas = experiment.status.replicas.as_ref();
            let replicas = replicas.map_or_else(String::new, |it| format!(" ({} replicas)", it.summary));
            Progress::Waiting(format!("{message}{replicas}"))
        }
    }
}

impl Progress {
    /// Returns the message for the user.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Waiting(message) => message.clone(),
            Self::Stuck(failure) => failure.to_string(),
            Self::Previewing => "every replica previews it".to_owned(),
            Self::Stopped => "it was changed or stopped by another user".to_owned(),
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
        let wanted = format!("ns.team.stricter has changed: its etag is {}, not \"old\"", plan.etag);
        assert_eq!(error.to_string(), wanted);
        let error = plan_commit(&experiment, &policy, None, Some("old")).unwrap_err();
        assert!(error.to_string().starts_with("ns.team.labels has changed"), "{error}");
        assert_eq!(
            error.remedy("proviso").unwrap(),
            "See the current differences: proviso experiment diff ns.team.stricter."
        );
    }

    #[test]
    fn a_policy_that_is_being_deleted_gets_no_commit() {
        let (experiment, mut policy) = (experiment(3, &Value::Null), policy(2, &active(2)));
        policy.is_being_deleted = true;
        let error = plan_commit(&experiment, &policy, None, None).unwrap_err();
        assert_eq!(error.to_string(), "ns.team.labels is being deleted");
    }

    /// Returns the progress of generation 1 with this status.
    fn at(status: &Value) -> Progress {
        progress("x", 1, Some(&experiment(1, status)))
    }

    #[test]
    fn a_start_is_followed_until_every_replica_previews() {
        assert_eq!(at(&previewing(1)), Progress::Previewing);
        let mut before = previewing(1);
        before["previewMetadata"]["startTime"] = json!("2026-11-21T09:59:00Z");
        assert_eq!(at(&before), Progress::Waiting("the operator has not processed it yet".to_owned()));
        let mut loading = previewing(1);
        loading["conditions"][2] =
            condition("Previewing", "False", "Loading", "not every Ready replica has loaded it", 1);
        loading["replicas"] = json!({"ready": 1, "total": 2, "summary": "1/2"});
        assert_eq!(at(&loading).message(), "not every Ready replica has loaded it (1/2 replicas)");
        let mut failed = previewing(1);
        failed["conditions"][1] = condition("Initialized", "False", "CompileError", "no", 1);
        assert_eq!(at(&failed).message(), "CompileError: no");
    }

    #[test]
    fn a_change_by_another_user_ends_the_wait() {
        assert_eq!(progress("x", 1, Some(&experiment(2, &previewing(1)))), Progress::Stopped);
        assert_eq!(progress("another", 1, Some(&experiment(1, &previewing(1)))), Progress::Gone);
        assert_eq!(progress("x", 1, None), Progress::Gone);
    }
}
