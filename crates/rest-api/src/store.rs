//! The store of policies and experiments. A store handles versions and preconditions. Its callers handle resource names, update
//! masks and pages.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_core::{Failure, PolicyId};
use proviso_crds::{
    Canary, CommittedExperiment, DivergenceCounts, DivergenceSample, PolicySpec, PreviewMetadata, PreviewSettings,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::error::{Code, Error};
use crate::names::ExperimentName;
use crate::namespace_tenants::NamespaceTenants;
use crate::operation::{AwaitedEffect, OperationResult, OperationSummary, Progress, StoredOperation};

/// The authenticated caller of a request. The server around the router puts it into the extensions of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    pub user: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The metadata of a stored policy or experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Meta {
    pub uid: String,
    /// The strong etag of this version, with its quotes (AIP-154).
    pub etag: String,
    /// An opaque text that changes with every change of the resource, including its annotations. Updates compare and swap
    /// by it.
    pub revision: String,
    /// The version for which operations wait: the generation, optionally followed by `-` and a suffix of the store.
    pub version: String,
    /// The annotations, including the reserved ones ([`is_reserved`](crate::is_reserved)).
    pub annotations: BTreeMap<String, String>,
    pub create_time: Option<Time>,
    pub update_time: Option<Time>,
}

/// The state of the newest version of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// No version answers requests yet.
    Pending,
    /// An older version answers requests, and the newest is being rolled out.
    Updating,
    /// The newest version answers requests.
    Active,
    /// The newest version does not work. An older version keeps answering requests, if there is one.
    Failed,
    /// The policy is disabled.
    Disabled,
}

/// A policy in a store.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredPolicy {
    pub id: PolicyId,
    pub meta: Meta,
    pub spec: PolicySpec,
    pub state: State,
    /// The reason why the newest version is not active. `None` means that there is no problem.
    pub problem: Option<Failure>,
}

impl StoredPolicy {
    /// Returns the error of an operation that waits for the newest version, if this version has failed.
    pub(crate) fn to_error(&self) -> Error {
        match &self.problem {
            Some(problem) => Error::failed_version(problem),
            None => Error::new(Code::FailedPrecondition, "FAILED", "the newest version does not work"),
        }
    }
}

/// An experiment in a store.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredExperiment {
    pub name: ExperimentName,
    pub meta: Meta,
    pub spec: PolicySpec,
    pub auto_start: bool,
    pub preview_settings: PreviewSettings,
    /// The time from a start of the preview until it stops by itself, as in the field `spec.ttl` of the CRD, such as `336h`.
    pub ttl: String,
    /// The preview of this version. `None` before the first start (AIP-236).
    pub preview: Option<PreviewMetadata>,
    pub divergence: Option<DivergenceCounts>,
    pub samples: Vec<DivergenceSample>,
    /// The canaries of an experiment on a policy that configures components, while it is previewed.
    pub canaries: Vec<Canary>,
    /// The reason why the newest version does not work. `None` means that there is no problem.
    pub problem: Option<Failure>,
}

impl StoredExperiment {
    /// Returns the value of the annotation [`COMMITTED_EXPERIMENT`](proviso_crds::names::COMMITTED_EXPERIMENT) for this
    /// experiment, in a store whose commits have no id.
    #[must_use]
    pub fn committed(&self) -> String {
        self.record_of_commit(None)
    }

    /// Returns the value of the same annotation for the commit with this id.
    pub(crate) fn committed_by(&self, commit: &str) -> String {
        self.record_of_commit(Some(commit.to_owned()))
    }

    /// Returns the time from a start of the preview until it stops by itself. `None` means that the stored text is invalid.
    pub(crate) fn time_to_live(&self) -> Option<Duration> {
        proviso_crds::time_to_live(&self.ttl).ok()
    }

    fn record_of_commit(&self, commit: Option<String>) -> String {
        let generation = self.meta.version.split('-').next().and_then(|number| number.parse().ok()).unwrap_or_default();
        let (name, Meta { uid, etag, .. }) = (&self.name.name, &self.meta);
        let (name, uid, etag) = (name.clone(), uid.clone(), etag.clone());
        json!(CommittedExperiment { name, uid, generation, etag, commit }).to_string()
    }
}

/// The new content of a policy or an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub spec: PolicySpec,
    /// The annotations that clients may write. They replace the existing ones; stores keep reserved annotations.
    pub annotations: BTreeMap<String, String>,
    /// True if previews start without a call of `:startPreview`. Only for experiments.
    pub auto_start: bool,
    /// The settings of the preview. Only for experiments.
    pub preview_settings: PreviewSettings,
    /// The time from a start of the preview until it stops by itself, as in the field `spec.ttl` of the CRD, such as `336h`. An
    /// update that does not change the time has the stored text. Only for experiments.
    pub ttl: String,
}

impl Change {
    /// Returns the change with the stored text of `ttl` if both texts mean the same time: another text would be another version
    /// of the experiment.
    pub(crate) fn keep_ttl(self, stored: &str) -> Self {
        let time = |ttl: &str| proviso_crds::time_to_live(ttl).ok();
        if time(&self.ttl) == time(stored) { Self { ttl: stored.to_owned(), ..self } } else { self }
    }
}

/// The time for which a server lets a change of a request policy wait until it is served.
pub const SERVING_TIMEOUT: Duration = Duration::from_secs(10);

/// A change of the state of a preview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preview {
    Start,
    Stop,
}

/// The preconditions of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitPreconditions {
    /// The required etag of the experiment.
    pub etag: String,
    /// The required etag of the policy. `None` means any version.
    pub parent_etag: Option<String>,
}

type Result<T> = std::result::Result<T, Error>;

/// A store of policies and experiments.
///
/// # Errors
/// - Every method fails with [`Code::PermissionDenied`] if the caller lacks a permission.
/// - A method that takes the name of a resource fails with [`Error::not_found`] if the resource does not exist.
/// - Creating a resource fails with [`Error::already_exists`] if its name is in use.
/// - An update fails with [`Error::concurrent_change`] if `revision` is not the stored revision. The caller can read it again and retry.
/// - A method that takes an etag fails with [`Error::etag_mismatch`] if the etag is not the stored one.
/// - Creating or updating a request policy fails with [`Code::AlreadyExists`] if another one has its display name or priority: of two
///   writes at the same time, at most one succeeds.
pub trait PolicyStore: Send + Sync + 'static {
    /// Returns the policies of `namespace`; `None` means of all namespaces and of the cluster scope.
    fn policies(
        &self,
        caller: Option<&Caller>,
        namespace: Option<&str>,
    ) -> impl Future<Output = Result<Vec<StoredPolicy>>> + Send;

    /// Returns the policies of the cluster scope.
    fn cluster_policies(&self, caller: Option<&Caller>) -> impl Future<Output = Result<Vec<StoredPolicy>>> + Send {
        async move {
            let mut policies = self.policies(caller, None).await?;
            policies.retain(|policy| policy.id.namespace().is_none());
            Ok(policies)
        }
    }

    /// Returns the id of the policy with this uid; `None` if there is none. The permissions of callers are not checked.
    fn policy_with_uid(&self, uid: &str) -> impl Future<Output = Result<Option<PolicyId>>> + Send;

    /// Returns the tenants of the namespaces. The permissions of callers are not checked.
    fn tenants(&self) -> impl Future<Output = Result<NamespaceTenants>> + Send;

    /// Returns the time for which a change of a request policy waits until it is served, before it is answered.
    fn serving_timeout(&self) -> Duration;

    /// Returns the policy `id`.
    fn policy(&self, caller: Option<&Caller>, id: &PolicyId) -> impl Future<Output = Result<StoredPolicy>> + Send;

    /// Creates the policy `id`, and returns it.
    fn create_policy(
        &self,
        caller: Option<&Caller>,
        id: &PolicyId,
        content: Change,
    ) -> impl Future<Output = Result<StoredPolicy>> + Send;

    /// Replaces the content of the policy if `revision` is its stored revision, and returns the policy.
    fn update_policy(
        &self,
        caller: Option<&Caller>,
        id: &PolicyId,
        revision: &str,
        content: Change,
    ) -> impl Future<Output = Result<StoredPolicy>> + Send;

    /// Deletes the policy and its experiments, and returns the deleted policy.
    fn delete_policy(
        &self,
        caller: Option<&Caller>,
        id: &PolicyId,
        etag: Option<&str>,
    ) -> impl Future<Output = Result<StoredPolicy>> + Send;

    /// Returns the experiments of `policy`; `None` means of all policies.
    fn experiments(
        &self,
        caller: Option<&Caller>,
        policy: Option<&PolicyId>,
    ) -> impl Future<Output = Result<Vec<StoredExperiment>>> + Send;

    /// Returns the experiments of all policies in `namespace`.
    fn experiments_in(
        &self,
        caller: Option<&Caller>,
        namespace: &str,
    ) -> impl Future<Output = Result<Vec<StoredExperiment>>> + Send {
        async move {
            let mut experiments = self.experiments(caller, None).await?;
            experiments.retain(|experiment| experiment.name.policy.namespace() == Some(namespace));
            Ok(experiments)
        }
    }

    /// Returns the experiment `name`.
    fn experiment(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
    ) -> impl Future<Output = Result<StoredExperiment>> + Send;

    /// Creates the experiment `name`, and returns it.
    fn create_experiment(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        content: Change,
    ) -> impl Future<Output = Result<StoredExperiment>> + Send;

    /// Replaces the content of the experiment if `revision` is its stored revision, and returns the experiment.
    fn update_experiment(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        revision: &str,
        content: Change,
    ) -> impl Future<Output = Result<StoredExperiment>> + Send;

    /// Deletes the experiment, and returns the deleted experiment.
    fn delete_experiment(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        etag: Option<&str>,
    ) -> impl Future<Output = Result<StoredExperiment>> + Send;

    /// Starts or stops the preview of the experiment, and returns the experiment. Before the change, the store records the
    /// results of the experiment's pending operations that are decided already: afterwards, the state does not show them any
    /// more.
    fn preview(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        change: Preview,
    ) -> impl Future<Output = Result<StoredExperiment>> + Send;

    /// Copies the spec of the experiment to its policy and deletes the experiment, and returns the policy. A commit that
    /// fails changes nothing: an experiment that is not prepared, or does not work, is refused.
    fn commit(
        &self,
        caller: Option<&Caller>,
        name: &ExperimentName,
        committing: &CommitPreconditions,
    ) -> impl Future<Output = Result<StoredPolicy>> + Send;

    /// Returns the progress of an operation, computed from the stored state.
    fn progress(
        &self,
        caller: Option<&Caller>,
        awaited: &AwaitedEffect,
    ) -> impl Future<Output = Result<Progress>> + Send;

    /// Stores a new operation. Operations are kept for [`OPERATION_LIFETIME`](crate::OPERATION_LIFETIME), at most
    /// [`MAX_OPERATIONS`](crate::MAX_OPERATIONS): the oldest finished ones go first.
    fn create_operation(&self, operation: StoredOperation) -> impl Future<Output = Result<()>> + Send;

    /// Returns the operation. An id that was never issued, or whose operation is not kept any more, fails with
    /// [`Error::not_found`]. The caller needs the permission to read the target.
    fn operation(&self, caller: Option<&Caller>, id: &str) -> impl Future<Output = Result<StoredOperation>> + Send;

    /// Returns summaries of the operations that the caller may list, in any order.
    fn operations(&self, caller: Option<&Caller>) -> impl Future<Output = Result<Vec<OperationSummary>>> + Send;

    /// Records the result of the operation, and returns the operation. If the operation has a result already, that result
    /// stays.
    fn finish_operation(
        &self,
        id: &str,
        result: OperationResult,
    ) -> impl Future<Output = Result<StoredOperation>> + Send;
}
