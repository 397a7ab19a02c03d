//! Conversion of Kubernetes errors to the errors of this API.

use crate::error::{Code, Error, FieldViolation};
use crate::resources::input::resource_field;

/// Converts an error of the API server about the resource `name`.
pub(super) fn from_kube(error: &kube::Error, name: &str) -> Error {
    let kube::Error::Api(status) = error else {
        return Error::new(Code::Unavailable, "API_SERVER", format!("the API server does not answer: {error}"));
    };
    let message = status.message.clone();
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

fn invalid(status: &kube::core::Status) -> Error {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let violations: Vec<_> = causes
        .map(|cause| FieldViolation { field: resource_field(&cause.field), description: cause.message.clone() })
        .collect();
    if violations.is_empty() { Error::invalid("spec", status.message.clone()) } else { Error::violations(violations) }
}
