//! The HTTP routes for requests to services, as the ADR and as the published API of the DCM project have them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::routing::post;
use proviso_core::request::{self, ConstraintCache, Decision, MAX_PAYLOAD_BYTES, Outcome};
use proviso_http::{BodyError, BodyLimits, Peer, ReceivedBody, read_body};
use proviso_rest_api::{Code, Error, Problem};
use serde::Deserialize;
use serde_json::Value;

use super::answer;
#[cfg(feature = "cluster")]
use super::callers::{self, CallerReviews};
use super::identity::{IdField, Identity, Named};
use super::{Purpose, Refusal, TIME_LIMIT, evaluate};
use crate::preview::PreviewQueue;
use crate::table::{SharedTable, Table};

/// The maximum size of a body, in bytes: a payload, and the names of the caller.
const MAX_BODY: usize = MAX_PAYLOAD_BYTES + (64 << 10);
/// The time within which a client must send the body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The state that all requests share.
#[derive(Debug)]
struct Engine {
    table: Arc<SharedTable>,
    cache: Arc<ConstraintCache>,
    previews: PreviewQueue,
    /// The reviews of callers; `None` if each caller may name each user and tenant.
    #[cfg(feature = "cluster")]
    callers: Option<CallerReviews>,
}

/// Returns the routes. The server that mounts them authenticates callers, who may name each user and tenant.
pub fn router(table: Arc<SharedTable>, previews: PreviewQueue) -> Router {
    routes(Engine {
        table,
        cache: Arc::default(),
        previews,
        #[cfg(feature = "cluster")]
        callers: None,
    })
}

/// Returns the routes of a replica in a cluster. All other paths of the router are answered only to known callers too.
#[cfg(feature = "cluster")]
pub fn reviewed_router(table: Arc<SharedTable>, previews: PreviewQueue, callers: CallerReviews) -> Router {
    let review = axum::middleware::from_fn_with_state(callers.clone(), CallerReviews::require);
    routes(Engine { table, cache: Arc::default(), previews, callers: Some(callers) }).fallback(not_found).layer(review)
}

fn routes(engine: Engine) -> Router {
    Router::new()
        .route("/api/v1/engine/evaluate", post(evaluate_adr).fallback(method_not_allowed))
        .route("/api/v1alpha1/policies:evaluateRequest", post(evaluate_published).fallback(method_not_allowed))
        .with_state(Arc::new(engine))
}

/// The body of a request, as the ADR has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EvaluateRequest {
    payload: Value,
    #[serde(default)]
    user: IdField,
    #[serde(default)]
    tenant: IdField,
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
        let (head, body) = request.into_parts();
        let (EvaluateRequest { payload, user, tenant }, _memory) = read(&head, body).await?;
        let named = Named { user, tenant }.check()?;
        let may_impersonate = engine.may_impersonate(&head).await?;
        // The request keeps this snapshot until it is answered: a reload does not affect it.
        let table = engine.table()?;
        let Identity { user, tenant } = engine.identity(&head, named, may_impersonate, &table)?;
        let request = request::Request::new(payload, tenant, user)
            .map_err(|error| Problem::invalid(&format!("payload: {error}")))?;
        let outcome = engine.evaluate(&table, request).await?;
        match &outcome.decision {
            Decision::Approved | Decision::Modified => Ok(answer::adr(&outcome)),
            decision => Err(answer::with_trail(answer::denial(decision, StatusCode::FORBIDDEN), &outcome.trail)),
        }
    };
    respond(&answered.await)
}

async fn evaluate_published(State(engine): State<Arc<Engine>>, request: Request) -> Response<Body> {
    let answered = async {
        let (head, body) = request.into_parts();
        let (PublishedRequest { service_instance }, _memory) = read(&head, body).await?;
        let table = engine.table()?;
        let Identity { user, tenant } = engine.identity(&head, Named::default(), false, &table)?;
        let request = request::Request::new(service_instance.spec, tenant, user)
            .map_err(|error| Problem::invalid(&format!("service_instance.spec: {error}")))?;
        if request.service_type().is_none_or(str::is_empty) {
            return Err(Problem::invalid(
                "service_instance.spec.service_type: is missing: send a text that is not empty",
            ));
        }
        let outcome = engine.evaluate(&table, request).await?;
        match &outcome.decision {
            Decision::Approved | Decision::Modified => Ok(answer::published(&outcome)),
            decision => Err(answer::denial(decision, StatusCode::NOT_ACCEPTABLE)),
        }
    };
    respond(&answered.await)
}

impl Engine {
    /// Returns the current table.
    fn table(&self) -> Result<Arc<Table>, Problem> {
        let table = self.table.load_full();
        if table.is_complete { Ok(table) } else { Err(Problem::unavailable("the policies are still being loaded")) }
    }

    /// Returns whether the caller of a request may name other users and tenants.
    async fn may_impersonate(&self, head: &Parts) -> Result<bool, Problem> {
        #[cfg(feature = "cluster")]
        if let Some(reviews) = &self.callers {
            return reviews.may_impersonate(caller(head)?).await;
        }
        let _ = head;
        Ok(true)
    }

    /// Returns the identity of a request whose body has these names.
    fn identity(&self, head: &Parts, named: Named, may_impersonate: bool, table: &Table) -> Result<Identity, Problem> {
        #[cfg(feature = "cluster")]
        if self.callers.is_some() {
            return named.of_caller(callers::own(caller(head)?, table)?, may_impersonate);
        }
        let _ = (head, may_impersonate, table);
        Ok(named.into_identity())
    }

    async fn evaluate(&self, table: &Table, request: request::Request) -> Result<Outcome, Problem> {
        let purpose = Purpose::Answer { previews: Some(&self.previews) };
        let evaluated = evaluate(table, request, Arc::clone(&self.cache), Instant::now() + TIME_LIMIT, purpose).await;
        evaluated.map_err(|refusal| match refusal {
            Refusal::Overloaded | Refusal::NotLoaded { .. } => Problem::unavailable(&refusal.to_string()),
            Refusal::Unserved { .. } => answer::internal(&refusal.to_string()),
        })
    }
}

/// Returns the caller whom the middleware has authenticated.
#[cfg(feature = "cluster")]
fn caller(head: &Parts) -> Result<&proviso_authentication::Caller, Problem> {
    head.extensions.get().ok_or_else(|| answer::internal("the caller was not authenticated"))
}

/// Reads the body of a request. Errors name the field. The received body keeps its share of the memory of all requests, until it is
/// dropped.
async fn read<T: for<'de> Deserialize<'de>>(head: &Parts, body: Body) -> Result<(T, ReceivedBody), Problem> {
    let limits = BodyLimits { size: MAX_BODY, timeout: BODY_TIMEOUT };
    let received = read_body(body, limits, head.extensions.get::<Peer>()).await.map_err(|failure| {
        let message = failure.error.to_string();
        match failure.error {
            BodyError::TooLarge(_) => Problem::invalid(&message).with_status(StatusCode::PAYLOAD_TOO_LARGE),
            BodyError::Timeout(_) => {
                let error = Error::new(Code::DeadlineExceeded, "BODY_TIMEOUT", message);
                Problem::from(&error).with_status(StatusCode::REQUEST_TIMEOUT)
            }
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
    Ok((body, received))
}

/// Answers the other paths below `/api`.
#[cfg(feature = "cluster")]
async fn not_found(request: Request) -> Response<Body> {
    let path: String = request.uri().path().chars().take(300).collect();
    let message = format!("the path {path} does not exist on a policy server");
    Problem::from(&Error::new(Code::NotFound, "PATH_NOT_FOUND", message)).to_response()
}

async fn method_not_allowed(request: Request) -> Response<Body> {
    let message = format!("this path supports POST, not {}", request.method());
    let error = Error::new(Code::Unimplemented, "METHOD_NOT_ALLOWED", message);
    let mut response = Problem::from(&error).with_status(StatusCode::METHOD_NOT_ALLOWED).to_response();
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    response
}

fn respond(answered: &Result<Value, Problem>) -> Response<Body> {
    let answer = match answered {
        Ok(answer) => answer,
        Err(problem) => return problem.to_response(),
    };
    let mut response = Response::new(Body::from(answer.to_string() + "\n"));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
