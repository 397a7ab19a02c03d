//! The admission webhook for Proviso's own kinds. An object that cannot work is denied when it is applied, with the
//! field and the remedy, instead of failing in a rollout.

pub(crate) mod certificate;
mod check;
mod experiment;
mod registration;
mod revision;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::routing::post;
use axum::{Json, Router};
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation};
use kube::{Api, Client};
use proviso_core::PolicyId;
use proviso_crds::validation::FieldError;
use proviso_crds::{PolicyServer, PolicySpec};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::config::Config;
use crate::webhook;

pub(crate) use registration::Registration;

/// The path of the webhook.
const PATH: &str = "/validate";
/// The time limit for compiling the sources of a policy. The API server waits for 10 s.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for a request to the API server, such as the dry run of a webhook.
const API_SERVER_TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum size of a request body, in bytes. The review of an update contains two objects.
const MAX_BODY: usize = 7 * 1024 * 1024;

/// Returns the DNS names by which API servers reach the operator.
pub(crate) fn server_names(config: &Config) -> Vec<String> {
    let service = config.service.as_deref().unwrap_or("proviso-operator");
    let name = format!("{service}.{}.svc", config.namespace);
    vec![name.clone(), format!("{name}.cluster.local")]
}

/// The state of the handler.
#[derive(Clone)]
pub(crate) struct Admission {
    client: Client,
    namespace: Arc<str>,
}

impl Admission {
    pub(crate) fn new(client: Client, config: &Config) -> Self {
        Self { client, namespace: config.namespace.as_str().into() }
    }

    /// Returns the route of the webhook.
    pub(crate) fn router(self) -> Router {
        Router::new().route(PATH, post(answer)).layer(DefaultBodyLimit::max(MAX_BODY)).with_state(self)
    }
}

async fn answer(
    State(admission): State<Admission>,
    Json(review): Json<AdmissionReview<DynamicObject>>,
) -> Json<AdmissionReview<DynamicObject>> {
    let request: Result<AdmissionRequest<DynamicObject>, _> = review.try_into();
    let response = match request {
        Ok(request) => match admission.refusal(&request).await {
            None => {
                let mut response = AdmissionResponse::from(&request);
                response.warnings = admission.warning(&request).await.map(|warning| vec![warning]);
                response
            }
            Some(denial) => {
                let object = format!("{}/{}", request.namespace.as_deref().unwrap_or_default(), request.name);
                tracing::info!(kind = request.kind.kind, object, reason = denial, "request refused");
                AdmissionResponse::from(&request).deny(denial)
            }
        },
        Err(error) => AdmissionResponse::invalid(error),
    };
    Json(response.into_review())
}

impl Admission {
    /// Returns the reason to deny an object or its deletion; `None` if it is admitted.
    async fn refusal(&self, request: &AdmissionRequest<DynamicObject>) -> Option<String> {
        if request.kind.kind == "PolicyRevision" {
            return self.revision_refusal(request).await;
        }
        let object = request.object.as_ref()?;
        let spec = &object.data["spec"];
        let old = request.old_object.as_ref().map(|old| &old.data["spec"]);
        // An object with the same spec as before stays admitted, so that stricter rules of a newer operator do not
        // block labels, finalizers and deletion.
        if request.operation == Operation::Update && old == Some(spec) {
            return None;
        }
        let namespace = request.namespace.clone().unwrap_or_default();
        match request.kind.kind.as_str() {
            "Policy" => self.policy_refusal(object, Some(namespace)).await,
            "ClusterPolicy" => self.policy_refusal(object, None).await,
            "PolicyExperiment" => self.experiment_refusal(request, Some(namespace)).await,
            "ClusterPolicyExperiment" => self.experiment_refusal(request, None).await,
            other => Some(format!("{other} is not a kind of policy or experiment")),
        }
    }

    async fn policy_refusal(&self, object: &DynamicObject, namespace: Option<String>) -> Option<String> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let spec: PolicySpec = match read(&object.data["spec"]) {
            Ok(spec) => spec,
            Err(error) => return Some(error),
        };
        let id = PolicyId::new(namespace.as_deref(), &name);
        let checked = spec.clone();
        if let Err(error) = run_check("spec", move || check::policy(namespace.as_deref(), &name, &checked)).await {
            return Some(error);
        }
        let (id, admission) = (id.ok()?, spec.admission.as_ref()?);
        // Any generation: only the rules and selectors matter.
        let desired = webhook::build(&id, "", 1, (&spec.policy_server, admission), (&self.namespace, ""));
        self.webhook_refusal(&id, "spec", &desired).await
    }

    /// Returns a warning if the object is admitted but cannot go live yet: its policy server may be created later.
    async fn warning(&self, request: &AdmissionRequest<DynamicObject>) -> Option<String> {
        if request.kind.kind.ends_with("Experiment") {
            // The policy determines the policy server of the preview.
            return self.experiment_warning(request).await;
        }
        let name = request.object.as_ref()?.data["spec"]["policyServer"].as_str().unwrap_or("default").to_owned();
        let servers = Api::<PolicyServer>::all(self.client.clone());
        match tokio::time::timeout(API_SERVER_TIMEOUT, servers.get_metadata_opt(&name)).await {
            Ok(Ok(None)) => {
                Some(format!("spec.policyServer: there is no PolicyServer {name}: the policy waits for one"))
            }
            _ => None,
        }
    }

    /// Returns the reason why the API server would reject this webhook. Only the API server knows which expressions
    /// are valid. `at` is the path of the spec of the policy.
    async fn webhook_refusal(&self, id: &PolicyId, at: &str, desired: &Value) -> Option<String> {
        match tokio::time::timeout(API_SERVER_TIMEOUT, webhook::dry_run(desired, &self.client)).await {
            Ok(Err(kube::Error::Api(status))) if status.code == 422 => {
                Some(format!("{at}.admission: the API server rejects its webhook: {}", status.message))
            }
            // If the dry run fails for another reason, an invalid webhook fails in the rollout.
            Ok(Err(error)) => {
                tracing::warn!(policy = %id, %error, "cannot validate the webhook by a dry run");
                None
            }
            Ok(Ok(())) | Err(_) => None,
        }
    }
}

/// Runs a check on a blocking thread, with a time limit: some sources take long to compile.
async fn run_check(at: &str, check: impl FnOnce() -> Vec<FieldError> + Send + 'static) -> Result<(), String> {
    match tokio::time::timeout(COMPILE_TIMEOUT, tokio::task::spawn_blocking(check)).await {
        Ok(Ok(errors)) if errors.is_empty() => Ok(()),
        Ok(Ok(errors)) => Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
        Ok(Err(stopped)) => Err(format!("{at}.program: the compiler stopped: {stopped}")),
        Err(_) => Err(format!("{at}.program: compiling it took longer than {} s", COMPILE_TIMEOUT.as_secs())),
    }
}

fn read<T: DeserializeOwned>(spec: &Value) -> Result<T, String> {
    serde_path_to_error::deserialize(spec).map_err(|error| format!("spec.{}: {}", error.path(), error.inner()))
}
