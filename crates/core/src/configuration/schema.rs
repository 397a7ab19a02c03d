//! The JSON Schema of the content of a policy.

use serde_json::{Map, Value};

use crate::request::fragment::{Fragment, FragmentError};
use crate::request::limits::{MAX_STEP_COST, count_values};

/// The maximum number of violations in an error.
const MAX_VIOLATIONS: usize = 3;
/// The maximum number of values in content for which all violations are looked for. Larger content is validated up to the first one,
/// because a validator collects the violations of all values before it returns them.
const MAX_VALUES: u64 = 10_000;

/// A compiled JSON Schema (draft 2020-12) of content. It fetches nothing, its references resolve within the schema, and its patterns match
/// in linear time.
#[derive(Clone, Debug)]
pub struct ContentSchema(Fragment);

/// The error of content that its schema does not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// The violations: at most three. They name the path of the value, and not the value itself, which may be confidential.
    #[error("does not match `spec.configuration.schema`: {}", .0.join("; "))]
    Violations(Vec<String>),
    #[error("takes too long to validate against `spec.configuration.schema`: make the content or the schema smaller")]
    TooCostly,
}

impl ContentSchema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// Returns [`FragmentError`] if the schema is not valid, has another draft, refers to another document, or is too large.
    pub fn compile(schema: &Map<String, Value>) -> Result<Self, FragmentError> {
        Fragment::compile(Value::Object(schema.clone())).map(Self)
    }

    /// Validates content.
    ///
    /// # Errors
    /// Returns [`ContentError`] if the content does not match the schema, or cannot be validated in about a second.
    pub fn check(&self, content: &Value) -> Result<(), ContentError> {
        let values = count_values(content);
        if self.0.cost(values) > MAX_STEP_COST {
            return Err(ContentError::TooCostly);
        }
        if self.0.is_valid(content) {
            return Ok(());
        }
        let limit = if values > MAX_VALUES { 1 } else { MAX_VIOLATIONS };
        Err(ContentError::Violations(self.0.masked_violations(content, limit)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(schema: &Value) -> Result<ContentSchema, FragmentError> {
        ContentSchema::compile(schema.as_object().unwrap())
    }

    #[test]
    fn violations_name_the_path_and_not_the_value() {
        let properties = json!({"min": {"type": "integer"}, "list": {"items": {"maximum": 5}}});
        let compiled = schema(&json!({"properties": properties, "required": ["name"]})).unwrap();
        assert_eq!(compiled.check(&json!({"min": 1, "name": "a"})), Ok(()));
        for (content, count, expected) in [
            (json!({"min": "s3cret", "name": "a"}), 1, "/min: value is not of type \"integer\""),
            (json!({}), 1, "(content): \"name\" is a required property"),
            (json!({"name": "a", "list": [6, 7, 8, 9]}), 3, "/list/2: value is greater than the maximum of 5"),
        ] {
            let Err(ContentError::Violations(found)) = compiled.check(&content) else { panic!("{content} is valid") };
            assert_eq!(found.len(), count, "{found:?}");
            assert_eq!(found.last().unwrap(), expected);
        }
    }

    #[test]
    fn schemas_of_unbounded_cost_and_other_documents_are_refused() {
        let deep = json!({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}},
            "$ref": "#/$defs/a"});
        for invalid in [
            json!({"type": "nothing"}),
            json!({"$schema": "http://json-schema.org/draft-04/schema#"}),
            json!({"$ref": "https://example.com/schema.json"}),
            json!({"$ref": "file:///etc/passwd"}),
            json!({"pattern": "(?=a)b"}),
            deep,
        ] {
            assert!(schema(&invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn the_cost_of_a_validation_is_bounded() {
        let choices: Vec<_> = (0..2000).map(|choice| json!({"const": choice})).collect();
        let compiled = schema(&json!({"additionalProperties": {"items": {"anyOf": choices}}})).unwrap();
        assert_eq!(compiled.check(&json!({"list": vec![0; 10]})), Ok(()));
        assert_eq!(compiled.check(&json!({"list": vec![0; 100_000]})), Err(ContentError::TooCostly));
        let large = schema(&json!({"additionalProperties": {"items": {"type": "string"}}})).unwrap();
        let Err(ContentError::Violations(found)) = large.check(&json!({"list": vec![0; 100_000]})) else {
            panic!("numbers are no strings");
        };
        assert_eq!(found, ["/list/0: value is not of type \"string\""]);
    }
}
