//! Strict parsing of request bodies: an unknown field is refused by its path.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Error, FieldViolation};

const UNKNOWN_FIELD: &str = "is not a known field: check its spelling and position";

/// Converts a field name to the camel case of proto-JSON: both `preview_metadata` and `previewMetadata` become
/// `previewMetadata`.
#[must_use]
pub(crate) fn to_camel_case(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    let mut is_start = false;
    for letter in name.chars() {
        if letter == '_' && !text.is_empty() {
            is_start = true;
        } else if std::mem::take(&mut is_start) {
            text.extend(letter.to_uppercase());
        } else {
            text.push(letter);
        }
    }
    text
}

/// Parses a body as a JSON object. An empty body is an empty object.
pub(crate) fn object(body: &[u8]) -> Result<Map<String, Value>, Error> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Error::invalid("body", "is not a JSON object")),
        Err(error) => Err(Error::invalid("body", format!("is not valid JSON: {error}"))),
    }
}

/// Returns the object with its field names in camel case. Fields that are not in `known` are refused, and so is a field
/// that the object has twice, in camel case and in snake case. `at` is the path of the object; empty for the whole body.
pub(crate) fn message(at: &str, object: Map<String, Value>, known: &[&str]) -> Result<Map<String, Value>, Error> {
    let mut message = Map::new();
    let mut violations = Vec::new();
    for (key, value) in object {
        let field = to_camel_case(&key);
        let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
        let mut refuse = |description: &str| {
            violations.push(FieldViolation { field: path.clone(), description: description.to_owned() });
        };
        if !known.contains(&field.as_str()) {
            refuse(UNKNOWN_FIELD);
        } else if message.insert(field, value).is_some() {
            refuse("is given twice, in camel case and in snake case");
        }
    }
    if violations.is_empty() { Ok(message) } else { Err(Error::violations(violations)) }
}

/// Parses `value` as a `T`. Every unknown field is refused by its path, which starts with `at`; `at` is empty for a whole body.
pub(crate) fn typed<T: DeserializeOwned>(at: &str, value: Value) -> Result<T, Error> {
    let field = |path: &str| match path {
        "" | "." if at.is_empty() => "body".to_owned(),
        "" | "." => at.to_owned(),
        path if at.is_empty() => path.to_owned(),
        path => format!("{at}.{path}"),
    };
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(value, &mut track);
    let result = serde_ignored::deserialize(tracked, |path| unknown.push(path.to_string().replace(".?", "")));
    let typed = result
        .map_err(|error: serde_json::Error| Error::invalid(field(&track.path().to_string()), error.to_string()))?;
    let violations: Vec<_> = unknown
        .iter()
        .map(|path| FieldViolation { field: field(path), description: UNKNOWN_FIELD.to_owned() })
        .collect();
    if violations.is_empty() { Ok(typed) } else { Err(Error::violations(violations)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proviso_crds::PolicySpec;
    use serde_json::json;

    #[test]
    fn camel_case_and_snake_case_name_the_same_field() {
        for (name, wanted) in [("preview_metadata", "previewMetadata"), ("autoStart", "autoStart"), ("_a", "_a")] {
            assert_eq!(to_camel_case(name), wanted);
        }
        let both = object(br#"{"auto_start": true, "autoStart": false}"#).unwrap();
        assert!(message("", both, &["autoStart"]).unwrap_err().message.contains("twice"));
    }

    #[test]
    fn an_unknown_field_is_refused_by_its_path() {
        let spec = json!({"program": {"cel": {"validations": [], "rules": 1}}, "setings": {}});
        let error = typed::<PolicySpec>("policy.spec", spec).unwrap_err();
        let fields: Vec<_> = error.violations.iter().map(|violation| violation.field.as_str()).collect();
        assert_eq!(fields, ["policy.spec.program.cel.rules", "policy.spec.setings"]);
        let wrong = typed::<PolicySpec>("spec", json!({"program": {"cel": {"validations": [{}]}}})).unwrap_err();
        assert_eq!(wrong.violations[0].field, "spec.program.cel.validations[0]");
    }
}
