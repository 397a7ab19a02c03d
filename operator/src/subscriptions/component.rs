//! A component in the cluster: its record in the status of the subscription, its policies in ConfigMaps and Secrets, and its notification.

mod parts;
mod record;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use kube::ResourceExt as _;
use proviso_core::Failure;
use proviso_core::configuration::{Notification, Outcome, Part, Place, Record, StoredParts};
use proviso_crds::{LastUpdate, PolicySubscription, reasons};
use proviso_delivery::Component;
use proviso_delivery::status::View;

use super::Shared;
use super::notify;
use crate::cache::lock;
use crate::context;

use parts::KnownParts;
pub(crate) use parts::is_owned;
use record::Reported;

/// The error of a read or write of a component.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Context(#[from] context::Error),
    #[error(
        "the {kind} {name} in this namespace does not belong to this subscription, and is not overwritten: name another one in \
         spec.delivery.configMap, or delete it"
    )]
    Conflict { kind: &'static str, name: String },
    /// Another leader has written the record.
    #[error("another operator has written the record of the deliveries: reading it again")]
    Superseded,
    #[error("the subscription is deleted")]
    Deleted,
    /// The API server does not accept the status of a subscription that exists.
    #[error(
        "the CustomResourceDefinition policysubscriptions.proviso.dev has no status, in which the operator records the deliveries: upgrade \
         the CRDs of Proviso to the version of the operator"
    )]
    StatusNotServed,
    /// The stored policies must be moved before the deliveries continue.
    #[error("the ConfigMaps of the component have another name")]
    Renamed,
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        Self::Context(error.into())
    }
}

impl Error {
    /// Returns the failure for the condition `Delivered`; `None` for an error that ends by itself.
    pub fn failure(&self) -> Option<Failure> {
        match self {
            Self::Context(error) => error.needs_person().then(|| Failure::new(error.reason(), error.to_string())),
            Self::Conflict { .. } => Some(Failure::new(reasons::CONFIG_MAP_CONFLICT, self.to_string())),
            Self::Superseded | Self::Deleted | Self::StatusNotServed | Self::Renamed => None,
        }
    }
}

/// The uids of the pods that may have read the policies before an update, and were not notified because they were not Ready.
pub(super) type Starting = Arc<Mutex<BTreeSet<String>>>;

/// A component, and the last states of its objects that this operator knows.
pub(super) struct ClusterComponent {
    shared: Arc<Shared>,
    /// The subscription in its newest generation, without its status.
    subscription: Arc<PolicySubscription>,
    namespace: String,
    name: String,
    uid: String,
    reported: Mutex<Reported>,
    parts: Mutex<KnownParts>,
    view: Mutex<View>,
    starting: Starting,
}

impl fmt::Debug for ClusterComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterComponent")
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl ClusterComponent {
    /// Returns the component of a subscription, with the record in its status. `starting` outlives the component, because an error ends it.
    ///
    /// # Errors
    /// Returns [`context::Error::Incomplete`] if the object has no uid or no `resourceVersion`.
    pub fn new(shared: Arc<Shared>, subscription: Arc<PolicySubscription>, starting: Starting) -> Result<Self, Error> {
        let uid = subscription.uid().ok_or(context::Error::Incomplete("metadata.uid"))?;
        let reported = Reported::of(&subscription)?;
        let view = View {
            generation: subscription.metadata.generation,
            observed_resend: reported.status.observed_resend.clone(),
            ..View::default()
        };
        Ok(Self {
            shared,
            namespace: subscription.namespace().unwrap_or_default(),
            name: subscription.name_any(),
            uid,
            subscription,
            reported: Mutex::new(reported),
            parts: Mutex::default(),
            view: Mutex::new(view),
            starting,
        })
    }

    /// Sets the newest generation of the subscription.
    pub fn set_subscription(&mut self, subscription: Arc<PolicySubscription>) {
        self.with_view(|view| view.generation = subscription.metadata.generation);
        self.subscription = subscription;
    }

    pub fn config_map(&self) -> &str {
        &self.subscription.spec.delivery.config_map
    }

    /// Changes the facts of the status. [`Self::report`] writes them.
    pub fn with_view<T>(&self, change: impl FnOnce(&mut View) -> T) -> T {
        change(&mut lock(&self.view))
    }

    /// Finds the pods that may have missed the update that an earlier operator began at this time, or an older one.
    pub async fn find_starting_pods(&self, updated: Timestamp) -> Result<(), Error> {
        if self.subscription.spec.delivery.notify.as_ref().is_none_or(|notify| notify.exec.is_none()) {
            return Ok(());
        }
        let pods = notify::pods::of_component(&self.shared, &self.subscription, &self.namespace).await?;
        let missed = pods.into_iter().filter(|pod| pod.may_have_missed(updated));
        lock(&self.starting).extend(missed.map(|pod| pod.uid));
        Ok(())
    }

    /// Returns the pods that were starting during a notification, and that are Ready now. Such a pod may have read the policies before the
    /// update. Forgets the pods that are gone.
    pub async fn started_pods(&self) -> Result<BTreeSet<String>, Error> {
        let mut starting = lock(&self.starting).clone();
        if starting.is_empty() {
            return Ok(starting);
        }
        let pods = notify::pods::of_component(&self.shared, &self.subscription, &self.namespace).await?;
        starting.retain(|uid| pods.iter().any(|pod| pod.uid == *uid));
        lock(&self.starting).clone_from(&starting);
        starting.retain(|uid| pods.iter().any(|pod| pod.uid == *uid && pod.is_ready));
        Ok(starting)
    }

    /// Forgets pods that get all policies again.
    pub fn forget_pods(&self, pods: &BTreeSet<String>) {
        lock(&self.starting).retain(|uid| !pods.contains(uid));
    }

    /// Returns true if a pod was starting during a notification, and has not got the policies again since.
    pub fn is_waiting_for_pods(&self) -> bool {
        !lock(&self.starting).is_empty()
    }
}

impl Component for ClusterComponent {
    type Error = Error;

    async fn record(&self) -> Result<Record, Error> {
        Ok(lock(&self.reported).status.record())
    }

    async fn stored(&self) -> Result<StoredParts, Error> {
        self.read_parts().await
    }

    async fn write_record(&self, record: &Record, last: Option<&LastUpdate>) -> Result<(), Error> {
        self.report(record, last).await
    }

    async fn write_parts(&self, parts: &[&Part], stale: &[(Place, usize)]) -> Result<(), Error> {
        let _place = self.shared.part_writes.acquire(&self.namespace).await;
        for part in parts {
            self.write_part(part).await?;
        }
        for (place, index) in stale {
            self.delete_part(*place, *index).await?;
        }
        Ok(())
    }

    async fn notify(&self, notification: &Notification) -> Outcome {
        let result = notify::notify(&self.shared, &self.subscription, &self.namespace, notification).await;
        self.with_view(|view| (view.note, view.cause) = (result.note, result.cause));
        lock(&self.starting).extend(result.starting);
        result.outcome
    }
}

#[cfg(test)]
mod tests;
