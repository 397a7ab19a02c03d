//! Parses the JSON answers of guests.

pub(super) mod rego;

use std::collections::BTreeMap;

use proviso_core::review;
use proviso_core::{Review, Verdict};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::{EvaluationError, SettingsError, request};

#[derive(Deserialize)]
struct Answer<'a> {
    accepted: bool,
    message: Option<String>,
    code: Option<u16>,
    #[serde(borrow)]
    mutated_object: Option<&'a RawValue>,
    audit_annotations: Option<BTreeMap<String, String>>,
    warnings: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct SettingsAnswer {
    valid: bool,
    message: Option<String>,
}

/// Parses the answer to `validate`.
pub(super) fn verdict(response: &[u8], review: &Review) -> Result<Verdict, EvaluationError> {
    let answer: Answer<'_> = serde_json::from_slice(response).map_err(invalid)?;
    let base = Verdict {
        warnings: answer.warnings.unwrap_or_default(),
        audit_annotations: answer.audit_annotations.unwrap_or_default(),
        ..Verdict::default()
    };
    if !answer.accepted {
        return Ok(Verdict { message: answer.message, code: answer.code, ..base });
    }
    let patch = match answer.mutated_object {
        Some(mutated) => patch(mutated.get(), review)?,
        None => None,
    };
    Ok(Verdict { allowed: true, patch, ..base })
}

/// Parses the answer to `validate` of a request policy.
pub(super) fn request_result(response: &[u8]) -> Result<Value, EvaluationError> {
    let answer: Answer<'_> = serde_json::from_slice(response).map_err(invalid)?;
    if !answer.accepted {
        return Ok(request::rejection(answer.message.as_deref()));
    }
    match answer.mutated_object.map(RawValue::get) {
        None | Some("null") => Ok(request::acceptance()),
        Some(result) => serde_json::from_str(result).map_err(invalid),
    }
}

/// Parses the answer to `validate_settings`.
pub(super) fn settings(response: &[u8]) -> Result<(), SettingsError> {
    let answer: SettingsAnswer = serde_json::from_slice(response).map_err(invalid)?;
    if answer.valid {
        return Ok(());
    }
    Err(SettingsError::Refused(answer.message.unwrap_or_else(|| "it gave no reason".into())))
}

/// Returns the patch from the object of the request to the mutated object; `None` if the two are equal.
fn patch(mutated: &str, review: &Review) -> Result<Option<json_patch::Patch>, EvaluationError> {
    let original = review.object_json();
    if mutated == "null" || Some(mutated) == original {
        return Ok(None);
    }
    let Some(original) = original else {
        return Err(EvaluationError::InvalidAnswer("`mutated_object` is set, but the request has no object".into()));
    };
    let original: Value = review::parse(original).map_err(invalid)?;
    let mutated: Value = serde_json::from_str(mutated).map_err(invalid)?;
    let patch = json_patch::diff(&original, &mutated);
    Ok((!patch.is_empty()).then_some(patch))
}

#[allow(clippy::needless_pass_by_value, reason = "`map_err` passes the error by value")]
fn invalid(error: serde_json::Error) -> EvaluationError {
    EvaluationError::InvalidAnswer(error.to_string())
}
