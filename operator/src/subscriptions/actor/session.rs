//! A session of a task: the deliveries from a read of the record until an error.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use backon::BackoffBuilder as _;
use proviso_core::Failure;
use proviso_crds::names::{CATCH_UP, RESEND};
use proviso_crds::{LastUpdate, UpdateResult};
use proviso_delivery::status::resend_value;
use proviso_delivery::{Deliveries, Next, random};
use proviso_programs::templates::ComponentFacts;
use tokio::time::{Instant, sleep_until};

use super::{Actor, BACKOFF, CONFLICT_INTERVAL, Error, Subject};
use crate::cache::lock;
use crate::subscriptions::component::ClusterComponent;

/// The interval of checks of pods that were starting during a notification.
const STARTING_INTERVAL: Duration = Duration::from_secs(30);

pub(super) struct Session<'a> {
    actor: &'a mut Actor,
    deliveries: &'a mut Deliveries<ClusterComponent>,
    subject: Subject,
    /// True if the component must get all policies again, because its receiver of notifications may be another one.
    must_resend: bool,
    /// The value of the annotation that has requested the last catch-up.
    caught_up: Option<String>,
    next_catch_up: Instant,
    /// The facts of the component that the desired state is computed from, and true if its workload does not exist.
    resolved: Option<(ComponentFacts, bool)>,
    /// The time of the next attempt to compute the desired state, after an error that may end by itself.
    resolve_at: Option<Instant>,
}

impl<'a> Session<'a> {
    /// `observed` is the generation of the subscription that the status is about.
    pub fn new(
        actor: &'a mut Actor,
        deliveries: &'a mut Deliveries<ClusterComponent>,
        subject: Subject,
        observed: Option<i64>,
    ) -> Self {
        // After a restart nobody knows whether the component or its notification has changed.
        let generation = subject.subscription.metadata.generation;
        Self {
            must_resend: subject.has_notification() && observed.is_some() && observed != generation,
            caught_up: subject.annotation(CATCH_UP).map(ToOwned::to_owned),
            next_catch_up: next_catch_up(actor),
            resolved: None,
            resolve_at: None,
            actor,
            deliveries,
            subject,
        }
    }

    /// Delivers until an error.
    pub async fn run(mut self) -> Result<Infallible, Error> {
        loop {
            let Some(until) = self.step().await? else { continue };
            self.actor.backoff = BACKOFF.build();
            tokio::select! {
                () = self.actor.wake.signalled() => {}
                _ = self.actor.subject.changed() => self.actor.subject.mark_changed(),
                () = sleep_until(until) => {}
            }
        }
    }

    /// Applies the changes since the last step, and performs an update if the component needs one. Returns the time of the next step;
    /// `None` if it follows at once.
    async fn step(&mut self) -> Result<Option<Instant>, Error> {
        let is_due = self.resolution_due().is_some_and(|due| due <= Instant::now());
        let is_changed = self.observe_subscription()?;
        let is_catch_up = self.begin_catch_up();
        let missing = self.resolve(is_due || is_changed || is_catch_up).await;
        if std::mem::take(&mut self.must_resend) {
            self.deliveries.resend().await?;
        }
        let conflict = self.actor.conflict(self.component()).await?;
        let scn = lock(&self.actor.shared.claims).scn_conflict(&self.actor.name);
        let obstacle = conflict.clone().or(missing).or(scn);
        self.component().with_view(|view| view.obstacle = obstacle);
        let mut until = self.resolution_due().into_iter().fold(self.next_catch_up, Instant::min);
        if let Some(conflict) = conflict {
            self.actor
                .reported
                .conflict(&self.actor.shared.context, &self.subject.subscription, &conflict.message)
                .await;
            self.report().await?;
            until = until.min(Instant::now() + CONFLICT_INTERVAL);
        } else {
            self.begin_resend().await?;
            match self.advance().await? {
                Next::Again => return Ok(None),
                Next::After(delay) => until = until.min(Instant::now() + delay),
                Next::Idle => {}
            }
            self.report().await?;
            self.actor.reported.no_conflict();
        }
        self.check_starting_pods(until).await
    }

    fn component(&self) -> &ClusterComponent {
        self.deliveries.component()
    }

    async fn report(&self) -> Result<(), Error> {
        self.component().report(self.deliveries.record(), self.deliveries.last()).await
    }

    /// Returns the time to resolve the policies again; `None` if they have not changed and the last attempt has not failed.
    fn resolution_due(&self) -> Option<Instant> {
        self.actor.wake.due().into_iter().chain(self.resolve_at).min()
    }

    /// Takes over a change of the subscription. Returns true if its policies must be resolved again.
    fn observe_subscription(&mut self) -> Result<bool, Error> {
        if !self.actor.subject.has_changed().unwrap_or_default() {
            return Ok(false);
        }
        let newer = self.actor.subject.borrow_and_update().clone();
        let is_other = newer.subscription.metadata.generation != self.subject.subscription.metadata.generation;
        if is_other {
            if newer.subscription.spec.delivery.config_map != self.component().config_map() {
                return Err(Error::Renamed);
            }
            self.must_resend |= newer.notifies_others_than(&self.subject);
            self.deliveries.component_mut().set_subscription(Arc::clone(&newer.subscription));
            // The change may have corrected the notification.
            self.deliveries.retry();
        }
        self.subject = newer;
        Ok(is_other)
    }

    /// Begins a catch-up if one is requested or due: the stored policies are read and compared again. Returns true if it begins.
    fn begin_catch_up(&mut self) -> bool {
        let requested = self.subject.annotation(CATCH_UP);
        let is_requested = requested != self.caught_up.as_deref();
        if !is_requested && Instant::now() < self.next_catch_up {
            return false;
        }
        self.caught_up = requested.map(ToOwned::to_owned);
        self.next_catch_up = next_catch_up(self.actor);
        self.component().forget_parts();
        true
    }

    /// Computes the desired state, if it must be computed or if the component has other facts than before. Returns the failure of a missing
    /// workload.
    async fn resolve(&mut self, must_resolve: bool) -> Option<Failure> {
        let (facts, missing) = self.actor.facts(&self.subject);
        let facts = (facts, missing.is_some());
        if must_resolve || self.resolved.as_ref() != Some(&facts) {
            self.actor.wake.begin();
            let retry_in = self.actor.resolve(self.deliveries, &self.subject, &facts.0, facts.1).await;
            self.resolve_at = retry_in.map(|retry_in| Instant::now() + retry_in);
            self.resolved = Some(facts);
        }
        missing
    }

    /// Begins a resend if the annotation has a new value. One write of the status records the unconfirmed policies and the value.
    async fn begin_resend(&mut self) -> Result<(), Error> {
        let Some(requested) = self.subject.annotation(RESEND).map(resend_value) else { return Ok(()) };
        let is_new = self.component().with_view(|view| {
            let is_new = view.observed_resend.as_deref() != Some(requested);
            view.observed_resend = Some(requested.to_owned());
            is_new
        });
        if is_new {
            self.deliveries.resend().await?;
        }
        Ok(())
    }

    /// Performs the next step of the deliveries. Counts and reports the update that it ends.
    async fn advance(&mut self) -> Result<Next, Error> {
        let state = |last: Option<&LastUpdate>| last.map(|last| (last.id.clone(), last.result));
        let (before, started) = (state(self.deliveries.last()), Instant::now());
        let next = self.deliveries.advance().await;
        if matches!(next, Err(Error::Superseded)) {
            return next;
        }
        let finished = self.deliveries.last().filter(|last| last.result.is_some() && state(Some(last)) != before);
        if let Some(last) = finished {
            let result = last.result.unwrap_or(UpdateResult::Failed);
            let context = &self.actor.shared.context;
            context.metrics.delivered(result, started.elapsed());
            self.actor.reported.update(context, &self.subject.subscription, last, self.deliveries.record()).await;
        }
        next
    }

    /// Sends all policies again if a pod has become Ready that was starting during a notification: it may have read the policies before the
    /// update. It gets all policies, as each other pod does. Returns the time of the next step, at most `until`; `None` if it follows at once.
    async fn check_starting_pods(&mut self, until: Instant) -> Result<Option<Instant>, Error> {
        if let Some(updated) = self.actor.updated_before {
            self.component().find_starting_pods(updated).await?;
            self.actor.updated_before = None;
        }
        if !self.component().is_waiting_for_pods() {
            return Ok(Some(until));
        }
        let started = self.component().started_pods().await?;
        if started.is_empty() {
            return Ok(Some(until.min(Instant::now() + STARTING_INTERVAL)));
        }
        self.deliveries.resend().await?;
        self.component().forget_pods(&started);
        Ok(None)
    }
}

/// Returns the time of the next catch-up. A random part of up to a tenth is left out, so that subscriptions that started together are not
/// compared together.
fn next_catch_up(actor: &Actor) -> Instant {
    let interval = actor.shared.catch_up_interval;
    Instant::now() + interval.mul_f64(1.0 - random() / 10.0)
}
