//! Notifies a component in the cluster: a command in each Ready pod, or requests to a Service.

mod exec;
mod http;
pub(super) mod pods;

use proviso_core::Failure;
use proviso_core::configuration::{Notification, Outcome};
use proviso_crds::{Notify, PolicySubscription};

use super::Shared;

/// The result of a notification, and the facts about it for the status.
#[derive(Debug)]
pub(super) struct Notified {
    pub outcome: Outcome,
    /// A fact about a component that was not called.
    pub note: Option<String>,
    /// A cause of a failure that only a person can remove.
    pub cause: Option<Failure>,
    /// The uids of the pods that had started (see [`pods::Pod`]), but were not Ready.
    pub starting: Vec<String>,
}

impl Notified {
    fn of(outcome: Outcome) -> Self {
        Self { outcome, note: None, cause: None, starting: Vec::new() }
    }

    /// Returns the result of a notification that cannot be sent until a person has removed the cause.
    fn failed(cause: Failure) -> Self {
        Self { cause: Some(cause.clone()), ..Self::of(Outcome::Failed { message: cause.message }) }
    }
}

/// Notifies the component of a subscription within its time limit.
pub(super) async fn notify(
    shared: &Shared,
    subscription: &PolicySubscription,
    namespace: &str,
    notification: &Notification,
) -> Notified {
    let Some(notify) = &subscription.spec.delivery.notify else { return Notified::of(Outcome::Acknowledged) };
    match notify {
        Notify { exec: Some(exec), .. } => {
            exec::notify(shared, subscription, namespace, exec, notify.time_limit(), notification).await
        }
        Notify { http: Some(endpoint), .. } => {
            http::notify(shared, namespace, endpoint, notify.time_limit(), notification).await
        }
        // The schema of the CRD refuses such an object.
        Notify { exec: None, http: None, .. } => Notified::of(Outcome::Acknowledged),
    }
}
