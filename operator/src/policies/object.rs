//! What the two kinds of policies have in common.

use kube::{Api, Client, Resource, ResourceExt as _};
use proviso_core::PolicyId;
use proviso_core::policy_id::PolicyIdError;
use proviso_crds::{
    ClusterPolicy, ClusterPolicyExperiment, Policy, PolicyExperiment, PolicyKind, PolicySpec, PolicyStatus,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cache::{Cache, Caches, Keyed};
use crate::experiments::ExperimentObject;
use crate::guarded::Guarded;

pub(crate) trait PolicyObject: Keyed<Sent = Self> + DeserializeOwned + Serialize {
    const KIND: PolicyKind;

    /// What its experiments are.
    type Experiment: ExperimentObject;

    fn spec(&self) -> &PolicySpec;

    fn status(&self) -> Option<&PolicyStatus>;

    /// For the objects in this namespace, if the kind has any.
    fn all(client: &Client, namespace: &str) -> Api<Guarded<Self>>;

    fn cache(caches: &Caches) -> &Cache<Guarded<Self>>;
}

/// The id of a policy, or of an experiment: its scope and its name, whatever else can be read of it.
pub(crate) fn id<O: Resource>(object: &O) -> Result<PolicyId, PolicyIdError> {
    PolicyId::new(object.namespace().as_deref(), &object.name_any())
}

/// For the policies around this one.
pub(crate) fn api<K: PolicyObject>(client: &Client, object: &impl Resource) -> Api<Guarded<K>> {
    K::all(client, &object.namespace().unwrap_or_default())
}

impl PolicyObject for Policy {
    const KIND: PolicyKind = PolicyKind::Policy;

    type Experiment = PolicyExperiment;

    fn spec(&self) -> &PolicySpec {
        &self.spec
    }

    fn status(&self) -> Option<&PolicyStatus> {
        self.status.as_ref()
    }

    fn all(client: &Client, namespace: &str) -> Api<Guarded<Self>> {
        Api::namespaced(client.clone(), namespace)
    }

    fn cache(caches: &Caches) -> &Cache<Guarded<Self>> {
        &caches.policies
    }
}

impl PolicyObject for ClusterPolicy {
    const KIND: PolicyKind = PolicyKind::ClusterPolicy;

    type Experiment = ClusterPolicyExperiment;

    fn spec(&self) -> &PolicySpec {
        &self.spec.0
    }

    fn status(&self) -> Option<&PolicyStatus> {
        self.status.as_ref()
    }

    fn all(client: &Client, _: &str) -> Api<Guarded<Self>> {
        Api::all(client.clone())
    }

    fn cache(caches: &Caches) -> &Cache<Guarded<Self>> {
        &caches.cluster_policies
    }
}
