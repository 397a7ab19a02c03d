//! The admission webhook for Proviso's own kinds. An object that cannot work is denied when it is applied, with the
//! field and the remedy, instead of failing in a rollout.

pub(crate) mod certificate;
mod check;
mod experiment;
mod program_check;
mod receive;
mod registration;
mod review;
mod revision;
mod subscription;
mod tenants;
mod time_limit;
mod tokens;
mod uniqueness;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use jiff::Timestamp;
use kube::core::admission::Operation;
use kube::{Api, Client};
use proviso_core::PolicyId;
use proviso_crds::{Admission as AdmissionSection, PolicyServer};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::config::Config;
use crate::tenants::SystemRequests;
use crate::usage::Usage;
use crate::webhook::{self, Access};
use program_check::{ProgramChecks, Subject};
use review::{Object, Refusal, Review, ReviewedRequest, read};
use tenants::ServerTenants;

pub(crate) use program_check::{check_configuration_policy, run_check_job};
pub(crate) use registration::Registration;
pub(crate) use subscription::SubscriptionNames;
pub(crate) use tokens::Tokens;
pub(crate) use uniqueness::RequestPolicies;

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
    checks: Arc<ProgramChecks>,
    usage: Arc<Usage>,
    requests: Arc<RequestPolicies>,
    subscriptions: Arc<SubscriptionNames>,
}

/// The parts of the spec of a policy that the operator reads itself.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PolicyParts<'a> {
    #[serde(default = "default_policy_server")]
    policy_server: String,
    timeout_eval_seconds: Option<u32>,
    #[serde(borrow)]
    admission: Option<&'a RawValue>,
    configuration: Option<IgnoredAny>,
}

fn default_policy_server() -> String {
    "default".to_owned()
}

impl Admission {
    pub(crate) fn new(
        client: Client,
        config: &Config,
        tokens: Arc<Tokens>,
        usage: Arc<Usage>,
        (requests, subscriptions): (Arc<RequestPolicies>, Arc<SubscriptionNames>),
    ) -> Self {
        let checks = Arc::new(ProgramChecks::new());
        let namespace = config.namespace.as_str().into();
        Self { client, namespace, tokens, checks, usage, requests, subscriptions }
    }

    /// Returns the route of the webhook.
    pub(crate) fn router(self) -> Router {
        Router::new().route(&path("{token}"), post(answer)).with_state(self)
    }
}

/// Answers a review. The token is checked before the body is read.
async fn answer(State(admission): State<Admission>, Path(token): Path<String>, request: Request) -> Response {
    if !admission.tokens.accept(&token, Timestamp::now()) {
        return (StatusCode::FORBIDDEN, "the path has no token of the API server").into_response();
    }
    let received = match receive::receive(request).await {
        Ok(received) => received,
        Err(response) => return response,
    };
    let request = match receive::parse(&received.bytes) {
        Ok(Review { request }) => request,
        Err(response) => return *response,
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
    async fn refusal(&self, request: &ReviewedRequest<'_>) -> Result<(), Refusal> {
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
        if let Some(reason) = self.usage_refusal(request, &object).await {
            return Err(reason.into());
        }
        let namespace = request.namespace.as_deref().unwrap_or_default();
        match request.kind.kind.as_str() {
            "Policy" => self.policy_refusal(request, &object, Some(namespace)).await,
            "ClusterPolicy" => self.policy_refusal(request, &object, None).await,
            "PolicyExperiment" => self.experiment_refusal(request, &object, Some(namespace)).await,
            "ClusterPolicyExperiment" => self.experiment_refusal(request, &object, None).await,
            "PolicySubscription" => self.subscription_refusal(request, &object, namespace).await,
            other => Err(format!("{other} is not a kind of policy, experiment or subscription").into()),
        }
    }

    async fn policy_refusal(
        &self,
        request: &ReviewedRequest<'_>,
        object: &Object<'_>,
        namespace: Option<&str>,
    ) -> Result<(), Refusal> {
        let name = object.metadata.name.as_str();
        let tenants = self.server_tenants(namespace, "spec", object.spec()).await?;
        self.checks.run(Subject::Policy, namespace, name, (tenants.as_ref(), object.spec())).await?;
        // After the check of the spec, so that only small values are read here.
        self.uniqueness_refusal(request, object, namespace).await?;
        let id = PolicyId::new(namespace, name).map_err(|error| error.to_string())?;
        self.webhook_refusal((&id, &id), "spec", object.spec(), ServerTenants::system(tenants.as_ref())).await
    }

    /// Returns a warning if the object is admitted but cannot go live yet, because its policy server may be created later, if the policy
    /// server shortens its time limit, or if another subscription has its names.
    async fn warning(&self, request: &ReviewedRequest<'_>) -> Option<String> {
        match request.kind.kind.as_str() {
            // The policy determines the policy server of the preview.
            "PolicyExperiment" | "ClusterPolicyExperiment" => return self.experiment_warning(request).await,
            "PolicySubscription" => return self.subscription_warning(request).await,
            _ => {}
        }
        let object = request.object().ok()??;
        let PolicyParts { policy_server: name, timeout_eval_seconds, configuration, .. } = read(object.spec()).ok()?;
        if configuration.is_some() {
            // No policy server evaluates the policy.
            return None;
        }
        let servers = Api::<PolicyServer>::all(self.client.clone());
        match tokio::time::timeout(API_SERVER_TIMEOUT, servers.get_opt(&name)).await {
            Ok(Ok(None)) => {
                Some(format!("spec.policyServer: there is no PolicyServer {name}: the policy waits for one"))
            }
            Ok(Ok(Some(server))) if request.namespace.is_some() => {
                time_limit::warning(&name, &server.spec, timeout_eval_seconds)
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
        system: SystemRequests,
    ) -> Result<(), Refusal> {
        let parts: PolicyParts<'_> = read(spec)?;
        let Some(text) = parts.admission else { return Ok(()) };
        if text.get().len() > MAX_ADMISSION {
            let length = text.get().len();
            return Err(format!("{at}.admission: has {length} bytes; at most {MAX_ADMISSION} are allowed").into());
        }
        let admission: AdmissionSection = read(text)?;
        // Any generation: only the rules, selectors and conditions matter.
        let requests = (parts.policy_server.as_str(), &admission, system);
        let desired = webhook::build(policy, "", 1, requests, Access::of_dry_run(&self.namespace));
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
    use axum::body::Body;
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
        let (checks, usage, requests, subscriptions) =
            (Arc::new(ProgramChecks::new()), Arc::default(), Arc::default(), Arc::default());
        let client = Client::new(unused, "default");
        let namespace = "a".into();
        let admission = Admission { client, namespace, tokens, checks, usage, requests, subscriptions };
        let status = async |path: &str, body: Body| {
            let request = axum::http::Request::post(path).body(body).unwrap();
            admission.clone().router().oneshot(request).await.unwrap().status()
        };
        let never = || Body::from_stream(stream::pending::<std::io::Result<Vec<u8>>>());
        assert_eq!(status("/validate", never()).await, StatusCode::NOT_FOUND);
        assert_eq!(status(&path("0123"), never()).await, StatusCode::FORBIDDEN);
        let token = tokens::current(&ca, Timestamp::now());
        assert_eq!(status(&path(&token), Body::from("no review")).await, StatusCode::BAD_REQUEST);
    }
}
