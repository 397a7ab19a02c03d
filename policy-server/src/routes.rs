//! The routes for reviews: `/validate`, `/validate_raw`, `/audit` and `/preview`.

mod experiments;
mod preview;
mod receive;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Version};
use jiff::Timestamp;
use proviso_core::review::ReviewError;
use proviso_core::{Action, Endpoint, Review, Target, Verdict};
use proviso_crds::EnforcementPoint;
use proviso_http::shutdown::Phase;
use proviso_http::{Limits, ReceivedBody};
use tokio::sync::watch;

use crate::budgets::Overloaded;
use crate::callers::CallerTokens;
use crate::decide::decide;
use crate::metrics::Metrics;
use crate::notify_on_drop::NotifyOnDropBody;
use crate::preview::{Job, Live, PreviewQueue};
use crate::table::{Entry, Origin, SharedTable, Table};
use receive::receive;

/// The time that a request waits for a generation that is being prepared. API servers call a generation as soon as it is live.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(1);

/// The state that all requests share.
#[derive(Debug)]
pub struct Server {
    pub limits: Arc<Limits>,
    /// The tokens of known callers; `None` if every caller is answered.
    pub callers: Option<CallerTokens>,
    pub table: Arc<SharedTable>,
    pub metrics: Arc<Metrics>,
    pub previews: PreviewQueue,
    pub phase: watch::Receiver<Phase>,
}

/// Answers a request to `--listen`.
pub async fn answer(server: Arc<Server>, request: Request<Incoming>) -> Result<Response<NotifyOnDropBody>, Infallible> {
    let is_http1 = request.version() <= Version::HTTP_11;
    let mut response = server.respond(request).await.unwrap_or_else(|refusal| {
        server.metrics.count_refused(refusal.reason);
        refusal.response()
    });
    if is_http1 && *server.phase.borrow() != Phase::Serving {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// An HTTP error instead of a verdict.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    /// The label `reason` of the metric `requests_refused`.
    reason: &'static str,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { status, reason, message: message.into() }
    }

    fn response(self) -> Response<NotifyOnDropBody> {
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

fn json(status: StatusCode, body: NotifyOnDropBody) -> Response<NotifyOnDropBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn to_review(action: Action, verdict: &Verdict, uid: &str) -> Vec<u8> {
    match action {
        Action::Validate | Action::Audit => verdict.to_review(uid),
        Action::ValidateRaw => verdict.to_raw_review(uid),
    }
}

impl Server {
    async fn respond(&self, request: Request<Incoming>) -> Result<Response<NotifyOnDropBody>, Refusal> {
        let path = request.uri().path();
        let path = match &self.callers {
            // Before anything else, so that an unknown caller cannot find out which policies exist.
            Some(callers) => callers.admit(path).ok_or_else(unknown_caller)?,
            None => path,
        };
        let target = Target::parse(path)
            .map_err(|error| Refusal::new(StatusCode::NOT_FOUND, "unknown_path", error.to_string()))?;
        if request.method() != Method::POST {
            let message = "send the review by POST";
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method", message));
        }
        match target {
            Target::Policy(endpoint) => self.decide(request, endpoint).await,
            Target::Preview(endpoint) => self.preview(request, &endpoint).await,
        }
    }

    async fn decide(
        &self,
        request: Request<Incoming>,
        endpoint: Endpoint,
    ) -> Result<Response<NotifyOnDropBody>, Refusal> {
        let ReceivedBody { bytes: body, memory: _memory } = match receive(request).await {
            Ok(received) => received,
            Err(unread) => return self.unread(&endpoint, unread),
        };
        let review = match endpoint.action {
            Action::ValidateRaw => Review::raw(body),
            Action::Validate | Action::Audit => Review::admission(body),
        };
        let review = match review {
            Ok(review) => review,
            Err(error) => return self.malformed(endpoint.action, error),
        };
        // The request keeps this snapshot until it is answered: a reload does not affect it.
        let table = self.table.load_when(|table| !is_being_prepared(table, &endpoint), PREPARE_TIMEOUT).await;
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
        if revision.admission().is_none() {
            let point = match revision.enforcement_point() {
                EnforcementPoint::Configuration => "configures components, and does not decide",
                EnforcementPoint::Request | EnforcementPoint::Admission => {
                    "decides about requests to services, and not"
                }
            };
            let message = format!("{} {point} about reviews", endpoint.policy);
            return Err(Refusal::new(StatusCode::NOT_FOUND, "unknown_policy", message));
        }
        let is_previewable = endpoint.action == Action::Validate && !review.is_dry_run();
        let previews = is_previewable.then_some(&self.previews);
        let decision = decide(&table, revision, &review, endpoint.action, previews).await.map_err(|Overloaded| {
            let message = "overloaded: too many evaluations at the same time";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
        })?;
        let body = to_review(endpoint.action, &decision.verdict, review.uid());
        // In a cluster, every generation that an API server calls counts as live: API servers learn of a new generation at
        // different times.
        let is_live = matches!(table.origin, Origin::Cluster(_))
            || entry.live.as_ref().is_some_and(|live| Arc::ptr_eq(live, revision));
        let is_previewed = is_live && is_previewable;
        if !is_previewed || entry.experiments.is_empty() {
            return Ok(json(StatusCode::OK, body.into()));
        }
        let (revision, policy) = (Arc::clone(revision), endpoint.policy);
        let (previews, arrived_at) = (self.previews.clone(), Timestamp::now());
        let preview = move || {
            let Some(entry) = table.policies.get(&policy) else { return };
            let experiments = experiments::piggybacked(&table, entry, &revision, &review);
            let live = Live::Answered { revision, decision };
            previews.offer(Job { live, experiments, table, review, arrived_at });
        };
        Ok(json(StatusCode::OK, NotifyOnDropBody::new(body, preview)))
    }

    /// Answers a malformed review: with a denial if its uid is readable, otherwise with the status 400.
    fn malformed(&self, action: Action, error: ReviewError) -> Result<Response<NotifyOnDropBody>, Refusal> {
        let Some(uid) = error.uid else {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "malformed", error.message));
        };
        self.metrics.count_refused("malformed");
        tracing::warn!(request_uid = uid, error = error.message, "malformed review denied");
        let verdict = Verdict { code: Some(400), ..Verdict::deny(error.message) };
        Ok(json(StatusCode::OK, to_review(action, &verdict, &uid).into()))
    }
}

/// Returns the refusal of a caller without a valid token.
fn unknown_caller() -> Refusal {
    let message = "unknown caller: this server answers only the webhooks of its policies";
    Refusal::new(StatusCode::UNAUTHORIZED, "unknown_caller", message)
}

/// Returns true if the generation of the endpoint is being prepared.
fn is_being_prepared(table: &Table, endpoint: &Endpoint) -> bool {
    let Some(generation) = endpoint.generation else { return false };
    table.policies.get(&endpoint.policy).is_some_and(|entry| entry.preparing.contains(&generation))
}

/// Answers a request for a known policy whose requested generation is not loaded.
fn without_revision(
    endpoint: &Endpoint,
    entry: &Entry,
    review: &Review,
) -> Result<Response<NotifyOnDropBody>, Refusal> {
    // A denial inside HTTP 200, because an HTTP error would let the request pass under `failurePolicy: Ignore`.
    let deny = |message: String| {
        let verdict = Verdict { code: Some(500), ..Verdict::deny(message) };
        Ok(json(StatusCode::OK, to_review(endpoint.action, &verdict, review.uid()).into()))
    };
    if let Some(generation) = endpoint.generation {
        if let Some((_, why)) = entry.failed.iter().find(|(failed, _)| *failed == generation) {
            return deny(format!("generation {generation} of {} does not work here: {why}", endpoint.policy));
        }
        // An HTTP error that asks to retry: another replica may have the generation, or this one later.
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
    if !entry.preparing.is_empty() {
        let message = format!("{} is still being loaded", endpoint.policy);
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "loading", message));
    }
    let why = entry.failure.as_ref().map(|failure| format!(": {failure}")).unwrap_or_default();
    deny(format!("{} has no generation that works{why}", endpoint.policy))
}
