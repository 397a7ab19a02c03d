//! What an API server asks: `/validate`, `/validate_raw`, `/audit` and `/preview`.

mod experiments;
mod preview;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Version};
use jiff::Timestamp;
use proviso_core::review::ReviewError;
use proviso_core::{Action, Endpoint, Review, Target, Verdict};
use proviso_http::shutdown::Phase;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::after::After;
use crate::decide::{Overloaded, decide};
use crate::metrics::Metrics;
use crate::preview::{Job, Live, Previews};
use crate::table::{Entry, Origin, SharedTable, Table};

/// The largest body, in bytes: an UPDATE carries two objects, and an API server takes objects of up to 3 MiB.
pub const MAX_BODY: usize = 7 * 1024 * 1024;
/// How much of a body that is too large is read all the same, in bytes, and thrown away: a client that is still sending
/// does not look for an answer, and is cut off without one when the server closes first.
const MAX_DISCARDED: usize = 8 * MAX_BODY;
/// How long a request waits for a generation that is on its way: API servers ask for one as soon as it is live.
const EXPECTED_WITHIN: Duration = Duration::from_secs(1);
/// How long a client may take to send its body.
const BODY_DEADLINE: Duration = Duration::from_secs(10);

/// Bodies up to this size need no permission: even one on each connection would be little.
const SMALL_BODY: u64 = 64 * 1024;
/// The most memory that larger bodies may take together, in KiB: 512 MiB.
pub const BODIES_KIB: usize = 512 * 1024;

/// What every request needs.
#[derive(Debug)]
pub struct Server {
    /// Memory for large bodies, in KiB.
    pub bodies: Semaphore,
    pub table: Arc<SharedTable>,
    pub metrics: Arc<Metrics>,
    pub previews: Previews,
    pub phase: watch::Receiver<Phase>,
}

/// Answers a request to `--listen`.
pub async fn answer(server: Arc<Server>, request: Request<Incoming>) -> Result<Response<After>, Infallible> {
    let is_http1 = request.version() <= Version::HTTP_11;
    let mut response = server.respond(request).await.unwrap_or_else(|refusal| {
        server.metrics.refuse(refusal.reason);
        refusal.response()
    });
    if is_http1 && *server.phase.borrow() != Phase::Serving {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// An answer that is no verdict.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    /// Metric label.
    reason: &'static str,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { status, reason, message: message.into() }
    }

    fn response(self) -> Response<After> {
        let error = serde_json::json!({"error": {"code": self.status.as_u16(), "message": self.message}});
        let mut response = json(self.status, format!("{error}\n").into());
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        }
        response
    }
}

fn json(status: StatusCode, body: After) -> Response<After> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn verdict_of(action: Action, verdict: &Verdict, uid: &str) -> Vec<u8> {
    match action {
        Action::Validate | Action::Audit => verdict.to_review(uid),
        Action::ValidateRaw => verdict.to_raw_review(uid),
    }
}

impl Server {
    async fn respond(&self, request: Request<Incoming>) -> Result<Response<After>, Refusal> {
        let target = Target::parse(request.uri().path())
            .map_err(|error| Refusal::new(StatusCode::NOT_FOUND, "unknown_path", error.to_string()))?;
        if request.method() != Method::POST {
            let message = "policies are asked by POST";
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method", message));
        }
        match target {
            Target::Policy(endpoint) => self.decide(request.into_body(), endpoint).await,
            Target::Preview(endpoint) => self.preview(request.into_body(), &endpoint).await,
        }
    }

    async fn decide(&self, body: Incoming, endpoint: Endpoint) -> Result<Response<After>, Refusal> {
        let _memory = self.admit(&body)?;
        let body = read_body(body).await?;
        let review = match endpoint.action {
            Action::ValidateRaw => Review::raw(body),
            Action::Validate | Action::Audit => Review::admission(body),
        };
        let review = match review {
            Ok(review) => review,
            Err(error) => return self.malformed(endpoint.action, error),
        };
        // The snapshot is held until the answer is made: a reload meanwhile does not concern this request.
        let table = self.table.load_when(|table| !is_expected(table, &endpoint), EXPECTED_WITHIN).await;
        if endpoint.generation.is_none() && matches!(table.origin, Origin::Cluster(_)) {
            let message = format!("in a cluster each generation has its own path: {endpoint}/<generation>");
            return Err(Refusal::new(StatusCode::NOT_FOUND, "no_generation", message));
        }
        let Some(entry) = table.policies.get(&endpoint.policy) else {
            if !table.is_complete {
                let message = "the policies are still being loaded";
                return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "loading", message));
            }
            let message = format!("there is no policy {}", endpoint.policy);
            return Err(Refusal::new(StatusCode::NOT_FOUND, "unknown_policy", message));
        };
        let Some(revision) = entry.revision(endpoint.generation) else {
            return without_revision(&endpoint, entry, &review);
        };
        let verdict = decide(revision, &review, endpoint.action, &table.namespaces).await.map_err(|Overloaded| {
            let message = "overloaded: no place for this evaluation became free in time";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
        })?;
        let body = verdict_of(endpoint.action, &verdict, review.uid());
        // In a cluster whatever is asked is live: API servers learn of a switch at different times.
        let is_live = matches!(table.origin, Origin::Cluster(_))
            || entry.live.as_ref().is_some_and(|live| Arc::ptr_eq(live, revision));
        let is_previewed = is_live && endpoint.action == Action::Validate && !review.is_dry_run();
        if !is_previewed || entry.experiments.is_empty() {
            return Ok(json(StatusCode::OK, body.into()));
        }
        let (revision, policy) = (Arc::clone(revision), endpoint.policy);
        let (previews, seen) = (self.previews.clone(), Timestamp::now());
        let preview = move || {
            let Some(entry) = table.policies.get(&policy) else { return };
            let (experiments, unsure) = experiments::riding(&table, entry, &revision, &review);
            if !experiments.is_empty() || !unsure.is_empty() {
                let (live, namespaces) = (Live::Answered { revision, verdict }, Arc::clone(&table.namespaces));
                previews.offer(Job { live, experiments, unsure, namespaces, review, seen });
            }
        };
        Ok(json(StatusCode::OK, After::new(body, preview)))
    }

    /// Sets memory aside for a large body, as long as its answer takes.
    fn admit(&self, body: &Incoming) -> Result<Option<SemaphorePermit<'_>>, Refusal> {
        let size = body.size_hint().upper().unwrap_or(MAX_BODY as u64).min(MAX_BODY as u64);
        if size <= SMALL_BODY {
            return Ok(None);
        }
        let kib = u32::try_from(size / 1024).unwrap_or(u32::MAX);
        self.bodies.try_acquire_many(kib).map(Some).map_err(|_| {
            let message = "overloaded: too many large bodies at the same time";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
        })
    }

    /// A review that cannot be read is denied where its uid can, else it is a bad request.
    fn malformed(&self, action: Action, error: ReviewError) -> Result<Response<After>, Refusal> {
        let Some(uid) = error.uid else {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "malformed", error.message));
        };
        self.metrics.refuse("malformed");
        tracing::warn!(request_uid = uid, error = error.message, "malformed review denied");
        let verdict = Verdict { code: Some(400), ..Verdict::deny(error.message) };
        Ok(json(StatusCode::OK, verdict_of(action, &verdict, &uid).into()))
    }
}

/// Whether the generation that is asked for will be here in a moment.
fn is_expected(table: &Table, endpoint: &Endpoint) -> bool {
    let Some(generation) = endpoint.generation else { return false };
    table.policies.get(&endpoint.policy).is_some_and(|entry| entry.expected.contains(&generation))
}

/// The answer when the policy is known, but not in the generation that was asked for.
fn without_revision(endpoint: &Endpoint, entry: &Entry, review: &Review) -> Result<Response<After>, Refusal> {
    // A denial inside HTTP 200: an HTTP error would let the request pass under `failurePolicy: Ignore`.
    let deny = |message: String| {
        let verdict = Verdict { code: Some(500), ..Verdict::deny(message) };
        Ok(json(StatusCode::OK, verdict_of(endpoint.action, &verdict, review.uid()).into()))
    };
    if let Some(generation) = endpoint.generation {
        if let Some((_, why)) = entry.failed.iter().find(|(failed, _)| *failed == generation) {
            return deny(format!("generation {generation} of {} does not work here: {why}", endpoint.policy));
        }
        // Another replica, or this one in a moment, may have it.
        let message = match &entry.live {
            Some(live) => {
                format!("{} has no generation {generation} here: {} is live", endpoint.policy, live.generation)
            }
            None if entry.others.is_empty() => {
                format!("{} has no generation {generation} here, and none that works", endpoint.policy)
            }
            None => format!("{} has no generation {generation} here", endpoint.policy),
        };
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "unknown_generation", message));
    }
    if !entry.expected.is_empty() {
        let message = format!("{} is still being loaded", endpoint.policy);
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "loading", message));
    }
    let why = entry.failure.as_ref().map(|failure| format!(": {failure}")).unwrap_or_default();
    deny(format!("{} has no generation that works{why}", endpoint.policy))
}

async fn read_body(mut body: Incoming) -> Result<Bytes, Refusal> {
    let too_large = || {
        let message = format!("the body is larger than {MAX_BODY} bytes (7 MiB)");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    // A body that says its length is refused before anything of it is kept.
    if body.size_hint().lower() > MAX_BODY as u64 {
        discard(body).await;
        return Err(too_large());
    }
    let reading = Limited::new(&mut body, MAX_BODY).collect();
    match tokio::time::timeout(BODY_DEADLINE, reading).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            discard(body).await;
            Err(too_large())
        }
        Ok(Err(error)) => {
            let message = format!("the body cannot be read: {error}");
            Err(Refusal::new(StatusCode::BAD_REQUEST, "malformed", message))
        }
        Err(_) => {
            let message = format!("the body did not arrive within {} s", BODY_DEADLINE.as_secs());
            Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
        }
    }
}

/// Reads what is left of a body, within bounds of size and time, and keeps nothing.
async fn discard(mut body: Incoming) {
    let reading = async {
        let mut discarded = 0;
        while let Some(Ok(frame)) = body.frame().await {
            discarded += frame.data_ref().map_or(0, Bytes::len);
            if discarded > MAX_DISCARDED {
                return;
            }
        }
    };
    // Whether the end was reached does not matter: the answer is the same.
    let _ = tokio::time::timeout(BODY_DEADLINE, reading).await;
}
