//! One evaluation. The mutations run first, as in Kubernetes; the conditions and annotations read the mutated object.

use std::collections::BTreeMap;

use cel::Value;
use proviso_core::verdict::Cause;
use proviso_core::{Review, Verdict};

use super::expression::Expression;
use super::json;
use super::library::memory;
use super::mutation;
use super::prepared::{Condition, Prepared};
use super::variables::{EvaluationContext, Variables};
use crate::{EvaluationError, request};

/// The longest message of a message expression, in bytes.
const MAX_MESSAGE: usize = 5 * 1024;
/// The longest value of an annotation, in bytes. A longer value is truncated.
const MAX_ANNOTATION: usize = 10 * 1024;

pub(super) fn run(
    prepared: &Prepared,
    review: &Review,
    context: &EvaluationContext,
) -> Result<Verdict, EvaluationError> {
    memory::reset();
    let patched = mutate(prepared, review, context)?;
    let object_json = patched.as_ref().map(|(json, _)| json.as_str()).or_else(|| review.object_json());
    let variables = Variables::new(prepared, review, object_json, context);
    let failed = failed_conditions(prepared, &variables)?;
    let audit_annotations = annotations(prepared, &variables)?;
    let patch = patched.map(|(_, patch)| patch).filter(|patch| !patch.is_empty() && failed.is_empty());
    Ok(Verdict { audit_annotations, patch, ..verdict(failed) })
}

/// Evaluates a request policy. `review` is the input of the policy as a raw review, and `payload` is the JSON of the payload.
pub(super) fn run_request(
    prepared: &Prepared,
    review: &Review,
    payload: &str,
    context: &EvaluationContext,
) -> Result<Option<serde_json::Value>, EvaluationError> {
    memory::reset();
    let variables = Variables::new(prepared, review, Some(payload), context);
    let failed = failed_conditions(prepared, &variables)?;
    if !failed.is_empty() {
        let reasons: Vec<_> = failed.into_iter().map(|(_, message)| message).collect();
        return Ok(Some(request::rejection(Some(&reasons.join("; ")))));
    }
    let Some(expression) = &prepared.result else { return Ok(Some(request::acceptance())) };
    match variables.evaluate(expression)? {
        Value::Null => Ok(None),
        value @ Value::Map(_) => json::write(&value)
            .map(Some)
            .map_err(|why| EvaluationError::Failed(format!("expression {:?}: {why}", expression.text))),
        other => Err(wrong_type(expression, "map or null", &other)),
    }
}

/// Returns the conditions that do not hold, with their messages.
fn failed_conditions<'a>(
    prepared: &'a Prepared,
    variables: &Variables<'_>,
) -> Result<Vec<(&'a Condition, String)>, EvaluationError> {
    let mut failed = Vec::new();
    for condition in &prepared.conditions {
        match variables.evaluate(&condition.expression)? {
            Value::Bool(true) => {}
            Value::Bool(false) => failed.push((condition, message(condition, variables)?)),
            other => return Err(wrong_type(&condition.expression, "bool", &other)),
        }
    }
    Ok(failed)
}

/// Applies the mutations. Returns the mutated object and the patch; `None` if there are no mutations or the request has no
/// object.
fn mutate(
    prepared: &Prepared,
    review: &Review,
    context: &EvaluationContext,
) -> Result<Option<(String, json_patch::Patch)>, EvaluationError> {
    let Some(json) = review.object_json().filter(|_| !prepared.mutations.is_empty()) else { return Ok(None) };
    let original: serde_json::Value = proviso_core::review::parse(json)
        .map_err(|error| EvaluationError::Failed(format!("the object cannot be read: {error}")))?;
    if original.is_null() {
        return Ok(None);
    }
    let mut object = original.clone();
    for change in &prepared.mutations {
        let json = object.to_string();
        let variables = Variables::new(prepared, review, Some(&json), context);
        let value = variables.evaluate(&change.expression)?;
        mutation::apply(change.patch_type, &value, &mut object)
            .map_err(|why| EvaluationError::Failed(format!("expression {:?}: {why}", change.expression.text)))?;
    }
    let patch = json_patch::diff(&original, &object);
    Ok(Some((object.to_string(), patch)))
}

fn wrong_type(expression: &Expression, wanted: &str, found: &Value) -> EvaluationError {
    let found = found.type_of();
    EvaluationError::Failed(format!("expression {:?}: the value is a {found}, not a {wanted}", expression.text))
}

/// Returns the message of a condition that failed. If the message expression fails or has no valid value, the fixed message is
/// used, as in Kubernetes.
fn message(condition: &Condition, variables: &Variables<'_>) -> Result<String, EvaluationError> {
    let Some(expression) = &condition.message_expression else { return Ok(condition.message.clone()) };
    let message = match variables.evaluate(expression) {
        Ok(Value::String(message)) => message.trim().to_owned(),
        Ok(_) | Err(EvaluationError::Failed(_)) => String::new(),
        Err(error) => return Err(error),
    };
    let is_valid = !message.is_empty() && message.len() <= MAX_MESSAGE && !message.contains(['\n', '\r']);
    Ok(if is_valid { message } else { condition.message.clone() })
}

fn annotations(prepared: &Prepared, variables: &Variables<'_>) -> Result<BTreeMap<String, String>, EvaluationError> {
    let mut annotations = BTreeMap::new();
    for annotation in &prepared.annotations {
        match variables.evaluate(&annotation.expression)? {
            Value::Null => {}
            Value::String(value) => {
                let value = value.trim();
                let value = &value[..value.floor_char_boundary(MAX_ANNOTATION)];
                if !value.is_empty() {
                    annotations.insert(annotation.key.clone(), value.to_owned());
                }
            }
            other => return Err(wrong_type(&annotation.expression, "string or null", &other)),
        }
    }
    Ok(annotations)
}

fn verdict(failed: Vec<(&Condition, String)>) -> Verdict {
    let several = failed.len() > 1;
    let Some((first, message)) = failed.first().cloned() else { return Verdict::allow() };
    let causes = failed.into_iter().filter(|_| several).map(|(_, message)| Cause { field: None, message });
    Verdict {
        code: Some(first.code),
        reason: Some(first.reason.to_owned()),
        causes: causes.collect(),
        ..Verdict::deny(message)
    }
}
