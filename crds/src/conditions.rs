//! The conditions of Proviso's kinds: what the operator, the policy servers and the command line tell each other in statuses
//! (Kubernetes API conventions, "Typical status properties").

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
    /// The operator sets it on an experiment: the experiment is one of those that may be previewed.
    Accepted,
    /// The operator sets it on a policy server: the certificate is valid.
    CertificateValid,
    /// The leader of the policy server sets it on a revision: the program was fetched, compiled and accepted its settings. The
    /// operator repeats it on the policy or the experiment.
    Initialized,
    /// The operator sets it on a policy server: a replica leads.
    LeaderElected,
    /// The operator sets it on a policy or a revision: it decides requests.
    Live,
    /// The operator sets it on an experiment: every replica that is Ready previews the experiment.
    Previewing,
    /// The operator sets it on a policy or a revision: every replica that is Ready serves it. The operator sets it on a policy
    /// server: all replicas are Ready.
    Ready,
    /// The operator sets it on a policy: there is a revision of this generation.
    Scheduled,
    /// The operator sets it on a policy server: it is being deleted, and waits.
    Terminating,
}

impl ConditionType {
    pub const ALL: [Self; 9] = [
        Self::Accepted,
        Self::CertificateValid,
        Self::Initialized,
        Self::LeaderElected,
        Self::Live,
        Self::Previewing,
        Self::Ready,
        Self::Scheduled,
        Self::Terminating,
    ];

    /// The type of this name; none if another version of Proviso, or somebody else, has written it.
    #[must_use]
    pub fn parse(type_: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str() == type_)
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::CertificateValid => "CertificateValid",
            Self::Initialized => "Initialized",
            Self::LeaderElected => "LeaderElected",
            Self::Live => "Live",
            Self::Previewing => "Previewing",
            Self::Ready => "Ready",
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

/// The reasons that Proviso gives in more than one place, or compares.
pub mod reasons {
    use proviso_core::Reason;

    /// Somebody has taken the webhook into their own hands.
    pub const BREAK_GLASS: Reason = Reason::new("BreakGlass");
    /// Nothing decides, since `spec.enabled` is false.
    pub const DISABLED: Reason = Reason::new("Disabled");
    /// Requests are decided by it.
    pub const LIVE: Reason = Reason::new("Live");
    /// A replica serves it, or all do.
    pub const LOADED: Reason = Reason::new("Loaded");
    /// A replica is loading it, or some are.
    pub const LOADING: Reason = Reason::new("Loading");
    /// Some replicas cannot load it.
    pub const LOADING_FAILED: Reason = Reason::new("LoadingFailed");
    /// The object cannot be read.
    pub const MALFORMED: Reason = Reason::new("Malformed");
    /// It does not work: see the condition `Initialized`.
    pub const NOT_INITIALIZED: Reason = Reason::new("NotInitialized");
    /// No replica of the policy server is Ready.
    pub const NO_REPLICAS: Reason = Reason::new("NoReplicas");
    /// The program was fetched, compiled and accepted its settings.
    pub const PREPARED: Reason = Reason::new("Prepared");
    /// The policy of an experiment does not exist.
    pub const POLICY_NOT_FOUND: Reason = Reason::new("PolicyNotFound");
    /// The policy server has not prepared it yet.
    pub const PREPARING: Reason = Reason::new("Preparing");
    /// Another revision, or none, decides.
    pub const REPLACED: Reason = Reason::new("Replaced");
    /// The policy has as many experiments as it may have.
    pub const TOO_MANY: Reason = Reason::new("TooMany");
}

/// A condition without its type and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionState {
    pub status: ConditionStatus,
    pub reason: Reason,
    /// For people.
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

    /// The condition that says this of a generation. Its time is that of the last change of its status: that of the condition
    /// of the same type among the `known` ones if that has the same status, else `now`.
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

/// Finds conditions.
pub trait Conditions {
    /// The condition of this type.
    fn condition(&self, type_: ConditionType) -> Option<&Condition>;

    /// Whether there is a condition of this type, and it is true.
    fn is_true(&self, type_: ConditionType) -> bool {
        self.condition(type_).is_some_and(|condition| condition.status == ConditionStatus::True.as_str())
    }
}

impl Conditions for [Condition] {
    fn condition(&self, type_: ConditionType) -> Option<&Condition> {
        self.iter().find(|condition| condition.type_ == type_.as_str())
    }
}

/// The failure that a condition which is not true tells.
#[must_use]
pub fn failure(condition: &Condition) -> Failure {
    Failure { reason: condition.reason.clone().into(), message: condition.message.clone() }
}

/// The result that a condition tells; none while it is `Unknown`.
#[must_use]
pub fn outcome(condition: &Condition) -> Option<Result<(), Failure>> {
    match condition.status.as_str() {
        "True" => Some(Ok(())),
        "False" => Some(Err(failure(condition))),
        _ => None,
    }
}

/// The body of a request that writes a part of an object's status.
#[must_use]
pub fn status_patch<K: Resource<DynamicType = ()>>(status: &impl Serialize) -> Value {
    json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "status": status})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_time_of_a_condition_is_that_of_the_last_change_of_its_status() {
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
        assert_eq!(other.last_transition_time.0, at(3), "it is of another type");
    }

    #[test]
    fn the_status_of_a_kind_names_that_kind() {
        let patch = status_patch::<crate::PolicyRevision>(&json!({"conditions": []}));
        let expected = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision", "status": {"conditions": []},
        });
        assert_eq!(patch, expected);
    }
}
