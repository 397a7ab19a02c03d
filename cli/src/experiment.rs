//! Checks the commit of an experiment. Pure.

pub mod error;
pub mod progress;

use self::error::ExperimentError;
use crate::objects::{ExperimentObject, PolicyObject};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{active, experiment, policy};
    use serde_json::Value;

    #[test]
    fn a_commit_names_the_versions_that_were_read() {
        let (experiment, policy) = (experiment(3, &Value::Null), policy(2, &active(2)));
        let plan = plan_commit(&experiment, &policy, None, None).unwrap();
        assert_eq!((&plan.etag, &plan.parent_etag), (&experiment.etag, &policy.etag));
        let bare = plan.etag.trim_matches('"');
        assert_eq!(plan_commit(&experiment, &policy, Some(bare), Some(&plan.parent_etag)), Ok(plan.clone()));
        let error = plan_commit(&experiment, &policy, Some("\"old\""), None).unwrap_err();
        let wanted = format!(
            "ns.team.stricter was not committed, and nothing was changed: ns.team.stricter has another version: its etag is \
             {}, not \"old\"",
            plan.etag
        );
        assert_eq!(error.to_string(), wanted);
        let error = plan_commit(&experiment, &policy, None, Some("old")).unwrap_err();
        assert!(error.to_string().contains(": ns.team.labels has another version"), "{error}");
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
}
