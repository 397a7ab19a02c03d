//! What is special about experiments: how many there may be, and that nobody changes one that is being committed.

use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, Operation};
use kube::{Client, ResourceExt};
use proviso_core::PolicyId;
use proviso_core::experiment::MAX_EXPERIMENTS;
use proviso_crds::names::COMMIT_INTENT;
use proviso_crds::{ClusterPolicyExperiment, ExperimentSpec, PolicyExperiment};

use super::{Admission, TRIAL, check, compiled, read};
use crate::cascade;
use crate::kinds::{ExperimentObject, Kind as _};
use crate::webhook::{self, Asked};

impl Admission {
    /// Why an experiment is refused; none if it is not. `namespace` is that of a `PolicyExperiment`.
    pub(super) async fn experiment_refusal(
        &self,
        request: &AdmissionRequest<DynamicObject>,
        namespace: Option<String>,
    ) -> Option<String> {
        let object = request.object.as_ref()?;
        let old = request.old_object.as_ref();
        if old.is_some_and(|old| old.annotations().contains_key(COMMIT_INTENT)) {
            return Some("it is being committed, and cannot be changed meanwhile: try again in a moment".to_owned());
        }
        let spec: ExperimentSpec = match read(&object.data["spec"]) {
            Ok(spec) => spec,
            Err(error) => return Some(error),
        };
        let name = object.metadata.name.clone().unwrap_or_default();
        let (checked, scope, id) = (spec.clone(), namespace.clone(), name.clone());
        let checking = compiled("spec.policy", move || check::experiment(scope.as_deref(), &id, &checked));
        let counting = async {
            let is_new = request.operation == Operation::Create;
            if is_new { self.too_many(namespace.as_deref(), &spec).await } else { None }
        };
        // The API server waits for ten seconds.
        match tokio::join!(checking, counting) {
            (Err(error), _) | (Ok(()), Some(error)) => return Some(error),
            (Ok(()), None) => {}
        }
        let scope = namespace.as_deref();
        let ids = (PolicyId::new(scope, &spec.policy_ref.name).ok()?, PolicyId::new(scope, &name).ok()?);
        self.preview_refusal(&ids, &spec).await
    }

    /// Why there can be no more experiments of this policy. Of two that are made at the same time the controller takes one.
    async fn too_many(&self, namespace: Option<&str>, spec: &ExperimentSpec) -> Option<String> {
        let policy = &spec.policy_ref.name;
        let counting = async {
            match namespace {
                Some(namespace) => names::<PolicyExperiment>(&self.client, namespace, policy).await,
                None => names::<ClusterPolicyExperiment>(&self.client, "", policy).await,
            }
        };
        let mut names = tokio::time::timeout(TRIAL, counting).await.ok()?.ok()?;
        names.sort_unstable();
        (names.len() >= MAX_EXPERIMENTS).then(|| {
            format!(
                "spec.policyRef.name: {policy} has {MAX_EXPERIMENTS} experiments already, which is the most: delete one \
                 of {}",
                names.join(", ")
            )
        })
    }

    /// Why the API server would not take the webhook of its preview, which is that of the policy that it would become.
    async fn preview_refusal(
        &self,
        (policy, experiment): &(PolicyId, PolicyId),
        spec: &ExperimentSpec,
    ) -> Option<String> {
        let admission = spec.policy.admission.as_ref()?;
        let server = &spec.policy.policy_server;
        // Of no generation that there is: only what it covers matters.
        let asked = Asked { policy, experiment, uid: "", generation: 1, server };
        let wanted = webhook::build_preview(&asked, admission, (&self.namespace, ""));
        self.webhook_refusal(experiment, "spec.policy", &wanted).await
    }

    /// What is taken, and will not be previewed as it is: the policy may come later.
    pub(super) async fn experiment_warning(&self, request: &AdmissionRequest<DynamicObject>) -> Option<String> {
        let policy = request.object.as_ref()?.data["spec"]["policyRef"]["name"].as_str()?.to_owned();
        let looking = async {
            Ok::<_, kube::Error>(match &request.namespace {
                Some(namespace) => exists::<PolicyExperiment>(&self.client, namespace, &policy).await?,
                None => exists::<ClusterPolicyExperiment>(&self.client, "", &policy).await?,
            })
        };
        match tokio::time::timeout(TRIAL, looking).await {
            Ok(Ok(false)) => {
                Some(format!("spec.policyRef.name: there is no policy {policy}: the experiment waits for one"))
            }
            _ => None,
        }
    }
}

/// The experiments of a policy that are there to stay.
async fn names<K: ExperimentObject>(client: &Client, namespace: &str, policy: &str) -> kube::Result<Vec<String>> {
    let all = cascade::list::<K>(client, namespace, policy).await?;
    Ok(all.iter().filter(|it| it.meta().deletion_timestamp.is_none()).map(ResourceExt::name_any).collect())
}

async fn exists<K: ExperimentObject>(client: &Client, namespace: &str, policy: &str) -> kube::Result<bool> {
    Ok(K::Policy::all(client, namespace).get_metadata_opt(policy).await?.is_some())
}
