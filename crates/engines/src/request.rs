//! The input and the results of request policies.

use proviso_core::Review;
use proviso_core::request::Chain;
use serde::Serialize;
use serde_json::{Value, json};

use crate::EvaluationError;

/// Returns a part of a chain as JSON.
pub(crate) fn to_json(input: &impl Serialize) -> Result<String, EvaluationError> {
    serde_json::to_string(input).map_err(|error| EvaluationError::Failed(format!("the input of the policy: {error}")))
}

/// Returns the input of the next policy as a raw review, for programs that answer reviews.
pub(crate) fn to_review(chain: &Chain) -> Result<Review, EvaluationError> {
    #[derive(Serialize)]
    struct Raw<T> {
        request: T,
    }
    let body = to_json(&Raw { request: chain.input() })?;
    Review::raw(body.into()).map_err(|error| EvaluationError::Failed(format!("the input of the policy: {error}")))
}

/// Returns the result of a policy that rejects the request.
pub(crate) fn rejection(reason: Option<&str>) -> Value {
    json!({"reject": true, "reason": reason})
}

/// Returns the result of a policy that accepts the request and changes nothing.
pub(crate) fn acceptance() -> Value {
    json!({})
}
