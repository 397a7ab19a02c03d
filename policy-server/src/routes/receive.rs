//! The body of a review: reads it within the limits, and answers a review that cannot be read.

use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use proviso_core::review::uid_of_prefix;
use proviso_core::{Action, Endpoint, Verdict};
use proviso_http::{BodyError, BodyFailure, BodyLimits, Peer, ReceivedBody, read_body};

use super::{Refusal, Server, json, to_review};
use crate::notify_on_drop::NotifyOnDropBody;

/// The maximum size of a body, in bytes. etcd stores objects of up to 1.5 MiB. Go writes `<` as six bytes, and the review of an
/// UPDATE contains two objects: 18 MiB.
pub(crate) const MAX_BODY: usize = 20 * 1024 * 1024;
/// The time limit for receiving a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A review whose body was not read.
#[derive(Debug)]
pub(super) struct Unread {
    /// The answer if the uid is unknown.
    pub refusal: Refusal,
    /// The code of the denial, and the uid of the request. `None` if the uid is unknown, or if the caller should repeat the request.
    pub denial: Option<(u16, String)>,
}

impl From<BodyFailure> for Unread {
    fn from(BodyFailure { error, prefix }: BodyFailure) -> Self {
        let message = error.to_string();
        let (status, reason, code) = match error {
            BodyError::TooLarge(_) => (StatusCode::BAD_REQUEST, "body_too_large", Some(413)),
            BodyError::Timeout(_) => (StatusCode::REQUEST_TIMEOUT, "body_timeout", Some(408)),
            BodyError::Unreadable(_) => (StatusCode::BAD_REQUEST, "malformed", None),
            BodyError::Overloaded(_) => (StatusCode::SERVICE_UNAVAILABLE, "overloaded", None),
        };
        let denial = code.and_then(|code| Some((code, uid_of_prefix(&prefix)?)));
        Self { refusal: Refusal::new(status, reason, message), denial }
    }
}

/// Reads the body of a review.
pub(super) async fn receive(request: Request<Incoming>) -> Result<ReceivedBody, Unread> {
    let (head, body) = request.into_parts();
    let limits = BodyLimits { size: MAX_BODY, timeout: BODY_TIMEOUT };
    Ok(read_body(body, limits, head.extensions.get::<Peer>()).await?)
}

impl Server {
    /// Answers a review that is too large or too slow: with a denial inside HTTP 200 if its uid is known, because an HTTP error would
    /// let the request pass under `failurePolicy: Ignore`. A policy in the mode Monitor, and a disabled one, allow the request.
    pub(super) fn unread(
        &self,
        endpoint: &Endpoint,
        Unread { refusal, denial }: Unread,
    ) -> Result<Response<NotifyOnDropBody>, Refusal> {
        let Some((code, uid)) = denial else { return Err(refusal) };
        self.metrics.count_refused(refusal.reason);
        tracing::warn!(
            policy = %endpoint.policy,
            request_uid = uid,
            reason = refusal.reason,
            error = refusal.message,
            "review denied: it was not read"
        );
        let mut verdict =
            Verdict { code: Some(code), ..Verdict::deny(format!("AdmissionReview: {}", refusal.message)) };
        let table = self.table.load_full();
        let revision = table.policies.get(&endpoint.policy).and_then(|entry| entry.revision(endpoint.generation));
        match revision {
            Some(revision) if !revision.enabled => verdict = Verdict::allow(),
            Some(revision) if endpoint.action != Action::Audit => verdict = verdict.enforce(&revision.enforcement()),
            _ => {}
        }
        Ok(json(StatusCode::OK, to_review(endpoint.action, &verdict, &uid).into()))
    }
}
