//! The ids of the objects in the folder.

use std::fmt;

use proviso_core::PolicyId;
use proviso_rest_api::ExperimentName;

/// The id of an experiment: the namespace of its policy, and its own name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExperimentId {
    /// The namespace of the experiment and its policy; `None` for a `ClusterPolicyExperiment`.
    pub namespace: Option<String>,
    pub name: String,
}

impl fmt::Display for ExperimentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "ns.{namespace}.{}", self.name),
            None => write!(f, "cluster.{}", self.name),
        }
    }
}

impl From<&ExperimentName> for ExperimentId {
    fn from(name: &ExperimentName) -> Self {
        Self { namespace: name.policy.namespace().map(ToOwned::to_owned), name: name.name.clone() }
    }
}

/// The id of a `PolicySubscription`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for SubscriptionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ns.{}.{}", self.namespace, self.name)
    }
}

/// The id of the object in a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectId {
    Policy(PolicyId),
    Experiment(ExperimentId),
    Subscription(SubscriptionId),
    Namespace(String),
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(id) => id.fmt(f),
            Self::Experiment(id) => write!(f, "experiment {id}"),
            Self::Subscription(id) => write!(f, "subscription {id}"),
            Self::Namespace(name) => write!(f, "namespace {name}"),
        }
    }
}
