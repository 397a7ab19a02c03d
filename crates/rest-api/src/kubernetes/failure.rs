//! Conversion of Kubernetes errors to the errors of this API.

use crate::error::{Code, Error, FieldViolation};
use crate::resources::input::resource_field;
use crate::uniqueness::{DISPLAY_NAME_IN_USE, PRIORITY_IN_USE};

/// Converts an error of the API server about the resource `name`.
pub(super) fn from_kube(error: &kube::Error, name: &str) -> Error {
    let kube::Error::Api(status) = error else {
        return Error::new(Code::Unavailable, "API_SERVER", format!("the API server does not answer: {error}"));
    };
    let message = status.message.clone();
    if let Some(error) = duplicate(status) {
        return error;
    }
    match status.code {
        404 => Error::not_found(name),
        409 if status.reason == "AlreadyExists" => Error::already_exists(name),
        409 => Error::concurrent_change(name),
        422 => invalid(status),
        400 => Error::new(Code::InvalidArgument, "REFUSED", message),
        413 => Error::new(Code::InvalidArgument, "TOO_LARGE", message),
        403 => Error::new(Code::PermissionDenied, "FORBIDDEN", message),
        401 | 429 | 500.. => {
            Error::new(Code::Unavailable, "API_SERVER", format!("the API server answered with an error: {message}"))
        }
        code => Error::new(Code::Internal, "API_SERVER", format!("the API server answers {code}: {message}")),
    }
}

/// Returns the error for the answer of the operator's webhook about a display name or a priority that another policy has; `None` for
/// another answer.
fn duplicate(status: &kube::core::Status) -> Option<Error> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let violations: Vec<_> = causes
        .filter(|cause| cause.reason == "FieldValueDuplicate")
        .map(|cause| FieldViolation { field: resource_field(&cause.field), description: cause.message.clone() })
        .collect();
    let has_name = violations.first()?.field.ends_with("displayName");
    let reason = if has_name { DISPLAY_NAME_IN_USE } else { PRIORITY_IN_USE };
    let Error { message, violations, .. } = Error::violations(violations);
    let mut error = Error::new(Code::AlreadyExists, reason, message);
    error.violations = violations;
    Some(error)
}

fn invalid(status: &kube::core::Status) -> Error {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let violations: Vec<_> = causes
        .map(|cause| FieldViolation { field: resource_field(&cause.field), description: cause.message.clone() })
        .collect();
    if violations.is_empty() { Error::invalid("spec", status.message.clone()) } else { Error::violations(violations) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_duplicate_that_the_webhook_refuses_is_a_conflict() {
        let cause = |reason: &str, field: &str| json!({"reason": reason, "field": field, "message": "is in use by policy cluster.a"});
        for (causes, expected) in [
            (json!([cause("FieldValueDuplicate", "spec.request.displayName")]), (409, DISPLAY_NAME_IN_USE)),
            (json!([cause("FieldValueDuplicate", "spec.request.priority")]), (409, PRIORITY_IN_USE)),
            (json!([cause("FieldValueInvalid", "spec.request.priority")]), (400, "INVALID_FIELD")),
        ] {
            let status = json!({
                "status": "Failure", "message": "admission webhook denied the request", "reason": "Invalid", "code": 422,
                "details": {"causes": causes},
            });
            let error = from_kube(&kube::Error::Api(serde_json::from_value(status).unwrap()), "policies/cluster.b");
            assert_eq!((error.http(), error.reason()), expected, "{error}");
            assert!(error.message.ends_with(": is in use by policy cluster.a"), "{error}");
        }
    }
}
