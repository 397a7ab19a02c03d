//! The schemas of long-running operations: of their metadata and of their responses.

use serde_json::{Map, Value, json};

use crate::methods::{METHODS, Method, Rpc};
use crate::operation::{EMPTY, TYPE};

/// Returns the types of the operations that a method returns, as `google.longrunning.operation_info` of protobuf services.
pub(super) fn info(method: &Method) -> Value {
    json!({"metadataType": metadata_type(method), "responseType": response_type(method)})
}

/// Returns the name of the metadata type of the operations that a method returns.
fn metadata_type(method: &Method) -> String {
    format!("{}Metadata", method.id)
}

/// Returns the name of the response type of the operations that a method returns.
fn response_type(method: &Method) -> &'static str {
    match method.rpc {
        Rpc::DeletePolicy | Rpc::Commit => "Empty",
        Rpc::CreatePolicy | Rpc::UpdatePolicy => "Policy",
        _ => "PolicyExperiment",
    }
}

/// Returns the schemas of the metadata and of the responses of operations. Their field `@type` tells them apart.
pub(super) fn schemas() -> Vec<(String, Value)> {
    let mut metadata = Vec::new();
    let mut schemas = Vec::new();
    for method in METHODS.iter().filter(|method| method.is_change()) {
        let name = metadata_type(method);
        let type_ = format!("{TYPE}{name}");
        let description = format!("The metadata of the operations of {}", method.id);
        schemas.push((name.clone(), metadata_schema(&type_, &description)));
        metadata.push((type_, name));
    }
    let mut responses = Vec::new();
    for resource in ["Policy", "PolicyExperiment"] {
        let (name, type_) = (format!("{resource}Response"), format!("{TYPE}{resource}"));
        schemas.push((
            name.clone(),
            json!({
                "description": format!("A {resource} as the response of an operation"),
                "allOf": [
                    {"$ref": format!("#/components/schemas/{resource}")},
                    {"type": "object", "required": ["@type"], "properties": {"@type": {"const": type_}}},
                ],
            }),
        ));
        responses.push((type_, name));
    }
    schemas.push(("EmptyResponse".to_owned(), json!({
        "type": "object", "description": "The response of an operation that has no response", "required": ["@type", "value"],
        "properties": {"@type": {"const": EMPTY}, "value": {"type": "object"}},
    })));
    responses.push((EMPTY.to_owned(), "EmptyResponse".to_owned()));
    schemas.push(("OperationMetadata".to_owned(), one_of(&metadata)));
    schemas.push(("OperationResponse".to_owned(), one_of(&responses)));
    schemas
}

fn metadata_schema(type_: &str, description: &str) -> Value {
    json!({
        "type": "object", "description": description, "required": ["@type", "target", "createTime"],
        "properties": {
            "@type": {"const": type_},
            "target": {"type": "string", "description": "The name of the policy or the experiment that the operation changes"},
            "createTime": {"type": "string", "format": "date-time", "description": "The time of the call"},
            "waitsFor": {
                "type": "string",
                "description": "The event that the operation waits for, for people. Absent when the operation is done",
            },
        },
    })
}

/// Returns the schema of a message that is one of these types: each has the value of its `@type`, and the name of its schema.
fn one_of(types: &[(String, String)]) -> Value {
    let reference = |name: &str| format!("#/components/schemas/{name}");
    let mapping: Map<_, _> = types.iter().map(|(type_, name)| (type_.clone(), reference(name).into())).collect();
    let one_of: Vec<_> = types.iter().map(|(_, name)| json!({"$ref": reference(name)})).collect();
    json!({"oneOf": one_of, "discriminator": {"propertyName": "@type", "mapping": mapping}})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openapi::document;
    use crate::operation::StoredOperation;

    #[test]
    fn every_method_with_an_effect_has_a_schema_of_its_metadata_and_of_its_response() {
        let document = document();
        let schemas = &document["components"]["schemas"];
        let has_type =
            |any: &str, schema: &str| schemas[any]["discriminator"]["mapping"][format!("{TYPE}{schema}")].is_string();
        let changes: Vec<_> = METHODS.iter().filter(|method| method.is_change()).collect();
        assert_eq!(changes.len(), 9);
        for method in changes {
            let info = &document["paths"][method.path][method.http.as_str().to_lowercase()]["x-operation-info"];
            let metadata = info["metadataType"].as_str().unwrap();
            assert_eq!(schemas[metadata]["properties"]["@type"]["const"], format!("{TYPE}{metadata}"));
            assert!(has_type("OperationMetadata", metadata), "{metadata}");
            let response = info["responseType"].as_str().unwrap();
            assert!(response == "Empty" || has_type("OperationResponse", response), "{response}");
        }
    }

    #[test]
    fn operations_match_their_schemas() {
        let document = document();
        // Each effect, on an experiment and on a policy.
        let experiment = ["StartPreview", "StopPreview", "Commit"];
        for effect in ["Create", "Update", "Delete"].into_iter().chain(experiment) {
            for name in [None, Some("e")] {
                if name.is_none() && experiment.contains(&effect) {
                    continue;
                }
                let awaited =
                    json!({"effect": effect, "policy": "cluster.p", "experiment": name, "uid": "u", "version": "1"});
                let time = serde_json::from_value(json!("2026-11-20T09:14:07Z")).unwrap();
                let operation =
                    StoredOperation::new(serde_json::from_value(awaited).unwrap(), time, None).to_json(None);
                let type_ = operation["metadata"]["@type"].as_str().unwrap().strip_prefix(TYPE).unwrap();
                assert!(METHODS.iter().any(|method| method.is_change() && metadata_type(method) == type_), "{type_}");
                let schema = &document["components"]["schemas"][type_];
                for field in operation["metadata"].as_object().unwrap().keys() {
                    assert!(schema["properties"].get(field).is_some(), "{type_}: {field}");
                }
                for field in schema["required"].as_array().unwrap() {
                    assert!(operation["metadata"].get(field.as_str().unwrap()).is_some(), "{type_}: {field}");
                }
            }
        }
    }
}
