//! The health check, which needs no authentication.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::json;

use crate::answer::json_answer;
use crate::api::{Api, python_time};
use crate::store::ConfigurationStore;

/// The path of the health check.
pub const HEALTHCHECK: &str = "/healthcheck";
/// The version of deployment-handler's API that the routes have.
const API_VERSION: &str = "5.1.0";
const NAME: &str = "proviso";

/// `GET /healthcheck`: members of policy-handler's and deployment-handler's health checks. 503 before the policies are read, as the
/// config-binding service answers without Consul.
pub(crate) async fn health<S: ConfigurationStore>(State(api): State<Arc<Api<S>>>) -> Response<Body> {
    let now = Timestamp::now();
    let instance = api.store.instance().to_string();
    let version = env!("CARGO_PKG_VERSION");
    let status = if api.store.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let uptime = now.duration_since(api.started).as_secs().max(0);
    let body = json!({
        "apiVersion": API_VERSION,
        "links": {"internal-health": HEALTHCHECK, "policy": "/policy"},
        "runtime": {
            "started": python_time(api.started),
            "uptime": format!("{}:{:02}:{:02}", uptime / 3600, uptime / 60 % 60, uptime % 60),
            "utcnow": python_time(now),
        },
        "server": {
            "name": NAME, "server_instance_uuid": instance, "service_instance_uuid": instance, "service_name": NAME,
            "service_version": version, "version": version,
        },
        // The bodies and filters are those of policy-handler's `pdp_api_v0`.
        "service_mode": {"is_active_mode_of_operation": true, "is_pdp_api_default": false},
        "stats": {},
    });
    json_answer(status, &body)
}
