//! The subscription of a task in one of its states, and the changes from one state to the next.

use std::sync::Arc;

use kube::ResourceExt as _;
use proviso_core::configuration::CompiledSubscription;
use proviso_crds::PolicySubscription;
use proviso_crds::validation::FieldError;

/// A subscription, with its compiled selectors.
#[derive(Clone, Debug)]
pub(in crate::subscriptions) struct Subject {
    pub subscription: Arc<PolicySubscription>,
    /// The selectors, compiled once for each generation; the first invalid field, which the schema of the CRD refuses.
    pub compiled: Arc<Result<CompiledSubscription, FieldError>>,
}

impl Subject {
    /// Returns true if the task has something to do after a change to this subject. Its own writes of the status are no such change.
    pub fn differs(&self, other: &Self) -> bool {
        let (one, other) = (&self.subscription, &other.subscription);
        one.metadata.generation != other.metadata.generation
            || one.annotations() != other.annotations()
            || one.labels() != other.labels()
    }

    pub fn has_notification(&self) -> bool {
        self.subscription.spec.delivery.notify.is_some()
    }

    /// Returns true if notifications have other receivers than those of the older subject, or another form.
    pub fn notifies_others_than(&self, older: &Self) -> bool {
        let (spec, older) = (&self.subscription.spec, &older.subscription.spec);
        self.has_notification() && (spec.component != older.component || spec.delivery.notify != older.delivery.notify)
    }

    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.subscription.annotations().get(name).map(String::as_str)
    }
}
