//! Error responses in the form of AIP-193.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use proviso_core::Failure;
use proviso_crds::PointMismatch;
use serde_json::{Value, json};

/// The domain of the error reasons (AIP-193, `ErrorInfo.domain`).
const DOMAIN: &str = "proviso.dev";

/// The canonical codes (`google.rpc.Code`) that this API uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    Unauthenticated,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    Unimplemented,
    Internal,
    Unavailable,
}

impl Code {
    /// Returns the name, the number in `google.rpc.Code`, and the HTTP status.
    const fn parts(self) -> (&'static str, i32, u16) {
        match self {
            Self::InvalidArgument => ("INVALID_ARGUMENT", 3, 400),
            Self::DeadlineExceeded => ("DEADLINE_EXCEEDED", 4, 504),
            Self::NotFound => ("NOT_FOUND", 5, 404),
            Self::AlreadyExists => ("ALREADY_EXISTS", 6, 409),
            Self::PermissionDenied => ("PERMISSION_DENIED", 7, 403),
            Self::ResourceExhausted => ("RESOURCE_EXHAUSTED", 8, 429),
            Self::FailedPrecondition => ("FAILED_PRECONDITION", 9, 400),
            Self::Aborted => ("ABORTED", 10, 409),
            Self::Unimplemented => ("UNIMPLEMENTED", 12, 501),
            Self::Internal => ("INTERNAL", 13, 500),
            Self::Unavailable => ("UNAVAILABLE", 14, 503),
            Self::Unauthenticated => ("UNAUTHENTICATED", 16, 401),
        }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.parts().0
    }

    /// Returns the title of the errors with this code, for people.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::InvalidArgument => "Invalid request",
            Self::DeadlineExceeded => "Deadline exceeded",
            Self::NotFound => "Not found",
            Self::AlreadyExists => "Already exists",
            Self::PermissionDenied => "Permission denied",
            Self::ResourceExhausted => "Too many requests",
            Self::FailedPrecondition => "Failed precondition",
            Self::Aborted => "Concurrent change",
            Self::Unimplemented => "Not implemented",
            Self::Internal => "Internal error",
            Self::Unavailable => "Try again",
            Self::Unauthenticated => "Unauthenticated",
        }
    }
}

/// An error in the value of one request field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldViolation {
    /// The path of the field, such as `spec.admission.rules[0].operations`.
    pub field: String,
    pub description: String,
}

/// The error of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    pub code: Code,
    /// The HTTP status. `None` means the default status of `code`.
    status: Option<u16>,
    /// The stable reason, in upper snake case.
    reason: String,
    pub message: String,
    pub metadata: BTreeMap<String, String>,
    pub violations: Vec<FieldViolation>,
}

impl Error {
    /// Returns an error. Clients may match on `reason`, so it must stay stable; it is converted to upper snake case.
    #[must_use]
    pub fn new(code: Code, reason: &str, message: impl Into<String>) -> Self {
        Self {
            code,
            status: None,
            reason: upper_snake(reason),
            message: message.into(),
            metadata: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    /// Returns the error for a policy or an experiment whose newest version failed.
    #[must_use]
    pub fn failed_version(failure: &Failure) -> Self {
        Self::new(Code::FailedPrecondition, failure.reason.as_str(), &*failure.message)
    }

    /// Returns the error for one invalid field. The description follows the path of the field, such as "is missing".
    #[must_use]
    pub fn invalid(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self::violations(vec![FieldViolation { field: field.into(), description: description.into() }])
    }

    /// Returns the error for several invalid fields.
    #[must_use]
    pub fn violations(violations: Vec<FieldViolation>) -> Self {
        let text = violations.iter().map(|FieldViolation { field, description }| format!("{field}: {description}"));
        let message = text.collect::<Vec<_>>().join("; ");
        Self { violations, ..Self::new(Code::InvalidArgument, "INVALID_FIELD", message) }
    }

    /// Returns the error for a new version of an experiment with another enforcement point than its policy.
    #[must_use]
    pub fn point_mismatch(mismatch: &PointMismatch) -> Self {
        Self::invalid("policy.spec", mismatch.to_string())
    }

    /// Returns the error for the commit of an experiment with another enforcement point than its policy.
    #[must_use]
    pub fn uncommittable_point(name: &str, mismatch: &PointMismatch) -> Self {
        Self::new(Code::FailedPrecondition, "ENFORCEMENT_POINT", format!("{name}: policy.spec: {mismatch}"))
    }

    /// Returns the error for a resource name that does not exist.
    #[must_use]
    pub fn not_found(name: &str) -> Self {
        Self::new(Code::NotFound, "RESOURCE_NOT_FOUND", format!("there is no {name}")).with("resource", name)
    }

    /// Returns the error for a new resource whose name is already in use.
    #[must_use]
    pub fn already_exists(name: &str) -> Self {
        Self::new(Code::AlreadyExists, "RESOURCE_ALREADY_EXISTS", format!("{name} already exists"))
            .with("resource", name)
    }

    /// Returns the error for an etag that does not match the stored version of the resource (AIP-154).
    #[must_use]
    pub fn etag_mismatch(name: &str, given: &str) -> Self {
        let message = format!("{name} has another version than the etag {given}: read it again");
        Self::new(Code::Aborted, "ETAG_MISMATCH", message).with("resource", name).with("etag", given)
    }

    /// Returns the error for a change that failed because another client changed the resource at the same time.
    #[must_use]
    pub fn concurrent_change(name: &str) -> Self {
        let message = format!("{name} was changed by another client at the same time: try again");
        Self::new(Code::Aborted, "CONCURRENT_CHANGE", message).with("resource", name)
    }

    /// Returns the error with an additional entry in `ErrorInfo.metadata`.
    #[must_use]
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.metadata.insert(key.to_owned(), value.to_owned());
        self
    }

    #[must_use]
    pub(crate) fn with_status(self, status: u16) -> Self {
        Self { status: Some(status), ..self }
    }

    /// Returns the error with other names of the fields, for an API whose fields have other names than those of the spec. Each pair is
    /// the prefix of a path, and its replacement; the first prefix that matches counts.
    #[must_use]
    pub(crate) fn with_field_names(self, names: &[(&str, &str)]) -> Self {
        if self.violations.is_empty() {
            return self;
        }
        let rename = |field: String| {
            let renamed = names.iter().find_map(|(from, to)| Some(format!("{to}{}", field.strip_prefix(from)?)));
            renamed.unwrap_or(field)
        };
        let (code, status, reason, metadata) = (self.code, self.status, self.reason, self.metadata);
        let violations = self.violations.into_iter();
        let violations = violations.map(|violation| FieldViolation { field: rename(violation.field), ..violation });
        Self { code, status, reason, metadata, ..Self::violations(violations.collect()) }
    }

    /// Returns the HTTP status.
    #[must_use]
    pub fn http(&self) -> u16 {
        self.status.unwrap_or(self.code.parts().2)
    }

    /// Returns the stable reason in upper snake case. Logs and `ErrorInfo` carry it.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns the body of the HTTP response (AIP-193).
    #[must_use]
    pub fn to_body(&self) -> Value {
        json!({"error": {
            "code": self.http(), "message": self.message, "status": self.code.as_str(), "details": self.details(),
        }})
    }

    /// Returns the error as a `google.rpc.Status`, the form in which an operation reports it.
    #[must_use]
    pub fn to_status(&self) -> Value {
        json!({"code": self.code.parts().1, "message": self.message, "details": self.details()})
    }

    fn details(&self) -> Vec<Value> {
        let mut details = vec![json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": self.reason, "domain": DOMAIN, "metadata": self.metadata,
        })];
        if !self.violations.is_empty() {
            let violations = self.violations.iter();
            let violations =
                violations.map(|violation| json!({"field": violation.field, "description": violation.description}));
            details.push(json!({
                "@type": "type.googleapis.com/google.rpc.BadRequest",
                "fieldViolations": violations.collect::<Vec<_>>(),
            }));
        }
        details
    }
}

/// Converts a condition reason such as `CompileError` to the upper snake case that AIP-193 requires.
fn upper_snake(reason: &str) -> String {
    if !reason.contains(char::is_lowercase) {
        return reason.to_owned();
    }
    let mut text = String::new();
    for (index, letter) in reason.chars().enumerate() {
        let gap = if index > 0 && letter.is_ascii_uppercase() { "_" } else { "" };
        // Writing to a String does not fail.
        let _ = write!(text, "{gap}{}", letter.to_ascii_uppercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_shape_of_aip_193() {
        let error = Error::invalid("policy.spec.settings", "is too large");
        assert_eq!(
            error.to_body(),
            json!({"error": {
                "code": 400, "status": "INVALID_ARGUMENT", "message": "policy.spec.settings: is too large",
                "details": [
                    {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "INVALID_FIELD",
                     "domain": "proviso.dev", "metadata": {}},
                    {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [
                        {"field": "policy.spec.settings", "description": "is too large"},
                    ]},
                ],
            }})
        );
        let stale = Error::etag_mismatch("policies/cluster.a", "\"1\"").to_status();
        assert_eq!((&stale["code"], &stale["details"][0]["metadata"]["etag"]), (&json!(10), &json!("\"1\"")));
    }

    #[test]
    fn reasons_are_in_upper_snake_case() {
        assert_eq!(upper_snake("CompileError"), "COMPILE_ERROR");
        assert_eq!(upper_snake("ETAG_MISMATCH"), "ETAG_MISMATCH");
    }
}
