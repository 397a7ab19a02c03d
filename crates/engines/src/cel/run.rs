//! One evaluation: changes first, as Kubernetes does, then conditions and annotations over what they made.

use std::collections::BTreeMap;

use cel::Value;
use proviso_core::verdict::Cause;
use proviso_core::{Review, Verdict};

use super::expression::Expression;
use super::library::kept;
use super::mutation;
use super::prepared::{Condition, Prepared};
use super::variables::{Variables, World};
use crate::EvaluationError;

/// The longest message that an expression may make.
const MAX_MESSAGE: usize = 5 * 1024;
/// The longest value of an annotation: what is longer is cut.
const MAX_ANNOTATION: usize = 10 * 1024;

pub(super) fn run(prepared: &Prepared, review: &Review, world: &World) -> Result<Verdict, EvaluationError> {
    kept::begin();
    let patched = change(prepared, review, world)?;
    let object_json = patched.as_ref().map(|(json, _)| json.as_str()).or_else(|| review.object_json());
    let variables = Variables::new(prepared, review, object_json, world);
    let mut failed = Vec::new();
    for condition in &prepared.conditions {
        match variables.evaluate(&condition.expression)? {
            Value::Bool(true) => {}
            Value::Bool(false) => failed.push((condition, message(condition, &variables)?)),
            other => return Err(not_a(&condition.expression, "bool", &other)),
        }
    }
    let audit_annotations = annotations(prepared, &variables)?;
    let patch = patched.map(|(_, patch)| patch).filter(|patch| !patch.is_empty() && failed.is_empty());
    Ok(Verdict { audit_annotations, patch, ..verdict(failed) })
}

/// The object as the mutations leave it, and how it gets there. A request without an object has nothing to change.
fn change(
    prepared: &Prepared,
    review: &Review,
    world: &World,
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
        let variables = Variables::new(prepared, review, Some(&json), world);
        let made = variables.evaluate(&change.expression)?;
        mutation::apply(change.patch_type, &made, &mut object)
            .map_err(|why| EvaluationError::Failed(format!("expression {:?}: {why}", change.expression.text)))?;
    }
    let patch = json_patch::diff(&original, &object);
    Ok(Some((object.to_string(), patch)))
}

fn not_a(expression: &Expression, wanted: &str, found: &Value) -> EvaluationError {
    let found = found.type_of();
    EvaluationError::Failed(format!("expression {:?}: the value is a {found}, not a {wanted}", expression.text))
}

/// What a condition says when it does not hold. An expression that makes no good message is no reason to fail.
fn message(condition: &Condition, variables: &Variables<'_>) -> Result<String, EvaluationError> {
    let Some(expression) = &condition.message_expression else { return Ok(condition.message.clone()) };
    let made = match variables.evaluate(expression) {
        Ok(Value::String(made)) => made.trim().to_owned(),
        Ok(_) | Err(EvaluationError::Failed(_)) => String::new(),
        Err(error) => return Err(error),
    };
    let is_good = !made.is_empty() && made.len() <= MAX_MESSAGE && !made.contains(['\n', '\r']);
    Ok(if is_good { made } else { condition.message.clone() })
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
            other => return Err(not_a(&annotation.expression, "string or null", &other)),
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
