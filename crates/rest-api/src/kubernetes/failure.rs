//! What the API server refuses, in the words of the API.

use crate::error::{Code, Error, FieldViolation};

/// The error about the resource of this name.
pub(super) fn from_kube(error: &kube::Error, name: &str) -> Error {
    let kube::Error::Api(status) = error else {
        return Error::new(Code::Unavailable, "API_SERVER", format!("the API server does not answer: {error}"));
    };
    let message = status.message.clone();
    match status.code {
        404 => Error::not_found(name),
        409 if status.reason == "AlreadyExists" => Error::exists(name),
        409 => Error::busy(name),
        422 => invalid(status),
        400 => Error::new(Code::InvalidArgument, "REFUSED", message),
        413 => Error::new(Code::InvalidArgument, "TOO_LARGE", message),
        403 => Error::new(Code::PermissionDenied, "FORBIDDEN", message),
        401 | 429 | 500.. => Error::new(Code::Unavailable, "API_SERVER", format!("the API server cannot: {message}")),
        code => Error::new(Code::Internal, "API_SERVER", format!("the API server answers {code}: {message}")),
    }
}

fn invalid(status: &kube::core::Status) -> Error {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let violations: Vec<_> =
        causes.map(|cause| FieldViolation { field: path(&cause.field), description: cause.message.clone() }).collect();
    if violations.is_empty() { Error::invalid("spec", status.message.clone()) } else { Error::violations(violations) }
}

/// Where the API has a field of an object.
fn path(field: &str) -> String {
    for (from, to) in [("spec.policy.", "policy.spec."), ("metadata.", "")] {
        if let Some(rest) = field.strip_prefix(from) {
            return format!("{to}{rest}");
        }
    }
    match field {
        // A rule about the whole object, such as the length of its name.
        "" | "<nil>" => "name".to_owned(),
        "spec.policy" => "policy.spec".to_owned(),
        field => field.to_owned(),
    }
}
