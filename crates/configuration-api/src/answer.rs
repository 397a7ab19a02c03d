//! Answers: JSON, texts, and refusals in the forms of the services that clients expect.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use proviso_rest_api::{Code, Error, Problem};
use serde_json::{Value, json};

/// The form of the refusals of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// policy-handler and deployment-handler: `{"status": …, "message": …}`.
    Handler,
    /// The config-binding service and Consul: a text.
    Text,
    /// Proviso's own routes: a problem (RFC 7807).
    Problem,
}

/// A request that is not answered with its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub status: StatusCode,
    pub message: String,
    /// The time after which the client may try again, in seconds.
    pub retry_after: Option<u64>,
    code: Code,
}

pub(crate) type Result<T> = std::result::Result<T, Refusal>;

impl Refusal {
    fn new(status: StatusCode, code: Code, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), retry_after: None, code }
    }

    pub(crate) fn invalid(field: &str, description: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Code::InvalidArgument, format!("{field}: {description}"))
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Code::InvalidArgument, message)
    }

    /// The refusal of an object that does not exist, or that the caller may not read. Both have the same answer, so that a caller
    /// without permissions cannot find out which objects exist.
    pub(crate) fn not_found(object: &str) -> Self {
        let object: String = object.chars().take(300).collect();
        let message = format!("{object} does not exist, or you may not read it");
        Self::new(StatusCode::NOT_FOUND, Code::NotFound, message)
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, Code::PermissionDenied, message)
    }

    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, Code::InvalidArgument, message)
    }

    pub(crate) fn content_type() -> Self {
        let message = "the body must be JSON: send Content-Type: application/json";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Code::InvalidArgument, message)
    }

    pub(crate) fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, Code::Unimplemented, message)
    }

    pub(crate) fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, Code::DeadlineExceeded, message)
    }

    pub(crate) fn unavailable(message: impl Into<String>, retry_after: u64) -> Self {
        let refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable, message);
        Self { retry_after: Some(retry_after), ..refusal }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, Code::Internal, message)
    }

    pub(crate) fn to_response(&self, form: Form) -> Response<Body> {
        let mut response = match form {
            Form::Handler => {
                json_answer(self.status, &json!({"status": self.status.as_u16(), "message": self.message}))
            }
            Form::Text => text(self.status, &self.message),
            Form::Problem => {
                Problem::new(self.code.as_str(), self.status, title(self.code), self.message.clone()).to_response()
            }
        };
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let status = StatusCode::from_u16(error.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry_after = (status == StatusCode::SERVICE_UNAVAILABLE).then_some(1);
        Self { status, message: error.to_string(), retry_after, code: error.code }
    }
}

/// Returns the title of a problem.
fn title(code: Code) -> &'static str {
    match code {
        Code::NotFound => "Not found",
        Code::PermissionDenied => "Permission denied",
        Code::Unavailable => "Try again",
        Code::Internal => "Internal error",
        Code::Unimplemented => "Not implemented",
        Code::DeadlineExceeded => "Deadline exceeded",
        _ => "Invalid request",
    }
}

/// Returns the refusal of a caller that is not authenticated, in the form that clients of all routes can read. The server that mounts
/// the router uses it.
#[must_use]
pub fn refuse(error: &Error) -> Response<Body> {
    Refusal::from(error.clone()).to_response(Form::Handler)
}

pub(crate) fn json_answer(status: StatusCode, value: &Value) -> Response<Body> {
    json_text(status, value.to_string())
}

/// Returns the answer with this JSON.
pub(crate) fn json_text(status: StatusCode, json: String) -> Response<Body> {
    let mut response = Response::new(Body::from(json));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn text(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(text.to_owned()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Returns the answer of a result.
pub(crate) fn respond(form: Form, result: Result<Response<Body>>) -> Response<Body> {
    result.unwrap_or_else(|refusal| {
        if refusal.status.is_server_error() {
            tracing::warn!(status = refusal.status.as_u16(), message = refusal.message, "a call failed");
        }
        refusal.to_response(form)
    })
}
