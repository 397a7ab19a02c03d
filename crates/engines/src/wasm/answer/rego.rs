//! Parses the answers of compiled Rego. An answer is a result set, and its first result counts.

use proviso_core::verdict::Cause;
use proviso_core::{Review, Verdict};
use serde::Deserialize;
use serde_json::Value;

use super::invalid;
use crate::EvaluationError;
use crate::rego::response;

#[derive(Deserialize)]
struct QueryResult<T> {
    result: T,
}

#[derive(Deserialize)]
struct Violation {
    msg: String,
}

/// Parses an `AdmissionReview`, or the `response` of an `AdmissionReview`.
pub(in crate::wasm) fn admission(answer: &[u8], review: &Review) -> Result<Verdict, EvaluationError> {
    let result = first_result::<Value>(answer)?;
    if !result.is_object() {
        return Err(EvaluationError::InvalidAnswer("the entrypoint is not an AdmissionReview".into()));
    }
    response::read_json(result, review).map_err(|what| EvaluationError::InvalidAnswer(format!("the entrypoint {what}")))
}

/// Parses any value. Returns `None` if it is undefined.
pub(in crate::wasm) fn value(answer: &[u8]) -> Result<Option<Value>, EvaluationError> {
    let results: Vec<QueryResult<Value>> = serde_json::from_slice(answer).map_err(invalid)?;
    Ok(results.into_iter().next().map(|first| first.result))
}

/// Parses violations. One malformed violation makes the whole answer invalid, so that no violation is lost.
pub(in crate::wasm) fn violations(answer: &[u8]) -> Result<Verdict, EvaluationError> {
    let violations = first_result::<Vec<Violation>>(answer)?;
    let messages: Vec<String> = violations.into_iter().map(|violation| violation.msg).collect();
    if messages.is_empty() {
        return Ok(Verdict::allow());
    }
    let verdict = Verdict::deny(messages.join(", "));
    if messages.len() == 1 {
        return Ok(verdict);
    }
    let causes = messages.into_iter().map(|message| Cause { field: None, message }).collect();
    Ok(Verdict { causes, ..verdict })
}

fn first_result<T: for<'de> Deserialize<'de>>(answer: &[u8]) -> Result<T, EvaluationError> {
    let results: Vec<QueryResult<T>> = serde_json::from_slice(answer).map_err(invalid)?;
    let first = results.into_iter().next();
    first.map(|first| first.result).ok_or_else(|| EvaluationError::InvalidAnswer("the entrypoint is undefined".into()))
}
