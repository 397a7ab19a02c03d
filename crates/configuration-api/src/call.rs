//! A call: its caller, its request id and its query.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use axum::middleware::Next;
use proviso_http::{BodyError, BodyLimits, Peer, ReceivedBody, read_body};
use proviso_rest_api::Caller;
use serde_json::Value;
use uuid::Uuid;

use crate::answer::{Refusal, Result};

/// The headers with the request id, of which the first one counts (ONAP Logging Guidelines; older clients send the second one).
const REQUEST_ID: [HeaderName; 2] =
    [HeaderName::from_static("x-onap-requestid"), HeaderName::from_static("x-ecomp-requestid")];
/// The maximum length of a request id of a client, in bytes.
const MAX_REQUEST_ID: usize = 128;
/// The time within which a client must send the body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The request id of a call: that of the client, or a new UUID.
#[derive(Clone, Debug)]
struct RequestId(String);

/// A call without its body.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The caller; `None` if the server did not authenticate one.
    pub caller: Option<Caller>,
    pub request_id: String,
    query: Vec<(String, String)>,
}

impl<S: Sync> FromRequestParts<S> for Call {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> std::result::Result<Self, Infallible> {
        let query = parts.uri.query().unwrap_or_default();
        let request_id = match parts.extensions.get::<RequestId>() {
            Some(RequestId(id)) => id.clone(),
            None => request_id(&parts.headers),
        };
        Ok(Self {
            caller: parts.extensions.get::<Caller>().cloned(),
            request_id,
            query: url::form_urlencoded::parse(query.as_bytes()).into_owned().collect(),
        })
    }
}

impl Call {
    pub(crate) fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref()
    }

    /// Returns the user of the caller; empty if it is not known.
    pub(crate) fn user(&self) -> &str {
        self.caller().map(|caller| caller.user.as_str()).unwrap_or_default()
    }

    /// Returns the first value of a query parameter. Other parameters are ignored, as the original services do.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns an error if the query has a parameter that is not in `known`.
    pub(crate) fn check_parameters(&self, known: &[&str]) -> Result<()> {
        match self.query.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some((key, _)) => {
                let key: String = key.chars().take(100).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                Err(Refusal::invalid(&key, &format!("is not a parameter of this method: its parameters are {known}")))
            }
        }
    }
}

fn request_id(headers: &HeaderMap) -> String {
    let given = REQUEST_ID.iter().find_map(|name| headers.get(name)?.to_str().ok());
    // The id is in headers and logs, so a text of any length is not accepted.
    match given.filter(|id| (1..=MAX_REQUEST_ID).contains(&id.len())) {
        Some(id) => id.to_owned(),
        None => Uuid::new_v4().to_string(),
    }
}

/// Adds the request id to the request and to the response.
pub(crate) async fn add_request_id(mut request: Request, next: Next) -> Response<Body> {
    let id = request_id(request.headers());
    let value = HeaderValue::from_str(&id);
    request.extensions_mut().insert(RequestId(id));
    let mut response = next.run(request).await;
    if let Ok(value) = value {
        for name in REQUEST_ID {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

/// Reads a JSON body of at most `size` bytes.
pub(crate) async fn json_body(request: Request, size: usize) -> Result<Value> {
    let received = read_json(request, size).await?;
    serde_json::from_slice(&received.bytes).map_err(|error| not_json(&error))
}

/// Returns the refusal of a body that is not JSON.
pub(crate) fn not_json(error: &serde_json::Error) -> Refusal {
    Refusal::invalid("body", &format!("is not JSON: {error}"))
}

/// Reads a body of at most `size` bytes whose type is JSON.
pub(crate) async fn read_json(request: Request, size: usize) -> Result<ReceivedBody> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        return Err(Refusal::content_type());
    }
    let (head, body) = request.into_parts();
    let limits = BodyLimits { size, timeout: BODY_TIMEOUT };
    read_body(body, limits, head.extensions.get::<Peer>()).await.map_err(|failure| {
        let message = failure.error.to_string();
        match failure.error {
            BodyError::TooLarge(_) => Refusal::too_large(message),
            BodyError::Timeout(_) => Refusal::timeout(message),
            BodyError::Unreadable(_) => Refusal::bad_request(message),
            BodyError::Overloaded(_) => Refusal::unavailable(message, 1),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_id_of_the_client_is_used_if_it_is_short() {
        let headers = |name: &'static str, value: &str| {
            HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())])
        };
        assert_eq!(request_id(&headers("x-ecomp-requestid", "a")), "a");
        let mut both = headers("x-ecomp-requestid", "a");
        both.insert("x-onap-requestid", HeaderValue::from_static("b"));
        assert_eq!(request_id(&both), "b");
        for id in ["", &"x".repeat(MAX_REQUEST_ID + 1)] {
            assert!(request_id(&headers("x-onap-requestid", id)).parse::<Uuid>().is_ok(), "{id:?}");
        }
    }
}
