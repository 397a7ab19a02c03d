//! The kinds of policies and experiments, namespaced and cluster-scoped, and the traits that they share.

use kube::{Api, Client, Resource, ResourceExt as _};
use proviso_core::PolicyId;
use proviso_core::policy_id::PolicyIdError;
use proviso_crds::{
    ClusterPolicy, ClusterPolicyExperiment, ExperimentSpec, ExperimentStatus, Policy, PolicyExperiment, PolicyKind,
    PolicySpec, PolicyStatus, PolicySubscription,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cache::Cache;
use crate::caches::Caches;
use crate::malformed::{Keyed, MaybeMalformed, by_uid};
use crate::uniqueness::by_uid_and_fields;

/// A kind that users write and a controller reconciles.
pub(crate) trait Kind: Keyed<Sent = Self> + DeserializeOwned + Serialize {
    /// Returns the API of the objects in `namespace`. A cluster-scoped kind ignores the namespace.
    fn all(client: &Client, namespace: &str) -> Api<MaybeMalformed<Self>>;

    fn cache(caches: &Caches) -> &Cache<MaybeMalformed<Self>>;
}

pub(crate) trait PolicyObject: Kind {
    const KIND: PolicyKind;

    /// The kind of the experiments of these policies.
    type Experiment: ExperimentObject;

    fn spec(&self) -> &PolicySpec;

    fn status(&self) -> Option<&PolicyStatus>;
}

pub(crate) trait ExperimentObject: Kind {
    /// The kind of the policies of these experiments.
    type Policy: PolicyObject;

    fn spec(&self) -> &ExperimentSpec;

    fn status(&self) -> Option<&ExperimentStatus>;
}

/// Returns the id of a policy or experiment. The id needs only the metadata, so a malformed object has one too.
pub(crate) fn id<O: Resource>(object: &O) -> Result<PolicyId, PolicyIdError> {
    policy_id(object, &object.name_any())
}

/// Returns the id of the policy with this name in the scope of `object`.
pub(crate) fn policy_id<O: Resource>(object: &O, policy: &str) -> Result<PolicyId, PolicyIdError> {
    PolicyId::new(object.namespace().as_deref(), policy)
}

/// Returns the API of this kind in the namespace of `object`.
pub(crate) fn api<K: Kind>(client: &Client, object: &impl Resource) -> Api<MaybeMalformed<K>> {
    K::all(client, &object.namespace().unwrap_or_default())
}

/// Returns the cache key of the experiments of a policy.
pub(crate) fn experiments_of(policy: &str, namespace: Option<&str>) -> String {
    format!("{}/{policy}", namespace.unwrap_or_default())
}

fn by_uid_and_policy<K: ExperimentObject>(object: &MaybeMalformed<K>) -> Vec<String> {
    let policy = object.0.as_ref().ok().map(|known| &known.spec().policy_ref.name);
    let policy = policy.map(|policy| experiments_of(policy, object.namespace().as_deref()));
    by_uid(object).into_iter().chain(policy).collect()
}

/// Returns the cache key of the subscriptions whose `canaryFor` names this experiment of a policy.
pub(crate) fn canaries_of(policy: &str, experiment: &str) -> String {
    format!("{policy}/{experiment}")
}

fn by_uid_and_canaries(object: &MaybeMalformed<PolicySubscription>) -> Vec<String> {
    let canaries = object.0.iter().flat_map(|known| &known.spec.canary_for);
    let canaries = canaries.map(|canary| canaries_of(&canary.policy, &canary.experiment));
    by_uid(object).into_iter().chain(canaries).collect()
}

macro_rules! kinds {
    ($($kind:ty: $cache:ident, $keys:ident, $all:expr;)*) => {$(
        impl Keyed for $kind {
            type Sent = Self;

            fn from_sent(sent: Self) -> Self {
                sent
            }

            fn keys(object: &MaybeMalformed<Self>) -> Vec<String> {
                $keys(object)
            }
        }

        impl Kind for $kind {
            fn all(client: &Client, namespace: &str) -> Api<MaybeMalformed<Self>> {
                $all(client.clone(), namespace)
            }

            fn cache(caches: &Caches) -> &Cache<MaybeMalformed<Self>> {
                &caches.$cache
            }
        }
    )*};
}

kinds! {
    Policy: policies, by_uid_and_fields, Api::namespaced;
    ClusterPolicy: cluster_policies, by_uid_and_fields, |client, _| Api::all(client);
    PolicyExperiment: experiments, by_uid_and_policy, Api::namespaced;
    ClusterPolicyExperiment: cluster_experiments, by_uid_and_policy, |client, _| Api::all(client);
    PolicySubscription: subscriptions, by_uid_and_canaries, Api::namespaced;
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
}

impl ExperimentObject for PolicyExperiment {
    type Policy = Policy;

    fn spec(&self) -> &ExperimentSpec {
        &self.spec
    }

    fn status(&self) -> Option<&ExperimentStatus> {
        self.status.as_ref()
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
}
