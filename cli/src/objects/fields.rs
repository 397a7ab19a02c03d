//! Reads fields of objects of any kind.

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::ObjectError;

/// Returns `metadata.creationTimestamp`; `None` if it is missing.
pub(super) fn created(object: &DynamicObject) -> Option<Timestamp> {
    object.creation_timestamp().map(|time| time.0)
}

/// Parses the value of a field; null gives the default. `field` is the path of the field for the error.
///
/// # Errors
/// When the value is of another type.
pub(super) fn field<T: DeserializeOwned + Default>(value: &Value, field: &'static str) -> Result<T, ObjectError> {
    if value.is_null() {
        return Ok(T::default());
    }
    serde_json::from_value(value.clone()).map_err(|error| ObjectError::Field { field, error })
}
