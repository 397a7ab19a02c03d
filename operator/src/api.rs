//! The APIs of the operator: the REST API (AIP-236), and the aggregated API, through which kubectl calls with the
//! permissions of its user. Both have the same store. Every replica of the operator serves them, not only the leader.

mod access;
mod actions;
mod authenticator;
mod discovery;
mod front_proxy;
pub(crate) mod registration;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use kube::Client;
use proviso_authentication::{AuthenticationError, Tokens};
use proviso_http::shutdown::Phase;
use proviso_rest_api::SERVING_TIMEOUT;
use proviso_rest_api::kubernetes::{Kubernetes, Settings};
use proviso_rest_api::{Code, Error, Problem};
use tokio::sync::watch;

pub(crate) use access::Reviews;
use actions::Actions;
use authenticator::Authenticator;

use crate::config::Config;
use crate::configuration_api::ClusterStore;

pub(crate) use front_proxy::FrontProxies;

/// Returns the routes of both APIs, which need an authenticated caller, and of the health check.
pub(crate) fn router(
    client: Client,
    config: &Config,
    (proxies, tokens): (Arc<FrontProxies>, Tokens),
    (configuration, phase): (Option<Arc<ClusterStore>>, watch::Receiver<Phase>),
) -> Router {
    let (namespace, impersonates_callers) = (config.namespace.clone(), config.impersonate_callers);
    let reviews = Reviews::new(client.clone());
    let settings = Settings { namespace: namespace.clone(), impersonates_callers, serving_timeout: SERVING_TIMEOUT };
    let store = Arc::new(Kubernetes::new(client.clone(), reviews.clone(), settings));
    let authenticator = Authenticator::new(tokens, proxies);
    let actions = Actions { client, namespace, reviews, store: Arc::clone(&store) };
    let in_kubernetes = Authentication {
        authenticator: authenticator.clone(),
        refuse: |error| actions::respond(error.http(), error.to_string(), Some(error.reason())),
    };
    let as_problem =
        Authentication { authenticator: authenticator.clone(), refuse: |error| Problem::from(error).to_response() };
    let as_aip = Authentication { authenticator: authenticator.clone(), refuse: proviso_rest_api::refuse };
    let as_handler = Authentication { authenticator, refuse: proviso_configuration_api::refuse };
    let request_policies = proviso_rest_api::request_policies_router(Arc::clone(&store));
    let configuration = configuration.map(|store| {
        let routes = proviso_configuration_api::router(Arc::clone(&store), phase.clone());
        let routes = routes.layer(from_fn_with_state(as_handler, authenticate));
        routes.merge(proviso_configuration_api::health_router(store, phase))
    });
    Router::new()
        .merge(configuration.unwrap_or_default())
        .merge(actions.router().layer(from_fn_with_state(in_kubernetes, authenticate)))
        .merge(request_policies.layer(from_fn_with_state(as_problem, authenticate)))
        .merge(proviso_rest_api::health_router())
        .merge(proviso_rest_api::router(store).layer(from_fn_with_state(as_aip, authenticate)))
}

/// The authentication of the callers of one API.
#[derive(Clone)]
struct Authentication {
    authenticator: Authenticator,
    /// Formats a refusal as the API does.
    refuse: fn(&Error) -> Response,
}

/// Adds the [`proviso_rest_api::Caller`] to the extensions of the request, or refuses a caller that cannot be
/// authenticated.
async fn authenticate(State(authentication): State<Authentication>, request: Request, next: Next) -> Response {
    let (mut head, body) = request.into_parts();
    match authentication.authenticator.authenticate(&head).await {
        Ok(caller) => {
            head.extensions.insert(caller);
            next.run(Request::from_parts(head, body)).await
        }
        Err(error) => {
            let path = head.uri.path();
            // A flood of tokens must not become a flood of log lines.
            if matches!(error, AuthenticationError::TooMany(_)) {
                tracing::debug!(method = %head.method, path, %error, "refused");
            } else {
                tracing::warn!(method = %head.method, path, %error, "refused: unknown caller");
            }
            let code = match &error {
                AuthenticationError::Unavailable(_) => Code::Unavailable,
                AuthenticationError::TooMany(_) => Code::ResourceExhausted,
                AuthenticationError::NoCredentials | AuthenticationError::Token(_) => Code::Unauthenticated,
            };
            let mut response = (authentication.refuse)(&Error::new(code, "UNKNOWN_CALLER", error.to_string()));
            if let Some(seconds) = error.retry_after() {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
            response
        }
    }
}
