//! The OpenAPI document, made of the table of methods and of the types of the messages.

use proviso_core::policy_id::MAX_NAME;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::methods::{METHODS, Method};
use crate::resources::{Policy, PolicyExperiment};

/// A DNS label, and a DNS subdomain.
const LABEL: &str = "[a-z0-9]([a-z0-9-]*[a-z0-9])?";
const NAME: &str = "[a-z0-9]([a-z0-9-]*[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*";

/// The whole document (OpenAPI 3.1).
#[must_use]
pub fn document() -> Value {
    let mut paths = Map::new();
    for method in METHODS {
        let path = paths.entry(method.path).or_insert_with(|| json!({}));
        path[method.http.as_str().to_lowercase()] = operation(method);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Proviso",
            "version": "v1",
            "description": "Policies and their experiments (AIP-236). Names of fields are in camel case; snake case is taken too.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        // Without a token only on loopback.
        "security": [{}, {"token": []}],
    })
}

fn schema(name: &str) -> Value {
    json!({"application/json": {"schema": {"$ref": format!("#/components/schemas/{name}")}}})
}

fn operation(method: &Method) -> Value {
    let variables = method.path.split(['{', '}']).skip(1).step_by(2);
    let mut parameters: Vec<Value> =
        variables.map(|name| json!({"name": name, "in": "path", "required": true, "schema": id(name)})).collect();
    parameters.extend(method.query.iter().map(|name| {
        let is_demanded = name.ends_with("Id");
        json!({
            "name": name, "in": "query", "required": is_demanded, "description": parameter(name),
            "schema": id(name.trim_end_matches("Id")),
        })
    }));
    let mut responses = Map::new();
    responses.insert("200".to_owned(), json!({"description": method.summary, "content": schema(method.response)}));
    for (status, description) in errors(method) {
        responses.insert(status.to_string(), json!({"description": description, "content": schema("Error")}));
    }
    let mut operation = json!({
        "operationId": method.id, "summary": method.summary, "parameters": parameters, "responses": responses,
    });
    if let Some(request) = method.request {
        let is_demanded = ["Policy", "PolicyExperiment", "CommitRequest"].contains(&request);
        operation["requestBody"] = json!({"required": is_demanded, "content": schema(request)});
    }
    operation
}

/// The form of a parameter.
fn id(name: &str) -> Value {
    match name {
        "policy" => json!({"type": "string", "pattern": format!("^(-|cluster\\.{NAME}|ns\\.{LABEL}\\.{NAME})$")}),
        "experiment" => json!({"type": "string", "pattern": format!("^{NAME}$"), "maxLength": MAX_NAME}),
        "pageSize" => json!({"type": "integer", "minimum": 0, "maximum": i32::MAX}),
        _ => json!({"type": "string"}),
    }
}

fn parameter(name: &str) -> &'static str {
    match name {
        "policyId" => "`cluster.NAME` or `ns.NAMESPACE.NAME`",
        "experimentId" => "The experiment's name",
        "updateMask" => "The fields that are replaced (AIP-134); `*` for all. Without it, those that the body has",
        "etag" => "Fails if there is another version meanwhile (AIP-154)",
        "pageSize" => "At most so many: 1 to 1000. Default: 50",
        "pageToken" => "`nextPageToken` of the page before",
        "filter" => "As in `preview_metadata.state = ACTIVE` (AIP-160)",
        _ => "Not supported: lists are ordered by name",
    }
}

/// What a method can answer beside its success.
fn errors(method: &Method) -> Vec<(u16, &'static str)> {
    let mut errors = vec![
        (400, "INVALID_ARGUMENT or FAILED_PRECONDITION"),
        (401, "UNAUTHENTICATED"),
        (403, "PERMISSION_DENIED"),
        (404, "NOT_FOUND"),
        (500, "INTERNAL"),
        (503, "UNAVAILABLE"),
        (504, "DEADLINE_EXCEEDED"),
    ];
    if method.http != axum::http::Method::GET {
        errors.extend([(409, "ABORTED or ALREADY_EXISTS"), (429, "RESOURCE_EXHAUSTED")]);
    }
    if method.request.is_some() {
        errors.extend([
            (408, "The body did not arrive in time"),
            (413, "The body is too large"),
            (415, "The body is to be JSON"),
        ]);
    }
    errors
}

fn schemas() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
    });
    let mut generator = SchemaGenerator::new(settings);
    generator.subschema_for::<Policy>();
    generator.subschema_for::<PolicyExperiment>();
    let mut schemas = generator.take_definitions(true);
    // What only an answer always has is not demanded of a request.
    for name in ["Policy", "PolicyExperiment"] {
        if let Some(schema) = schemas.get_mut(name).and_then(Value::as_object_mut) {
            schema.remove("required");
        }
    }
    for (name, schema) in [
        ("ListPoliciesResponse", list("policies", "Policy")),
        ("ListPolicyExperimentsResponse", list("experiments", "PolicyExperiment")),
        ("ListOperationsResponse", list("operations", "Operation")),
        ("PreviewRequest", request(&json!({"name": {"type": "string"}}), &[])),
        (
            "WaitRequest",
            request(
                &json!({"name": {"type": "string"}, "timeout": {
                    "type": "string", "description": "Such as `10s`; at most a minute. Default: 30s",
                }}),
                &[],
            ),
        ),
        (
            "CommitRequest",
            request(
                &json!({
                    "name": {"type": "string"},
                    "etag": {"type": "string", "description": "Of the version of the experiment that is meant"},
                    "parentEtag": {"type": "string", "description": "Of the version of the policy that is replaced"},
                }),
                &["etag"],
            ),
        ),
        (
            "Any",
            json!({
                "type": "object", "required": ["@type"], "properties": {"@type": {"type": "string"}},
                "additionalProperties": true,
            }),
        ),
        (
            "Operation",
            json!({
                "type": "object", "required": ["name", "done", "metadata"],
                "properties": {
                    "name": {"type": "string"}, "done": {"type": "boolean"},
                    "metadata": {"$ref": "#/components/schemas/Any"},
                    "response": {"$ref": "#/components/schemas/Any"},
                    "error": {
                        "type": "object", "description": "google.rpc.Status", "required": ["code", "message", "details"],
                        "properties": {"code": {"type": "integer"}, "message": {"type": "string"}, "details": details()},
                    },
                },
            }),
        ),
        (
            "Error",
            json!({
                "type": "object", "description": "As in AIP-193", "required": ["error"],
                "properties": {"error": {
                    "type": "object", "required": ["code", "message", "status", "details"],
                    "properties": {
                        "code": {"type": "integer"}, "message": {"type": "string"}, "status": {"type": "string"},
                        "details": details(),
                    },
                }},
            }),
        ),
        ("OpenApi", json!({"type": "object"})),
    ] {
        schemas.insert(name.to_owned(), schema);
    }
    schemas.into()
}

fn details() -> Value {
    json!({"type": "array", "items": {"$ref": "#/components/schemas/Any"}})
}

fn list(collection: &str, of: &str) -> Value {
    json!({
        "type": "object", "required": [collection],
        "properties": {
            collection: {"type": "array", "items": {"$ref": format!("#/components/schemas/{of}")}},
            "nextPageToken": {"type": "string"},
        },
    })
}

fn request(properties: &Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_document_is_what_the_code_says() {
        proviso_recorded::check("docs/openapi.json", &format!("{:#}\n", document()));
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_method_is_there() {
        fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
            match value {
                Value::Object(object) => {
                    found.extend(object.get("$ref").and_then(Value::as_str));
                    object.values().for_each(|value| references(value, found));
                }
                Value::Array(items) => items.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 40);
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(paths.values().map(|path| path.as_object().unwrap().len()).sum::<usize>(), METHODS.len());
        let program = &document["components"]["schemas"]["Program"];
        assert!(program.to_string().contains("WebAssembly"), "the spec's own documentation is in it: {program}");
    }
}
