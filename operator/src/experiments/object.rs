//! What the two kinds of experiments have in common.

use kube::{Api, Client, Resource, ResourceExt as _};
use proviso_core::PolicyId;
use proviso_core::policy_id::PolicyIdError;
use proviso_crds::{
    ClusterPolicy, ClusterPolicyExperiment, ExperimentSpec, ExperimentStatus, Policy, PolicyExperiment,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cache::{Cache, Caches, Keyed};
use crate::guarded::Guarded;
use crate::policies::object::PolicyObject;

pub(crate) trait ExperimentObject: Keyed<Sent = Self> + DeserializeOwned + Serialize {
    /// What they are experiments of.
    type Policy: PolicyObject;

    fn spec(&self) -> &ExperimentSpec;

    fn status(&self) -> Option<&ExperimentStatus>;

    /// For the objects in this namespace, if the kind has any.
    fn all(client: &Client, namespace: &str) -> Api<Guarded<Self>>;

    fn cache(caches: &Caches) -> &Cache<Guarded<Self>>;
}

/// The id of the policy with this name in the scope of an object.
pub(super) fn policy_id<O: Resource>(object: &O, policy: &str) -> Result<PolicyId, PolicyIdError> {
    PolicyId::new(object.namespace().as_deref(), policy)
}

/// For the experiments around this object.
pub(super) fn api<K: ExperimentObject>(client: &Client, object: &impl Resource) -> Api<Guarded<K>> {
    K::all(client, &object.namespace().unwrap_or_default())
}

impl ExperimentObject for PolicyExperiment {
    type Policy = Policy;

    fn spec(&self) -> &ExperimentSpec {
        &self.spec
    }

    fn status(&self) -> Option<&ExperimentStatus> {
        self.status.as_ref()
    }

    fn all(client: &Client, namespace: &str) -> Api<Guarded<Self>> {
        Api::namespaced(client.clone(), namespace)
    }

    fn cache(caches: &Caches) -> &Cache<Guarded<Self>> {
        &caches.experiments
    }
}

impl ExperimentObject for ClusterPolicyExperiment {
    type Policy = ClusterPolicy;

    fn spec(&self) -> &ExperimentSpec {
        &self.spec.0
    }

    fn status(&self) -> Option<&ExperimentStatus> {
        self.status.as_ref()
    }

    fn all(client: &Client, _: &str) -> Api<Guarded<Self>> {
        Api::all(client.clone())
    }

    fn cache(caches: &Caches) -> &Cache<Guarded<Self>> {
        &caches.cluster_experiments
    }
}
