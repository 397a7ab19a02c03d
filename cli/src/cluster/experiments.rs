//! What is done to experiments: they are created and deleted as any object, and started, stopped and committed by the
//! aggregated API.

use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::core::Status;
use proviso_core::PolicyId;
use proviso_crds::names::field_managers;
use serde_json::{Value, json};

use super::{Cluster, Pair as _};
use crate::error::{Access, Error};
use crate::experiment::ExperimentError;
use crate::objects::ExperimentObject;

/// The API in which starting, stopping and committing are.
const GROUP: &str = "actions.proviso.dev";
const VERSION: &str = "v1alpha1";

/// What AIP-236 calls custom methods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Start,
    Stop,
    /// Of this version of the experiment, over this version of the policy.
    Commit {
        etag: String,
        parent_etag: String,
    },
}

impl Action {
    /// As the path has it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Commit { .. } => "commit",
        }
    }

    fn body(&self) -> Value {
        let version = format!("{GROUP}/{VERSION}");
        match self {
            Self::Start => json!({"apiVersion": version, "kind": "PreviewStart"}),
            Self::Stop => json!({"apiVersion": version, "kind": "PreviewStop"}),
            Self::Commit { etag, parent_etag } => {
                json!({"apiVersion": version, "kind": "ExperimentCommit", "etag": etag, "parentEtag": parent_etag})
            }
        }
    }

    fn path(&self, experiment: &PolicyId) -> String {
        let object = match experiment.namespace() {
            Some(namespace) => format!("namespaces/{namespace}/policyexperiments"),
            None => "clusterpolicyexperiments".to_owned(),
        };
        format!("/apis/{GROUP}/{VERSION}/{object}/{}/{}", experiment.name(), self.name())
    }

    fn access(&self, experiment: &PolicyId) -> Access {
        let resource = match experiment.namespace() {
            Some(_) => "policyexperiments.actions.proviso.dev",
            None => "clusterpolicyexperiments.actions.proviso.dev",
        };
        let namespace = experiment.namespace().map(str::to_owned);
        Access { verb: "create", resource, subresource: Some(self.name()), namespace }
    }
}

impl Cluster {
    /// Creates the experiment of this manifest, and returns it as the API server makes it, with all defaults; `is_dry`:
    /// asks whether that could be done, and changes nothing.
    ///
    /// # Errors
    /// When the API server does not take it.
    pub async fn create(&self, id: &PolicyId, manifest: Value, is_dry: bool) -> Result<ExperimentObject, Error> {
        let object = serde_json::from_value(manifest)?;
        let how = PostParams { dry_run: is_dry, field_manager: Some(field_managers::CLI.to_owned()) };
        let created = self.api_of::<ExperimentObject>(id).create(&how, &object).await;
        let created = created.map_err(|error| self.error(error, ExperimentObject::access("create", id)))?;
        ExperimentObject::read(&created).map_err(|error| Error::Malformed { what: id.to_string(), error })
    }

    /// Deletes an experiment, and no other of its name.
    ///
    /// # Errors
    /// When the API server does not do it.
    pub async fn delete(&self, experiment: &ExperimentObject) -> Result<(), Error> {
        let id = &experiment.id;
        let only_this = Preconditions { uid: Some(experiment.uid.clone()), resource_version: None };
        let how = DeleteParams { preconditions: Some(only_this), ..DeleteParams::default() };
        let deleted = self.api_of::<ExperimentObject>(id).delete(id.name(), &how).await;
        deleted.map(drop).map_err(|error| self.error(error, ExperimentObject::access("delete", id)))
    }

    /// Starts, stops or commits an experiment.
    ///
    /// # Errors
    /// When the API for that is not there, or refuses.
    pub async fn act(&self, experiment: &ExperimentObject, action: &Action) -> Result<(), Error> {
        let id = &experiment.id;
        let request = http::Request::post(action.path(id)).header("content-type", "application/json");
        let request = request.body(serde_json::to_vec(&action.body())?);
        let request = request.map_err(|error| Error::Usage(format!("{id}: {error}")))?;
        let error = match self.once.request::<Status>(request).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) => status,
            Err(error) => return Err(self.error(error, action.access(id))),
        };
        let (experiment, cause) = (id.clone(), error.message.clone());
        match error.code {
            401 | 403 => Err(self.error(kube::Error::Api(error), action.access(id))),
            // An experiment that is not there has a reason; an API that is not there has none.
            404 if !error.is_not_found() => {
                Err(ExperimentError::NoActions { experiment, action: action.name(), cause: None }.into())
            }
            503 => Err(ExperimentError::NoActions { experiment, action: action.name(), cause: Some(cause) }.into()),
            409 | 412 => Err(ExperimentError::Changed { experiment, action: action.name(), cause }.into()),
            _ => Err(ExperimentError::Refused { experiment, action: action.name(), cause }.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_action_is_a_subresource() {
        let commit = Action::Commit { etag: "\"1\"".to_owned(), parent_etag: "\"2\"".to_owned() };
        for (action, id, path, body) in [
            (
                Action::Start,
                PolicyId::namespaced("team", "a.b").unwrap(),
                "/apis/actions.proviso.dev/v1alpha1/namespaces/team/policyexperiments/a.b/start",
                json!({"apiVersion": "actions.proviso.dev/v1alpha1", "kind": "PreviewStart"}),
            ),
            (
                commit,
                PolicyId::cluster("x").unwrap(),
                "/apis/actions.proviso.dev/v1alpha1/clusterpolicyexperiments/x/commit",
                json!({
                    "apiVersion": "actions.proviso.dev/v1alpha1", "kind": "ExperimentCommit", "etag": "\"1\"",
                    "parentEtag": "\"2\"",
                }),
            ),
        ] {
            assert_eq!((action.path(&id).as_str(), action.body()), (path, body));
        }
    }
}
