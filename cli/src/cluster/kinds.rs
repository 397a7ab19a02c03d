//! Kinds that come in pairs: with a namespace, and of the whole cluster.

use kube::core::{ApiResource, DynamicObject};
use proviso_core::PolicyId;
use proviso_crds::{ClusterPolicy, ClusterPolicyExperiment, Policy, PolicyExperiment};

use crate::error::Access;
use crate::objects::{ExperimentObject, ObjectError, PolicyObject};

/// A pair of kinds that are read as one. Arrays are of the kind with a namespace, and the one without.
pub trait Pair: Sized {
    const KINDS: [&'static str; 2];
    const KINDS_PLURAL: [&'static str; 2];
    const RESOURCES: [&'static str; 2];
    /// What they are together.
    const PLURAL: &'static str;
    /// The command that, with `-A`, shows all.
    const SHOW: &'static str;

    fn resource(is_namespaced: bool) -> ApiResource;

    /// # Errors
    /// When the object makes no sense.
    fn read(object: &DynamicObject) -> Result<Self, ObjectError>;

    /// A request about one.
    #[must_use]
    fn access(verb: &'static str, id: &PolicyId) -> Access {
        Self::access_to_many(verb, id.namespace().is_some(), id.namespace())
    }

    /// A request about all of a namespace, or of all.
    #[must_use]
    fn access_to_many(verb: &'static str, is_namespaced: bool, namespace: Option<&str>) -> Access {
        let namespace = namespace.filter(|_| is_namespaced).map(str::to_owned);
        Access { verb, resource: Self::RESOURCES[usize::from(!is_namespaced)], subresource: None, namespace }
    }
}

impl Pair for PolicyObject {
    const KINDS: [&'static str; 2] = ["Policy", "ClusterPolicy"];
    const KINDS_PLURAL: [&'static str; 2] = [crate::report::POLICIES, crate::report::CLUSTER_POLICIES];
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
    const KINDS_PLURAL: [&'static str; 2] = [crate::report::EXPERIMENTS, crate::report::CLUSTER_EXPERIMENTS];
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
