//! Checks only for experiments: their maximum number, and no change during a commit.

use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, Operation};
use kube::{Client, ResourceExt};
use proviso_core::PolicyId;
use proviso_core::experiment::MAX_EXPERIMENTS;
use proviso_crds::{ClusterPolicyExperiment, ExperimentSpec, PolicyExperiment};

use super::{API_SERVER_TIMEOUT, Admission, check, read, run_check};
use crate::cascade;
use crate::kinds::{ExperimentObject, Kind as _};
use crate::webhook;

impl Admission {
    /// Returns the reason to deny an experiment; `None` if it is admitted. `namespace` is that of a
    /// `PolicyExperiment`.
    pub(super) async fn experiment_refusal(
        &self,
        request: &AdmissionRequest<DynamicObject>,
        namespace: Option<String>,
    ) -> Option<String> {
        let object = request.object.as_ref()?;
        // Only the API of Proviso writes the status, so this refusal cannot be caused by an annotation.
        if request.old_object.as_ref().is_some_and(|old| !old.data["status"]["commit"].is_null()) {
            return Some(
                "the experiment is being committed and cannot be changed now: try again in a moment".to_owned(),
            );
        }
        let spec: ExperimentSpec = match read(&object.data["spec"]) {
            Ok(spec) => spec,
            Err(error) => return Some(error),
        };
        let name = object.metadata.name.clone().unwrap_or_default();
        let (checked, scope, id) = (spec.clone(), namespace.clone(), name.clone());
        let checking = run_check("spec.policy", move || check::experiment(scope.as_deref(), &id, &checked));
        let counting = async {
            let is_new = request.operation == Operation::Create;
            if is_new { self.limit_refusal(namespace.as_deref(), &spec).await } else { None }
        };
        // Both at once, because the API server waits for 10 s only.
        match tokio::join!(checking, counting) {
            (Err(error), _) | (Ok(()), Some(error)) => return Some(error),
            (Ok(()), None) => {}
        }
        let scope = namespace.as_deref();
        let ids = (PolicyId::new(scope, &spec.policy_ref.name).ok()?, PolicyId::new(scope, &name).ok()?);
        self.commit_refusal(&ids, &spec).await
    }

    /// Returns the reason why the policy can have no more experiments. If two are created at the same time, the
    /// controller accepts one of them.
    async fn limit_refusal(&self, namespace: Option<&str>, spec: &ExperimentSpec) -> Option<String> {
        let policy = &spec.policy_ref.name;
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

    /// Returns the reason why the API server would reject the webhook of the policy after a commit. The webhook of the
    /// preview has the same rules and selectors, but not all conditions.
    async fn commit_refusal(
        &self,
        (policy, experiment): &(PolicyId, PolicyId),
        spec: &ExperimentSpec,
    ) -> Option<String> {
        let admission = spec.policy.admission.as_ref()?;
        // Any generation: only the rules, selectors and conditions matter.
        let desired = webhook::build(policy, "", 1, (&spec.policy.policy_server, admission), (&self.namespace, ""));
        self.webhook_refusal(experiment, "spec.policy", &desired).await
    }

    /// Returns a warning if the experiment is admitted but cannot be previewed yet: its policy may be created later.
    pub(super) async fn experiment_warning(&self, request: &AdmissionRequest<DynamicObject>) -> Option<String> {
        let policy = request.object.as_ref()?.data["spec"]["policyRef"]["name"].as_str()?.to_owned();
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

async fn policy_exists<K: ExperimentObject>(client: &Client, namespace: &str, policy: &str) -> kube::Result<bool> {
    Ok(K::Policy::all(client, namespace).get_metadata_opt(policy).await?.is_some())
}
