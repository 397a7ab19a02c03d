//! What probes ask: whether the operator lives, and whether the API server can ask it about policies.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use proviso_http::Certificate;

/// Answers probes.
pub(crate) fn router(certificate: Arc<Certificate>) -> Router {
    Router::new().route("/livez", get(async || "ok\n")).route("/readyz", get(readyz)).with_state(certificate)
}

async fn readyz(State(certificate): State<Arc<Certificate>>) -> (StatusCode, &'static str) {
    if certificate.is_there() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "readyz check failed: there is no serving certificate yet\n")
    }
}
