//! Errors in the form of RFC 7807, with the types of the published API of the DCM project.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::{Code, Error};

/// The content type of a problem (RFC 7807).
const CONTENT_TYPE: &str = "application/problem+json";

/// An error in the form of RFC 7807.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(serialize_with = "as_number")]
    status: StatusCode,
    title: &'static str,
    detail: Box<str>,
    /// The path of the request. `None` means that the server does not name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<Box<str>>,
    /// The value of the header `Retry-After`, in seconds; `None` if the same request would fail again.
    #[serde(skip)]
    retry_after: Option<u64>,
    /// The members that one API adds.
    #[serde(flatten)]
    extensions: Map<String, Value>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn as_number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl Problem {
    /// Returns a problem. `kind` is its stable type in upper snake case; `title` is the same for every problem of the kind.
    #[must_use]
    pub fn new(kind: &'static str, status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind,
            status,
            title,
            detail: detail.into().into(),
            instance: None,
            retry_after: None,
            extensions: Map::new(),
        }
    }

    /// Returns the problem of a request that is not valid. `detail` names the field.
    #[must_use]
    pub fn invalid(detail: &str) -> Self {
        Self::from(&Error::new(Code::InvalidArgument, "", detail))
    }

    /// Returns the problem of a server that cannot answer the request now.
    #[must_use]
    pub fn unavailable(detail: &str) -> Self {
        Self::from(&Error::new(Code::Unavailable, "", detail))
    }

    /// Returns the problem of a caller that is not authenticated.
    #[must_use]
    pub fn unauthenticated(detail: &str) -> Self {
        Self::from(&Error::new(Code::Unauthenticated, "", detail))
    }

    /// Returns the problem of a caller without a permission.
    #[must_use]
    pub fn forbidden(detail: &str) -> Self {
        Self::from(&Error::new(Code::PermissionDenied, "", detail))
    }

    /// Returns the problem of a caller that may try again after this time, in seconds.
    #[must_use]
    pub fn too_many(detail: &str, retry_after: u64) -> Self {
        let problem = Self::from(&Error::new(Code::ResourceExhausted, "", detail));
        Self { retry_after: Some(retry_after), ..problem }
    }

    #[must_use]
    pub fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Returns the problem with the path of its request.
    #[must_use]
    pub fn with_instance(self, path: &str) -> Self {
        Self { instance: Some(path.chars().take(300).collect::<String>().into()), ..self }
    }

    /// Returns the problem with an additional member (RFC 7807, section 3.2).
    #[must_use]
    pub fn with_extension(mut self, name: &str, value: Value) -> Self {
        self.extensions.insert(name.to_owned(), value);
        self
    }

    fn to_body(&self) -> String {
        // Serializing does not fail: the keys of every map are strings.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns the HTTP response.
    #[must_use]
    pub fn to_response(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.to_body() + "\n"));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
        let unavailable = (self.status == StatusCode::SERVICE_UNAVAILABLE).then_some(1);
        if let Some(seconds) = self.retry_after.or(unavailable) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        let status = StatusCode::from_u16(error.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self::new(error.code.as_str(), status, error.code.title(), error.message.clone())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn problems_have_the_members_and_headers_of_rfc_7807() {
        let problem = Problem::from(&Error::invalid("priority", "is 0"));
        let problem = problem.with_instance("/api/v1alpha1/policies").with_extension("trail", json!([]));
        let expected = json!({
            "type": "INVALID_ARGUMENT", "status": 400, "title": "Invalid request", "detail": "priority: is 0",
            "instance": "/api/v1alpha1/policies", "trail": [],
        });
        assert_eq!(serde_json::from_str::<Value>(&problem.to_body()).unwrap(), expected);
        let response = problem.to_response();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["content-type"]),
            (400, &CONTENT_TYPE.parse().unwrap())
        );
        let response = Problem::from(&Error::new(Code::Unauthenticated, "TOKEN", "unknown")).to_response();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["www-authenticate"]),
            (401, &"Bearer".parse().unwrap())
        );
        assert_eq!(Problem::unavailable("").to_response().headers()["retry-after"], "1");
        assert_eq!(Problem::too_many("", 7).to_response().headers()["retry-after"], "7");
    }
}
