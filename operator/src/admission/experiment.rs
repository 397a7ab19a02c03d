//! Checks only for experiments: their maximum number, the enforcement point of their policy, and no change during a commit.

use kube::core::admission::Operation;
use kube::{Client, ResourceExt};
use proviso_core::PolicyId;
use proviso_core::experiment::MAX_EXPERIMENTS;
use proviso_crds::{ClusterPolicyExperiment, EnforcementPoint, PolicyExperiment, PolicyRef};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::program_check::Subject;
use super::review::{Object, Refusal, ReviewedRequest, read};
use super::tenants::ServerTenants;
use super::{API_SERVER_TIMEOUT, Admission};
use crate::cascade;
use crate::kinds::{ExperimentObject, Kind as _, PolicyObject as _};

/// The parts of the spec of an experiment that the operator reads itself.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExperimentParts<'a> {
    policy_ref: PolicyRef,
    #[serde(borrow)]
    policy: &'a RawValue,
}

/// The sections of a spec that name its enforcement point.
#[derive(Deserialize)]
struct Sections {
    admission: Option<IgnoredAny>,
    request: Option<IgnoredAny>,
    configuration: Option<IgnoredAny>,
}

impl Sections {
    /// Returns the enforcement point; `None` if the spec has several of the sections or none.
    fn point(&self) -> Option<EnforcementPoint> {
        EnforcementPoint::of_sections(self.admission.is_some(), self.request.is_some(), self.configuration.is_some())
    }
}

/// The part of the status of an experiment that the operator reads.
#[derive(Default, Deserialize)]
struct ExperimentStatus<'a> {
    #[serde(borrow)]
    commit: Option<&'a RawValue>,
}

impl Admission {
    /// Returns the reason to deny an experiment as an error. `namespace` is that of a `PolicyExperiment`.
    pub(super) async fn experiment_refusal(
        &self,
        request: &ReviewedRequest<'_>,
        object: &Object<'_>,
        namespace: Option<&str>,
    ) -> Result<(), Refusal> {
        // Only the API of Proviso writes the status, so this refusal cannot be caused by an annotation.
        let old_status = request.old_object()?.and_then(|old| old.status);
        let old_status: ExperimentStatus<'_> = old_status.map_or(Ok(ExperimentStatus::default()), read)?;
        if old_status.commit.is_some() {
            return Err(Refusal::from(
                "the experiment is being committed and cannot be changed now: try again in a moment".to_owned(),
            ));
        }
        let parts: ExperimentParts<'_> = read(object.spec())?;
        let tenants = self.server_tenants(namespace, "spec.policy", parts.policy).await?;
        let name = object.metadata.name.as_str();
        let checking = self.checks.run(Subject::Experiment, namespace, name, (tenants.as_ref(), object.spec()));
        let comparing = self.point_refusal(namespace, &parts);
        let counting = async {
            let is_new = request.operation == Operation::Create;
            if is_new { self.limit_refusal(namespace, &parts.policy_ref.name).await } else { None }
        };
        // All at once, because the API server waits for 10 s only.
        let (checked, limit, mismatch) = tokio::join!(checking, counting, comparing);
        checked?;
        if let Some(reason) = limit.or(mismatch) {
            return Err(reason.into());
        }
        let id = |name: &str| PolicyId::new(namespace, name).map_err(|error| error.to_string());
        // The webhook of the policy after a commit. The webhook of the preview has the same rules and selectors, but not all
        // conditions.
        let ids = (&id(&parts.policy_ref.name)?, &id(name)?);
        self.webhook_refusal(ids, "spec.policy", parts.policy, ServerTenants::system(tenants.as_ref())).await
    }

    /// Returns the reason why an experiment with another enforcement point cannot belong to its policy. If the policy cannot be read now,
    /// or changes its enforcement point later, the controller does not accept the experiment.
    async fn point_refusal(&self, namespace: Option<&str>, parts: &ExperimentParts<'_>) -> Option<String> {
        let policy = parts.policy_ref.name.as_str();
        let reading = async {
            match namespace {
                Some(namespace) => point_of::<PolicyExperiment>(&self.client, namespace, policy).await,
                None => point_of::<ClusterPolicyExperiment>(&self.client, "", policy).await,
            }
        };
        let live = tokio::time::timeout(API_SERVER_TIMEOUT, reading).await.ok()?.ok()??;
        let id = PolicyId::new(namespace, policy).ok()?;
        let mismatch = read::<Sections>(parts.policy).ok()?.point()?.check_experiment_of(&id, live).err()?;
        Some(format!("spec.policy: {mismatch}"))
    }

    /// Returns the reason why the policy can have no more experiments. If two are created at the same time, the
    /// controller accepts one of them.
    async fn limit_refusal(&self, namespace: Option<&str>, policy: &str) -> Option<String> {
        let counting = async {
            match namespace {
                Some(namespace) => experiment_names::<PolicyExperiment>(&self.client, namespace, policy).await,
                None => experiment_names::<ClusterPolicyExperiment>(&self.client, "", policy).await,
            }
        };
        let mut names = tokio::time::timeout(API_SERVER_TIMEOUT, counting).await.ok()?.ok()?;
        names.sort_unstable();
        (names.len() >= MAX_EXPERIMENTS).then(|| {
            format!(
                "spec.policyRef.name: {policy} has {MAX_EXPERIMENTS} experiments already, which is the most: delete one \
                 of {}",
                names.join(", ")
            )
        })
    }

    /// Returns a warning if the experiment is admitted but cannot be previewed yet: its policy may be created later.
    pub(super) async fn experiment_warning(&self, request: &ReviewedRequest<'_>) -> Option<String> {
        let object = request.object().ok()??;
        let policy = read::<ExperimentParts<'_>>(object.spec()).ok()?.policy_ref.name;
        let looking = async {
            Ok::<_, kube::Error>(match &request.namespace {
                Some(namespace) => policy_exists::<PolicyExperiment>(&self.client, namespace, &policy).await?,
                None => policy_exists::<ClusterPolicyExperiment>(&self.client, "", &policy).await?,
            })
        };
        match tokio::time::timeout(API_SERVER_TIMEOUT, looking).await {
            Ok(Ok(false)) => {
                Some(format!("spec.policyRef.name: there is no policy {policy}: the experiment waits for one"))
            }
            _ => None,
        }
    }
}

/// Returns the names of the experiments of a policy, without those that are being deleted.
async fn experiment_names<K: ExperimentObject>(
    client: &Client,
    namespace: &str,
    policy: &str,
) -> kube::Result<Vec<String>> {
    let all = cascade::list::<K>(client, namespace, policy).await?;
    Ok(all.iter().filter(|it| it.meta().deletion_timestamp.is_none()).map(ResourceExt::name_any).collect())
}

/// Returns the enforcement point of a policy; `None` if the policy does not exist, or has none.
async fn point_of<K: ExperimentObject>(
    client: &Client,
    namespace: &str,
    policy: &str,
) -> kube::Result<Option<EnforcementPoint>> {
    let found = K::Policy::all(client, namespace).get_opt(policy).await?;
    Ok(found.and_then(|policy| policy.0.ok()?.spec().enforcement_point()))
}

async fn policy_exists<K: ExperimentObject>(client: &Client, namespace: &str, policy: &str) -> kube::Result<bool> {
    Ok(K::Policy::all(client, namespace).get_metadata_opt(policy).await?.is_some())
}
