//! The admission webhook for Proviso's own kinds. An object that cannot work is denied when it is applied, with the
//! field and the remedy, instead of failing in a rollout.

mod bodies;
pub(crate) mod certificate;
mod check;
mod experiment;
mod program_check;
mod registration;
mod review;
mod revision;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use jiff::Timestamp;
use kube::core::admission::Operation;
use kube::{Api, Client};
use proviso_core::PolicyId;
use proviso_crds::{Admission as AdmissionSection, PolicyServer};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::config::Config;
use crate::webhook;
use bodies::Bodies;
use program_check::{ProgramChecks, Subject};
use review::{Object, Refusal, Request, Review, read};

pub(crate) use program_check::run_check_job;
pub(crate) use registration::Registration;
pub(crate) use tokens::Tokens;

/// The time limit for a request to the API server, such as the dry run of a webhook.
const API_SERVER_TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum size of the section `admission` of a policy, in bytes. It becomes a webhook, of which the API server keeps all.
const MAX_ADMISSION: usize = 256 * 1024;

/// Returns the path of the webhook with this token.
fn path(token: &str) -> String {
    format!("/t/{token}/validate")
}

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
    tokens: Arc<Tokens>,
    bodies: Arc<Bodies>,
    checks: Arc<ProgramChecks>,
}

/// The parts of the spec of a policy that the operator reads itself.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PolicyParts<'a> {
    #[serde(default = "default_policy_server")]
    policy_server: String,
    #[serde(borrow)]
    admission: Option<&'a RawValue>,
}

fn default_policy_server() -> String {
    "default".to_owned()
}

impl Admission {
    pub(crate) fn new(client: Client, config: &Config, tokens: Arc<Tokens>) -> Self {
        let (bodies, checks) = (Arc::new(Bodies::new()), Arc::new(ProgramChecks::new()));
        Self { client, namespace: config.namespace.as_str().into(), tokens, bodies, checks }
    }

    /// Returns the route of the webhook.
    pub(crate) fn router(self) -> Router {
        Router::new().route(&path("{token}"), post(answer)).with_state(self)
    }
}

/// Answers a review. The token is checked before the body is read.
async fn answer(State(admission): State<Admission>, Path(token): Path<String>, body: Body) -> Response {
    if !admission.tokens.accept(&token, Timestamp::now()) {
        return (StatusCode::FORBIDDEN, "the path has no token of the API server").into_response();
    }
    let body = match admission.bodies.read(body).await {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    let request = match serde_json::from_slice::<Review<'_>>(&body.bytes) {
        Ok(review) => review.request,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("not an AdmissionReview: {error}")).into_response(),
    };
    let refusal = admission.refusal(&request).await.err();
    let warning = match &refusal {
        None => admission.warning(&request).await,
        Some(Refusal { message, .. }) => {
            let object = format!("{}/{}", request.namespace.as_deref().unwrap_or_default(), request.name);
            tracing::info!(kind = request.kind.kind, object, reason = message, "request refused");
            None
        }
    };
    review::answer(&request.uid, refusal.as_ref(), warning)
}

impl Admission {
    /// Returns the reason to deny an object or its deletion as an error.
    async fn refusal(&self, request: &Request<'_>) -> Result<(), Refusal> {
        if request.kind.kind == "PolicyRevision" {
            return self.revision_refusal(request).await.map_or(Ok(()), |reason| Err(reason.into()));
        }
        let Some(object) = request.object()? else { return Ok(()) };
        // An object with the same spec as before stays admitted, so that stricter rules of a newer operator do not
        // block labels, finalizers and deletion. The API server writes equal specs as equal texts.
        let old = request.old_object()?;
        if request.operation == Operation::Update && old.is_some_and(|old| old.spec().get() == object.spec().get()) {
            return Ok(());
        }
        let namespace = request.namespace.as_deref().unwrap_or_default();
        match request.kind.kind.as_str() {
            "Policy" => self.policy_refusal(&object, Some(namespace)).await,
            "ClusterPolicy" => self.policy_refusal(&object, None).await,
            "PolicyExperiment" => self.experiment_refusal(request, &object, Some(namespace)).await,
            "ClusterPolicyExperiment" => self.experiment_refusal(request, &object, None).await,
            other => Err(format!("{other} is not a kind of policy or experiment").into()),
        }
    }

    async fn policy_refusal(&self, object: &Object<'_>, namespace: Option<&str>) -> Result<(), Refusal> {
        let name = object.metadata.name.as_str();
        self.checks.run(Subject::Policy, namespace, name, object.spec()).await?;
        let id = PolicyId::new(namespace, name).map_err(|error| error.to_string())?;
        self.webhook_refusal((&id, &id), "spec", object.spec()).await
    }

    /// Returns a warning if the object is admitted but cannot go live yet: its policy server may be created later.
    async fn warning(&self, request: &Request<'_>) -> Option<String> {
        if request.kind.kind.ends_with("Experiment") {
            // The policy determines the policy server of the preview.
            return self.experiment_warning(request).await;
        }
        let object = request.object().ok()??;
        let name = read::<PolicyParts<'_>>(object.spec()).ok()?.policy_server;
        let servers = Api::<PolicyServer>::all(self.client.clone());
        match tokio::time::timeout(API_SERVER_TIMEOUT, servers.get_metadata_opt(&name)).await {
            Ok(Ok(None)) => {
                Some(format!("spec.policyServer: there is no PolicyServer {name}: the policy waits for one"))
            }
            _ => None,
        }
    }

    /// Returns the reason why the API server would reject the webhook of a policy with this spec. Only the API server knows
    /// which expressions are valid. `at` is the path of the spec, and `object` the id of its object.
    async fn webhook_refusal(
        &self,
        (policy, object): (&PolicyId, &PolicyId),
        at: &str,
        spec: &RawValue,
    ) -> Result<(), Refusal> {
        let parts: PolicyParts<'_> = read(spec)?;
        let Some(text) = parts.admission else { return Ok(()) };
        if text.get().len() > MAX_ADMISSION {
            let length = text.get().len();
            return Err(format!("{at}.admission: has {length} bytes; at most {MAX_ADMISSION} are allowed").into());
        }
        let admission: AdmissionSection = read(text)?;
        // Any generation: only the rules, selectors and conditions matter.
        let desired = webhook::build(policy, "", 1, (&parts.policy_server, &admission), (&self.namespace, ""));
        match tokio::time::timeout(API_SERVER_TIMEOUT, webhook::dry_run(&desired, &self.client)).await {
            Ok(Err(kube::Error::Api(status))) if status.code == 422 => {
                Err(format!("{at}.admission: the API server rejects its webhook: {}", status.message).into())
            }
            // If the dry run fails for another reason, an invalid webhook fails in the rollout.
            Ok(Err(error)) => {
                tracing::warn!(policy = %object, %error, "cannot validate the webhook by a dry run");
                Ok(())
            }
            Ok(Ok(())) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request as HttpRequest;
    use futures_util::stream;
    use tower::ServiceExt as _;

    use super::*;
    use crate::ca::certificate::Pair;

    /// The bodies without a token never arrive: an answer shows that the webhook has not waited for them.
    #[tokio::test]
    async fn the_token_is_checked_before_the_body_is_read() {
        let unused = tower::service_fn(|_| async {
            Err::<axum::http::Response<Body>, _>(std::io::Error::other("the webhook calls no API server"))
        });
        let ca = Pair { certificate: String::new(), key: "key".to_owned() };
        let tokens = Arc::<Tokens>::default();
        tokens.learn(&ca);
        let (bodies, checks) = (Arc::new(Bodies::new()), Arc::new(ProgramChecks::new()));
        let admission =
            Admission { client: Client::new(unused, "default"), namespace: "a".into(), tokens, bodies, checks };
        let status = async |path: &str, body: Body| {
            let request = HttpRequest::post(path).body(body).unwrap();
            admission.clone().router().oneshot(request).await.unwrap().status()
        };
        let never = || Body::from_stream(stream::pending::<std::io::Result<Vec<u8>>>());
        assert_eq!(status("/validate", never()).await, StatusCode::NOT_FOUND);
        assert_eq!(status(&path("0123"), never()).await, StatusCode::FORBIDDEN);
        let token = tokens::current(&ca, Timestamp::now());
        assert_eq!(status(&path(&token), Body::from("no review")).await, StatusCode::BAD_REQUEST);
    }
}
