//! The paths and schemas of the management of request policies.

use proviso_crds::{DEFAULT_PRIORITY, MAX_DESCRIPTION, MAX_DISPLAY_NAME, PRIORITIES};
use serde_json::{Map, Value, json};

/// The regular expression of the ids in the published form.
const ID: &str = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$";
/// The regular expression of the ids that a client may choose.
const CLIENT_ID: &str = "^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$";

/// Returns the paths.
pub(super) fn paths() -> Map<String, Value> {
    let adr_list = [
        query("pageSize", "The maximum number of policies: 1 to 1000. Default: 50"),
        query("pageToken", "The `nextPageToken` of the previous page. Default: the first page"),
        query("name", "Only the policies with this name. Default: all"),
        query("type", "Only the policies of this type: Global, Tenant or User. Default: all"),
        query("tenant", "Only the policies of this tenant. Default: all"),
        query("user", "Only the policies of this user. Default: all"),
        query("serviceType", "Only the policies that decide about this service type. Default: all"),
    ];
    let published_list = [
        query("max_page_size", "The maximum number of policies: 1 to 1000. Default: 50"),
        query("page_token", "The `next_page_token` of the previous page. Default: the first page"),
        query("filter", "`policy_type='GLOBAL'`, `enabled=true`, or both with `AND`. Default: all policies"),
        query(
            "order_by",
            "A list of `priority`, `display_name` and `create_time`, each with `asc` or `desc`. Default: by type, then priority",
        ),
    ];
    let id = json!({"name": "id", "in": "query", "required": false, "description": "The id of the new policy. Default: a UUID",
        "schema": {"type": "string", "pattern": CLIENT_ID}});
    let adr = |id: &str, summary: &str| Operation { id: format!("{id}RequestPolicy"), summary: summary.to_owned() };
    let published =
        |id: &str, summary: &str| Operation { id: format!("{id}PublishedPolicy"), summary: summary.to_owned() };
    let paths = [
        (
            "/api/v1/policies",
            json!({
                "get": adr("List", "Lists request policies, in the order of the chain").to_json(&adr_list, None, (200, "RequestPolicyList")),
                "post": adr("Create", "Creates a request policy").to_json(&[], Some(("application/json", "RequestPolicy")), (201, "RequestPolicy")),
            }),
        ),
        (
            "/api/v1/policies/{id}",
            json!({
                "parameters": [path_parameter(&json!({"type": "string"}))],
                "get": adr("Get", "Gets a request policy").to_json(&[], None, (200, "RequestPolicy")),
                "put": adr("Replace", "Replaces the criteria, the priority and the code of a request policy")
                    .to_json(&[], Some(("application/json", "RequestPolicy")), (200, "RequestPolicy")),
                "delete": adr("Delete", "Deletes a request policy").to_json(&[], None, (204, "")),
            }),
        ),
        (
            "/api/v1alpha1/health",
            json!({
                "get": Operation { id: "GetHealth".to_owned(), summary: "Tells that the server runs; needs no token".to_owned() }
                    .to_json(&[], None, (200, "Health")),
            }),
        ),
        (
            "/api/v1alpha1/policies",
            json!({
                "get": published("List", "Lists the policies of the published form").to_json(&published_list, None, (200, "PublishedPolicyList")),
                "post": published("Create", "Creates a policy").to_json(&[id], Some(("application/json", "PublishedPolicy")), (201, "PublishedPolicy")),
            }),
        ),
        (
            "/api/v1alpha1/policies/{id}",
            json!({
                "parameters": [path_parameter(&json!({"type": "string", "pattern": ID}))],
                "get": published("Get", "Gets a policy").to_json(&[], None, (200, "PublishedPolicy")),
                "patch": published("Update", "Changes the fields of a policy by a JSON merge patch (RFC 7396)")
                    .to_json(&[], Some(("application/merge-patch+json", "PublishedPolicy")), (200, "PublishedPolicy")),
                "delete": published("Delete", "Deletes a policy").to_json(&[], None, (204, "")),
            }),
        ),
    ];
    paths.into_iter().map(|(path, item)| (path.to_owned(), item)).collect()
}

/// One method of a path.
struct Operation {
    id: String,
    summary: String,
}

impl Operation {
    /// Returns the operation. `body` is the content type and the schema of the request, and `answer` the status and the schema of the
    /// response; an empty schema means that it has no body.
    fn to_json(&self, parameters: &[Value], body: Option<(&str, &str)>, answer: (u16, &str)) -> Value {
        let (status, schema) = answer;
        let mut response = json!({"description": self.summary});
        if !schema.is_empty() {
            response["content"] = super::json_content(schema);
        }
        if status == 201 {
            response["headers"] =
                json!({"Location": {"description": "The path of the policy", "schema": {"type": "string"}}});
        }
        let problem = json!({
            "description": "An error in the form of RFC 7807",
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        });
        let mut operation = json!({
            "operationId": self.id, "summary": self.summary, "parameters": parameters,
            "responses": {status.to_string(): response, "default": problem},
        });
        if let Some((content_type, schema)) = body {
            let content = json!({content_type: {"schema": {"$ref": format!("#/components/schemas/{schema}")}}});
            operation["requestBody"] = json!({"required": true, "content": content});
        }
        operation
    }
}

fn query(name: &str, description: &str) -> Value {
    json!({"name": name, "in": "query", "required": false, "description": description, "schema": {"type": "string"}})
}

fn path_parameter(schema: &Value) -> Value {
    json!({"name": "id", "in": "path", "required": true, "schema": schema})
}

/// Returns the schemas. Clients do not write the fields with `readOnly`.
pub(super) fn schemas() -> Vec<(String, Value)> {
    let read_only = |schema: Value| {
        let mut schema = schema;
        schema["readOnly"] = true.into();
        schema
    };
    let text = |max: usize| json!({"type": "string", "maxLength": max});
    let time = || read_only(json!({"type": "string", "format": "date-time"}));
    let priority = json!({"type": "integer", "minimum": PRIORITIES.start(), "maximum": PRIORITIES.end(), "default": DEFAULT_PRIORITY});
    let list = |collection: &str, token: &str| {
        json!({
            "type": "object", "required": ["policies"],
            "properties": {
                "policies": {"type": "array", "items": {"$ref": format!("#/components/schemas/{collection}")}},
                token: {"type": "string"},
            },
        })
    };
    let request_policy = json!({
        "type": "object", "description": "A request policy, as the ADR of the DCM project has it",
        "properties": {
            "id": read_only(json!({"type": "string"})),
            "name": text(MAX_DISPLAY_NAME),
            "description": text(MAX_DESCRIPTION),
            "type": {"enum": ["Global", "Tenant", "User"]},
            "tenant": {"type": "string"},
            "user": {"type": "string"},
            "serviceType": {"type": "string", "description": "Short for a list of one service type", "writeOnly": true},
            "serviceTypes": {"type": "array", "items": {"type": "string"}},
            "labelSelector": {"type": "object", "description": "A LabelSelector of Kubernetes"},
            "priority": priority,
            "rego": {"type": "string", "description": "The Rego module"},
            "enabled": {"type": "boolean", "default": true},
            "createTime": time(),
            "updateTime": time(),
        },
    });
    let published_policy = json!({
        "type": "object", "description": "A request policy, as the published API of the DCM project has it",
        "properties": {
            "path": read_only(json!({"type": "string"})),
            "id": read_only(json!({"type": "string", "pattern": ID})),
            "display_name": text(MAX_DISPLAY_NAME),
            "description": text(MAX_DESCRIPTION),
            "policy_type": {"enum": ["GLOBAL", "USER"]},
            "label_selector": {"type": "object", "additionalProperties": {"type": "string"}},
            "priority": priority,
            "rego_code": text(65_536),
            "enabled": {"type": "boolean", "default": true},
            "create_time": time(),
            "update_time": time(),
        },
    });
    let problem = json!({
        "type": "object", "description": "An error in the form of RFC 7807", "required": ["type", "status", "title", "detail"],
        "properties": {
            "type": {"type": "string"}, "status": {"type": "integer"}, "title": {"type": "string"},
            "detail": {"type": "string"}, "instance": {"type": "string"},
        },
    });
    let health = json!({
        "type": "object", "required": ["status", "path"],
        "properties": {"status": {"const": "ok"}, "path": {"const": "health"}},
    });
    [
        ("RequestPolicy", request_policy),
        ("RequestPolicyList", list("RequestPolicy", "nextPageToken")),
        ("PublishedPolicy", published_policy),
        ("PublishedPolicyList", list("PublishedPolicy", "next_page_token")),
        ("Problem", problem),
        ("Health", health),
    ]
    .into_iter()
    .map(|(name, schema)| (name.to_owned(), schema))
    .collect()
}
