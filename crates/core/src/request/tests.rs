//! Tests of request policies.

#![allow(clippy::needless_pass_by_value, reason = "a test writes its values inline")]

mod conflicts;
mod divergence;
mod explanations;
mod limits;
mod merges;
mod objects;
mod order;
mod paths;
mod properties;
mod provider_fields;
mod providers;
mod results;
mod schemas;

use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};

use super::*;
use crate::failure::Failure;
use crate::policy_id::PolicyId;

/// Returns a policy at a level that covers all requests.
fn policy(name: &str, level: Level, priority: u32) -> RequestPolicy {
    let revision = RevisionId { policy: PolicyId::cluster(name).unwrap(), generation: i64::from(priority) + 100 };
    RequestPolicy { revision, level, priority, criteria: Criteria::default() }
}

fn request(payload: Value) -> Request {
    Request::new(payload, None, None).unwrap()
}

/// Evaluates a request with the policies `p1`, `p2` and so on, which return these results.
fn evaluate(payload: Value, results: &[Value]) -> Outcome {
    let results: Vec<_> = results.iter().map(|result| Ok(Some(result.clone()))).collect();
    evaluate_all(payload, &results)
}

fn evaluate_all(payload: Value, results: &[Result<Option<Value>, Failure>]) -> Outcome {
    evaluate_request(request(payload), results)
}

fn evaluate_request(request: Request, results: &[Result<Option<Value>, Failure>]) -> Outcome {
    let policies =
        (1..=results.len()).map(|number| policy(&format!("p{number}"), Level::Global, number.try_into().unwrap()));
    let mut progress = Chain::start(request, policies, cache());
    let mut results = results.iter();
    loop {
        progress = match progress {
            Progress::Next(chain) => chain.apply(results.next().unwrap().clone()),
            Progress::Done(outcome) => return *outcome,
        }
    }
}

/// Returns the cache of all tests: the content of the cache has no effect on decisions.
fn cache() -> Arc<ConstraintCache> {
    static CACHE: LazyLock<Arc<ConstraintCache>> = LazyLock::new(Arc::default);
    CACHE.clone()
}

/// Returns the result that constrains one field.
fn constrain(field: &str, schema: Value) -> Value {
    json!({"constraints": {field: schema}})
}

/// Returns the result that patches the payload.
fn patch(patch: Value) -> Value {
    json!({ "patch": patch })
}

#[track_caller]
fn assert_conflict(outcome: &Outcome, policy: &str, other: &str, field: Option<&str>) {
    let Decision::Conflict(conflict) = &outcome.decision else {
        panic!("{:?}", outcome.decision);
    };
    let field = field.map(|field| field.parse().unwrap());
    assert_eq!((conflict.policy.policy.name(), conflict.other.policy.name()), (policy, other), "{conflict}");
    assert_eq!(conflict.field, field, "{conflict}");
}

#[track_caller]
fn assert_failed(outcome: &Outcome, policy: &str, reason: &str, words: &str) {
    let Decision::Failed { policy: failed, failure } = &outcome.decision else {
        panic!("{:?}", outcome.decision);
    };
    assert_eq!((failed.policy.name(), failure.reason.as_str()), (policy, reason), "{failure}");
    assert!(failure.message.contains(words), "{failure}");
}

#[track_caller]
fn assert_allowed(outcome: &Outcome, payload: &Value) {
    assert!(outcome.decision.is_allowed(), "{:?}", outcome.decision.message());
    assert_eq!(outcome.payload, *payload);
}

/// A server keeps a chain while it awaits the evaluation of a program.
#[test]
fn a_chain_can_move_between_threads() {
    fn assert_send<T: Send + Sync + 'static>() {}
    assert_send::<Progress>();
    assert_send::<ConstraintCache>();
}
