//! What the two kinds of policies have in common.

use std::fmt::Debug;

use kube::{Api, Client, Resource, ResourceExt as _};
use proviso_core::PolicyId;
use proviso_core::policy_id::PolicyIdError;
use proviso_crds::{ClusterPolicy, Policy, PolicyKind, PolicySpec, PolicyStatus};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) trait PolicyObject:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize + Send + Sync + 'static
{
    const KIND: PolicyKind;

    fn spec(&self) -> &PolicySpec;

    fn status(&self) -> Option<&PolicyStatus>;

    /// For the objects around this one.
    fn api(&self, client: &Client) -> Api<Self>;

    fn id(&self) -> Result<PolicyId, PolicyIdError> {
        PolicyId::new(self.namespace().as_deref(), &self.name_any())
    }
}

impl PolicyObject for Policy {
    const KIND: PolicyKind = PolicyKind::Policy;

    fn spec(&self) -> &PolicySpec {
        &self.spec
    }

    fn status(&self) -> Option<&PolicyStatus> {
        self.status.as_ref()
    }

    fn api(&self, client: &Client) -> Api<Self> {
        Api::namespaced(client.clone(), &self.namespace().unwrap_or_default())
    }
}

impl PolicyObject for ClusterPolicy {
    const KIND: PolicyKind = PolicyKind::ClusterPolicy;

    fn spec(&self) -> &PolicySpec {
        &self.spec.0
    }

    fn status(&self) -> Option<&PolicyStatus> {
        self.status.as_ref()
    }

    fn api(&self, client: &Client) -> Api<Self> {
        Api::all(client.clone())
    }
}
