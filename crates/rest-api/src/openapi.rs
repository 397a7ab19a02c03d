//! The OpenAPI document, generated from the table of methods and from the types of the messages.

mod operations;
mod request_policies;

use proviso_core::policy_id::MAX_NAME;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::methods::{METHODS, Method};
use crate::resources::{Policy, PolicyExperiment};

/// The regular expression of a DNS label.
const LABEL: &str = "[a-z0-9]([a-z0-9-]*[a-z0-9])?";
/// The regular expression of a DNS subdomain.
const NAME: &str = "[a-z0-9]([a-z0-9-]*[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*";

/// Returns the OpenAPI 3.1 document of the API.
#[must_use]
pub fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for method in METHODS {
        let path = paths.entry(method.path).or_insert_with(|| json!({}));
        path[method.http.as_str().to_lowercase()] = operation(method);
    }
    paths.extend(request_policies::paths());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Proviso",
            "version": "v1",
            "description": "Policies and experiments (AIP-236) below `/v1`: field names are in camel case; requests may use snake case. \
                            Request policies, as the DCM project has them, below `/api`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        // The server requires a token on every address except loopback.
        "security": [{}, {"token": []}],
    })
}

/// Returns the content of a JSON body with the schema `name`.
fn json_content(name: &str) -> Value {
    json!({"application/json": {"schema": {"$ref": format!("#/components/schemas/{name}")}}})
}

fn operation(method: &Method) -> Value {
    let variables = method.path.split(['{', '}']).skip(1).step_by(2);
    let mut parameters: Vec<Value> = variables
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": parameter_schema(name)}))
        .collect();
    parameters.extend(method.query.iter().map(|name| {
        json!({
            "name": name, "in": "query", "required": *name == "policyId", "description": parameter_description(name),
            "schema": parameter_schema(name.trim_end_matches("Id")),
        })
    }));
    let mut responses = Map::new();
    responses
        .insert("200".to_owned(), json!({"description": method.summary, "content": json_content(method.response)}));
    for (status, description) in errors(method) {
        responses.insert(status.to_string(), json!({"description": description, "content": json_content("Error")}));
    }
    let mut operation = json!({
        "operationId": method.id, "summary": method.summary, "parameters": parameters, "responses": responses,
    });
    if let Some(request) = method.request {
        let is_required = ["Policy", "PolicyExperiment", "CommitRequest"].contains(&request);
        operation["requestBody"] = json!({"required": is_required, "content": json_content(request)});
    }
    if method.is_change() {
        operation["x-operation-info"] = operations::info(method);
    }
    operation
}

/// Returns the schema of a path or query parameter.
fn parameter_schema(name: &str) -> Value {
    match name {
        "policy" => json!({"type": "string", "pattern": format!("^(-|cluster\\.{NAME}|ns\\.{LABEL}\\.{NAME})$")}),
        "experiment" | "policyExperiment" => {
            json!({"type": "string", "pattern": format!("^{NAME}$"), "maxLength": MAX_NAME})
        }
        "namespace" => json!({"type": "string", "pattern": format!("^{LABEL}$"), "maxLength": 63}),
        "pageSize" => json!({"type": "integer", "minimum": 0, "maximum": i32::MAX}),
        _ => json!({"type": "string"}),
    }
}

fn parameter_description(name: &str) -> &'static str {
    match name {
        "policyId" => "The id of the new policy: `cluster.NAME` or `ns.NAMESPACE.NAME`",
        "policyExperimentId" => {
            "The name of the new experiment: at most 150 characters (AIP-133). Required, if `experimentId` is absent"
        }
        "experimentId" => "A short form of `policyExperimentId`",
        "namespace" => {
            "The namespace of the policies: the caller only needs permissions in this namespace. Lists of experiments accept it if \
             the policy is `-`. Default: all namespaces and the cluster scope"
        }
        "updateMask" => {
            "The fields to replace, separated by commas (AIP-134); `*` for all. Default: the fields in the body"
        }
        "etag" => {
            "The expected etag: the request fails if the resource has another version (AIP-154). Default: any version"
        }
        "pageSize" => {
            "The maximum number of resources in the response: 1 to 1000; larger values count as 1000. Default: 50"
        }
        "pageToken" => "The `nextPageToken` of the previous page. Default: the first page",
        "filter" => {
            "A filter such as `preview_metadata.state = ACTIVE`, or `preview_metadata.start_time >= \"2026-11-20T09:14:07Z\"` \
             (AIP-160). Default: all resources"
        }
        _ => "Not supported: lists are always ordered by name",
    }
}

/// Returns the HTTP status and the description of each error that a method can return.
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
            (408, "The body did not arrive within 10 seconds"),
            (413, "The body is larger than 3 MiB"),
            (415, "The body is not JSON"),
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
    // The derived `required` lists the fields that every response has. Requests need not have them, and use the same schemas.
    for name in ["Policy", "PolicyExperiment"] {
        if let Some(schema) = schemas.get_mut(name).and_then(Value::as_object_mut) {
            schema.remove("required");
        }
    }
    for (name, schema) in [
        ("ListPoliciesResponse", list_schema("policies", "Policy")),
        ("ListPolicyExperimentsResponse", list_schema("policyExperiments", "PolicyExperiment")),
        ("ListOperationsResponse", list_schema("operations", "Operation")),
        ("PreviewRequest", request_schema(&json!({"name": {"type": "string"}}), &[])),
        (
            "WaitRequest",
            request_schema(
                &json!({"name": {"type": "string"}, "timeout": {
                    "type": "string",
                    "description": "The maximum time to wait, such as `10s`; longer than `60s` counts as `60s`. Default: `30s`",
                }}),
                &[],
            ),
        ),
        (
            "CommitRequest",
            request_schema(
                &json!({
                    "name": {"type": "string"},
                    "etag": {
                        "type": "string",
                        "description": "The etag of the experiment. The commit fails if the experiment has another version",
                    },
                    "parentEtag": {
                        "type": "string",
                        "description":
                            "The etag of the policy. The commit fails if the policy has another version. Default: any version",
                    },
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
                    "metadata": {"$ref": "#/components/schemas/OperationMetadata"},
                    "response": {"$ref": "#/components/schemas/OperationResponse"},
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
                "type": "object", "description": "An error in the form of AIP-193", "required": ["error"],
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
    schemas.extend(operations::schemas());
    schemas.extend(request_policies::schemas());
    schemas.into()
}

fn details() -> Value {
    json!({"type": "array", "items": {"$ref": "#/components/schemas/Any"}})
}

fn list_schema(collection: &str, of: &str) -> Value {
    json!({
        "type": "object", "required": [collection],
        "properties": {
            collection: {"type": "array", "items": {"$ref": format!("#/components/schemas/{of}")}},
            "nextPageToken": {"type": "string"},
        },
    })
}

fn request_schema(properties: &Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_openapi_document_matches_the_code() {
        proviso_recorded::check("docs/reference/openapi.json", &format!("{:#}\n", document()));
    }

    #[test]
    fn every_reference_resolves_and_every_method_is_documented() {
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
        let methods = paths.iter().filter(|(path, _)| path.starts_with("/v1/"));
        assert_eq!(methods.map(|(_, path)| path.as_object().unwrap().len()).sum::<usize>(), METHODS.len());
        for (path, methods) in crate::request_policies::routes() {
            for method in methods {
                assert!(paths[path].get(method.to_lowercase()).is_some(), "{method} {path}");
            }
        }
        let program = &document["components"]["schemas"]["Program"];
        assert!(
            program.to_string().contains("WebAssembly"),
            "the schema must have the descriptions of the spec: {program}"
        );
    }
}
