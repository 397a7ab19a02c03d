//! The admin port: `/livez`, `/readyz` and `/metrics`.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::routing::get;
use proviso_http::Certificate;
use proviso_http::shutdown::Phase;
use tokio::sync::watch;

use crate::metrics::Metrics;

/// Returns the routes of `--admin-listen`.
pub(crate) fn router(certificate: Arc<Certificate>, metrics: Arc<Metrics>, phase: watch::Receiver<Phase>) -> Router {
    let kind = [(header::CONTENT_TYPE, proviso_http::metrics::CONTENT_TYPE)];
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(async move || (kind, metrics.to_text())))
        .with_state((certificate, phase))
}

async fn readyz(
    State((certificate, phase)): State<(Arc<Certificate>, watch::Receiver<Phase>)>,
) -> (StatusCode, &'static str) {
    if *phase.borrow() != Phase::Serving {
        (StatusCode::SERVICE_UNAVAILABLE, "readyz check failed: shutting down\n")
    } else if certificate.is_loaded() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "readyz check failed: there is no serving certificate yet\n")
    }
}
