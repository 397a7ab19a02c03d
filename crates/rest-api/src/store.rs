//! What holds policies and experiments. A store knows versions and preconditions; names, masks and pages are for
//! others.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_core::{Failure, PolicyId};
use proviso_crds::{DivergenceCounts, DivergenceSample, PolicySpec, PreviewMetadata};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::error::{Code, Error};
use crate::names::ExperimentName;
use crate::operation::{Awaited, Progress};

/// Who calls, as far as it is known: whoever serves the router puts it into the request's extensions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    pub user: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What every stored thing has.
#[derive(Clone, Debug, PartialEq)]
pub struct Meta {
    pub uid: String,
    /// Of this version, strong, with its quotes (AIP-154).
    pub etag: String,
    /// Anything that changes with every change, also of annotations: what a change is compared and swapped by.
    pub revision: String,
    /// What an operation that waits for this version is told by: the generation, and what else tells it, after a `-`.
    pub version: String,
    pub annotations: BTreeMap<String, String>,
    pub create_time: Option<Time>,
    pub update_time: Option<Time>,
}

/// Where the newest version of a policy stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// No version answers yet.
    Pending,
    /// A version answers, and a newer one is on its way.
    Updating,
    /// The newest version answers.
    Active,
    /// The newest version does not work; the one before it, if there is one, goes on.
    Failed,
    /// The policy is disabled.
    Disabled,
}

#[derive(Clone, Debug, PartialEq)]
pub struct StoredPolicy {
    pub id: PolicyId,
    pub meta: Meta,
    pub spec: PolicySpec,
    pub state: State,
    /// Why, where it is not as it should be.
    pub problem: Option<Failure>,
}

impl StoredPolicy {
    /// The error of an operation that waits for the newest version of this policy, which has failed.
    pub(crate) fn to_error(&self) -> Error {
        match &self.problem {
            Some(problem) => Error::does_not_work(problem),
            None => Error::new(Code::FailedPrecondition, "FAILED", "the newest version does not work"),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct StoredExperiment {
    pub name: ExperimentName,
    pub meta: Meta,
    pub spec: PolicySpec,
    pub auto_start: bool,
    /// None before previewing was started for the first time (AIP-236). Its state is that of this version.
    pub preview: Option<PreviewMetadata>,
    pub divergence: Option<DivergenceCounts>,
    pub samples: Vec<DivergenceSample>,
    /// Why the newest version does not work.
    pub problem: Option<Failure>,
}

impl StoredExperiment {
    /// What [`COMMITTED_EXPERIMENT`](proviso_crds::names::COMMITTED_EXPERIMENT) says of it.
    #[must_use]
    pub fn committed(&self) -> String {
        let generation = self.meta.version.split('-').next().and_then(|number| number.parse::<i64>().ok());
        let (name, Meta { uid, etag, .. }) = (&self.name.name, &self.meta);
        json!({"name": name, "uid": uid, "generation": generation, "etag": etag}).to_string()
    }
}

/// What a policy or an experiment is to become.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub spec: PolicySpec,
    pub annotations: BTreeMap<String, String>,
    /// Of experiments.
    pub auto_start: bool,
}

/// What to do about a preview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preview {
    Start,
    Stop,
}

/// Which versions a commit is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committing {
    /// Of the experiment.
    pub etag: String,
    /// Of the policy; none: whatever it is.
    pub parent_etag: Option<String>,
}

type Result<T> = std::result::Result<T, Error>;

/// Holds policies and experiments. Every method is told who calls, and refuses what they may not do.
///
/// A change whose `revision` is not the stored one is [`Error::busy`]: whoever asked reads again. Where an etag is given,
/// it must be the stored one, else [`Error::stale`].
pub trait PolicyStore: Send + Sync + 'static {
    fn policies(&self, caller: Option<&Caller>) -> impl Future<Output = Result<Vec<StoredPolicy>>> + Send;

    fn policy(&self, caller: Option<&Caller>, id: &PolicyId) -> impl Future<Output = Result<StoredPolicy>> + Send;

    fn create_policy(
        &self,
        caller: Option<&Caller>,
        id: &PolicyId,
        content: Change,
    ) -> impl Future<Output = Result<StoredPolicy>> + Send;

    fn update_policy(
        &self,
        caller: Option<&Caller>,
        id: &PolicyId,
        revision: &str,
        content: Change,
    ) -> impl Future<Output = Result<StoredPolicy>> + Send;

    /// Deletes the policy and its experiments; what it was.
    fn delete_policy(
        &self,
        caller: Option<&Caller>,
        id: &PolicyId,
        etag: Option<&str>,
    ) -> impl Future<Output = Result<StoredPolicy>> + Send;

    /// The experiments of one policy, or all of them.
    fn experiments(
        &self,
        caller: Option<&Caller>,
        policy: Option<&PolicyId>,
    ) -> impl Future<Output = Result<Vec<StoredExperiment>>> + Send;

    fn experiment(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
    ) -> impl Future<Output = Result<StoredExperiment>> + Send;

    fn create_experiment(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        content: Change,
    ) -> impl Future<Output = Result<StoredExperiment>> + Send;

    fn update_experiment(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        revision: &str,
        content: Change,
    ) -> impl Future<Output = Result<StoredExperiment>> + Send;

    /// What it was.
    fn delete_experiment(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        etag: Option<&str>,
    ) -> impl Future<Output = Result<StoredExperiment>> + Send;

    fn preview(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        change: Preview,
    ) -> impl Future<Output = Result<StoredExperiment>> + Send;

    /// Copies the experiment into its policy and deletes it, or changes nothing; the policy that it became.
    fn commit(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        committing: &Committing,
    ) -> impl Future<Output = Result<StoredPolicy>> + Send;

    /// Where an effect stands, by what can be seen now.
    fn progress(&self, caller: Option<&Caller>, awaited: &Awaited) -> impl Future<Output = Result<Progress>> + Send;
}
