//! Reads the review of a request to the webhook within limits. A review that cannot be read is denied with its uid, inside HTTP 200.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use proviso_core::Verdict;
use proviso_core::review::uid_of_prefix;
use proviso_http::{BodyError, BodyFailure, BodyLimits, Peer, ReceivedBody, read_body};

use super::review::Review;

/// The limits of a review. The review of an UPDATE contains two objects of up to 1.5 MiB, and Go writes `<` as six bytes.
const LIMITS: BodyLimits = BodyLimits { size: 20 * 1024 * 1024, timeout: Duration::from_secs(10) };

/// Reads the body of a request.
///
/// # Errors
/// Returns the response to a body that cannot be read.
pub(super) async fn receive(request: Request) -> Result<ReceivedBody, Response> {
    let (head, body) = request.into_parts();
    read_body(body, LIMITS, head.extensions.get::<Peer>()).await.map_err(unread)
}

/// Parses a review.
///
/// # Errors
/// Returns the response to a body that is not a review.
pub(super) fn parse(body: &[u8]) -> Result<Review<'_>, Box<Response>> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("the body is not an AdmissionReview: {error}");
        Box::new(denial(body, 400, StatusCode::BAD_REQUEST, message))
    })
}

fn unread(BodyFailure { error, prefix }: BodyFailure) -> Response {
    let message = error.to_string();
    match error {
        BodyError::TooLarge(_) => denial(&prefix, 413, StatusCode::BAD_REQUEST, message),
        BodyError::Timeout(_) => denial(&prefix, 408, StatusCode::REQUEST_TIMEOUT, message),
        BodyError::Unreadable(_) => (StatusCode::BAD_REQUEST, message).into_response(),
        BodyError::Overloaded(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], message).into_response()
        }
    }
}

/// Returns a denial with this code if the body has a uid, otherwise an HTTP error with this status.
fn denial(body: &[u8], code: u16, status: StatusCode, message: String) -> Response {
    let Some(uid) = uid_of_prefix(body) else { return (status, message).into_response() };
    tracing::info!(request_uid = uid, reason = message, "request refused");
    let verdict = Verdict { code: Some(code), ..Verdict::deny(format!("AdmissionReview: {message}")) };
    let mut response = Response::new(Body::from(verdict.to_review(&uid)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use serde_json::{Value, json};

    use super::*;

    async fn refused(body: String) -> (StatusCode, Value) {
        let response = match receive(Request::new(Body::from(body))).await {
            Ok(received) => *parse(&received.bytes).err().unwrap(),
            Err(response) => response,
        };
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    #[tokio::test]
    async fn a_review_that_cannot_be_read_is_denied_with_its_uid() {
        let head = r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","object":""#;
        for (body, code) in [(format!("{head}{}\"}}}}", "<".repeat(LIMITS.size)), 413), (head.to_owned(), 400)] {
            let (status, answer) = refused(body).await;
            let response = &answer["response"];
            assert_eq!((status, &response["uid"], &response["allowed"]), (StatusCode::OK, &json!("u"), &json!(false)));
            assert_eq!(response["status"]["code"], code);
        }
        for body in ["{".to_owned(), "<".repeat(LIMITS.size + 1)] {
            assert_eq!(refused(body).await.0, StatusCode::BAD_REQUEST);
        }
    }
}
