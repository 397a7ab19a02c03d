//! What compiled Rego answers: a result set, of which the first result counts.

use proviso_core::verdict::Cause;
use proviso_core::{Review, Verdict};
use serde::Deserialize;
use serde_json::Value;

use super::invalid;
use crate::EvaluationError;
use crate::rego::response;

#[derive(Deserialize)]
struct First<T> {
    result: T,
}

#[derive(Deserialize)]
struct Violation {
    msg: String,
}

/// Reads an `AdmissionReview`, or its response alone.
pub(in crate::wasm) fn admission(answer: &[u8], review: &Review) -> Result<Verdict, EvaluationError> {
    let result = first::<Value>(answer)?;
    if !result.is_object() {
        return Err(EvaluationError::InvalidAnswer("the entrypoint is no AdmissionReview".into()));
    }
    response::read_json(result, review).map_err(|what| EvaluationError::InvalidAnswer(format!("the entrypoint {what}")))
}

/// Reads violations. One that cannot be read is no answer, so that it is not lost.
pub(in crate::wasm) fn violations(answer: &[u8]) -> Result<Verdict, EvaluationError> {
    let violations = first::<Vec<Violation>>(answer)?;
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

fn first<T: for<'de> Deserialize<'de>>(answer: &[u8]) -> Result<T, EvaluationError> {
    let results: Vec<First<T>> = serde_json::from_slice(answer).map_err(invalid)?;
    let first = results.into_iter().next();
    first.map(|first| first.result).ok_or_else(|| EvaluationError::InvalidAnswer("the entrypoint is undefined".into()))
}
