//! The conditions in the statuses of Proviso's kinds (Kubernetes API conventions, "Typical status properties"). The
//! operator and the policy servers write them, and the command line reads them.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use proviso_core::{Failure, Reason};
use serde::Serialize;
use serde_json::{Value, json};

use crate::ConditionStatus;

/// The type of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionType {
    /// The experiment may be previewed. The operator sets this condition on experiments.
    Accepted,
    /// The certificate of the policy server is valid. The operator sets this condition on policy servers.
    CertificateValid,
    /// The program was fetched and compiled, and accepted its settings. The leader of the policy server sets this condition on
    /// revisions. The operator copies it to the policy or the experiment. On a revision of a configuration policy, the operator sets it:
    /// the content or the template is valid.
    Initialized,
    /// The component has acknowledged every policy that it should have. The operator sets this condition on subscriptions.
    Delivered,
    /// A replica of the policy server is the leader. The operator sets this condition on policy servers.
    LeaderElected,
    /// The policy or the revision decides requests. The operator sets this condition on policies and revisions. On revisions, it
    /// is the record of the live generation: `True` means live, `False` means replaced, and `Unknown` means that a webhook still
    /// calls the revision although it is not live.
    Live,
    /// Every Ready replica previews the experiment. The operator sets this condition on experiments.
    Previewing,
    /// On a policy: every Ready replica serves the newest generation. On a revision: every Ready replica serves the
    /// revision. On a policy server: all replicas are Ready. The operator sets this condition.
    Ready,
    /// Every selector of the subscription works. The operator sets this condition on subscriptions.
    Resolved,
    /// The last rollback that the annotation `proviso.dev/rollback-to` requested was refused: `False`. Absent otherwise, and for
    /// the next generation. The operator sets this condition on policies.
    RolledBack,
    /// A revision of this generation of the policy exists. The operator sets this condition on policies.
    Scheduled,
    /// The policy server is being deleted, and the deletion waits for other objects. The operator sets this condition on policy
    /// servers.
    Terminating,
}

impl ConditionType {
    pub const ALL: [Self; 12] = [
        Self::Accepted,
        Self::CertificateValid,
        Self::Delivered,
        Self::Initialized,
        Self::LeaderElected,
        Self::Live,
        Self::Previewing,
        Self::Ready,
        Self::Resolved,
        Self::RolledBack,
        Self::Scheduled,
        Self::Terminating,
    ];

    /// Returns the condition type with this name. `None` means that the name is unknown: another version of Proviso or another
    /// controller wrote the condition.
    #[must_use]
    pub fn parse(type_: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str() == type_)
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::CertificateValid => "CertificateValid",
            Self::Delivered => "Delivered",
            Self::Initialized => "Initialized",
            Self::LeaderElected => "LeaderElected",
            Self::Live => "Live",
            Self::Previewing => "Previewing",
            Self::Ready => "Ready",
            Self::Resolved => "Resolved",
            Self::RolledBack => "RolledBack",
            Self::Scheduled => "Scheduled",
            Self::Terminating => "Terminating",
        }
    }
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The status, reason and message of a condition, without its type and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionState {
    pub status: ConditionStatus,
    pub reason: Reason,
    /// The message for people.
    pub message: String,
}

impl ConditionState {
    #[must_use]
    pub fn yes(reason: Reason, message: impl Into<String>) -> Self {
        Self { status: ConditionStatus::True, reason, message: message.into() }
    }

    #[must_use]
    pub fn no(reason: Reason, message: impl Into<String>) -> Self {
        Self { status: ConditionStatus::False, reason, message: message.into() }
    }

    #[must_use]
    pub fn unknown(reason: Reason, message: impl Into<String>) -> Self {
        Self { status: ConditionStatus::Unknown, reason, message: message.into() }
    }

    /// Returns the condition of type `type_` with this state for `generation`.
    ///
    /// Its last transition time is the time of the last change of the status. If `known` has a condition of the same type
    /// and the same status, that condition's time is kept. Otherwise the time is `now`.
    #[must_use]
    pub fn into_condition(
        self,
        type_: ConditionType,
        known: &[Condition],
        generation: Option<i64>,
        now: Timestamp,
    ) -> Condition {
        let same = known.condition(type_).filter(|known| known.status == self.status.as_str());
        Condition {
            type_: type_.to_string(),
            status: self.status.as_str().to_owned(),
            reason: self.reason.to_string(),
            message: self.message,
            observed_generation: generation,
            last_transition_time: same.map_or(Time(now), |same| same.last_transition_time.clone()),
        }
    }
}

impl From<Failure> for ConditionState {
    fn from(Failure { reason, message }: Failure) -> Self {
        Self::no(reason, message)
    }
}

/// Lookups in a list of conditions.
pub trait Conditions {
    /// Returns the condition of this type.
    fn condition(&self, type_: ConditionType) -> Option<&Condition>;

    /// Returns true if there is a condition of this type and its status is `True`.
    fn is_true(&self, type_: ConditionType) -> bool {
        self.condition(type_).is_some_and(|condition| condition.status == ConditionStatus::True.as_str())
    }
}

impl Conditions for [Condition] {
    fn condition(&self, type_: ConditionType) -> Option<&Condition> {
        self.iter().find(|condition| condition.type_ == type_.as_str())
    }
}

/// Returns the reason and message of a condition that is not `True`, as a failure.
#[must_use]
pub fn failure(condition: &Condition) -> Failure {
    Failure { reason: condition.reason.clone().into(), message: condition.message.clone() }
}

/// Returns the result that a condition reports. `None` means that the status is `Unknown`.
#[must_use]
pub fn outcome(condition: &Condition) -> Option<Result<(), Failure>> {
    match condition.status.as_str() {
        "True" => Some(Ok(())),
        "False" => Some(Err(failure(condition))),
        _ => None,
    }
}

/// Returns the body of a patch request that writes these fields of an object's status.
#[must_use]
pub fn status_patch<K: Resource<DynamicType = ()>>(status: &impl Serialize) -> Value {
    json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "status": status})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reasons;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_transition_time_of_a_condition_changes_only_with_its_status() {
        let no = |message: &str| ConditionState::no(reasons::LOADING, message);
        let first = no("1 of 2").into_condition(ConditionType::Ready, &[], Some(1), at(1));
        assert_eq!((first.type_.as_str(), first.status.as_str(), first.reason.as_str()), ("Ready", "False", "Loading"));
        let known = [first];
        let same = no("2 of 3").into_condition(ConditionType::Ready, &known, Some(2), at(2));
        assert_eq!((same.last_transition_time.0, same.message.as_str()), (at(1), "2 of 3"));
        let loaded = ConditionState::yes(reasons::LOADED, "");
        let ready = loaded.clone().into_condition(ConditionType::Ready, &known, Some(2), at(2));
        assert_eq!(ready.last_transition_time.0, at(2));
        let other = loaded.into_condition(ConditionType::Live, &[ready], Some(2), at(3));
        assert_eq!(other.last_transition_time.0, at(3), "the known condition has another type");
    }

    #[test]
    fn a_status_patch_names_the_api_version_and_kind() {
        let patch = status_patch::<crate::PolicyRevision>(&json!({"conditions": []}));
        let expected = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision", "status": {"conditions": []},
        });
        assert_eq!(patch, expected);
    }
}
