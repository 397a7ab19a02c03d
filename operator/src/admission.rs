//! The webhook for our own kinds: what cannot work is refused when it is applied, with the field and what to do, and not
//! found out by a rollout that fails.

pub(crate) mod certificate;
mod check;
mod experiment;
mod registration;

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
/// The longest time that a policy's sources may take to compile: the API server waits for 10 s.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest time that the API server may take to say whether it takes a webhook.
const TRIAL: Duration = Duration::from_secs(3);
/// The largest body, in bytes: a review of an update carries two objects.
const MAX_BODY: usize = 7 * 1024 * 1024;

/// The names under which API servers reach the operator.
pub(crate) fn names(config: &Config) -> Vec<String> {
    let service = config.service.as_deref().unwrap_or("proviso-operator");
    let name = format!("{service}.{}.svc", config.namespace);
    vec![name.clone(), format!("{name}.cluster.local")]
}

/// What answers need.
#[derive(Clone)]
pub(crate) struct Admission {
    client: Client,
    namespace: Arc<str>,
}

impl Admission {
    pub(crate) fn new(client: Client, config: &Config) -> Self {
        Self { client, namespace: config.namespace.as_str().into() }
    }

    /// Answers the API server.
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

impl Admission {
    /// Why an object is refused; none if it is not.
    async fn refusal(&self, request: &AdmissionRequest<DynamicObject>) -> Option<String> {
        let object = request.object.as_ref()?;
        let spec = &object.data["spec"];
        let old = request.old_object.as_ref().map(|old| &old.data["spec"]);
        // What was admitted once can be labelled, finished and deleted, also by those who know more rules than then.
        if request.operation == Operation::Update && old == Some(spec) {
            return None;
        }
        let namespace = request.namespace.clone().unwrap_or_default();
        match request.kind.kind.as_str() {
            "Policy" => self.policy_refusal(object, Some(namespace)).await,
            "ClusterPolicy" => self.policy_refusal(object, None).await,
            "PolicyExperiment" => self.experiment_refusal(request, Some(namespace)).await,
            "ClusterPolicyExperiment" => self.experiment_refusal(request, None).await,
            other => Some(format!("{other} is no kind of policy")),
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
        if let Err(error) = compiled("spec", move || check::policy(namespace.as_deref(), &name, &checked)).await {
            return Some(error);
        }
        let (id, admission) = (id.ok()?, spec.admission.as_ref()?);
        // Of no generation that there is: only what it covers matters.
        let wanted = webhook::build(&id, "", 1, (&spec.policy_server, admission), (&self.namespace, ""));
        self.webhook_refusal(&id, "spec", &wanted).await
    }

    /// What is taken, and will not go live as it is: the policy server may come later.
    async fn warning(&self, request: &AdmissionRequest<DynamicObject>) -> Option<String> {
        if request.kind.kind.ends_with("Experiment") {
            // Where it is previewed is for its policy to say.
            return self.experiment_warning(request).await;
        }
        let name = request.object.as_ref()?.data["spec"]["policyServer"].as_str().unwrap_or("default").to_owned();
        let servers = Api::<PolicyServer>::all(self.client.clone());
        match tokio::time::timeout(TRIAL, servers.get_metadata_opt(&name)).await {
            Ok(Ok(None)) => {
                Some(format!("spec.policyServer: there is no PolicyServer {name}: the policy waits for one"))
            }
            _ => None,
        }
    }

    /// Why the API server would not take this webhook: it knows best what its expressions may be. `at` is where the spec of
    /// the policy stands.
    async fn webhook_refusal(&self, id: &PolicyId, at: &str, wanted: &Value) -> Option<String> {
        match tokio::time::timeout(TRIAL, webhook::dry_run(wanted, &self.client)).await {
            Ok(Err(kube::Error::Api(status))) if status.code == 422 => {
                Some(format!("{at}.admission: the API server does not take its webhook: {}", status.message))
            }
            // What cannot be tried here is found out by the rollout.
            Ok(Err(error)) => {
                tracing::warn!(policy = %id, %error, "its webhook cannot be tried");
                None
            }
            Ok(Ok(())) | Err(_) => None,
        }
    }
}

/// Checks off the async workers, and not for ever: some sources are hard to compile.
async fn compiled(at: &str, check: impl FnOnce() -> Vec<FieldError> + Send + 'static) -> Result<(), String> {
    match tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(check)).await {
        Ok(Ok(errors)) if errors.is_empty() => Ok(()),
        Ok(Ok(errors)) => Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
        Ok(Err(stopped)) => Err(format!("{at}.program: the compiler stopped: {stopped}")),
        Err(_) => Err(format!("{at}.program: compiling it took longer than {} s", PATIENCE.as_secs())),
    }
}

fn read<T: DeserializeOwned>(spec: &Value) -> Result<T, String> {
    serde_path_to_error::deserialize(spec).map_err(|error| format!("spec.{}: {}", error.path(), error.inner()))
}
