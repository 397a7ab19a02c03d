//! Reports about revisions.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use proviso_core::Failure;
use proviso_crds::conditions::outcome;
use proviso_crds::reasons;
use proviso_crds::{ConditionStatus, ConditionType, ModuleStatus, ReplicaStatus};
use serde::Serialize;
use serde_json::Value;

use crate::changes::changes;
use crate::objects::{PolicyObject, RevisionObject};

/// One generation of a policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionReport {
    pub generation: i64,
    /// The name of the object.
    pub name: String,
    pub state: RevisionState,
    /// The time since when the revision is live, or is no longer live.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// True if the policy server loads the revision.
    pub loaded: bool,
    /// The policy server; absent for a policy that configures components.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Time>,
    /// The fields in which the revision differs from the previous one; `None` for the oldest revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Failure>,
    pub conditions: Vec<Condition>,
    pub modules: Vec<ModuleStatus>,
    pub replicas: Vec<ReplicaStatus>,
}

/// A revision with its spec.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShownRevision {
    #[serde(flatten)]
    pub revision: RevisionReport,
    pub spec: Value,
}

/// The state of a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum RevisionState {
    /// The revision answers requests.
    Live,
    /// The revision is the newest, and not live yet.
    RollingOut,
    /// The revision was replaced, and still answers API servers that do not know the new revision yet.
    Retiring,
    /// The revision was live, and is no longer loaded.
    Replaced,
    /// The revision does not work.
    Failed,
    /// The revision was replaced by a newer one before it was live.
    NeverLive,
    /// The policy was disabled.
    Disabled,
}

impl RevisionReport {
    /// Returns the number of replicas that serve the revision, and the number of all replicas that have reported.
    #[must_use]
    pub fn ready(&self) -> (usize, usize) {
        let ready = self.replicas.iter().filter(|replica| replica.ready == ConditionStatus::True).count();
        (ready, self.replicas.len())
    }
}

/// Returns the reports about the revisions of a policy, newest first.
#[must_use]
pub fn list(policy: &PolicyObject, revisions: &[RevisionObject]) -> Vec<RevisionReport> {
    let before = revisions.iter().skip(1).map(Some).chain([None]);
    revisions.iter().zip(before).map(|(revision, before)| report(policy, revision, before)).collect()
}

fn report(policy: &PolicyObject, revision: &RevisionObject, before: Option<&RevisionObject>) -> RevisionReport {
    RevisionReport {
        generation: revision.generation,
        name: revision.name.clone(),
        state: state(policy, revision),
        since: revision.condition(ConditionType::Live).map(|condition| condition.last_transition_time.clone()),
        loaded: revision.is_enabled,
        policy_server: (!policy.is_configuration()).then(|| revision.policy_server.clone()),
        created: revision.created.map(Time),
        changes: before.map(|before| changes(&before.data, &revision.data)),
        problem: problem(revision),
        conditions: revision.status.conditions.clone(),
        modules: revision.status.modules.clone(),
        replicas: by_name(&revision.status.replicas),
    }
}

fn by_name(replicas: &[ReplicaStatus]) -> Vec<ReplicaStatus> {
    let mut replicas = replicas.to_vec();
    replicas.sort_by(|a, b| a.name.cmp(&b.name));
    replicas
}

fn state(policy: &PolicyObject, revision: &RevisionObject) -> RevisionState {
    if revision.is_live() {
        RevisionState::Live
    } else if revision.was_ever_live() {
        if revision.is_enabled { RevisionState::Retiring } else { RevisionState::Replaced }
    } else if revision.data["enabled"] == false {
        RevisionState::Disabled
    } else if problem(revision).is_some() {
        RevisionState::Failed
    } else if revision.generation == policy.generation {
        RevisionState::RollingOut
    } else {
        RevisionState::NeverLive
    }
}

/// Returns the problem of a revision: that of the leader, or else that of the first replica that cannot load it.
fn problem(revision: &RevisionObject) -> Option<Failure> {
    let prepared = revision.condition(ConditionType::Initialized).and_then(outcome);
    if let Some(Err(failure)) = prepared {
        return Some(failure);
    }
    revision.status.replicas.iter().find_map(|replica| {
        let failure = replica.outcome()?.err().filter(|failure| failure.reason != reasons::LOADING)?;
        Some(Failure { message: format!("{}: {}", replica.name, failure.message), ..failure })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{active, condition, live, policy, revision, with_replica};

    #[test]
    fn every_revision_has_its_state() {
        let policy = policy(7, &active(5));
        let initialized = |status: &str| vec![condition("Initialized", status, "CompileError", "no", 1)];
        let broken = with_replica(
            revision(6, "a", true, &initialized("True")),
            "s-0",
            ConditionStatus::False,
            "CacheError",
            "full",
        );
        let loading =
            with_replica(revision(7, "a", true, &initialized("True")), "s-0", ConditionStatus::False, "Loading", "");
        let mut off = revision(7, "a", false, &[]);
        off.data["enabled"] = false.into();
        for (revision, wanted) in [
            (revision(5, "a", true, &live("True", 5)), RevisionState::Live),
            (revision(4, "a", true, &live("False", 4)), RevisionState::Retiring),
            (revision(3, "a", false, &live("False", 3)), RevisionState::Replaced),
            (revision(6, "a", false, &initialized("False")), RevisionState::Failed),
            (broken, RevisionState::Failed),
            (revision(6, "a", false, &initialized("True")), RevisionState::NeverLive),
            (revision(7, "a", true, &[]), RevisionState::RollingOut),
            (loading, RevisionState::RollingOut),
            (off, RevisionState::Disabled),
        ] {
            assert_eq!(state(&policy, &revision), wanted, "{revision:?}");
        }
    }

    #[test]
    fn a_revision_has_the_fields_that_it_changed() {
        let revisions =
            [revision(3, "team", true, &[]), revision(2, "owner", true, &[]), revision(1, "owner", false, &[])];
        let reports = list(&policy(3, &active(3)), &revisions);
        let changes: Vec<_> = reports.into_iter().map(|report| report.changes).collect();
        assert_eq!(changes, [Some(vec!["settings.label".to_owned()]), Some(Vec::new()), None]);
    }
}
