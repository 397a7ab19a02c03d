//! The lifecycle of revisions. A source, which is a folder of manifests or a cluster, desires revisions. Each revision is
//! prepared while the loaded revisions serve, loaded when it works, and prepared again if it failed for a transient reason.

mod desired;
mod preparations;
pub mod prepare;
mod publish;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use proviso_artifacts::Digest;
use proviso_core::{Failure, experiment};
use tokio::sync::mpsc;

use crate::metrics::Metrics;
use crate::table::{RequestPoint, Revision, RolloutState, UnservedRequests};
use preparations::Preparations;
use prepare::{PrepareError, Prepared, Preparer, RevisionId};

pub use desired::{Desired, ModuleSource, Scope};
pub use publish::{Publication, Publisher, Role, View};

/// The delays after consecutive preparations that failed for a transient reason.
const PREPARE_BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(5))
    .with_max_delay(Duration::from_mins(5))
    .without_max_times()
    .with_jitter();

/// A desired revision and the state of its preparation.
#[derive(Debug)]
pub struct Slot {
    /// The revision, or the reason why it cannot be read.
    desired: Result<Desired, Failure>,
    /// The ticket of the running preparation.
    preparing: Option<u64>,
    outcome: Option<Outcome>,
    /// The next delays, after consecutive preparations that failed.
    delays: Option<ExponentialBackoff>,
}

/// Returns the reason why a revision must not be prepared; `None` if it may be.
fn refusal(desired: &Result<Desired, Failure>) -> Option<&Failure> {
    match desired {
        Ok(desired) => desired.refusal.as_ref(),
        Err(failure) => Some(failure),
    }
}

/// The result of the last preparation.
#[derive(Debug)]
enum Outcome {
    Loaded(Loaded),
    Failed {
        failure: Failure,
        /// The time of the next preparation; `None` if the reason is not transient.
        retry_at: Option<Instant>,
    },
}

/// A loaded revision.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub revision: Arc<Revision>,
    /// The digests of its modules, by their references.
    pub modules: BTreeMap<String, Digest>,
}

impl Slot {
    pub(crate) fn new(desired: Result<Desired, Failure>) -> Self {
        let outcome = refusal(&desired).map(|failure| Outcome::Failed { failure: failure.clone(), retry_at: None });
        Self { desired, preparing: None, outcome, delays: None }
    }

    /// Takes the revision that the source desires now. Returns true if the revision must be prepared again. A loaded revision stays
    /// loaded if its source cannot read it any more, or refuses it.
    fn update(&mut self, desired: Result<Desired, Failure>) -> bool {
        if refusal(&desired).is_some() && self.loaded().is_some() {
            return false;
        }
        let is_kept = match (&self.desired, &desired) {
            (Ok(old), Ok(new)) if old.is_same_revision(new) => match &self.outcome {
                Some(Outcome::Loaded(loaded)) => !new.modules.contradicts(&loaded.modules),
                // A revision that failed may work with modules from another place, and a running preparation must not load
                // other modules than the pinned ones.
                Some(Outcome::Failed { .. }) => old.modules == new.modules,
                None => self.preparing.is_none() || old.modules == new.modules,
            },
            (Err(old), Err(new)) => old == new,
            _ => false,
        };
        if is_kept {
            self.desired = desired;
        } else {
            *self = Self::new(desired);
        }
        !is_kept
    }

    /// Returns the requests of a request policy that has failed; `None` if it has not, or if it has other requests.
    fn unserved_requests(&self) -> Option<UnservedRequests> {
        let (desired, failure) = (self.desired.as_ref().ok()?, self.failure()?);
        let request = desired.spec.request.as_ref().filter(|_| desired.spec.enabled)?;
        let point = RequestPoint::new(&format!("{}.request", desired.scope.0), &desired.policy, request).ok()?;
        Some(UnservedRequests { point: Some(point), live: None, why: failure.to_string() })
    }

    /// Returns true if a preparation must start now. `is_leader` is true if this replica also prepares revisions that no replica
    /// has prepared.
    fn is_due(&self, is_leader: bool, now: Instant) -> bool {
        let is_due = match &self.outcome {
            None => true,
            Some(Outcome::Failed { retry_at: Some(retry_at), .. }) => now >= *retry_at,
            Some(_) => false,
        };
        is_due
            && self.preparing.is_none()
            && self.desired.as_ref().is_ok_and(|desired| desired.was_prepared || is_leader)
    }

    fn settle(&mut self, result: Result<Loaded, PrepareError>, now: Instant) {
        self.outcome = Some(match result {
            Ok(loaded) => {
                self.delays = None;
                Outcome::Loaded(loaded)
            }
            Err(error) => {
                // The backoff is endless, so `next` always returns a delay.
                let delay = self.delays.get_or_insert_with(|| PREPARE_BACKOFF.build()).next().unwrap_or_default();
                let retry_at = error.is_transient().then(|| now + delay);
                let place = self.desired.as_ref().ok().and_then(|desired| desired.place.as_ref());
                let place = place.map(|place| format!(" ({place})")).unwrap_or_default();
                let is_tenant = self.desired.as_ref().is_ok_and(Desired::has_tenant);
                let message = if is_tenant { error.tenant_message() } else { format!("{error}{place}") };
                Outcome::Failed { failure: Failure::new(error.reason(), message), retry_at }
            }
        });
    }

    #[must_use]
    pub fn loaded(&self) -> Option<&Loaded> {
        if let Some(Outcome::Loaded(loaded)) = &self.outcome { Some(loaded) } else { None }
    }

    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        if let Some(Outcome::Failed { failure, .. }) = &self.outcome { Some(failure) } else { None }
    }

    /// Returns the etag that the revision has when it is loaded; `None` if it cannot be read.
    #[must_use]
    pub fn etag(&self) -> Option<String> {
        let desired = self.desired.as_ref().ok()?;
        Some(experiment::etag(&desired.uid, desired.generation))
    }

    /// Returns true if the last preparation has ended and no new one is running.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.outcome.is_some() && self.preparing.is_none()
    }

    /// Returns true if readiness does not wait for the revision: it was tried, or it cannot be live yet, because it is a
    /// candidate or because the leader has not prepared it.
    #[must_use]
    pub fn is_tried(&self) -> bool {
        let can_be_live = |desired: &Desired| desired.experiment.is_none() && desired.was_prepared;
        self.outcome.is_some() || !self.desired.as_ref().is_ok_and(can_be_live)
    }

    #[must_use]
    pub fn state(&self) -> RolloutState {
        match (&self.desired, &self.outcome) {
            (_, Some(Outcome::Failed { failure, .. })) | (Err(failure), _) => RolloutState::Failed(failure.clone()),
            (_, Some(Outcome::Loaded(_))) => RolloutState::Loaded,
            (Ok(desired), None) if self.preparing.is_none() && !desired.was_prepared => RolloutState::Waiting,
            (Ok(_), None) => RolloutState::Loading,
        }
    }

    /// Returns the modules of the loaded revision.
    pub fn modules(&self) -> impl Iterator<Item = Digest> {
        self.loaded().into_iter().flat_map(|loaded| loaded.modules.values()).copied()
    }
}

/// All revisions that a source desires, by the keys of the source.
#[derive(Debug)]
pub struct Lifecycle<K> {
    preparations: Preparations,
    metrics: Arc<Metrics>,
    slots: BTreeMap<K, Slot>,
    /// The next ticket. The result of a preparation is dropped if its slot no longer has the ticket of the preparation.
    tickets: u64,
    sender: mpsc::UnboundedSender<Finished<K>>,
    receiver: mpsc::UnboundedReceiver<Finished<K>>,
}

/// A finished preparation.
#[derive(Debug)]
struct Finished<K> {
    key: K,
    ticket: u64,
    result: Result<Prepared, PrepareError>,
}

impl<K: Ord + Clone + fmt::Display + Send + 'static> Lifecycle<K> {
    #[must_use]
    pub fn new(preparer: Arc<Preparer>, metrics: Arc<Metrics>) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let preparations = Preparations::new(preparer);
        Self { preparations, metrics, slots: BTreeMap::new(), tickets: 0, sender, receiver }
    }

    #[must_use]
    pub fn preparer(&self) -> &Arc<Preparer> {
        self.preparations.preparer()
    }

    /// Desires a revision, or a revision that cannot be read. A revision that is desired already keeps its state. Returns true if
    /// anything changed.
    pub fn desire(&mut self, key: K, desired: Result<Desired, Failure>) -> bool {
        if let Some(slot) = self.slots.get_mut(&key) {
            return slot.update(desired);
        }
        self.slots.insert(key, Slot::new(desired));
        true
    }

    /// Unloads a revision. Running requests keep it until they are answered. Returns true if the revision was desired.
    pub fn release(&mut self, key: &K) -> bool {
        self.slots.remove(key).is_some()
    }

    #[must_use]
    pub fn get(&self, key: &K) -> Option<&Slot> {
        self.slots.get(key)
    }

    #[must_use]
    pub fn is_loaded(&self, key: &K) -> bool {
        self.get(key).is_some_and(|slot| slot.loaded().is_some())
    }

    pub fn slots(&self) -> impl Iterator<Item = (&K, &Slot)> {
        self.slots.iter()
    }

    /// Starts every preparation that is due, for the first time or again. `is_leader` is true if this replica also prepares
    /// revisions that no replica has prepared. Returns true if a preparation was started.
    pub fn start(&mut self, is_leader: bool) -> bool {
        let (now, first) = (Instant::now(), self.tickets);
        for (key, slot) in &mut self.slots {
            if !slot.is_due(is_leader, now) {
                continue;
            }
            let Ok(desired) = &slot.desired else { continue };
            let (ticket, key, sender) = (self.tickets, key.clone(), self.sender.clone());
            self.tickets += 1;
            slot.preparing = Some(ticket);
            self.preparations.start(desired, move |result| {
                // The receiver is dropped only at shutdown.
                let _ = sender.send(Finished { key, ticket, result });
            });
        }
        self.tickets > first
    }

    /// Waits until a preparation ends, and takes the results of all that have ended: their revisions are loaded, or have failed.
    /// Returns the keys of the revisions. Cancel safe.
    pub async fn settled(&mut self) -> Vec<K> {
        // The channel is never closed: `self` owns a sender.
        let Some(first) = self.receiver.recv().await else { return std::future::pending().await };
        let mut settled = Vec::new();
        let mut next = Some(first);
        while let Some(finished) = next {
            settled.extend(self.settle(finished));
            next = self.receiver.try_recv().ok();
        }
        settled
    }

    /// Takes the result of a preparation. Returns the key of its revision; `None` if the revision is not desired any more, or was
    /// desired anew meanwhile.
    fn settle(&mut self, Finished { key, ticket, result }: Finished<K>) -> Option<K> {
        let slot = self.slots.get_mut(&key)?;
        slot.preparing.take_if(|preparing| *preparing == ticket)?;
        let desired = slot.desired.as_ref().ok()?;
        let result = result.and_then(|Prepared { program, modules }| {
            let id = RevisionId {
                policy: &desired.policy,
                uid: &desired.uid,
                generation: desired.generation,
                scope: desired.scope,
            };
            let revision = self.preparations.preparer().revision(id, &desired.spec, program, &self.metrics)?;
            Ok(Loaded { revision: Arc::new(revision), modules })
        });
        self.metrics.count_rollout(result.is_ok());
        // The failure of a namespaced policy has no details, because its author sees it.
        let details = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let place = desired.place.as_ref().map(|place| format!(" ({place})")).unwrap_or_default();
        slot.settle(result, Instant::now());
        match slot.outcome.as_ref()? {
            Outcome::Loaded(loaded) => {
                tracing::info!(revision = %key, engine = loaded.revision.program.engine(), "revision loaded");
            }
            Outcome::Failed { failure, retry_at } => {
                let (reason, is_tried_again) = (&failure.reason, retry_at.is_some());
                tracing::warn!(revision = %key, %reason, error = format!("{details}{place}"), is_tried_again, "revision does not work");
            }
        }
        Some(key)
    }
}

#[cfg(test)]
pub(crate) mod tests;
