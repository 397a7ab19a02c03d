//! The HTTP routes for requests to services, as the ADR and as the published API of the DCM project have them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::routing::post;
use proviso_core::request::{self, ConstraintCache, Decision, MAX_PAYLOAD_BYTES, Outcome};
use proviso_http::{BodyError, BodyLimits, Peer, read_body};
use serde::Deserialize;
use serde_json::Value;

use super::answer::{self, Problem};
use super::{Purpose, Refusal, evaluate};
use crate::table::SharedTable;

/// The maximum size of a body, in bytes: a payload, and the names of the caller.
const MAX_BODY: usize = MAX_PAYLOAD_BYTES + (64 << 10);
/// The time within which a client must send the body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit of a request: all evaluations of its chain together.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// The maximum length of the id of a user or a tenant, in bytes.
const MAX_ID: usize = 253;

/// The state that all requests share.
#[derive(Debug)]
struct Engine {
    table: Arc<SharedTable>,
    cache: Arc<ConstraintCache>,
}

/// Returns the routes. The server that mounts them authenticates callers, who may speak for each user and tenant.
pub fn router(table: Arc<SharedTable>) -> Router {
    let engine = Arc::new(Engine { table, cache: Arc::default() });
    Router::new()
        .route("/api/v1/engine/evaluate", post(evaluate_adr))
        .route("/api/v1alpha1/policies:evaluateRequest", post(evaluate_published))
        .with_state(engine)
}

/// The body of a request, as the ADR has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EvaluateRequest {
    payload: Value,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    tenant: Option<String>,
}

/// The body of a request, as the published API has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedRequest {
    service_instance: ServiceInstance,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServiceInstance {
    spec: Value,
}

async fn evaluate_adr(State(engine): State<Arc<Engine>>, request: Request) -> Response<Body> {
    let answered = async {
        let EvaluateRequest { payload, user, tenant } = read(request).await?;
        let (user, tenant) = (check_id("user", user)?, check_id("tenant", tenant)?);
        let request = request::Request::new(payload, tenant, user)
            .map_err(|error| Problem::invalid(&format!("payload: {error}")))?;
        let outcome = engine.evaluate(request).await?;
        match &outcome.decision {
            Decision::Approved | Decision::Modified => Ok(answer::adr(&outcome)),
            decision => Err(Problem::of(decision, StatusCode::FORBIDDEN).with_trail(&outcome.trail)),
        }
    };
    respond(&answered.await)
}

async fn evaluate_published(State(engine): State<Arc<Engine>>, request: Request) -> Response<Body> {
    let answered = async {
        let PublishedRequest { service_instance } = read(request).await?;
        let request = request::Request::new(service_instance.spec, None, None)
            .map_err(|error| Problem::invalid(&format!("service_instance.spec: {error}")))?;
        if request.service_type().is_none_or(str::is_empty) {
            return Err(Problem::invalid(
                "service_instance.spec.service_type: is missing: send a text that is not empty",
            ));
        }
        let outcome = engine.evaluate(request).await?;
        match &outcome.decision {
            Decision::Approved | Decision::Modified => Ok(answer::published(&outcome)),
            decision => Err(Problem::of(decision, StatusCode::NOT_ACCEPTABLE)),
        }
    };
    respond(&answered.await)
}

impl Engine {
    async fn evaluate(&self, request: request::Request) -> Result<Outcome, Problem> {
        // The request keeps this snapshot until it is answered: a reload does not affect it.
        let table = self.table.load_full();
        if !table.is_complete {
            return Err(Problem::unavailable("the policies are still being loaded"));
        }
        let deadline = Instant::now() + TIME_LIMIT;
        let evaluated = evaluate(&table, request, Arc::clone(&self.cache), deadline, Purpose::Answer).await;
        evaluated.map_err(|refusal| match refusal {
            Refusal::Overloaded => Problem::unavailable(&refusal.to_string()),
            Refusal::Unserved { .. } => Problem::internal(&refusal.to_string()),
        })
    }
}

/// Reads the body of a request. Errors name the field.
async fn read<T: for<'de> Deserialize<'de>>(request: Request) -> Result<T, Problem> {
    let (head, body) = request.into_parts();
    let limits = BodyLimits { size: MAX_BODY, timeout: BODY_TIMEOUT };
    let received = read_body(body, limits, head.extensions.get::<Peer>()).await.map_err(|failure| {
        let message = failure.error.to_string();
        match failure.error {
            BodyError::TooLarge(_) => Problem::invalid(&message).with_status(StatusCode::PAYLOAD_TOO_LARGE),
            BodyError::Timeout(_) => Problem::invalid(&message).with_status(StatusCode::REQUEST_TIMEOUT),
            BodyError::Unreadable(_) => Problem::invalid(&message),
            BodyError::Overloaded(_) => Problem::unavailable(&message),
        }
    })?;
    let mut deserializer = serde_json::Deserializer::from_slice(&received.bytes);
    let read = serde_path_to_error::deserialize(&mut deserializer);
    let body = read.map_err(|error| match error.path().to_string().as_str() {
        "." => Problem::invalid(&format!("the body: {}", error.inner())),
        path => Problem::invalid(&format!("{path}: {}", error.inner())),
    })?;
    deserializer.end().map_err(|error| Problem::invalid(&format!("the body: {error}")))?;
    Ok(body)
}

fn check_id(field: &str, id: Option<String>) -> Result<Option<String>, Problem> {
    match id {
        Some(id) if id.is_empty() || id.len() > MAX_ID => {
            Err(Problem::invalid(&format!("{field}: must have 1 to {MAX_ID} bytes")))
        }
        id => Ok(id),
    }
}

fn respond(answered: &Result<Value, Problem>) -> Response<Body> {
    let (status, content_type, body) = match answered {
        Ok(answer) => (StatusCode::OK, "application/json", answer.to_string()),
        Err(problem) => (problem.status(), "application/problem+json", problem.to_body()),
    };
    let mut response = Response::new(Body::from(body + "\n"));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
