//! What probes ask: whether the operator lives, and whether API servers are to come here.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use proviso_http::Certificate;
use proviso_http::shutdown::Phase;
use tokio::sync::watch;

/// Answers probes.
pub(crate) fn router(certificate: Arc<Certificate>, phase: watch::Receiver<Phase>) -> Router {
    Router::new().route("/livez", get(async || "ok\n")).route("/readyz", get(readyz)).with_state((certificate, phase))
}

async fn readyz(
    State((certificate, phase)): State<(Arc<Certificate>, watch::Receiver<Phase>)>,
) -> (StatusCode, &'static str) {
    if *phase.borrow() != Phase::Serving {
        (StatusCode::SERVICE_UNAVAILABLE, "readyz check failed: shutting down\n")
    } else if certificate.is_there() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "readyz check failed: there is no serving certificate yet\n")
    }
}
