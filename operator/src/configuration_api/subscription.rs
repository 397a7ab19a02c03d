//! A subscription in the cache of the configuration API. Calls share the object, which may have a large status.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use proviso_crds::PolicySubscription;

use crate::cache::Cached;
use crate::malformed::MaybeMalformed;

/// A subscription, also one that cannot be read.
#[derive(Clone, Debug)]
pub(super) struct Subscription {
    metadata: ObjectMeta,
    object: Option<Arc<PolicySubscription>>,
}

impl Subscription {
    /// Returns the object; `None` if it cannot be read, or is being deleted.
    pub fn object(&self) -> Option<&Arc<PolicySubscription>> {
        self.object.as_ref().filter(|_| self.metadata.deletion_timestamp.is_none())
    }
}

impl Cached for Subscription {
    type Sent = MaybeMalformed<PolicySubscription>;

    fn from_sent(mut sent: Self::Sent) -> Self {
        // `managedFields` would take half of the memory.
        sent.meta_mut().managed_fields = None;
        let mut metadata = sent.meta().clone();
        metadata.annotations = None;
        Self { metadata, object: sent.0.ok().map(Arc::new) }
    }

    fn keys(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Resource for Subscription {
    type DynamicType = <PolicySubscription as Resource>::DynamicType;
    type Scope = <PolicySubscription as Resource>::Scope;

    fn kind(of: &Self::DynamicType) -> Cow<'_, str> {
        PolicySubscription::kind(of)
    }

    fn group(of: &Self::DynamicType) -> Cow<'_, str> {
        PolicySubscription::group(of)
    }

    fn version(of: &Self::DynamicType) -> Cow<'_, str> {
        PolicySubscription::version(of)
    }

    fn plural(of: &Self::DynamicType) -> Cow<'_, str> {
        PolicySubscription::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
