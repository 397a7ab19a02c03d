//! Pairs of a namespaced and a cluster-scoped kind.

use kube::core::{ApiResource, DynamicObject};
use proviso_core::PolicyId;
use proviso_crds::{ClusterPolicy, ClusterPolicyExperiment, Policy, PolicyExperiment};

use crate::access::Access;
use crate::found::{CLUSTER_EXPERIMENTS, CLUSTER_POLICIES, EXPERIMENTS, POLICIES};
use crate::objects::{ExperimentObject, ObjectError, PolicyObject};

/// A pair of a namespaced and a cluster-scoped kind with the same fields. Arrays have the value of the namespaced kind first.
pub trait Pair: Sized {
    const KINDS: [&'static str; 2];
    const KINDS_PLURAL: [&'static str; 2];
    const RESOURCES: [&'static str; 2];
    /// The plural of both kinds, for messages.
    const PLURAL: &'static str;
    /// The command that shows all objects of both kinds with `-A`.
    const SHOW: &'static str;

    /// Returns the resource of one of the kinds.
    fn resource(is_namespaced: bool) -> ApiResource;

    /// Reads an object of one of the kinds.
    ///
    /// # Errors
    /// When the object is invalid.
    fn read(object: &DynamicObject) -> Result<Self, ObjectError>;

    /// Returns a request for one object.
    #[must_use]
    fn access(verb: &'static str, id: &PolicyId) -> Access {
        Self::access_to_many(verb, id.namespace().is_some(), id.namespace())
    }

    /// Returns a request for all objects of a namespace, or of all namespaces.
    #[must_use]
    fn access_to_many(verb: &'static str, is_namespaced: bool, namespace: Option<&str>) -> Access {
        let namespace = namespace.filter(|_| is_namespaced).map(str::to_owned);
        Access { verb, resource: Self::RESOURCES[usize::from(!is_namespaced)], subresource: None, namespace }
    }
}

impl Pair for PolicyObject {
    const KINDS: [&'static str; 2] = ["Policy", "ClusterPolicy"];
    const KINDS_PLURAL: [&'static str; 2] = [POLICIES, CLUSTER_POLICIES];
    const RESOURCES: [&'static str; 2] = ["policies.proviso.dev", "clusterpolicies.proviso.dev"];
    const PLURAL: &'static str = "policies";
    const SHOW: &'static str = "status";

    fn resource(is_namespaced: bool) -> ApiResource {
        if is_namespaced { ApiResource::erase::<Policy>(&()) } else { ApiResource::erase::<ClusterPolicy>(&()) }
    }

    fn read(object: &DynamicObject) -> Result<Self, ObjectError> {
        Self::read(object)
    }
}

impl Pair for ExperimentObject {
    const KINDS: [&'static str; 2] = ["PolicyExperiment", "ClusterPolicyExperiment"];
    const KINDS_PLURAL: [&'static str; 2] = [EXPERIMENTS, CLUSTER_EXPERIMENTS];
    const RESOURCES: [&'static str; 2] = ["policyexperiments.proviso.dev", "clusterpolicyexperiments.proviso.dev"];
    const PLURAL: &'static str = "experiments";
    const SHOW: &'static str = "experiment status";

    fn resource(is_namespaced: bool) -> ApiResource {
        if is_namespaced {
            ApiResource::erase::<PolicyExperiment>(&())
        } else {
            ApiResource::erase::<ClusterPolicyExperiment>(&())
        }
    }

    fn read(object: &DynamicObject) -> Result<Self, ObjectError> {
        Self::read(object)
    }
}
