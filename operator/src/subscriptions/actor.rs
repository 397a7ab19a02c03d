//! The task of one subscription: finds the policies of its component, delivers them one update after the other, and reports.
//!
//! The task may be stopped at each await: a restart continues from the record in the status (docs/adr/0031).

mod events;
mod resolve;
mod session;
mod subject;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use jiff::Timestamp;
use kube::{Api, ResourceExt as _};
use proviso_core::Failure;
use proviso_core::configuration::Record;
use proviso_crds::{LastUpdate, PolicySubscription};
use proviso_delivery::{Component as _, Deliveries};
use tokio::sync::watch;
use tokio::time::sleep;

use super::Shared;
use super::component::{ClusterComponent, Error, Starting};
use super::wake::Wake;
use crate::cache::{Name, lock};

use session::Session;

pub(super) use subject::Subject;

/// The delays after consecutive errors of the API server.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(1))
    .with_max_delay(Duration::from_mins(1))
    .without_max_times()
    .with_jitter();
/// The interval of attempts while another object has the name of a ConfigMap: no watch reports the end of the conflict.
const CONFLICT_INTERVAL: Duration = Duration::from_secs(30);
/// The interval of attempts after the API server has reported that the subscription does not exist.
const DELETED_INTERVAL: Duration = Duration::from_mins(1);

pub(super) struct Actor {
    shared: Arc<Shared>,
    name: Name,
    subject: watch::Receiver<Subject>,
    wake: Arc<Wake>,
    backoff: ExponentialBackoff,
    /// The last update, or the last conflict, that an Event is about.
    reported: events::Reported,
    starting: Starting,
    /// The time of the last update of an earlier operator, until the pods were looked at that may have missed it.
    updated_before: Option<Timestamp>,
}

impl Actor {
    pub fn new(shared: Arc<Shared>, name: Name, subject: watch::Receiver<Subject>, wake: Arc<Wake>) -> Self {
        let status = subject.borrow().subscription.status.clone();
        let reported = events::Reported::of(status.as_ref());
        let updated_before = status.and_then(|status| status.last_update).map(|last| last.time.0);
        let (backoff, starting) = (BACKOFF.build(), Starting::default());
        Self { shared, name, subject, wake, backoff, reported, starting, updated_before }
    }

    /// Delivers until the future is dropped.
    pub async fn run(mut self) {
        let mut is_stale = false;
        loop {
            let Err(error) = self.session(is_stale).await;
            is_stale = true;
            let subscription = &self.subject.borrow().subscription.clone();
            let object = format!("{}/{}", self.name.0.as_deref().unwrap_or_default(), self.name.1);
            if matches!(error, Error::Deleted) {
                // The controller stops this task when the watch reports the deletion.
                tracing::info!(object, %error, retry_in = ?DELETED_INTERVAL, "deliveries stop");
                tokio::select! {
                    () = sleep(DELETED_INTERVAL) => {}
                    _ = self.subject.changed() => {}
                }
                continue;
            }
            if matches!(error, Error::Renamed) {
                continue;
            }
            // The backoff never ends.
            let retry_in = self.backoff.next().unwrap_or(CONFLICT_INTERVAL);
            if matches!(error, Error::Superseded) {
                tracing::info!(object, %error, ?retry_in, "deliveries restart");
            } else {
                tracing::warn!(object, %error, ?retry_in, "policies not delivered; trying again");
            }
            if let Error::Conflict { .. } = &error {
                self.reported.conflict(&self.shared.context, subscription, &error.to_string()).await;
            }
            tokio::select! {
                () = sleep(retry_in) => {}
                // The owner may have removed the cause.
                _ = self.subject.changed() => {}
            }
        }
    }

    /// Restores the deliveries from the record, and continues them until an error. `is_stale` is true if the cached subscription may lack
    /// the last write of its status.
    async fn session(&mut self, is_stale: bool) -> Result<Infallible, Error> {
        let subject = self.subject.borrow_and_update().clone();
        let mut read = Arc::clone(&subject.subscription);
        if is_stale {
            let namespace = self.name.0.as_deref().unwrap_or_default();
            let api = Api::<PolicySubscription>::namespaced(self.shared.context.client.clone(), namespace);
            let found = api.get_opt(&self.name.1).await?.filter(|found| found.uid() == subject.subscription.uid());
            read = Arc::new(found.ok_or(Error::Deleted)?);
        }
        let last = read.status.as_ref().and_then(|status| status.last_update.clone());
        let observed = read.status.as_ref().and_then(|status| status.observed_generation);
        let mut component = ClusterComponent::new(Arc::clone(&self.shared), read, Arc::clone(&self.starting))?;
        component.set_subscription(Arc::clone(&subject.subscription));
        let subject = match self.prepare(&mut component, subject, last.as_ref()).await {
            Ok(subject) => subject,
            Err(error) => {
                let record = component.record().await?;
                self.report_failure(&component, &record, last.as_ref(), &error).await;
                return Err(error);
            }
        };
        let mut deliveries = Deliveries::restore(component, last).await?;
        let result = Session::new(self, &mut deliveries, subject, observed).run().await;
        if let Err(error) = &result {
            self.report_failure(deliveries.component(), deliveries.record(), deliveries.last(), error).await;
        }
        result
    }

    /// Reports an error that only a person can remove in the status.
    async fn report_failure(
        &self,
        component: &ClusterComponent,
        record: &Record,
        last: Option<&LastUpdate>,
        error: &Error,
    ) {
        let Some(failure) = error.failure() else { return };
        component.with_view(|view| view.obstacle = Some(failure));
        if let Err(error) = component.report(record, last).await {
            tracing::warn!(namespace = self.name.0, name = self.name.1, %error, "cannot report a failed delivery");
        }
    }

    /// Waits until the names of the ConfigMaps belong to this subscription, and moves its policies to them. Returns its newest state.
    async fn prepare(
        &mut self,
        component: &mut ClusterComponent,
        mut subject: Subject,
        last: Option<&LastUpdate>,
    ) -> Result<Subject, Error> {
        while let Some(conflict) = self.conflict(component).await? {
            component.with_view(|view| view.obstacle = Some(conflict.clone()));
            component.report(&component.record().await?, last).await?;
            self.reported.conflict(&self.shared.context, &subject.subscription, &conflict.message).await;
            tokio::select! {
                () = self.wake.signalled() => {}
                _ = self.subject.changed() => {
                    subject = self.subject.borrow_and_update().clone();
                    component.set_subscription(Arc::clone(&subject.subscription));
                }
                () = sleep(CONFLICT_INTERVAL) => {}
            }
        }
        component.with_view(|view| view.obstacle = None);
        component.rename_parts().await?;
        Ok(subject)
    }

    /// Returns the failure of a subscription whose ConfigMaps belong to another subscription or to somebody else. A subscription that has
    /// its ConfigMap keeps it, also if an older one is changed to the same name.
    async fn conflict(&self, component: &ClusterComponent) -> Result<Option<Failure>, Error> {
        if component.has_config_map() {
            return Ok(None);
        }
        let conflict = lock(&self.shared.claims).config_map_conflict(&self.name);
        if conflict.is_some() {
            return Ok(conflict);
        }
        match component.check_foreign().await {
            Ok(()) => Ok(None),
            Err(error @ Error::Conflict { .. }) => Ok(error.failure()),
            Err(error) => Err(error),
        }
    }
}
