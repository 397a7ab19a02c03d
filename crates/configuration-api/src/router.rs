//! The routes.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Response, header};
use axum::middleware::from_fn;
use axum::routing::{MethodRouter, get};
use proviso_http::shutdown::Phase;
use tokio::sync::watch;

use crate::answer::{Form, Refusal};
use crate::api::Api;
use crate::call::add_request_id;
use crate::health::HEALTHCHECK;
use crate::store::ConfigurationStore;
use crate::subscriptions::COLLECTION;
use crate::{bound, consul, handler, health, policies, subscriptions};

/// Returns the routes that need an authenticated caller. A layer around this router authenticates it, and puts a
/// [`Caller`](proviso_rest_api::Caller) into the extensions of the request; [`refuse`](crate::refuse) is the answer to other callers.
/// Watches end when `phase` is not [`Phase::Serving`] any more.
///
/// The route `GET /{key}/{scn}` answers each path of two segments that no other route has.
pub fn router<S: ConfigurationStore>(store: Arc<S>, phase: watch::Receiver<Phase>) -> Router {
    let api = Arc::new(Api::new(store, phase));
    let subscription = get(subscriptions::get::<S>).post(subscriptions::resend::<S>);
    Router::new()
        .route("/policy_latest/{policy_id}", only(Form::Handler, "GET", get(policies::latest::<S>)))
        .route(
            "/policies_latest",
            only(Form::Handler, "GET, POST", get(policies::latest_of_components::<S>).post(policies::find::<S>)),
        )
        .route("/catch_up", only(Form::Handler, "GET", get(policies::catch_up::<S>)))
        .route("/policy", only(Form::Handler, "GET, PUT", get(handler::policies::<S>).put(handler::update::<S>)))
        .route("/policy/components", only(Form::Handler, "GET", get(handler::components::<S>)))
        .route("/service_component/{scn}", only(Form::Text, "GET", get(bound::config::<S>)))
        .route("/service_component_all/{scn}", only(Form::Text, "GET", get(bound::all_records::<S>)))
        .route("/{key}/{scn}", get(bound::record::<S>).fallback(bound::no_path))
        .route("/v1/kv/{*key}", only(Form::Text, "GET", get(consul::key::<S>)))
        .route(COLLECTION, only(Form::Problem, "GET", get(subscriptions::list::<S>)))
        .route(&format!("{COLLECTION}/{{namespace}}/{{name}}"), only(Form::Problem, "GET, POST", subscription))
        .layer(from_fn(add_request_id))
        .with_state(api)
}

/// Returns the route of the health check, which needs no authentication.
pub fn health_router<S: ConfigurationStore>(store: Arc<S>, phase: watch::Receiver<Phase>) -> Router {
    let api = Arc::new(Api::new(store, phase));
    let route = only(Form::Handler, "GET", get(health::health::<S>));
    Router::new().route(HEALTHCHECK, route).layer(from_fn(add_request_id)).with_state(api)
}

/// Returns the route with an answer to other methods.
fn only<S: Clone + Send + Sync + 'static>(
    form: Form,
    allowed: &'static str,
    route: MethodRouter<S>,
) -> MethodRouter<S> {
    route.fallback(async move |request: Request| method_not_allowed(form, allowed, &request))
}

fn method_not_allowed(form: Form, allowed: &'static str, request: &Request) -> Response<Body> {
    let message = format!("this path supports {allowed}, not {}", request.method());
    let mut response = Refusal::method_not_allowed(message).to_response(form);
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}
