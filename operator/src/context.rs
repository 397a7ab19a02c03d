//! The values and the errors that the reconciles of all controllers share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::runtime::events::{Event, Recorder, Reporter};
use kube::{Client, Resource, ResourceExt as _};
use proviso_core::policy_id::PolicyIdError;

use crate::authority;
use crate::caches::Caches;
use crate::guarded::Reports;
use crate::metrics::Metrics;
use crate::objects::{MANAGER, note};

/// What every reconcile needs.
pub(crate) struct Context {
    pub client: Client,
    /// The operator's: revisions and policy servers are there.
    pub namespace: String,
    pub authority: authority::Receiver,
    /// How long a replaced generation goes on answering.
    pub retire_after: Duration,
    pub caches: Arc<Caches>,
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
        let caches = Arc::default();
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
    #[error("{}", said(.0))]
    Kubernetes(#[from] kube::Error),
    #[error("{object}: {}", said(error))]
    Apply { object: String, error: kube::Error },
    #[error(transparent)]
    Name(#[from] PolicyIdError),
    #[error("an object of the API server's has no {0}")]
    Incomplete(&'static str),
    #[error("an object cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("a key cannot be made: {0}")]
    Key(#[from] rcgen::Error),
    #[error("there is no authority yet that vouches for policy servers")]
    NoAuthority,
}

impl Error {
    /// Stable name: of Events, and log field.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Kubernetes(_) => "KubernetesError",
            Self::Apply { .. } => "ApplyFailed",
            Self::Name(_) => "InvalidName",
            Self::Incomplete(_) => "IncompleteObject",
            Self::Json(_) => "InvalidObject",
            Self::Key(_) => "KeyError",
            Self::NoAuthority => "NoAuthority",
        }
    }

    /// Returns whether another writer was faster, as it happens.
    pub fn is_race(&self) -> bool {
        let (Self::Kubernetes(error) | Self::Apply { error, .. }) = self else { return false };
        matches!(error, kube::Error::Api(status) if status.is_conflict() || status.is_already_exists())
    }
}

/// The API server's own message, without the object that it is about.
fn said(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error { status.message.clone() } else { error.to_string() }
}
