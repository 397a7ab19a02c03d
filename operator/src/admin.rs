//! The admin port: `/livez` and `/readyz` for the kubelet. `/metrics` is served there too, unless it has a port with TLS and
//! authentication.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::get;
use proviso_authentication::MetricsAccess;
use proviso_http::shutdown::Phase;
use proviso_http::{Certificate, Limits};
use tokio::sync::watch;

use crate::metrics::Metrics;

/// The metrics, and the limits of connections and requests, which are metrics too.
pub(crate) type Source = (Arc<Metrics>, Arc<Limits>);

/// Returns the routes of `--admin-listen`. `metrics` is `None` if they are served at `--metrics-listen`.
pub(crate) fn router(certificate: Arc<Certificate>, metrics: Option<Source>, phase: watch::Receiver<Phase>) -> Router {
    let metrics = match metrics {
        Some(metrics) => get(async move || to_text(&metrics)),
        None => get(async || (StatusCode::NOT_FOUND, "the metrics are served at --metrics-listen\n")),
    };
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", metrics)
        .with_state((certificate, phase))
}

/// Returns the routes of `--metrics-listen`, for callers that may read metrics.
pub(crate) fn metrics_router(metrics: Source, access: MetricsAccess) -> Router {
    Router::new()
        .route("/metrics", get(async move || to_text(&metrics)))
        .layer(from_fn_with_state(access, MetricsAccess::require))
}

fn to_text((metrics, limits): &Source) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, proviso_http::metrics::CONTENT_TYPE)], metrics.to_text(limits))
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
