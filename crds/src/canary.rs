//! The canaries of an experiment on a configuration policy: the components that get its candidate, and their answers.

use proviso_core::PolicyId;
use proviso_core::configuration::Version;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Conditions as _;
use crate::{ConditionStatus, ConditionType, PolicySubscription};

/// The maximum number of canaries in the status of an experiment.
pub const MAX_CANARIES: usize = 100;
/// The maximum length of the message about a canary, in characters. The rest is cut off.
const MAX_CANARY_MESSAGE: usize = 512;

/// A component that is a canary for an experiment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct Canary {
    /// The namespace of the PolicySubscription.
    pub namespace: String,
    /// The name of the PolicySubscription.
    pub name: String,
    /// The version of the policy that the component has acknowledged, as in `policies[].version` of the PolicySubscription. Absent if the
    /// component does not have the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The result of the delivery of the candidate.
    pub result: CanaryResult,
    /// The answer of the component, or the reason why it waits: at most 512 characters. Absent if there is nothing to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
}

/// The result of the delivery of a candidate to a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum CanaryResult {
    /// The component has acknowledged the candidate.
    Delivered,
    /// The component has rejected the candidate, and keeps the version that it had.
    Rejected,
    /// The candidate is not delivered yet.
    Waiting,
}

impl CanaryResult {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "Delivered",
            Self::Rejected => "Rejected",
            Self::Waiting => "Waiting",
        }
    }
}

impl Canary {
    /// Orders canaries for a status, which has at most [`MAX_CANARIES`] of them: first those that rejected the candidate, then those that
    /// wait, each by namespace and name.
    pub fn sort(canaries: &mut [Self]) {
        let rank = |result: CanaryResult| match result {
            CanaryResult::Rejected => 0_u8,
            CanaryResult::Waiting => 1,
            CanaryResult::Delivered => 2,
        };
        let key = |it: &Self| (rank(it.result), it.namespace.clone(), it.name.clone());
        canaries.sort_by_cached_key(key);
    }

    /// Returns the state of a subscription as a canary for the generation `generation` of an experiment on `policy`; `None` if the
    /// subscription is not a canary for the experiment, may not select the policy, or is being deleted.
    #[must_use]
    pub fn of(subscription: &PolicySubscription, policy: &PolicyId, experiment: &str, generation: i64) -> Option<Self> {
        let metadata = &subscription.metadata;
        let (namespace, name) = (metadata.namespace.clone()?, metadata.name.clone()?);
        let is_in_scope = policy.namespace().is_none_or(|own| own == namespace);
        let canary_for = &subscription.spec.canary_for;
        let is_named = canary_for.iter().any(|it| it.policy == policy.as_str() && it.experiment == experiment);
        if !is_in_scope || !is_named || metadata.deletion_timestamp.is_some() {
            return None;
        }
        let status = subscription.status.as_ref();
        let policies = status.map(|status| status.policies.as_slice()).unwrap_or_default();
        let rejected = status.map(|status| status.rejected.as_slice()).unwrap_or_default();
        // The generation of the policy in a version of this candidate.
        let of_candidate = |version: &str| {
            let version: Version = version.parse().ok()?;
            let candidate = version.candidate?;
            (candidate.experiment == experiment && candidate.generation == generation).then_some(version.generation)
        };
        let acknowledged = policies.iter().find(|it| it.id == policy.as_str());
        let delivered = acknowledged.and_then(|it| of_candidate(&it.version));
        let rejected = rejected.iter().filter(|it| it.id == policy.as_str());
        let rejected = rejected.filter_map(|it| Some((of_candidate(it.version.as_deref()?)?, &it.message)));
        let rejected = rejected.max_by_key(|(generation, _)| *generation);
        let (result, message) = match rejected {
            // A rejection of the same or a later version than the acknowledged one: a template may compute another body.
            Some((generation, message)) if delivered.is_none_or(|delivered| delivered <= generation) => {
                (CanaryResult::Rejected, Some(message.clone()))
            }
            _ if delivered.is_some() => (CanaryResult::Delivered, None),
            _ => (CanaryResult::Waiting, waiting(subscription, policy)),
        };
        let message = message.map(|message| message.chars().take(MAX_CANARY_MESSAGE).collect());
        Some(Self { namespace, name, version: acknowledged.map(|it| it.version.clone()), result, message })
    }
}

/// Returns the reason why a component does not have the candidate; `None` if its delivery has just begun.
fn waiting(subscription: &PolicySubscription, policy: &PolicyId) -> Option<String> {
    let status = subscription.status.as_ref()?;
    let not_true = |type_: ConditionType| {
        let condition = status.conditions.condition(type_)?;
        (condition.status != ConditionStatus::True.as_str()).then(|| condition.message.clone())
    };
    let problem = not_true(ConditionType::Resolved).or_else(|| not_true(ConditionType::Delivered));
    let is_current = status.observed_generation == subscription.metadata.generation;
    let is_pending = status.pending.iter().any(|change| change.id == policy.as_str());
    match problem {
        Some(problem) => Some(problem),
        None if is_current && !is_pending => {
            Some(format!("no update with {policy} is pending: check that a selector of the subscription selects it"))
        }
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn subscription(namespace: &str, policy: &str, status: &Value) -> PolicySubscription {
        serde_json::from_value(json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicySubscription",
            "metadata": {"namespace": namespace, "name": "collector", "generation": 1},
            "spec": {
                "scn": "collector", "policies": [{"id": policy}], "delivery": {"configMap": "policies"},
                "canaryFor": [{"policy": policy, "experiment": "more"}],
            },
            "status": status,
        }))
        .unwrap()
    }

    fn has(version: &str) -> Value {
        json!([{"id": "cluster.memory", "version": version, "digest": format!("sha256:{}", "0".repeat(64))}])
    }

    fn rejected(version: &str) -> Value {
        json!([{"id": "cluster.memory", "version": version, "message": "exit code 3"}])
    }

    #[test]
    fn the_result_is_about_the_candidate_of_this_generation() {
        use CanaryResult::{Delivered, Rejected, Waiting};
        let not_delivered = json!({
            "type": "Delivered", "status": "False", "reason": "NotificationFailed", "message": "no answer",
            "lastTransitionTime": "2026-11-28T05:00:00Z",
        });
        for (status, version, result, message) in [
            (json!({}), None, Waiting, None),
            (json!({"policies": has("7")}), Some("7"), Waiting, None),
            (json!({"policies": has("7"), "conditions": [not_delivered]}), Some("7"), Waiting, Some("no answer")),
            (json!({"policies": has("7"), "observedGeneration": 1}), Some("7"), Waiting, Some("no update with")),
            (json!({"policies": has("7/more/2")}), Some("7/more/2"), Delivered, None),
            (json!({"policies": has("7/more/1")}), Some("7/more/1"), Waiting, None),
            (json!({"policies": has("7/less/2")}), Some("7/less/2"), Waiting, None),
            (json!({"policies": has("7"), "rejected": rejected("7/more/2")}), Some("7"), Rejected, Some("exit code 3")),
            (json!({"policies": has("7"), "rejected": rejected("7/more/1")}), Some("7"), Waiting, None),
            // A rejection of an older version of the policy does not count after an acknowledgement.
            (json!({"policies": has("8/more/2"), "rejected": rejected("7/more/2")}), Some("8/more/2"), Delivered, None),
            (
                json!({"policies": has("7/more/2"), "rejected": rejected("8/more/2")}),
                Some("7/more/2"),
                Rejected,
                Some("exit code 3"),
            ),
        ] {
            let policy = "cluster.memory".parse().unwrap();
            let canary = Canary::of(&subscription("team", "cluster.memory", &status), &policy, "more", 2).unwrap();
            assert_eq!((canary.version.as_deref(), canary.result), (version, result), "{status}");
            let found = canary.message.unwrap_or_default();
            assert!(found.starts_with(message.unwrap_or_default()), "{status}: {found}");
            assert_eq!(found.is_empty(), message.is_none(), "{status}: {found}");
        }
    }

    #[test]
    fn rejections_are_first() {
        let canary = |name: &str, result| Canary {
            namespace: "team".to_owned(),
            name: name.to_owned(),
            version: None,
            result,
            message: None,
        };
        let delivered = (0..MAX_CANARIES).map(|n| canary(&format!("a{n:03}"), CanaryResult::Delivered));
        let mut canaries: Vec<_> = delivered.collect();
        canaries.extend([canary("y", CanaryResult::Waiting), canary("z", CanaryResult::Rejected)]);
        canaries.push(canary("b", CanaryResult::Rejected));
        Canary::sort(&mut canaries);
        let names: Vec<_> = canaries.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names[..5], ["b", "z", "y", "a000", "a001"]);
    }

    #[test]
    fn a_subscription_is_a_canary_only_for_the_experiment_that_it_names() {
        let (policy, other) = ("ns.team.memory".parse().unwrap(), "ns.team.other".parse().unwrap());
        let of = |namespace: &str, policy: &PolicyId, experiment: &str| {
            Canary::of(&subscription(namespace, "ns.team.memory", &json!({})), policy, experiment, 1).is_some()
        };
        assert!(of("team", &policy, "more"));
        assert!(!of("team", &policy, "less") && !of("team", &other, "more"));
        // A subscription cannot select a policy of another namespace, even if it names it.
        assert!(!of("other", &policy, "more"));
        let mut deleted = subscription("team", "ns.team.memory", &json!({}));
        deleted.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-11-28T05:00:00Z")).unwrap());
        assert!(Canary::of(&deleted, &policy, "more", 1).is_none());
    }
}
