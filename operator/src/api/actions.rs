//! The aggregated API `actions.proviso.dev/v1alpha1`: actions on experiments and policies, which a client creates as
//! subresources. Each action needs a permission of the caller, and is in the audit log of the API server.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use proviso_core::PolicyId;
use proviso_core::policy_id::PolicyIdError;
use proviso_crds::actions::{Action, GROUP, VERSION};
use proviso_crds::names::{CHANGED_BY, POLICY_LABEL, ROLLBACK_TO};
use proviso_crds::{ClusterPolicy, ClusterPolicyExperiment, Policy, PolicyExperiment};
use proviso_rest_api::kubernetes::{Access, Authorizer as _};
use proviso_rest_api::{Caller, Code, CommitPreconditions, Error, ExperimentName, PolicyStore, Preview};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::access::Reviews;
use super::discovery;
use crate::malformed::MaybeMalformed;

/// The maximum size of a request body, in bytes.
const MAX_BODY: usize = 64 * 1024;

/// An action and its object.
struct Target {
    action: Action,
    resource: &'static str,
    namespace: Option<String>,
    name: String,
}

/// The state of the handlers.
pub(crate) struct Actions<S> {
    pub client: Client,
    /// The namespace of the revisions.
    pub namespace: String,
    pub reviews: Reviews,
    pub store: Arc<S>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Commit {
    etag: Option<String>,
    parent_etag: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rollback {
    generation: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EmptyBody {}

impl<S: PolicyStore> Actions<S> {
    /// Returns the routes of the aggregated API. Every request needs a [`Caller`] in its extensions.
    pub(crate) fn router(self) -> Router {
        let at = format!("/apis/{GROUP}/{VERSION}");
        Router::new()
            .route(&format!("{at}/namespaces/{{namespace}}/{{resource}}/{{name}}/{{action}}"), post(in_namespace::<S>))
            .route(&format!("{at}/{{resource}}/{{name}}/{{action}}"), post(in_cluster::<S>))
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(Arc::new(self))
            .route("/apis", get(async || Json(discovery::groups())))
            .route(&format!("/apis/{GROUP}"), get(async || Json(discovery::group())))
            .route(&at, get(async || Json(discovery::resources())))
            .route("/openapi/v3", get(async || Json(discovery::openapi_index())))
            .route(discovery::OPENAPI, get(async || Json(discovery::openapi())))
    }

    async fn act(&self, caller: &Caller, target: &Target, is_dry_run: bool, body: &[u8]) -> Result<String, Error> {
        let Target { action, resource, namespace, name } = target;
        // The authorization comes first, so that an unauthorized caller cannot find out which objects exist.
        let access = Access {
            verb: "create",
            resource,
            subresource: Some(action.as_str()),
            namespace: namespace.clone(),
            name: Some(name.clone()),
        };
        self.reviews.authorize(Some(caller), &access).await?;
        if is_dry_run {
            return Err(Error::invalid("dryRun", "is not supported for actions"));
        }
        let namespace = namespace.as_deref();
        match action {
            Action::Start | Action::Stop => {
                let EmptyBody {} = read(*action, body)?;
                let change = if *action == Action::Start { Preview::Start } else { Preview::Stop };
                let experiment = self.experiment(namespace, name).await?;
                self.store.preview(Some(caller), &experiment, change).await?;
                Ok(match change {
                    Preview::Start => format!("the preview of {name} is started"),
                    Preview::Stop => format!("the preview of {name} is stopped"),
                })
            }
            Action::Commit => {
                let Commit { etag, parent_etag } = read(*action, body)?;
                let etag = etag.filter(|etag| !etag.is_empty()).ok_or_else(|| {
                    Error::invalid(
                        "etag",
                        "is missing: set it to the status.etag of the version of the experiment to commit",
                    )
                })?;
                let experiment = self.experiment(namespace, name).await?;
                let committing = CommitPreconditions { etag, parent_etag };
                let policy = self.store.commit(Some(caller), &experiment, &committing).await?;
                Ok(format!("{name} is committed to {}", policy.id))
            }
            Action::Rollback => {
                let Rollback { generation } = read(*action, body)?;
                match namespace {
                    Some(namespace) => {
                        let policies = Api::<Policy>::namespaced(self.client.clone(), namespace);
                        self.roll_back(caller, policies, name, generation).await
                    }
                    None => {
                        self.roll_back(caller, Api::<ClusterPolicy>::all(self.client.clone()), name, generation).await
                    }
                }
            }
        }
    }

    /// Returns the experiment of this name with the id of its policy.
    async fn experiment(&self, namespace: Option<&str>, name: &str) -> Result<ExperimentName, Error> {
        let policy = if let Some(namespace) = namespace {
            let experiments = Api::<PolicyExperiment>::namespaced(self.client.clone(), namespace);
            experiments.get_opt(name).await.map(|found| found.map(|it| it.spec.policy_ref.name))
        } else {
            let experiments = Api::<ClusterPolicyExperiment>::all(self.client.clone());
            experiments.get_opt(name).await.map(|found| found.map(|it| it.spec.0.policy_ref.name))
        };
        let policy = policy.map_err(unavailable)?.ok_or_else(|| Error::not_found(&format!("experiment {name}")))?;
        let policy =
            PolicyId::new(namespace, &policy).map_err(|error| Error::invalid("spec.policyRef", error.to_string()))?;
        Ok(ExperimentName { policy, name: name.to_owned() })
    }

    /// Requests a rollback by the annotation on the policy: see `policies::rollback`.
    async fn roll_back<K>(
        &self,
        caller: &Caller,
        policies: Api<K>,
        name: &str,
        generation: i64,
    ) -> Result<String, Error>
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let policy = policies.get_opt(name).await.map_err(unavailable)?;
        let uid = policy.ok_or_else(|| Error::not_found(&format!("policy {name}")))?.uid().unwrap_or_default();
        let revisions =
            Api::<MaybeMalformed<proviso_crds::PolicyRevision>>::namespaced(self.client.clone(), &self.namespace);
        let of_policy = ListParams::default().labels(&format!("{POLICY_LABEL}={uid}"));
        let revisions = revisions.list(&of_policy).await.map_err(unavailable)?;
        let retained = revisions.iter().filter_map(|it| Some(it.0.as_ref().ok()?.spec.policy_ref.generation));
        let mut retained: Vec<_> = retained.collect();
        if !retained.contains(&generation) {
            retained.sort_unstable();
            return Err(Error::invalid("generation", format!("is not retained; retained generations: {retained:?}")));
        }
        // The permission to roll back does not include the permission to change the policy, so the operator always writes this as
        // itself.
        let annotations = json!({ROLLBACK_TO: generation.to_string(), CHANGED_BY: caller.user});
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        policies.patch(name, &PatchParams::default(), &patch).await.map_err(unavailable)?;
        Ok(format!("{name} is rolled back to generation {generation}"))
    }
}

async fn in_namespace<S: PolicyStore>(
    state: State<Arc<Actions<S>>>,
    Path((namespace, resource, name, action)): Path<(String, String, String, String)>,
    caller: Extension<Caller>,
    uri: Uri,
    body: Bytes,
) -> Response {
    answer(state, caller, uri, (resource, Some(namespace), name, action), body).await
}

async fn in_cluster<S: PolicyStore>(
    state: State<Arc<Actions<S>>>,
    Path((resource, name, action)): Path<(String, String, String)>,
    caller: Extension<Caller>,
    uri: Uri,
    body: Bytes,
) -> Response {
    answer(state, caller, uri, (resource, None, name, action), body).await
}

async fn answer<S: PolicyStore>(
    State(actions): State<Arc<Actions<S>>>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
    (resource, namespace, name, action): (String, Option<String>, String, String),
    body: Bytes,
) -> Response {
    let path = namespace.iter().chain([&resource, &name]).map(String::as_str).collect::<Vec<_>>().join("/");
    let known = Action::ALL.into_iter().find_map(|it| {
        let [of_namespace, of_cluster] = it.resources();
        let expected = if namespace.is_some() { of_namespace } else { of_cluster };
        (it.as_str() == action && resource == expected).then_some((it, expected))
    });
    let Some((known, resource)) = known else {
        let error = Error::not_found(&format!("{resource}/{action}"));
        return respond(error.http(), error.to_string(), Some(error.reason()));
    };
    // The names become parts of URLs of the API server, where `../` would name another object.
    if let Err(error) = check_names(namespace.as_deref(), &name) {
        return respond(error.http(), error.to_string(), Some(error.reason()));
    }
    let target = Target { action: known, resource, namespace, name };
    // The action runs in its own task, so that a client that disconnects does not leave a commit half done.
    let acting = tokio::spawn(async move {
        let result = actions.act(&caller, &target, is_dry_run(&uri), &body).await;
        let (status, words) = match &result {
            Ok(done) => (201, done.clone()),
            Err(error) => (error.http(), error.to_string()),
        };
        tracing::info!(user = caller.user, action, resource = path, status, words, "change requested");
        respond(status, words, result.as_ref().err().map(Error::reason))
    });
    match acting.await {
        Ok(response) => response,
        Err(panic) => {
            tracing::error!(action = known.as_str(), %panic, "an action panicked");
            respond(500, "the action failed: see the log of the operator".to_owned(), Some("INTERNAL"))
        }
    }
}

/// Checks that the names are those of Kubernetes objects. An experiment or a policy with another name does not exist.
fn check_names(namespace: Option<&str>, name: &str) -> Result<(), Error> {
    PolicyId::new(namespace, name).map(drop).map_err(|error| {
        let is_namespace = matches!(error, PolicyIdError::Namespace(_));
        Error::invalid(if is_namespace { "metadata.namespace" } else { "metadata.name" }, error.to_string())
    })
}

fn is_dry_run(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|parameter| parameter.starts_with("dryRun=")))
}

/// Returns the result as a Kubernetes `Status`. `error` is the reason of an error (AIP-193), such as `ETAG_MISMATCH`: the command line
/// reads it from the causes of the status.
pub(super) fn respond(code: u16, message: String, error: Option<&str>) -> Response {
    let reason = match code {
        400 => Some("BadRequest"),
        401 => Some("Unauthorized"),
        403 => Some("Forbidden"),
        404 => Some("NotFound"),
        409 => Some("Conflict"),
        429 => Some("TooManyRequests"),
        500 => Some("InternalError"),
        503 => Some("ServiceUnavailable"),
        504 => Some("Timeout"),
        _ => None,
    };
    let cause = error.map(|error| StatusCause {
        reason: Some(error.to_owned()),
        message: Some(message.clone()),
        ..StatusCause::default()
    });
    let status = Status {
        details: cause.map(|cause| StatusDetails { causes: Some(vec![cause]), ..StatusDetails::default() }),
        code: Some(code.into()),
        message: Some(message),
        reason: reason.map(ToOwned::to_owned),
        status: Some(if code < 400 { "Success" } else { "Failure" }.to_owned()),
        ..Status::default()
    };
    (StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Json(status)).into_response()
}

/// Reads the posted object, without the fields that every object has.
fn read<T: DeserializeOwned>(action: Action, body: &[u8]) -> Result<T, Error> {
    let mut object: Value = serde_json::from_slice(body)
        .map_err(|error| Error::invalid("body", format!("is not JSON: {error}: post a {}", action.kind())))?;
    let Some(fields) = object.as_object_mut() else {
        return Err(Error::invalid("body", format!("is not an object: post a {}", action.kind())));
    };
    for (field, expected) in [("apiVersion", format!("{GROUP}/{VERSION}")), ("kind", action.kind().to_owned())] {
        let found = fields.remove(field);
        if found.as_ref().and_then(Value::as_str) != Some(&expected) {
            return Err(Error::invalid(field, format!("is not {expected}")));
        }
    }
    fields.remove("metadata");
    serde_json::from_value(object).map_err(|error| Error::invalid("body", error.to_string()))
}

#[allow(clippy::needless_pass_by_value, reason = "map_err passes the error by value")]
fn unavailable(error: kube::Error) -> Error {
    Error::new(Code::Unavailable, "API_SERVER", format!("the API server failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_change_a_url_are_refused() {
        assert!(check_names(None, "a.b-c").is_ok() && check_names(Some("team"), "a").is_ok());
        let long = "a".repeat(300);
        for name in ["", ".", "..", "../secrets/a", "a/../../b", "a%2fb", "a?b", "a#b", "a b", "A", "a\n", "ä", &long]
        {
            let error = check_names(None, name).unwrap_err();
            assert_eq!((error.http(), error.violations[0].field.as_str()), (400, "metadata.name"), "{name:?}");
        }
        for namespace in ["", "..", "../kube-system", "a.b", "Team", "a/b", "-a"] {
            let error = check_names(Some(namespace), "a").unwrap_err();
            assert_eq!(
                (error.http(), error.violations[0].field.as_str()),
                (400, "metadata.namespace"),
                "{namespace:?}"
            );
        }
    }
}
