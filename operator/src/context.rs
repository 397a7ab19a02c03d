//! The state and the errors that the reconciles of all controllers share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::runtime::events::{Event, Recorder, Reporter};
use kube::{Client, Resource, ResourceExt as _};
use proviso_core::Reason;
use proviso_core::policy_id::PolicyIdError;
use proviso_crds::reasons;

use crate::ca;
use crate::caches::Caches;
use crate::configurations::Validations;
use crate::malformed::Reports;
use crate::metrics::Metrics;
use crate::objects::{MANAGER, event_note};
use crate::policy_servers::keys::KeyError;
use crate::usage::Usage;

/// The state that every reconcile needs.
pub(crate) struct Context {
    pub client: Client,
    /// The namespace of the operator, with the revisions and the objects of policy servers.
    pub namespace: String,
    pub ca: ca::Receiver,
    /// The time for which a replaced generation still answers.
    pub retire_after: Duration,
    pub caches: Arc<Caches>,
    pub metrics: Arc<Metrics>,
    pub reports: Arc<Reports>,
    /// The number and size of the objects of each namespace.
    pub usage: Arc<Usage>,
    /// The validations of configuration policies.
    pub validations: Validations,
    /// The time of the last write of the counts of an experiment, by its uid.
    counts_written: Mutex<HashMap<String, Instant>>,
}

impl Context {
    pub fn new(
        client: Client,
        namespace: String,
        ca: ca::Receiver,
        retire_after: Duration,
        reports: Arc<Reports>,
        metrics: Arc<Metrics>,
        usage: Arc<Usage>,
    ) -> Self {
        Self {
            client,
            namespace,
            ca,
            retire_after,
            caches: Arc::default(),
            metrics,
            reports,
            usage,
            validations: Validations::default(),
            counts_written: Mutex::default(),
        }
    }

    /// Publishes an Event of a policy or experiment.
    pub async fn publish<K: Resource<DynamicType = ()>>(&self, about: &K, event: Event) -> kube::Result<()> {
        let event = Event { note: event.note.as_deref().map(event_note), ..event };
        let reporter = Reporter { controller: MANAGER.to_owned(), instance: None };
        // A new recorder for each Event: a recorder merges Events of the same reason and keeps the first note, but
        // each note here names another generation or has new content.
        Recorder::new(self.client.clone(), reporter).publish(&event, &about.object_ref(&())).await
    }

    /// Publishes an Event, and logs a failure instead of returning it. For work that must not depend on the Event: a
    /// namespace that is being deleted accepts no Events.
    pub async fn publish_or_log<K: Resource<DynamicType = ()>>(&self, about: &K, event: Event) {
        let reason = event.reason.clone();
        if let Err(error) = self.publish(about, event).await {
            let object = format!("{}/{}", K::kind(&()), about.name_any());
            tracing::warn!(object, reason, %error, "cannot publish an Event");
        }
    }

    /// Returns the CA bundle for policy servers, in PEM; `None` until the CA is known.
    pub fn ca_bundle(&self) -> Option<String> {
        self.ca.borrow().as_ref().map(|current| current.bundle.clone())
    }

    pub fn with_counts_written<T>(&self, change: impl FnOnce(&mut HashMap<String, Instant>) -> T) -> T {
        // The map is consistent even if a thread panicked while it held the lock.
        change(&mut self.counts_written.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The error of a reconcile.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{}", api_message(.0))]
    Kubernetes(#[from] kube::Error),
    #[error("{object}: {}", api_message(error))]
    Apply { object: String, error: kube::Error },
    #[error(transparent)]
    Name(#[from] PolicyIdError),
    #[error("an object from the API server has no {0}")]
    Incomplete(&'static str),
    #[error("cannot serialize an object as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("cannot generate a key: {0}")]
    Key(#[from] KeyError),
    #[error("there is no CA yet for the certificates of policy servers")]
    NoCa,
    #[error("there is no caller token yet in the Secret {0}: the operator creates it with the PolicyServer")]
    NoCallerToken(String),
    #[error("a configuration policy cannot be validated: {0}")]
    Validation(String),
}

impl Error {
    /// Returns the stable name of the error, for Events and the log field `reason`.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Kubernetes(_) => reasons::KUBERNETES_ERROR,
            Self::Apply { .. } => reasons::APPLY_FAILED,
            Self::Name(_) => reasons::INVALID_NAME,
            Self::Incomplete(_) => reasons::INCOMPLETE_OBJECT,
            Self::Json(_) => reasons::INVALID_OBJECT,
            Self::Key(_) => reasons::KEY_ERROR,
            Self::NoCa => reasons::NO_AUTHORITY,
            Self::NoCallerToken(_) => reasons::NO_CALLER_TOKEN,
            Self::Validation(_) => reasons::VALIDATION_FAILED,
        }
    }

    /// Returns whether the API server has refused a write for a reason that only a person can remove, such as a missing
    /// permission. A race, an overload and an object that is gone end without a person.
    pub fn needs_person(&self) -> bool {
        let (Self::Kubernetes(error) | Self::Apply { error, .. }) = self else { return false };
        matches!(error, kube::Error::Api(status) if ![404, 409, 429, 503, 504].contains(&status.code))
    }

    /// Returns whether another writer was faster, which is normal.
    pub fn is_race(&self) -> bool {
        let (Self::Kubernetes(error) | Self::Apply { error, .. }) = self else { return false };
        matches!(error, kube::Error::Api(status) if status.is_conflict() || status.is_already_exists())
    }
}

/// Returns the message of the API server, without the rest of its `Status`.
fn api_message(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error { status.message.clone() } else { error.to_string() }
}
