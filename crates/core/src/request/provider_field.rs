//! The service provider as a field of the payload: requests that are Kubernetes objects have it there. Then the provider and the field
//! always have the same value, so that the constraints of the field and those of the provider both hold.

use serde_json::{Map, Value};

use super::path::{FieldPath, Located, kind_of};
use super::result::{PolicyResult, ResultError};

/// Returns the provider in a field of the payload; `None` if the field does not exist or is empty.
///
/// # Errors
/// Returns the kind of the value if it is not a string.
pub(super) fn read(field: &FieldPath, payload: &Value) -> Result<Option<String>, &'static str> {
    match field.locate(payload) {
        Located::Present(Value::String(provider)) => Ok(Some(provider.clone()).filter(|it| !it.is_empty())),
        Located::Present(Value::Null) | Located::Absent | Located::Misplaced { .. } => Ok(None),
        Located::Present(value) => Err(kind_of(value)),
    }
}

/// Adds the provider that a policy chooses to its patch.
///
/// # Errors
/// Returns an error if the patch has another kind of value in the place of a parent of the field.
pub(super) fn add_to_patch(field: &FieldPath, result: &mut PolicyResult) -> Result<(), ResultError> {
    let (Some(provider), Some((last, parents))) = (&result.provider, field.keys().split_last()) else { return Ok(()) };
    let mut members = result.patch.get_or_insert_default();
    for (depth, key) in parents.iter().enumerate() {
        let parent = members.entry(key).or_insert_with(|| Value::Object(Map::new()));
        let kind = kind_of(parent);
        members = parent.as_object_mut().ok_or_else(|| {
            let parent = FieldPath::from_keys(&parents[..=depth]);
            let message =
                format!("has {kind} in `{parent}`, and the chosen service provider is written into `{field}`");
            ResultError::new("patch", message)
        })?;
    }
    members.insert(last.clone(), Value::String(provider.clone()));
    Ok(())
}

/// Returns the error of a patch that makes the field something else than a string.
pub(super) fn wrong_kind(field: &FieldPath, kind: &'static str) -> ResultError {
    ResultError::new("patch", format!("sets `{field}` to {kind}, but the service provider is a string"))
}
