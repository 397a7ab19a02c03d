//! What the controllers of policies and of experiments share: what every reconcile needs, and why one does not come to
//! its end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::runtime::events::{Event, Recorder, Reporter};
use kube::{Client, Resource, ResourceExt as _};
use proviso_core::policy_id::PolicyIdError;

use crate::authority;
use crate::cache::Caches;
use crate::guarded::Reports;
use crate::metrics::Metrics;
use crate::objects::{MANAGER, note};

/// The most objects of a kind that are reconciled at the same time.
pub(crate) const CONCURRENCY: u16 = 16;
/// How long to wait for more events about an object before it is reconciled: replicas report one after the other.
pub(crate) const DEBOUNCE: Duration = Duration::from_millis(100);

/// What every reconcile needs.
pub(crate) struct Context {
    pub client: Client,
    /// The operator's: revisions and policy servers are there.
    pub namespace: String,
    pub authority: authority::Receiver,
    /// How long a replaced generation goes on answering.
    pub retire_after: Duration,
    pub caches: Caches,
    pub metrics: Arc<Metrics>,
    pub reports: Arc<Reports>,
    /// When what came of an experiment was written last, by its uid.
    counted: Mutex<HashMap<String, Instant>>,
}

impl Context {
    pub fn new(
        client: Client,
        namespace: String,
        authority: authority::Receiver,
        retire_after: Duration,
        reports: Arc<Reports>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let caches = Caches::default();
        Self { client, namespace, authority, retire_after, caches, metrics, reports, counted: Mutex::default() }
    }

    /// Tells the owner of a policy or of an experiment.
    pub async fn publish<K: Resource<DynamicType = ()>>(&self, about: &K, event: Event) -> kube::Result<()> {
        let event = Event { note: event.note.as_deref().map(note), ..event };
        let reporter = Reporter { controller: MANAGER.to_owned(), instance: None };
        // A recorder counts what has the same reason as one Event, with the words of the first. Each of ours is about
        // another generation, or says something new about it.
        Recorder::new(self.client.clone(), reporter).publish(&event, &about.object_ref(&())).await
    }

    /// The same, where something is to be done that must not wait for it: a namespace that ends takes no Events.
    pub async fn tell<K: Resource<DynamicType = ()>>(&self, about: &K, event: Event) {
        let reason = event.reason.clone();
        if let Err(error) = self.publish(about, event).await {
            let object = format!("{}/{}", K::kind(&()), about.name_any());
            tracing::warn!(object, reason, %error, "an Event cannot be written");
        }
    }

    /// Who vouches for the policy servers, in PEM; nothing before that is known.
    pub fn bundle(&self) -> Option<String> {
        self.authority.borrow().as_ref().map(|trusted| trusted.bundle.clone())
    }

    pub fn with_counted<T>(&self, change: impl FnOnce(&mut HashMap<String, Instant>) -> T) -> T {
        // What is in it is whole even if somebody panicked.
        change(&mut self.counted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Why a reconcile did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Kubernetes(#[from] kube::Error),
    #[error(transparent)]
    Name(#[from] PolicyIdError),
    #[error("an object of the API server's has no {0}")]
    Incomplete(&'static str),
    #[error("an object cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("there is no authority yet that vouches for policy servers")]
    NoAuthority,
}

impl Error {
    /// Stable name: log field.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Kubernetes(_) => "KubernetesError",
            Self::Name(_) => "InvalidName",
            Self::Incomplete(_) => "IncompleteObject",
            Self::Json(_) => "InvalidObject",
            Self::NoAuthority => "NoAuthority",
        }
    }
}
