//! The formats of integers in schemas. schemars writes the names of Rust's integer types. Kubernetes knows only `int32` and
//! `int64`, and the API server warns about any other format.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

/// Gives each integer of a definition a format that Kubernetes knows, and the bounds of its Rust type.
pub fn normalize(definition: &mut CustomResourceDefinition) {
    for version in &mut definition.spec.versions {
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        schema.into_iter().for_each(normalize_schema);
    }
}

fn normalize_schema(schema: &mut JSONSchemaProps) {
    if let Some((format, maximum)) = schema.format.as_deref().and_then(kubernetes_format) {
        schema.format = Some(format.to_owned());
        schema.minimum.get_or_insert(0.0);
        schema.maximum = schema.maximum.or(maximum);
    }
    schema.properties.iter_mut().flatten().for_each(|(_, schema)| normalize_schema(schema));
    if let Some(JSONSchemaPropsOrArray::Schema(schema)) = &mut schema.items {
        normalize_schema(schema);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(schema)) = &mut schema.additional_properties {
        normalize_schema(schema);
    }
}

/// Returns the Kubernetes format that can hold an unsigned integer type, and the maximum of the type if the format does not
/// imply it. `None` means that the format needs no change.
fn kubernetes_format(format: &str) -> Option<(&'static str, Option<f64>)> {
    match format {
        "uint8" => Some(("int32", Some(u8::MAX.into()))),
        "uint16" => Some(("int32", Some(u16::MAX.into()))),
        "uint32" => Some(("int64", Some(u32::MAX.into()))),
        "uint" | "uint64" => Some(("int64", None)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The string formats that Kubernetes 1.36 knows, without dashes: Kubernetes ignores dashes in formats.
    const STRING_FORMATS: &str = "bsonobjectid byte cidr creditcard date datetime duration email hexcolor hostname ipv4 ipv6 \
                                  isbn isbn10 isbn13 k8slongname k8sshortname mac password rgbcolor ssn uri uuid uuid3 uuid4 \
                                  uuid5";

    /// Adds the path and format of each schema below `value` whose format Kubernetes does not know for its type.
    fn find_unknown_formats(path: &str, value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                if let Some(format) = object.get("format").and_then(Value::as_str) {
                    let is_known = match object.get("type").and_then(Value::as_str) {
                        Some("integer") => ["int32", "int64"].contains(&format),
                        Some("number") => ["float", "double"].contains(&format),
                        Some("string") | None => {
                            STRING_FORMATS.split(' ').any(|known| known == format.replace('-', ""))
                        }
                        Some(_) => false,
                    };
                    if !is_known {
                        found.push(format!("{path}: {format}"));
                    }
                }
                object.iter().for_each(|(key, value)| find_unknown_formats(&format!("{path}.{key}"), value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| find_unknown_formats(path, value, found)),
            _ => {}
        }
    }

    #[test]
    fn kubernetes_knows_every_format_in_the_definitions() {
        for (file, text) in crate::definitions().into_iter().chain(crate::chart()) {
            let mut found = Vec::new();
            find_unknown_formats(&file, &serde_yaml::from_str(&text).unwrap(), &mut found);
            assert_eq!(found, Vec::<String>::new());
        }
        let mut found = Vec::new();
        find_unknown_formats("", &json!({"properties": {"a": {"type": "integer", "format": "uint32"}}}), &mut found);
        assert_eq!(found, [".properties.a: uint32"]);
    }

    #[test]
    fn integers_keep_explicit_bounds_or_get_the_bounds_of_their_type() {
        let normalized = |schema: Value| {
            let mut schema = serde_json::from_value(json!({"items": schema})).unwrap();
            normalize_schema(&mut schema);
            serde_json::to_value(schema).unwrap()["items"].take()
        };
        for (from, to) in [
            (json!({"format": "uint8"}), json!({"format": "int32", "minimum": 0.0, "maximum": 255.0})),
            (json!({"format": "uint16"}), json!({"format": "int32", "minimum": 0.0, "maximum": 65_535.0})),
            (json!({"format": "uint32"}), json!({"format": "int64", "minimum": 0.0, "maximum": 4_294_967_295.0})),
            (json!({"format": "uint64"}), json!({"format": "int64", "minimum": 0.0})),
            (
                json!({"format": "uint32", "minimum": 1.0, "maximum": 30.0}),
                json!({"format": "int64", "minimum": 1.0, "maximum": 30.0}),
            ),
            (json!({"format": "int32"}), json!({"format": "int32"})),
            (json!({"format": "date-time"}), json!({"format": "date-time"})),
        ] {
            assert_eq!(normalized(from), to);
        }
    }
}
