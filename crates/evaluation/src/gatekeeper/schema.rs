//! The schema of a template's parameters. As the API server does, it sets defaults and rejects invalid parameters.

use proviso_crds::validation::FieldError;
use serde_json::{Map, Value, json};

/// Sets missing fields to their defaults. Defaults of outer fields are set first, because inner defaults apply to them too.
pub(super) fn fill_defaults(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(members) => {
            let properties = schema["properties"].as_object();
            for (name, schema) in properties.into_iter().flatten() {
                if !members.contains_key(name)
                    && let Some(default) = schema.get("default")
                {
                    members.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in members {
                let property = properties.and_then(|it| it.get(name)).unwrap_or(&schema["additionalProperties"]);
                // The API server treats null as missing if the schema does not allow null.
                if value.is_null()
                    && property["nullable"] != true
                    && let Some(default) = property.get("default")
                {
                    *value = default.clone();
                }
                fill_defaults(property, value);
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(|element| fill_defaults(&schema["items"], element)),
        _ => {}
    }
}

/// Validates parameters against the schema.
///
/// # Errors
/// Returns the first invalid parameter, or an error about the schema if it is invalid.
pub(super) fn check(schema: &Value, parameters: &Map<String, Value>) -> Result<(), FieldError> {
    if schema.is_null() {
        return Ok(());
    }
    // OpenAPI 3.0 has the bounds of draft 4, where `exclusiveMinimum` is a boolean.
    let validator = jsonschema::draft4::new(&to_json_schema(schema)).map_err(|error| {
        FieldError::new("spec.crd.spec.validation.openAPIV3Schema", format!("is not a schema: {error}"))
    })?;
    let parameters = Value::Object(parameters.clone());
    match validator.iter_errors(&parameters).next() {
        Some(error) => {
            let path = error.instance_path().to_string().replace('/', ".");
            Err(FieldError::new(format!("spec.parameters{path}"), error.to_string()))
        }
        None => Ok(()),
    }
}

/// Translates `nullable` and `x-kubernetes-int-or-string`, which JSON Schema does not have.
fn to_json_schema(schema: &Value) -> Value {
    match schema {
        Value::Object(members) => {
            let mut out: Map<String, Value> =
                members.iter().map(|(name, value)| (name.clone(), to_json_schema(value))).collect();
            if members.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
                out.remove("anyOf");
                out.insert("type".into(), json!(["integer", "string"]));
            }
            // A property may have the name `nullable`. Then the value is a schema and not a boolean.
            if members.get("nullable") == Some(&Value::Bool(true))
                && let Some(kind) = out.get("type").and_then(Value::as_str)
            {
                out.insert("type".into(), json!([kind, "null"]));
            }
            // Formats are hints, which are not checked.
            if out.get("format").is_some_and(Value::is_string) {
                out.remove("format");
            }
            Value::Object(out)
        }
        Value::Array(elements) => elements.iter().map(to_json_schema).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(schema: &Value, value: &Value) -> Value {
        let mut value = value.clone();
        fill_defaults(schema, &mut value);
        value
    }

    #[test]
    fn defaults_are_filled_in_at_every_depth() {
        let schema = json!({"properties": {
            "a": {"default": 1},
            "b": {"properties": {"c": {"default": [2]}}},
            "d": {"items": {"properties": {"e": {"default": true}}}},
            "f": {"default": {}, "properties": {"g": {"default": "h"}}},
        }});
        for (value, wanted) in [
            (json!({}), json!({"a": 1, "f": {"g": "h"}})),
            (
                json!({"a": 0, "b": {}, "d": [{}, {"e": false}]}),
                json!({
                    "a": 0, "b": {"c": [2]}, "d": [{"e": true}, {"e": false}], "f": {"g": "h"},
                }),
            ),
            (json!({"a": null, "f": {"g": "i"}}), json!({"a": 1, "f": {"g": "i"}})),
        ] {
            assert_eq!(filled(&schema, &value), wanted);
        }
    }

    #[test]
    fn parameters_must_fit_the_schema() {
        let schema = json!({"type": "object", "required": ["a"], "properties": {
            "a": {"type": "integer", "minimum": 1, "exclusiveMinimum": true},
            "b": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}},
            "c": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
            "n": {"type": "string", "nullable": true},
            "format": {"type": "string", "format": "byte"},
        }});
        let field = |parameters: Value| match check(&schema, parameters.as_object().unwrap()) {
            Ok(()) => String::new(),
            Err(error) => error.field,
        };
        for (parameters, wanted) in [
            (json!({"a": 2, "b": ["x"], "c": "50%", "n": null, "format": "any", "unknown": 1}), ""),
            (json!({"a": 2, "c": 5}), ""),
            (json!({}), "spec.parameters"),
            (json!({"a": 1}), "spec.parameters.a"),
            (json!({"a": 2, "b": ["x", "z"]}), "spec.parameters.b.1"),
            (json!({"a": 2, "c": true}), "spec.parameters.c"),
        ] {
            assert_eq!(field(parameters.clone()), wanted, "{parameters}");
        }
        assert!(check(&Value::Null, &Map::new()).is_ok());
    }
}
