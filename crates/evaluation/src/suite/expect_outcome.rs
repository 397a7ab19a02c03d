//! The expectations of a case about a request to a service, and their comparison with an outcome.

use std::path::Path;

use proviso_core::request::{Decision, Outcome};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::expect::{any_matches, compare, list};
use super::source::Source;

/// The expectations of a case. An omitted field accepts any value; `status` is required.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ExpectOutcome {
    status: Status,
    /// A regular expression that must match the reason why the request is not allowed.
    message: Option<String>,
    /// The id of the policy that rejects the request, conflicts with an earlier one, or fails.
    policy: Option<String>,
    /// The field whose constraint the request violates, or about which policies conflict.
    field: Option<String>,
    /// The expected fields of the final payload. Omitted fields accept any value.
    payload: Option<Source>,
    /// The whole final payload.
    whole_payload: Option<Source>,
    /// The service provider. `null`: no policy chooses one.
    #[serde(default)]
    provider: ExpectedProvider,
    /// The expected keywords of the merged constraints, by field.
    constraints: Option<Map<String, Value>>,
    /// The ids of all policies that are evaluated, in their order.
    evaluated: Option<Vec<String>>,
}

/// The expected service provider.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "must be the name of a service provider, or null for none")]
enum ExpectedProvider {
    /// The field is omitted.
    #[default]
    #[serde(skip)]
    Any,
    Name(String),
    None,
}

/// The status of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Status {
    Approved,
    Modified,
    Rejected,
    PolicyConflict,
    Failed,
}

impl Status {
    fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "APPROVED",
            Self::Modified => "MODIFIED",
            Self::Rejected => "REJECTED",
            Self::PolicyConflict => "POLICY_CONFLICT",
            Self::Failed => "FAILED",
        }
    }
}

impl ExpectOutcome {
    /// Returns true if the case expects that a policy fails.
    pub(super) fn is_failure(&self) -> bool {
        self.status == Status::Failed
    }

    /// Returns the differences between the outcome and the expectations, one line each.
    ///
    /// # Errors
    /// Returns an error if an expectation is invalid, for example a regular expression.
    pub(super) fn differences(&self, suite: &Path, outcome: &Outcome) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        let decision = &outcome.decision;
        let message = decision.message();
        if decision.status() != self.status.as_str() {
            let why = message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
            found.push(format!("status: expected {}, found {}{why}", self.status.as_str(), decision.status()));
        }
        if let Some(wanted) = &self.message {
            let messages: Vec<_> = message.iter().map(String::as_str).collect();
            if !any_matches(&messages, wanted, "expect.message")? {
                found.push(format!("message: expected one like {wanted:?}, found {}", list(&messages)));
            }
        }
        let (policy, field) = cause(decision);
        expect_text("policy", self.policy.as_deref(), policy.as_deref(), &mut found);
        expect_text("field", self.field.as_deref(), field.as_deref(), &mut found);
        match &self.provider {
            ExpectedProvider::Any => {}
            ExpectedProvider::Name(wanted) => {
                expect_text("provider", Some(wanted), outcome.provider.as_deref(), &mut found);
            }
            ExpectedProvider::None => {
                found.extend(outcome.provider.as_ref().map(|it| format!("provider: expected none, found {it}")));
            }
        }
        self.payload(suite, outcome, &mut found)?;
        if let Some(wanted) = &self.constraints {
            compare(
                "constraints",
                &Value::Object(wanted.clone()),
                &Value::Object(outcome.constraints.clone()),
                &mut found,
            );
        }
        if let Some(wanted) = &self.evaluated {
            let evaluated: Vec<_> = outcome.trail.iter().map(|entry| entry.revision.policy.to_string()).collect();
            if *wanted != evaluated {
                let text = |ids: &[String]| if ids.is_empty() { "none".to_owned() } else { ids.join(", ") };
                found.push(format!("evaluated: expected {}, found {}", text(wanted), text(&evaluated)));
            }
        }
        Ok(found)
    }

    fn payload(&self, suite: &Path, outcome: &Outcome, found: &mut Vec<String>) -> Result<(), String> {
        if let Some(wanted) = &self.payload {
            let wanted = wanted.read(suite).map_err(|error| format!("expect.payload: {error}"))?;
            compare("payload", &wanted, &outcome.payload, found);
        }
        if let Some(wanted) = &self.whole_payload {
            let wanted = wanted.read(suite).map_err(|error| format!("expect.wholePayload: {error}"))?;
            if wanted != outcome.payload {
                found.push(format!("wholePayload: expected {wanted}, found {}", outcome.payload));
            }
        }
        Ok(())
    }
}

/// Returns the policy and the field that are the cause of a decision; `None` if there is none.
fn cause(decision: &Decision) -> (Option<String>, Option<String>) {
    match decision {
        Decision::Approved | Decision::Modified => (None, None),
        Decision::Rejected { policy, field, .. } => {
            (Some(policy.policy.to_string()), field.as_ref().map(ToString::to_string))
        }
        Decision::Conflict(conflict) => {
            (Some(conflict.policy.policy.to_string()), conflict.field.as_ref().map(ToString::to_string))
        }
        Decision::Failed { policy, .. } => (Some(policy.policy.to_string()), None),
    }
}

fn expect_text(name: &str, wanted: Option<&str>, found: Option<&str>, differences: &mut Vec<String>) {
    if let Some(wanted) = wanted
        && found != Some(wanted)
    {
        differences.push(format!("{name}: expected {wanted}, found {}", found.unwrap_or("none")));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proviso_core::PolicyId;
    use proviso_core::request::{Chain, Criteria, Level, Progress, Request, RequestPolicy, RevisionId};
    use serde_json::json;

    use super::*;

    /// Returns the outcome for the payload `{"cpu": 1}` with the policies `p0`, `p1` and so on, which return these results.
    fn outcome(results: &[Value]) -> Outcome {
        let policies = (0_u32..).zip(results).map(|(index, _)| RequestPolicy {
            revision: RevisionId { policy: PolicyId::cluster(&format!("p{index}")).unwrap(), generation: 1 },
            level: Level::Global,
            priority: index,
            criteria: Criteria::default(),
        });
        let request = Request::new(json!({"cpu": 1}), None, None).unwrap();
        let mut progress = Chain::start(request, policies, Arc::default());
        let mut results = results.iter();
        loop {
            progress = match progress {
                Progress::Next(chain) => chain.apply(Ok(results.next().cloned())),
                Progress::Done(outcome) => return *outcome,
            }
        }
    }

    fn differences(expect: &Value, results: &[Value]) -> Vec<String> {
        let expect: ExpectOutcome = serde_json::from_value(expect.clone()).unwrap();
        expect.differences(Path::new(""), &outcome(results)).unwrap()
    }

    #[test]
    fn an_allowed_request_is_compared_by_payload_provider_and_constraints() {
        let results = [json!({
            "patch": {"a": {"b": 2}}, "constraints": {"cpu": {"maximum": 4, "minimum": 1}}, "selected_provider": "east",
        })];
        for (expect, wanted) in [
            (json!({"status": "MODIFIED"}), vec![]),
            (
                json!({"status": "MODIFIED", "payload": {"a": {"b": 2}}, "provider": "east",
                    "wholePayload": {"cpu": 1, "a": {"b": 2}}, "constraints": {"cpu": {"maximum": 4}}, "evaluated": ["cluster.p0"]}),
                vec![],
            ),
            (json!({"status": "APPROVED"}), vec!["status: expected APPROVED, found MODIFIED"]),
            (json!({"status": "MODIFIED", "payload": {"a": {"b": 3}}}), vec!["payload.a.b: expected 3, found 2"]),
            (
                json!({"status": "MODIFIED", "wholePayload": {"cpu": 1}}),
                vec![r#"wholePayload: expected {"cpu":1}, found {"a":{"b":2},"cpu":1}"#],
            ),
            (json!({"status": "MODIFIED", "provider": null}), vec!["provider: expected none, found east"]),
            (json!({"status": "MODIFIED", "provider": "west"}), vec!["provider: expected west, found east"]),
            (
                json!({"status": "MODIFIED", "constraints": {"cpu": {"maximum": 8}, "gpu": {}}}),
                vec!["constraints.cpu.maximum: expected 8, found 4", "constraints.gpu: expected {}, found nothing"],
            ),
            (json!({"status": "MODIFIED", "message": "x"}), vec!["message: expected one like \"x\", found none"]),
            (json!({"status": "MODIFIED", "evaluated": []}), vec!["evaluated: expected none, found cluster.p0"]),
        ] {
            assert_eq!(differences(&expect, &results), wanted, "{expect}");
        }
    }

    #[test]
    fn a_request_that_is_not_allowed_is_compared_by_its_cause() {
        let (lock, patch) = (json!({"constraints": {"cpu": {"const": 1}}}), json!({"patch": {"cpu": 2}}));
        let conflict = "status: expected REJECTED, found POLICY_CONFLICT: Policy Conflict Error: ";
        for (expect, results, wanted) in [
            (
                json!({"status": "REJECTED", "policy": "cluster.p0", "message": "no.more"}),
                vec![json!({"rejected": true, "rejection_reason": "no more"})],
                None,
            ),
            (
                json!({"status": "REJECTED", "policy": "cluster.p0", "field": "cpu"}),
                vec![json!({"constraints": {"cpu": {"maximum": 0}}})],
                None,
            ),
            (
                json!({"status": "POLICY_CONFLICT", "policy": "cluster.p1", "field": "cpu"}),
                vec![lock.clone(), patch.clone()],
                None,
            ),
            (json!({"status": "FAILED", "policy": "cluster.p0"}), vec![json!({"typo": 1})], None),
            (json!({"status": "REJECTED"}), vec![lock.clone(), patch.clone()], Some(conflict)),
            (
                json!({"status": "POLICY_CONFLICT", "policy": "cluster.p0"}),
                vec![lock.clone(), patch.clone()],
                Some("policy: expected cluster.p0, found cluster.p1"),
            ),
            (
                json!({"status": "POLICY_CONFLICT", "field": "a"}),
                vec![lock, patch],
                Some("field: expected a, found cpu"),
            ),
        ] {
            let found = differences(&expect, &results);
            match wanted {
                None => assert!(found.is_empty(), "{expect} {found:?}"),
                Some(wanted) => assert!(matches!(&found[..], [one] if one.starts_with(wanted)), "{expect} {found:?}"),
            }
        }
    }
}
