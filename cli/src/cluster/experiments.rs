//! Changes of experiments. The Kubernetes API creates and deletes them; the aggregated API starts, stops and commits them.

use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::core::Status;
use proviso_core::PolicyId;
use proviso_crds::names::field_managers;
use serde_json::Value;

use super::Cluster;
use super::action::Action;
use crate::error::Error;
use crate::experiment::error::ExperimentError;
use crate::kinds::Pair as _;
use crate::objects::ExperimentObject;

impl Cluster {
    /// Creates the experiment of this manifest, and returns it with all defaults. With `is_dry` the API server checks the
    /// manifest, and creates nothing.
    ///
    /// # Errors
    /// When the API server refuses the experiment.
    pub async fn create(&self, id: &PolicyId, manifest: Value, is_dry: bool) -> Result<ExperimentObject, Error> {
        let object = serde_json::from_value(manifest)?;
        let parameters = PostParams { dry_run: is_dry, field_manager: Some(field_managers::CLI.to_owned()) };
        let created = self.api_of::<ExperimentObject>(id).create(&parameters, &object).await;
        let created = created.map_err(|error| self.error(error, ExperimentObject::access("create", id)))?;
        ExperimentObject::read(&created).map_err(|error| Error::Malformed { what: id.to_string(), error })
    }

    /// Deletes an experiment, but not a later experiment with the same name.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn delete(&self, experiment: &ExperimentObject) -> Result<(), Error> {
        let id = &experiment.id;
        let only_this = Preconditions { uid: Some(experiment.uid.clone()), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(only_this), ..DeleteParams::default() };
        let deleted = self.api_of::<ExperimentObject>(id).delete(id.name(), &parameters).await;
        deleted.map(drop).map_err(|error| self.error(error, ExperimentObject::access("delete", id)))
    }

    /// Starts, stops or commits an experiment.
    ///
    /// # Errors
    /// When the cluster does not serve the aggregated API, or the API refuses the action.
    pub async fn act(&self, experiment: &ExperimentObject, action: &Action) -> Result<(), Error> {
        let id = &experiment.id;
        let request = http::Request::post(action.path(id)).header("content-type", "application/json");
        let request = request.body(serde_json::to_vec(&action.body())?);
        let request = request.map_err(|error| Error::Usage(format!("{id}: {error}")))?;
        let error = match self.client_without_retries.request::<Status>(request).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) => status,
            Err(error) => return Err(self.error(error, action.access(id))),
        };
        let (experiment, cause) = (id.clone(), error.message.clone());
        let details = error.details.iter().flat_map(|details| &details.causes);
        // The API has the reason of its error as a cause.
        let reason = details.map(|cause| cause.reason.as_str()).find(|reason| !reason.is_empty());
        match error.code {
            401 | 403 => Err(self.error(kube::Error::Api(error), action.access(id))),
            // The 404 of a missing experiment has a reason; the 404 of an API that is not served has none.
            404 if !error.is_not_found() => {
                Err(ExperimentError::NoActions { experiment, action: action.name(), cause: None }.into())
            }
            // The API server answers so while the operator does not. An error of the operator itself has a reason.
            503 if reason.is_none() => {
                Err(ExperimentError::NoActions { experiment, action: action.name(), cause: Some(cause) }.into())
            }
            code => Err(ExperimentError::answered(experiment, action.name(), code, reason, cause).into()),
        }
    }
}
