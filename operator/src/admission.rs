//! The webhook for our own kinds: what cannot work is refused when it is applied, with the field and what to do, and not
//! found out by a rollout that fails.

pub(crate) mod certificate;
mod check;
mod registration;

use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use axum::{Json, Router};
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation};
use proviso_crds::{PolicyKind, PolicySpec};
use serde_json::Value;

use crate::config::Config;

pub(crate) use registration::Registration;

/// The path of the webhook.
const PATH: &str = "/validate";
/// The longest time that a policy's sources may take to compile: the API server waits for 10 s.
const PATIENCE: Duration = Duration::from_secs(5);
/// The largest body, in bytes: a review of an update carries two objects.
const MAX_BODY: usize = 7 * 1024 * 1024;

/// The names under which API servers reach the operator.
pub(crate) fn names(config: &Config) -> Vec<String> {
    let service = config.admission_service.as_deref().unwrap_or("proviso-operator");
    let name = format!("{service}.{}.svc", config.namespace);
    vec![name.clone(), format!("{name}.cluster.local")]
}

/// Answers the API server.
pub(crate) fn router() -> Router {
    Router::new().route(PATH, post(answer)).layer(DefaultBodyLimit::max(MAX_BODY))
}

async fn answer(Json(review): Json<AdmissionReview<DynamicObject>>) -> Json<AdmissionReview<DynamicObject>> {
    let request: Result<AdmissionRequest<DynamicObject>, _> = review.try_into();
    let response = match request {
        Ok(request) => match refusal(&request).await {
            None => AdmissionResponse::from(&request),
            Some(why) => {
                let policy = format!("{}/{}", request.namespace.as_deref().unwrap_or_default(), request.name);
                tracing::info!(policy, reason = why, "policy refused");
                AdmissionResponse::from(&request).deny(why)
            }
        },
        Err(error) => AdmissionResponse::invalid(error),
    };
    Json(response.into_review())
}

/// Why an object is refused; none if it is not.
async fn refusal(request: &AdmissionRequest<DynamicObject>) -> Option<String> {
    let object = request.object.as_ref()?;
    let spec = &object.data["spec"];
    let old = request.old_object.as_ref().map(|old| &old.data["spec"]);
    // What was admitted once can be labelled, finished and deleted, also by those who know more rules than then.
    if request.operation == Operation::Update && old == Some(spec) {
        return None;
    }
    let kind = match request.kind.kind.as_str() {
        "Policy" => PolicyKind::Policy,
        "ClusterPolicy" => PolicyKind::ClusterPolicy,
        other => return Some(format!("{other} is no kind of policy")),
    };
    let namespace = match kind {
        PolicyKind::Policy => Some(request.namespace.clone().unwrap_or_default()),
        PolicyKind::ClusterPolicy => None,
    };
    let name = object.metadata.name.clone().unwrap_or_default();
    let spec = match read(spec) {
        Ok(spec) => spec,
        Err(error) => return Some(error),
    };
    let checking = tokio::task::spawn_blocking(move || check::policy(namespace.as_deref(), &name, &spec));
    match tokio::time::timeout(PATIENCE, checking).await {
        Ok(Ok(errors)) if errors.is_empty() => None,
        Ok(Ok(errors)) => Some(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
        Ok(Err(stopped)) => Some(format!("spec.program: the compiler stopped: {stopped}")),
        Err(_) => Some(format!("spec.program: compiling it took longer than {} s", PATIENCE.as_secs())),
    }
}

fn read(spec: &Value) -> Result<PolicySpec, String> {
    serde_path_to_error::deserialize(spec).map_err(|error| format!("spec.{}: {}", error.path(), error.inner()))
}
