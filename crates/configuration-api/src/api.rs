//! The state of the handlers, and the questions that several routes ask the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt as _;
use proviso_core::PolicyId;
use proviso_core::configuration::{Catalog, ConfigurationPolicy, Item, reference};
use proviso_crds::PolicySubscription;
use proviso_http::shutdown::Phase;
use proviso_rest_api::Caller;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};

use crate::answer::{Refusal, Result};
use crate::store::{Body, ConfigurationStore, Permission};
use crate::watches::Watches;

/// The maximum number of answers over many policies or components that are computed at the same time.
const MAX_LARGE_ANSWERS: usize = 2;
/// The maximum number of components that are read at the same time. After a change, all watches of a component read it.
const MAX_COMPONENT_READS: usize = 16;
/// The maximum number of calls that ask for the permissions in each namespace at the same time. Any caller can cause such questions.
const MAX_NAMESPACE_REVIEWS: usize = 2;
/// The maximum size of the policy bodies in one answer, in bytes.
pub(crate) const MAX_BODIES: usize = 16 << 20;

/// The state of the handlers.
pub(crate) struct Api<S> {
    pub store: Arc<S>,
    pub watches: Arc<Watches>,
    /// Watches end when the server shuts down.
    pub phase: watch::Receiver<Phase>,
    pub started: Timestamp,
    large_answers: Arc<Semaphore>,
    component_reads: Semaphore,
    namespace_reviews: Semaphore,
}

/// The body of a policy in an answer.
#[derive(Clone, Debug)]
pub(crate) enum Shown {
    /// The body, or the reference that stands for a body that is confidential or is computed for each component.
    Item(Item),
    /// The reason why there is no body.
    Failed(String),
}

impl<S: ConfigurationStore> Api<S> {
    pub(crate) fn new(store: Arc<S>, phase: watch::Receiver<Phase>) -> Self {
        Self {
            store,
            watches: Arc::default(),
            phase,
            started: Timestamp::now(),
            large_answers: Arc::new(Semaphore::new(MAX_LARGE_ANSWERS)),
            component_reads: Semaphore::new(MAX_COMPONENT_READS),
            namespace_reviews: Semaphore::new(MAX_NAMESPACE_REVIEWS),
        }
    }

    pub(crate) async fn is_allowed(&self, caller: Option<&Caller>, permission: Permission<'_>) -> Result<bool> {
        Ok(self.store.is_allowed(caller, permission).await?)
    }

    /// Waits until a large answer may be computed.
    pub(crate) async fn large_answer(&self) -> Result<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.large_answers).acquire_owned().await;
        permit.map_err(|_| Refusal::internal("the server stops"))
    }

    /// Waits until a component may be read.
    pub(crate) async fn component_read(&self) -> Result<SemaphorePermit<'_>> {
        self.component_reads.acquire().await.map_err(|_| Refusal::internal("the server stops"))
    }

    async fn namespace_review(&self) -> Result<SemaphorePermit<'_>> {
        self.namespace_reviews.acquire().await.map_err(|_| Refusal::internal("the server stops"))
    }

    /// Returns the policies of the catalog that `select` accepts and the caller may list, by id.
    pub(crate) async fn listed_policies(
        &self,
        caller: Option<&Caller>,
        catalog: &Catalog,
        select: impl Fn(&ConfigurationPolicy) -> bool + Send,
    ) -> Result<Vec<Arc<ConfigurationPolicy>>> {
        let selected: Vec<_> = catalog.policies().filter(|policy| select(policy)).cloned().collect();
        let mut namespaces: BTreeMap<Option<String>, bool> = BTreeMap::new();
        let mut all = None;
        let _permit = self.namespace_review().await?;
        for policy in &selected {
            let namespace = policy.id.namespace();
            if namespaces.contains_key(&namespace.map(ToOwned::to_owned)) {
                continue;
            }
            if namespace.is_some() && all.is_none() {
                all = Some(self.is_allowed(caller, Permission::ListNamespacedPolicies).await?);
            }
            let is_listed = (namespace.is_some() && all == Some(true))
                || self.is_allowed(caller, Permission::ListPolicies(namespace)).await?;
            namespaces.insert(namespace.map(ToOwned::to_owned), is_listed);
        }
        let is_listed = |policy: &ConfigurationPolicy| {
            namespaces.get(&policy.id.namespace().map(ToOwned::to_owned)).copied().unwrap_or_default()
        };
        Ok(selected.into_iter().filter(|policy| is_listed(policy)).collect())
    }

    /// Returns the bodies of these policies as the caller may see them. `component` is the component that they are for.
    ///
    /// # Errors
    /// Returns a refusal if the bodies have more than [`MAX_BODIES`] bytes.
    pub(crate) async fn shown_bodies(
        &self,
        caller: Option<&Caller>,
        policies: &[Arc<ConfigurationPolicy>],
        component: Option<&PolicySubscription>,
    ) -> Result<BTreeMap<PolicyId, Shown>> {
        let mut secrets: BTreeMap<Option<String>, bool> = BTreeMap::new();
        let mut shown = BTreeMap::new();
        let mut size = 0;
        // The bodies of a part of the policies are in memory at once, so that too large an answer ends early.
        for policies in policies.chunks(100) {
            let bodies = self.store.bodies(policies, component).await?;
            for (policy, body) in policies.iter().zip(bodies) {
                let body = match body {
                    Body::Item(item) if policy.is_confidential => {
                        let namespace = match component {
                            Some(component) => component.namespace(),
                            None => policy.id.namespace().map(ToOwned::to_owned),
                        };
                        let is_readable = if let Some(known) = secrets.get(&namespace) {
                            *known
                        } else {
                            let is_readable =
                                self.is_allowed(caller, Permission::ReadSecrets(namespace.as_deref())).await?;
                            secrets.insert(namespace, is_readable);
                            is_readable
                        };
                        if is_readable { Shown::Item(item) } else { referenced(policy) }
                    }
                    Body::Item(item) => Shown::Item(item),
                    Body::Template => referenced(policy),
                    Body::Failed(error) => Shown::Failed(error),
                };
                if let Shown::Item(item) = &body {
                    size += item.body().len();
                }
                shown.insert(policy.id.clone(), body);
            }
            if size > MAX_BODIES {
                let message = format!(
                    "the policy bodies in the answer have more than {MAX_BODIES} bytes (16 MiB): select fewer policies by a filter"
                );
                return Err(Refusal::too_large(message));
            }
        }
        Ok(shown)
    }

    /// Returns the subscriptions that the caller may list, by namespace and name.
    pub(crate) async fn listed_subscriptions(&self, caller: Option<&Caller>) -> Result<Vec<Arc<PolicySubscription>>> {
        self.permitted_subscriptions(caller, false).await
    }

    /// Returns the subscriptions that the caller may change, by namespace and name.
    pub(crate) async fn changeable_subscriptions(
        &self,
        caller: Option<&Caller>,
    ) -> Result<Vec<Arc<PolicySubscription>>> {
        self.permitted_subscriptions(caller, true).await
    }

    async fn permitted_subscriptions(
        &self,
        caller: Option<&Caller>,
        is_change: bool,
    ) -> Result<Vec<Arc<PolicySubscription>>> {
        let mut subscriptions = self.store.subscriptions().await?;
        subscriptions.sort_by_cached_key(|it| (it.namespace(), it.name_any()));
        if self.is_allowed(caller, subscriptions_of(None, is_change)).await? {
            return Ok(subscriptions);
        }
        let namespaces: BTreeSet<_> = subscriptions.iter().filter_map(|it| it.namespace()).collect();
        let mut allowed = BTreeSet::new();
        let _permit = self.namespace_review().await?;
        for namespace in namespaces {
            if self.is_allowed(caller, subscriptions_of(Some(&namespace), is_change)).await? {
                allowed.insert(namespace);
            }
        }
        subscriptions.retain(|it| it.namespace().is_some_and(|namespace| allowed.contains(&namespace)));
        Ok(subscriptions)
    }
}

/// Returns the permission to list or to change the subscriptions of a namespace, or of all namespaces (`None`).
fn subscriptions_of(namespace: Option<&str>, is_change: bool) -> Permission<'_> {
    if is_change { Permission::ChangeSubscriptions(namespace) } else { Permission::ListSubscriptions(namespace) }
}

/// Returns the reference that stands for the body of a policy.
fn referenced(policy: &ConfigurationPolicy) -> Shown {
    let reference = reference(&policy.id, &policy.version);
    match Item::read(&reference, policy.is_confidential) {
        Ok(item) => Shown::Item(item),
        Err(error) => Shown::Failed(error.to_string()),
    }
}

/// Returns the service component name of a subscription.
pub(crate) fn service_component_name(subscription: &PolicySubscription) -> String {
    let namespace = subscription.namespace().unwrap_or_default();
    subscription.spec.service_component_name(&namespace, &subscription.name_any())
}

/// Returns the current time in UTC with milliseconds, as deployment-handler has it: `2018-10-06T16:54:31.696Z`.
pub(crate) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

/// Returns a time in UTC as policy-handler has it: `2018-10-06 16:54:31.696123`.
pub(crate) fn python_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S.%6f").to_string()
}
