//! Answers that are no success, as AIP-193 has them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use proviso_core::Failure;
use serde_json::{Value, json};

/// What the reasons of errors belong to (AIP-193, `ErrorInfo.domain`).
const DOMAIN: &str = "proviso.dev";

/// The canonical codes, as far as they are used here.
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
    /// Name, number in `google.rpc.Code`, and status of HTTP.
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
}

/// A field of the request whose value is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldViolation {
    /// Such as `spec.admission.rules[0].operations`.
    pub field: String,
    pub description: String,
}

/// Why a request was not fulfilled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    pub code: Code,
    /// The status of HTTP where it says more than the code's own.
    status: Option<u16>,
    /// Stable, in upper case.
    reason: String,
    pub message: String,
    pub metadata: BTreeMap<String, String>,
    pub violations: Vec<FieldViolation>,
}

impl Error {
    /// `reason` is stable: clients may match on it.
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

    /// The newest version of a policy or an experiment does not work.
    #[must_use]
    pub fn does_not_work(failure: &Failure) -> Self {
        Self::new(Code::FailedPrecondition, failure.reason.as_str(), &*failure.message)
    }

    /// One field is wrong.
    #[must_use]
    pub fn invalid(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self::violations(vec![FieldViolation { field: field.into(), description: description.into() }])
    }

    /// Some fields are wrong.
    #[must_use]
    pub fn violations(violations: Vec<FieldViolation>) -> Self {
        let text = violations.iter().map(|FieldViolation { field, description }| format!("{field}: {description}"));
        let message = text.collect::<Vec<_>>().join("; ");
        Self { violations, ..Self::new(Code::InvalidArgument, "INVALID_FIELD", message) }
    }

    /// There is no resource of this name.
    #[must_use]
    pub fn not_found(name: &str) -> Self {
        Self::new(Code::NotFound, "RESOURCE_NOT_FOUND", format!("there is no {name}")).with("resource", name)
    }

    /// There is one already.
    #[must_use]
    pub fn exists(name: &str) -> Self {
        Self::new(Code::AlreadyExists, "RESOURCE_ALREADY_EXISTS", format!("{name} is there already"))
            .with("resource", name)
    }

    /// The resource is not the version that the etag is of (AIP-154).
    #[must_use]
    pub fn stale(name: &str, given: &str) -> Self {
        let message = format!("{name} is not the version of etag {given}: read it again");
        Self::new(Code::Aborted, "ETAG_MISMATCH", message).with("resource", name).with("etag", given)
    }

    /// Somebody else changed the resource at the same time, again and again.
    #[must_use]
    pub fn busy(name: &str) -> Self {
        let message = format!("{name} was changed at the same time: try again");
        Self::new(Code::Aborted, "CONCURRENT_CHANGE", message).with("resource", name)
    }

    /// The same with an entry of `ErrorInfo.metadata`.
    #[must_use]
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.metadata.insert(key.to_owned(), value.to_owned());
        self
    }

    #[must_use]
    pub(crate) fn with_status(self, status: u16) -> Self {
        Self { status: Some(status), ..self }
    }

    /// The status of HTTP.
    #[must_use]
    pub fn http(&self) -> u16 {
        self.status.unwrap_or(self.code.parts().2)
    }

    /// Stable, in upper case: field of the log and of `ErrorInfo`.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The body of an answer (AIP-193).
    #[must_use]
    pub fn to_body(&self) -> Value {
        json!({"error": {
            "code": self.http(), "message": self.message, "status": self.code.as_str(), "details": self.details(),
        }})
    }

    /// As `google.rpc.Status`, the error of an operation.
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

/// The reasons of conditions, such as `CompileError`, in the form that AIP-193 demands.
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
        let stale = Error::stale("policies/cluster.a", "\"1\"").to_status();
        assert_eq!((&stale["code"], &stale["details"][0]["metadata"]["etag"]), (&json!(10), &json!("\"1\"")));
    }

    #[test]
    fn reasons_are_in_upper_case() {
        assert_eq!(upper_snake("CompileError"), "COMPILE_ERROR");
        assert_eq!(upper_snake("ETAG_MISMATCH"), "ETAG_MISMATCH");
    }
}
