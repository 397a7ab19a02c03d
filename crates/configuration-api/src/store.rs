//! The store of configuration policies and subscriptions. A store reads and authorizes; its callers select, compute and format.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use proviso_core::PolicyId;
use proviso_core::configuration::{Catalog, ConfigurationPolicy, Item, StoredParts};
use proviso_crds::PolicySubscription;
use proviso_rest_api::{Caller, Error};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use uuid::Uuid;

/// A permission of a caller. The comments name the permission in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission<'a> {
    /// Read one policy: `get` of `clusterpolicies` or `policies`.
    ReadPolicy(&'a PolicyId),
    /// Read the policies of a namespace, or of the cluster (`None`): `list` of `policies` or `clusterpolicies`.
    ListPolicies(Option<&'a str>),
    /// Read the policies of all namespaces: `list` of `policies` in all namespaces.
    ListNamespacedPolicies,
    /// Read the confidential bodies of the policies and components of a namespace, or of all namespaces (`None`): `get` of `secrets`.
    ReadSecrets(Option<&'a str>),
    /// Read the application records of a component: `get` of this ConfigMap.
    ReadConfigMap { namespace: &'a str, name: &'a str },
    /// Read a component: `get` of its `policysubscriptions`.
    ReadSubscription { namespace: &'a str, name: &'a str },
    /// Read the components of a namespace, or of all namespaces (`None`): `list` of `policysubscriptions`.
    ListSubscriptions(Option<&'a str>),
    /// Request a catch-up or a resend of a component: `patch` of its `policysubscriptions`.
    ChangeSubscription { namespace: &'a str, name: &'a str },
    /// Request a catch-up of the components of a namespace, or of all namespaces (`None`): `patch` of `policysubscriptions`.
    ChangeSubscriptions(Option<&'a str>),
}

/// The body of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    Item(Item),
    /// A template computes the body for each component, and no component is given, or the store cannot evaluate templates.
    Template,
    /// The body cannot be computed, for this reason.
    Failed(String),
}

/// Changes of one component: of its subscription, its stored policies or its application records. The owner of the sender may report
/// a change that is none.
pub struct Changes {
    receiver: watch::Receiver<u64>,
    /// Dropped together with the receiver, for example the handle of a task.
    _guard: Box<dyn Any + Send + Sync>,
}

/// Configuration policies, subscriptions and the state of components.
///
/// The methods do not authorize: their callers call [`is_allowed`](Self::is_allowed) first. A method fails with
/// [`Code::Unavailable`](proviso_rest_api::Code::Unavailable) if the state is not known (yet).
pub trait ConfigurationStore: Send + Sync + 'static {
    /// Returns the id of this installation. It is the same on every replica, and after a restart: policy-handler catches up when it
    /// changes.
    fn instance(&self) -> Uuid;

    /// Returns true if policies and subscriptions have been read.
    fn is_ready(&self) -> bool;

    /// Returns true if the caller has the permission.
    fn is_allowed(
        &self,
        caller: Option<&Caller>,
        permission: Permission<'_>,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Returns the policies that may be delivered.
    fn catalog(&self) -> impl Future<Output = Result<Arc<Catalog>, Error>> + Send;

    /// Returns the bodies of these policies of the catalog, in their order, for this component. `None` means no component.
    fn bodies(
        &self,
        policies: &[Arc<ConfigurationPolicy>],
        component: Option<&PolicySubscription>,
    ) -> impl Future<Output = Result<Vec<Body>, Error>> + Send;

    /// Returns all subscriptions that can be read, in any order.
    fn subscriptions(&self) -> impl Future<Output = Result<Vec<Arc<PolicySubscription>>, Error>> + Send;

    /// Reads the stored policies of a component, including those in Secrets.
    fn stored(&self, subscription: &PolicySubscription) -> impl Future<Output = Result<StoredParts, Error>> + Send;

    /// Reads the data of the ConfigMap in `spec.application`. `None` if it does not exist.
    fn application(
        &self,
        subscription: &PolicySubscription,
    ) -> impl Future<Output = Result<Option<BTreeMap<String, String>>, Error>> + Send;

    /// Begins to watch a component. A change after the return of this method is reported.
    fn watch(&self, subscription: &PolicySubscription) -> impl Future<Output = Result<Changes, Error>> + Send;

    /// Makes these components compare their policies with those that they should have. It returns before they do.
    fn request_catch_up(
        &self,
        caller: Option<&Caller>,
        subscriptions: Vec<Arc<PolicySubscription>>,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Makes a component get all its policies again. Returns the value that `status.observedResend` has when the resend has begun.
    fn request_resend(
        &self,
        caller: Option<&Caller>,
        subscription: &PolicySubscription,
    ) -> impl Future<Output = Result<String, Error>> + Send;
}

impl Changes {
    /// Returns the changes that `receiver` sees. `guard` is dropped when nobody waits for the changes any more.
    #[must_use]
    pub fn new(receiver: watch::Receiver<u64>, guard: impl Any + Send + Sync) -> Self {
        Self { receiver, _guard: Box::new(guard) }
    }

    /// Waits for the next change since the last call, or since the begin. Returns false if no further change is reported, for example
    /// because the store stops.
    pub async fn changed(&mut self) -> bool {
        self.receiver.changed().await.is_ok()
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").finish_non_exhaustive()
    }
}

/// Returns the id of the installation with this name, for [`ConfigurationStore::instance`].
#[must_use]
pub fn instance_of(name: &str) -> Uuid {
    let mut bytes = [0; 16];
    for (byte, digest) in bytes.iter_mut().zip(Sha256::digest(name.as_bytes())) {
        *byte = digest;
    }
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}
