//! The result of a policy. The names of the ADR and of the published API of the DCM project are read.

use serde_json::{Map, Value};

use super::limits::{
    MAX_CONSTRAINT_BYTES, MAX_CONSTRAINTS, MAX_NESTING, MAX_PAYLOAD_BYTES, MAX_REASON_BYTES, json_bytes, nests_deeper,
};
use super::path::{FieldPath, kind_of, shorten};
use super::provider::ProviderConstraints;

/// The result of the evaluation of a policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyResult {
    /// The reason of a rejection, empty if the policy gives none; `None` if the policy does not reject the request.
    pub rejection: Option<String>,
    /// A JSON merge patch (RFC 7396) of the payload.
    pub patch: Option<Map<String, Value>>,
    pub constraints: Vec<(FieldPath, Constraint)>,
    /// The service provider that the policy chooses.
    pub provider: Option<String>,
    pub provider_constraints: ProviderConstraints,
}

/// A constraint of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// A JSON Schema (draft 2020-12) of the value.
    Schema(Value),
    /// The field keeps the value that it has after the patch of the policy: `{"mode": "immutable"}` in the ADR.
    Immutable,
}

/// The error of a result that cannot be read. It names the field of the result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the field `{field}` of the result {message}")]
pub struct ResultError {
    pub field: String,
    pub message: String,
}

impl ResultError {
    pub(super) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }

    fn wrong_kind(field: &str, value: &Value, expected: &str) -> Self {
        Self::new(field, format!("is {}, but must be {expected}", kind_of(value)))
    }
}

impl PolicyResult {
    /// Reads the result of a policy. A field that is null counts as missing.
    ///
    /// # Errors
    /// Returns an error if the result is not an object, has an unknown field, has a field of the wrong type, names a field in the
    /// notations of both APIs, or exceeds a limit.
    pub fn parse(result: Value) -> Result<Self, ResultError> {
        let Value::Object(mut fields) = result else {
            return Err(ResultError::new("", format!("is {}, but must be an object", kind_of(&result))));
        };
        fields.retain(|_, value| !value.is_null());
        let rejected = take(&mut fields, ["rejected", "reject"])?;
        let reason = take(&mut fields, ["rejection_reason", "reason"])?;
        let patch = take(&mut fields, ["patch", "patch"])?;
        let constraints = take(&mut fields, ["constraints", "constraints"])?;
        let mut parsed = Self::default();
        let is_rejected = rejected.map(|(field, value)| boolean(&field, &value)).transpose()?.unwrap_or_default();
        let reason = reason.map(|(field, value)| string(&field, value)).transpose()?;
        parsed.rejection = is_rejected.then(|| {
            let mut reason = reason.unwrap_or_default();
            reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
            reason
        });
        parsed.patch = patch.map(|(field, value)| read_patch(&field, value)).transpose()?;
        parsed.constraints = constraints.map(|(_, value)| read_constraints(value)).transpose()?.unwrap_or_default();
        parsed.read_provider(&mut fields)?;
        match fields.keys().next() {
            Some(field) => Err(ResultError::new(
                shorten(field),
                "is unknown: the fields are rejected, rejection_reason, patch, constraints, selected_provider and \
                 service_provider_constraints; in the notation of the ADR reject, reason, patch, constraints and serviceProvider",
            )),
            None => Ok(parsed),
        }
    }

    fn read_provider(&mut self, fields: &mut Map<String, Value>) -> Result<(), ResultError> {
        const ADR: &str = "serviceProvider";
        let published = ["selected_provider", "service_provider_constraints"];
        if let Some(field) = published.into_iter().find(|field| fields.contains_key(*field) && fields.contains_key(ADR))
        {
            return Err(ResultError::new(ADR, format!("is in the result together with `{field}`; return one of them")));
        }
        let [mut provider, mut constraints] =
            published.map(|field| fields.remove(field).map(|value| (field.to_owned(), value)));
        if let Some(value) = fields.remove(ADR) {
            let mut members = object(ADR, value)?;
            let mut member = |key: &str| members.remove(key).filter(|value| !value.is_null());
            provider = member("value").map(|value| (format!("{ADR}.value"), value));
            constraints = member("constraints").map(|value| (format!("{ADR}.constraints"), value));
            if let Some(key) = members.keys().next() {
                return Err(ResultError::new(
                    format!("{ADR}.{}", shorten(key)),
                    "is unknown: the fields are value and constraints",
                ));
            }
        }
        let provider = provider.map(|(field, value)| string(&field, value)).transpose()?;
        // The published API has no null: its policies return an empty string for no provider.
        self.provider = provider.filter(|provider| !provider.is_empty());
        if let Some((field, value)) = constraints {
            let mut members = object(&field, value)?;
            members.retain(|_, value| !value.is_null());
            let mut lists = [["allow_list", "allowList"], ["patterns", "patterns"]].into_iter().map(|keys| {
                let taken = take(&mut members, keys)?;
                taken.map(|(key, value)| strings(&format!("{field}.{key}"), value)).transpose()
            });
            let allow_list = lists.next().transpose()?.flatten();
            let patterns = lists.next().transpose()?.flatten().unwrap_or_default();
            drop(lists);
            if let Some(key) = members.keys().next() {
                let message = "is unknown: the fields are allow_list and patterns";
                return Err(ResultError::new(format!("{field}.{}", shorten(key)), message));
            }
            if allow_list.as_ref().is_some_and(Vec::is_empty) {
                return Err(ResultError::new(
                    format!("{field}.allow_list"),
                    "is empty, so that no provider would be allowed; omit it to allow each provider, or reject the request",
                ));
            }
            self.provider_constraints = ProviderConstraints { allow_list, patterns };
        }
        Ok(())
    }
}

/// Removes a field that has a name in each API.
fn take(fields: &mut Map<String, Value>, names: [&str; 2]) -> Result<Option<(String, Value)>, ResultError> {
    let [published, adr] = names;
    let value = fields.remove(published).map(|value| (published.to_owned(), value));
    match (value, fields.remove(adr)) {
        (Some(_), Some(_)) => {
            Err(ResultError::new(adr, format!("is in the result together with `{published}`; return one of them")))
        }
        (Some(value), None) => Ok(Some(value)),
        (None, value) => Ok(value.map(|value| (adr.to_owned(), value))),
    }
}

fn read_patch(field: &str, value: Value) -> Result<Map<String, Value>, ResultError> {
    if nests_deeper(&value, MAX_NESTING) {
        return Err(ResultError::new(field, format!("nests deeper than {MAX_NESTING} levels")));
    }
    if json_bytes(&value) > MAX_PAYLOAD_BYTES {
        return Err(ResultError::new(field, format!("is larger than {MAX_PAYLOAD_BYTES} bytes")));
    }
    object(field, value)
}

fn read_constraints(value: Value) -> Result<Vec<(FieldPath, Constraint)>, ResultError> {
    let members = object("constraints", value)?;
    if members.len() > MAX_CONSTRAINTS {
        let message = format!("has {} entries, but may have at most {MAX_CONSTRAINTS}", members.len());
        return Err(ResultError::new("constraints", message));
    }
    let mut bytes = 0;
    let mut read = Vec::with_capacity(members.len());
    for (path, schema) in members {
        let field = || format!("constraints[{:?}]", shorten(&path));
        bytes += json_bytes(&schema);
        if bytes > MAX_CONSTRAINT_BYTES {
            return Err(ResultError::new("constraints", format!("is larger than {MAX_CONSTRAINT_BYTES} bytes")));
        }
        if nests_deeper(&schema, MAX_NESTING) {
            return Err(ResultError::new(field(), format!("nests deeper than {MAX_NESTING} levels")));
        }
        let constraint = match schema.get("mode").and_then(Value::as_str) {
            Some("immutable") if schema.as_object().is_some_and(|members| members.len() == 1) => Constraint::Immutable,
            Some(_) => {
                let message = "has a `mode` that is not supported: the only one is {\"mode\": \"immutable\"}, without other keywords";
                return Err(ResultError::new(field(), message));
            }
            None if schema.is_object() || schema.is_boolean() => Constraint::Schema(schema),
            None => return Err(ResultError::wrong_kind(&field(), &schema, "a JSON Schema: an object or a boolean")),
        };
        let parsed = path.parse().map_err(|error| ResultError::new(field(), format!("is not valid: {error}")))?;
        read.push((parsed, constraint));
    }
    Ok(read)
}

fn boolean(field: &str, value: &Value) -> Result<bool, ResultError> {
    value.as_bool().ok_or_else(|| ResultError::wrong_kind(field, value, "a boolean"))
}

fn string(field: &str, value: Value) -> Result<String, ResultError> {
    match value {
        Value::String(text) => Ok(text),
        value => Err(ResultError::wrong_kind(field, &value, "a string")),
    }
}

fn object(field: &str, value: Value) -> Result<Map<String, Value>, ResultError> {
    match value {
        Value::Object(members) => Ok(members),
        value => Err(ResultError::wrong_kind(field, &value, "an object")),
    }
}

fn strings(field: &str, value: Value) -> Result<Vec<String>, ResultError> {
    match value {
        Value::Array(items) => {
            items.into_iter().enumerate().map(|(index, item)| string(&format!("{field}[{index}]"), item)).collect()
        }
        value => Err(ResultError::wrong_kind(field, &value, "a list of strings")),
    }
}
