//! Reads responses of the REST API. Errors have the form of AIP-193, and of RFC 7807 under `/api`. Pure.

use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::error::{Refusal, ServerError};

/// The field of a page with experiments.
const EXPERIMENTS: &str = "policyExperiments";

#[derive(Deserialize)]
#[serde(untagged)]
enum Failure {
    /// AIP-193
    Error { error: Status },
    /// RFC 7807
    Problem { status: u16, detail: String },
}

#[derive(Deserialize)]
struct Status {
    message: String,
    #[serde(default)]
    details: Vec<Value>,
}

/// Returns the body of a response.
///
/// # Errors
/// When the response is an error of the API, or the server does not serve the REST API.
pub(super) fn read(server: &str, status: StatusCode, body: &[u8]) -> Result<Value, ServerError> {
    let no_api = || ServerError::NoApi { server: server.to_owned(), status };
    if status.is_success() {
        return serde_json::from_slice(body).map_err(|_| no_api());
    }
    let error = match serde_json::from_slice(body).map_err(|_| no_api())? {
        Failure::Error { error } => error,
        Failure::Problem { status: code, detail } if code == status.as_u16() => {
            Status { message: detail, details: Vec::new() }
        }
        Failure::Problem { .. } => return Err(no_api()),
    };
    if status == StatusCode::UNAUTHORIZED {
        return Err(ServerError::Unauthorized { server: server.to_owned(), cause: error.message });
    }
    let violations = error.details.iter().filter_map(|detail| detail["fieldViolations"].as_array()).flatten();
    let violation = |it: &Value| Some((it["field"].as_str()?.to_owned(), it["description"].as_str()?.to_owned()));
    // AIP-193: the detail of the type ErrorInfo has the reason.
    let reason = error.details.iter().find_map(|detail| detail["reason"].as_str());
    Err(ServerError::Refused(Box::new(Refusal {
        status: status.as_u16(),
        reason: reason.map(str::to_owned),
        violations: violations.filter_map(violation).collect(),
        message: error.message,
    })))
}

/// Takes the items out of a page of a collection. The field has the name of the kind (AIP-132); a server of an older version has the
/// experiments in `experiments`, the end of the path.
pub(super) fn items(page: &mut Value, path: &str) -> Vec<Value> {
    let collection = path.rsplit('/').next().unwrap_or(path);
    let field = if page.get(EXPERIMENTS).is_some() { EXPERIMENTS } else { collection };
    match page.get_mut(field).map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_items_of_a_page_are_in_the_field_of_their_kind() {
        let experiments = "policies/-/experiments";
        for (path, page, wanted) in [
            ("policies", json!({"policies": [1, 2], "nextPageToken": ""}), vec![json!(1), json!(2)]),
            (experiments, json!({"policyExperiments": [1]}), vec![json!(1)]),
            (experiments, json!({"policyExperiments": [1], "experiments": [1]}), vec![json!(1)]),
            // A server of an older version.
            (experiments, json!({"experiments": [1]}), vec![json!(1)]),
            (experiments, json!({}), vec![]),
        ] {
            assert_eq!(items(&mut page.clone(), path), wanted, "{page}");
        }
    }

    fn message(status: u16, body: &Value) -> String {
        let status = StatusCode::from_u16(status).unwrap();
        read("http://127.0.0.1:1", status, body.to_string().as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_refusal_adds_the_fields_that_its_message_lacks() {
        let violations = json!([
            {"field": "policy.spec", "description": "is too large"},
            {"field": "etag", "description": "is missing"},
        ]);
        let error = |message: &str| {
            json!({"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT", "details": [
                {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "INVALID_FIELD"},
                {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations},
            ]}})
        };
        assert_eq!(message(400, &error("no")), "no; policy.spec: is too large; etag: is missing");
        assert_eq!(message(400, &error("policy.spec: is too large")), "policy.spec: is too large; etag: is missing");
        let refused = read("s", StatusCode::BAD_REQUEST, error("no").to_string().as_bytes()).unwrap_err();
        assert!(matches!(refused, ServerError::Refused(it) if it.reason.as_deref() == Some("INVALID_FIELD")));
    }

    #[test]
    fn a_problem_is_a_refusal() {
        let problem =
            json!({"type": "NOT_FOUND", "title": "Not Found", "status": 404, "detail": "no such subscription"});
        assert_eq!(message(404, &problem), "no such subscription");
        // A proxy has answered in place of the server.
        assert!(message(502, &problem).contains("does not serve the REST API"));
    }

    #[test]
    fn refused_credentials_differ_from_a_missing_rest_api() {
        let error = json!({"error": {"code": 401, "message": "give the token"}});
        assert_eq!(message(401, &error), "http://127.0.0.1:1 refused the credentials: give the token");
        for (status, body) in [(404, json!("not found")), (200, Value::Null), (502, json!({"kind": "Status"}))] {
            let text = if body.is_null() { String::new() } else { body.to_string() };
            let status = StatusCode::from_u16(status).unwrap();
            let error = read("s", status, text.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with("s does not serve the REST API"), "{error}");
        }
    }
}
