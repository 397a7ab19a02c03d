//! What people and pipelines ask the operator itself: the REST façade (AIP-236), and the aggregated API, through which
//! kubectl comes with the caller's own permissions. Both act on the same store; every operator answers, leading or not.

mod access;
mod actions;
mod callers;
mod discovery;
mod front_proxy;
pub(crate) mod registration;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use kube::Client;
use proviso_rest_api::kubernetes::Kubernetes;
use proviso_rest_api::{Code, Error};

use access::Reviews;
use actions::Actions;
use callers::{Callers, Unknown};
pub(crate) use front_proxy::FrontProxies;

/// Answers whoever can say who they are.
pub(crate) fn router(client: Client, namespace: &str, proxies: Arc<FrontProxies>) -> Router {
    let reviews = Reviews::new(client.clone());
    let store = Arc::new(Kubernetes::new(client.clone(), reviews.clone()));
    let callers = Callers::new(client.clone(), proxies);
    let actions = Actions { client, namespace: namespace.to_owned(), reviews, store: Arc::clone(&store) };
    let in_kubernetes =
        Front { callers: callers.clone(), refuse: |error| actions::respond(error.http(), error.to_string()) };
    let as_aip = Front { callers, refuse: proviso_rest_api::refuse };
    Router::new()
        .merge(actions.router().layer(from_fn_with_state(in_kubernetes, identify)))
        .merge(proviso_rest_api::router(store).layer(from_fn_with_state(as_aip, identify)))
}

/// Before each answer.
#[derive(Clone)]
struct Front {
    callers: Callers,
    /// In the words of the API that was asked.
    refuse: fn(&Error) -> Response,
}

/// Puts the [`proviso_rest_api::Caller`] into the request's extensions, or answers that nobody knows who calls.
async fn identify(State(front): State<Front>, request: Request, next: Next) -> Response {
    let (mut head, body) = request.into_parts();
    match front.callers.identify(&head).await {
        Ok(caller) => {
            head.extensions.insert(caller);
            next.run(Request::from_parts(head, body)).await
        }
        Err(error) => {
            let path = head.uri.path();
            tracing::warn!(method = %head.method, path, %error, "refused: unknown caller");
            let code = if matches!(error, Unknown::Unavailable(_)) { Code::Unavailable } else { Code::Unauthenticated };
            (front.refuse)(&Error::new(code, "UNKNOWN_CALLER", error.to_string()))
        }
    }
}
