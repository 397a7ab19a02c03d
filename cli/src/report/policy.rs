//! The report about the state of a policy.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use proviso_core::{Failure, PolicyId, Reason};
use proviso_crds::conditions::failure;
use proviso_crds::reasons;
use proviso_crds::{ConditionStatus, ConditionType, Mode, PolicyKind, PolicyPhase, ReplicaCount};
use serde::Serialize;

use crate::objects::PolicyObject;

/// The state of a policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyReport {
    /// The id of the policy.
    pub policy: PolicyId,
    pub kind: PolicyKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    pub phase: PolicyPhase,
    /// The phase in a sentence.
    pub summary: String,
    /// The newest generation.
    pub generation: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_generation: Option<i64>,
    pub enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The policy server; absent for a policy that configures components, which no policy server evaluates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_server: Option<String>,
    /// The replicas that serve the newest generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<ReplicaCount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Time>,
    /// The problem of the newest generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Failure>,
    pub conditions: Vec<Condition>,
}

/// The reasons of conditions that are false for a short time; the user need not act.
const TRANSIENT_REASONS: [Reason; 4] =
    [reasons::PREPARING, reasons::LOADING, reasons::NOT_INITIALIZED, reasons::DISABLED];

impl PolicyReport {
    /// Returns the report about a policy.
    #[must_use]
    pub fn new(policy: &PolicyObject) -> Self {
        let mut report = Self {
            policy: policy.id.clone(),
            kind: policy.kind(),
            namespace: policy.id.namespace().map(str::to_owned),
            name: policy.id.name().to_owned(),
            phase: phase(policy),
            summary: String::new(),
            generation: policy.generation,
            live_generation: policy.status.live_generation,
            enabled: policy.is_enabled(),
            mode: policy.status.mode,
            policy_server: policy.policy_server().map(str::to_owned),
            replicas: policy.status.replicas.clone().filter(|_| is_up_to_date(policy) && !policy.is_configuration()),
            created: policy.created.map(Time),
            problem: problem(policy),
            conditions: policy.status.conditions.clone(),
        };
        report.summary = summary(policy, report.phase);
        report
    }

    /// Returns `policy/NAME` or `clusterpolicy/NAME`.
    #[must_use]
    pub fn reference(&self) -> String {
        let kind = match self.kind {
            PolicyKind::Policy => "policy",
            PolicyKind::ClusterPolicy => "clusterpolicy",
        };
        format!("{kind}/{}", self.name)
    }
}

/// Returns true if the status is about the newest generation.
pub(super) fn is_up_to_date(policy: &PolicyObject) -> bool {
    policy.observed_generation() == Some(policy.generation)
}

/// Returns the phase of the newest generation. Before the operator has reconciled it, the phase is Updating or Pending.
fn phase(policy: &PolicyObject) -> PolicyPhase {
    match policy.status.phase {
        Some(phase) if is_up_to_date(policy) => phase,
        _ if policy.status.live_generation.is_some() => PolicyPhase::Updating,
        _ => PolicyPhase::Pending,
    }
}

fn problem(policy: &PolicyObject) -> Option<Failure> {
    let mut conditions = policy.status.conditions.iter().filter(|_| is_up_to_date(policy));
    let failed = conditions.find(|condition| {
        let is_false = condition.status == ConditionStatus::False.as_str();
        let is_transient = TRANSIENT_REASONS.iter().any(|reason| condition.reason == *reason);
        // `Live` repeats the cause of another condition, and a refused rollback changes nothing.
        let is_effect = [ConditionType::Live, ConditionType::RolledBack].map(ConditionType::as_str);
        is_false && !is_effect.contains(&condition.type_.as_str()) && !is_transient
    })?;
    Some(failure(failed))
}

/// The verbs of the summary, for the effect of a live generation.
struct Verbs {
    /// The effect of a live generation.
    live: &'static str,
    /// The same before a newer generation is live.
    old: &'static str,
    /// The same after a newer generation has failed.
    stays: &'static str,
    /// The effect of a policy without a live generation.
    none: &'static str,
}

const DECIDES: Verbs =
    Verbs { live: "answers requests", old: "answers", stays: "goes on answering", none: "decides no requests" };
const CONFIGURES: Verbs = Verbs {
    live: "configures components",
    old: "configures components",
    stays: "goes on configuring components",
    none: "configures no component",
};

fn summary(policy: &PolicyObject, phase: PolicyPhase) -> String {
    let Verbs { live: has_effect, old, stays, none } = if policy.is_configuration() { CONFIGURES } else { DECIDES };
    let newest = policy.generation;
    let other = policy.status.live_generation.filter(|live| *live != newest);
    if policy.is_being_deleted {
        return "it is being deleted".to_owned();
    }
    if policy.observed_generation().is_none() {
        return "the operator has not processed it yet".to_owned();
    }
    if !is_up_to_date(policy) {
        let answering = other.map_or_else(String::new, |live| format!("; generation {live} {old}"));
        return format!("the operator has not processed generation {newest} yet{answering}");
    }
    match (phase, other) {
        (PolicyPhase::Active, _) => format!("generation {newest} {has_effect}"),
        (PolicyPhase::Disabled, _) => format!("it is disabled, and {none}"),
        (PolicyPhase::Failed, Some(live)) => {
            format!("generation {newest} does not work; generation {live} {stays}")
        }
        (PolicyPhase::Failed, None) => format!("generation {newest} does not work; the policy {none}"),
        (_, Some(live)) => format!("generation {newest} is being rolled out; generation {live} {old} until then"),
        (_, None) => format!("generation {newest} is being rolled out; the policy {none} yet"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{active, condition, failed, policy};
    use serde_json::{Value, json};

    #[test]
    fn each_phase_has_a_summary() {
        let mut updating = failed(3, 2, "Preparing", "");
        updating["phase"] = json!("Updating");
        let mut first = failed(1, 0, "CompileError", "no");
        first["liveGeneration"] = Value::Null;
        let mut disabled = active(2);
        (disabled["phase"], disabled["liveGeneration"]) = (json!("Disabled"), Value::Null);
        for (generation, status, phase, sentence) in [
            (2, active(2), PolicyPhase::Active, "generation 2 answers requests"),
            (
                3,
                failed(3, 2, "PullError", ""),
                PolicyPhase::Failed,
                "generation 3 does not work; generation 2 goes on answering",
            ),
            (1, first, PolicyPhase::Failed, "generation 1 does not work; the policy decides no requests"),
            (3, updating, PolicyPhase::Updating, "generation 3 is being rolled out; generation 2 answers until then"),
            (2, disabled, PolicyPhase::Disabled, "it is disabled, and decides no requests"),
            // The status is about generation 2, so the phase of generation 3 is Updating.
            (
                3,
                active(2),
                PolicyPhase::Updating,
                "the operator has not processed generation 3 yet; generation 2 answers",
            ),
            (1, Value::Null, PolicyPhase::Pending, "the operator has not processed it yet"),
        ] {
            let report = PolicyReport::new(&policy(generation, &status));
            assert_eq!((report.phase, report.summary.as_str()), (phase, sentence));
        }
    }

    #[test]
    fn a_configuration_policy_has_no_server_and_no_replicas() {
        let mut object = policy(3, &failed(3, 2, "SettingsInvalid", "no"));
        object.spec = json!({"configuration": {"configName": "memory", "content": {}}});
        let report = PolicyReport::new(&object);
        assert_eq!(report.summary, "generation 3 does not work; generation 2 goes on configuring components");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((json.get("policyServer"), json.get("replicas")), (None, None));
        object.status.phase = Some(PolicyPhase::Disabled);
        assert_eq!(PolicyReport::new(&object).summary, "it is disabled, and configures no component");
    }

    #[test]
    fn a_transient_condition_is_not_a_problem() {
        let mut refused = active(2);
        let refusal = condition("RolledBack", "False", "RollbackRefused", "", 2);
        refused["conditions"].as_array_mut().unwrap().push(refusal);
        for (status, wanted) in [
            (active(2), None),
            (failed(2, 1, "SettingsInvalid", "no label"), Some("SettingsInvalid")),
            (failed(2, 1, "Preparing", ""), None),
            (failed(1, 1, "PullError", "of a generation that is not the newest"), None),
            (refused, None),
        ] {
            let problem = PolicyReport::new(&policy(2, &status)).problem;
            assert_eq!(problem.as_ref().map(|problem| problem.reason.as_str()), wanted);
        }
    }
}
