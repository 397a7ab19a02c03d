//! The state that this replica keeps for each `PolicyRevision`: the last observed object, the last revision that could be read, the
//! preview of a candidate, and the state of the status updates.

use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_artifacts::Digest;
use proviso_core::{Failure, PolicyId};
use proviso_crds::{PolicySpec, PreviewReport, ReplicaStatus, reasons};

use super::report::Written;
use super::revision::{DesiredRevision, ObservedRevision};
use super::schema::Schema;
use super::status::{Preview, Update};
use crate::config::Replica;
use crate::lifecycle::{Desired, ModuleSource, Role, Scope, Slot, View};
use crate::metrics::Metrics;
use crate::preview::DivergenceCounter;
use crate::table::{Experiment, Revision};

/// The minimum time between two reports of the counts of a preview.
const PREVIEW_REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// The delays after consecutive status updates that failed.
const REPORT_BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(1))
    .with_max_delay(Duration::from_mins(1))
    .without_max_times()
    .with_jitter();

#[derive(Debug)]
pub(super) struct Object {
    pub observed: ObservedRevision,
    /// The first revision that could be read in the object, or the reason why none could. A spec is immutable: if the API server
    /// returns it in another form, the installed schema has changed, and the loaded revision still holds.
    revision: Result<DesiredRevision, Failure>,
    /// The reason why the current form of the spec cannot be read although an earlier form could.
    unreadable: Option<Failure>,
    is_enabled: bool,
    /// The preview of a candidate while the candidate is loaded and enabled.
    experiment: Option<Arc<Experiment>>,
    /// The counts of a candidate since its preview started. They are kept when the candidate is loaded again, and after a stop.
    counter: Option<Arc<DivergenceCounter>>,
    /// The earliest time of the next report of the counts.
    preview_due: Option<Instant>,
    is_reporting: bool,
    /// If the last status update failed: the next delays, its error, and the earliest time of the next update.
    failed_report: Option<(ExponentialBackoff, String, Instant)>,
    /// The `metadata.resourceVersion` of the state for which the API server refused the leader's part, because it has a newer state.
    outdated: Option<String>,
}

impl Object {
    /// Starts with the first observed state of an object. `schema` is the installed schema of the spec, if it is known.
    pub(super) fn new(observed: ObservedRevision, schema: Option<&Schema>) -> Self {
        Self {
            revision: observed.revision(schema),
            unreadable: None,
            is_enabled: observed.is_enabled.unwrap_or(true),
            observed,
            experiment: None,
            counter: None,
            preview_due: None,
            is_reporting: false,
            failed_report: None,
            outdated: None,
        }
    }

    /// Takes a newer state of the same object. Returns true if the table must be published again.
    pub(super) fn observe(&mut self, name: &str, observed: ObservedRevision, schema: Option<&Schema>) -> bool {
        let old = std::mem::replace(&mut self.observed, observed).reported;
        let is_changed = if old.version > self.observed.reported.version {
            // The response to a status update is newer than the watch.
            self.observed.reported = old;
            false
        } else {
            old.serving_facts() != self.observed.reported.serving_facts()
        };
        let was_enabled = self.is_enabled;
        self.is_enabled = self.observed.is_enabled.unwrap_or(was_enabled);
        self.interpret(name, schema) || is_changed || self.is_enabled != was_enabled
    }

    /// Reads the current form of the spec with this schema. Returns true if the table must be published again.
    pub(super) fn interpret(&mut self, name: &str, schema: Option<&Schema>) -> bool {
        let read = self.observed.revision(schema);
        if self.revision.is_err() {
            let is_changed = self.revision != read;
            self.revision = read;
            return is_changed;
        }
        let unreadable = read.err();
        if unreadable == self.unreadable {
            return false;
        }
        // Without the schema, unknown fields may still turn out to have their defaults.
        let is_final = schema.is_some() || !self.observed.has_unknown_fields();
        if let Some(Failure { reason, message }) = unreadable.as_ref().filter(|_| is_final) {
            tracing::warn!(revision = name, %reason, error = message, "revision unreadable; its earlier form is kept");
        }
        self.unreadable = unreadable;
        true
    }

    /// Returns the reason why the current form of the spec cannot be read; `None` if it can be read, or if no earlier form could.
    pub(super) fn unreadable(&self) -> Option<&Failure> {
        self.unreadable.as_ref()
    }

    /// Returns true if the spec has a field that this version does not know and that the schema did not explain.
    pub(super) fn has_unexplained_fields(&self) -> bool {
        self.observed.has_unknown_fields() && (self.revision.is_err() || self.unreadable.is_some())
    }

    /// Returns true if the revision is that of an experiment. The name decides if the spec could never be read.
    fn is_candidate(&self) -> bool {
        match &self.revision {
            Ok(revision) => revision.experiment.is_some(),
            Err(_) => self.observed.identity.is_none(),
        }
    }

    /// Returns the desired revision, or the reason why it cannot be read; `None` if it is disabled. A disabled candidate is desired
    /// too: it is prepared and loaded, but not previewed.
    pub(super) fn desired(&self) -> Option<Result<Desired, Failure>> {
        let reported = &self.observed.reported;
        let to_desired = |revision: &DesiredRevision| Desired {
            policy: revision.policy.clone(),
            experiment: revision.experiment.clone(),
            uid: revision.origin_uid.clone(),
            generation: revision.generation,
            spec: Arc::clone(&revision.spec),
            scope: Scope::POLICY,
            place: None,
            modules: ModuleSource::Network(reported.modules.clone()),
            was_prepared: reported.is_initialized(),
            // The operator decides which generations are rolled out.
            refusal: None,
        };
        (self.is_enabled || self.is_candidate()).then(|| self.revision.as_ref().map(to_desired).map_err(Clone::clone))
    }

    /// Starts the preview of a candidate that is loaded and enabled, and stops that of a disabled one. The counts continue those in
    /// the status, from an earlier process of this pod or from an earlier pod of the same name. Returns true if the table must be
    /// published again.
    pub(super) fn follow_preview(&mut self, loaded: Option<&Arc<Revision>>, metrics: &Metrics, time: Time) -> bool {
        let Ok(DesiredRevision { experiment: Some(id), settings, .. }) = &self.revision else { return false };
        if !self.is_enabled {
            if let Some(counter) = &self.counter {
                counter.stop();
            }
            return self.experiment.take().is_some();
        }
        let Some(revision) = loaded else { return false };
        let before = self.experiment.as_ref().map(|experiment| &experiment.revision);
        if before.is_some_and(|before| Arc::ptr_eq(before, revision)) {
            return false;
        }
        let counter = match self.counter.take() {
            Some(counter) if !counter.is_stopped() => counter,
            // The candidate is previewed again after a stop.
            Some(_) => Arc::new(DivergenceCounter::new(PreviewReport::new(time))),
            None => {
                let reported = self.observed.reported.replica.as_ref().filter(|replica| !is_final(replica));
                let report = reported.and_then(|replica| replica.preview.clone());
                Arc::new(DivergenceCounter::new(report.unwrap_or_else(|| PreviewReport::new(time))))
            }
        };
        self.counter = Some(Arc::clone(&counter));
        self.experiment = Some(Arc::new(Experiment {
            id: id.clone(),
            revision: Arc::clone(revision),
            metrics: metrics.experiment(id),
            settings: *settings,
            counter: Some(counter),
            failure: None,
        }));
        true
    }

    /// Returns true if the candidate is disabled and is not evaluated any more, so that its counts are final.
    fn is_suspended(&self) -> bool {
        let is_drained = self.counter.as_ref().is_none_or(|counter| counter.is_drained());
        !self.is_enabled && self.is_candidate() && is_drained
    }

    /// Returns the revision as a part of its policy. A revision that cannot be read has the policy and the generation of its name,
    /// so that its requests are denied. Returns `None` for a candidate that cannot be read.
    pub(super) fn view<'a>(&'a self, slot: Option<&'a Slot>) -> Option<View<'a>> {
        let answering = if self.observed.reported.is_live { Role::Live } else { Role::Other };
        let (policy, generation, role) = match (&self.revision, &self.observed.identity) {
            (Ok(revision), _) => {
                let is_loaded = slot.is_some_and(|slot| slot.loaded().is_some());
                let preview = || Role::Candidate(self.experiment.clone().filter(|_| is_loaded));
                let role = if revision.experiment.is_some() { preview() } else { answering };
                (&revision.policy, revision.generation, role)
            }
            (Err(_), Some(identity)) => (&identity.policy, identity.generation, answering),
            (Err(_), None) => return None,
        };
        Some(View { policy, generation, role, slot })
    }

    /// Returns the policy and the generation of a revision of a request policy; `None` for another revision and for a candidate. A
    /// revision that cannot be read has the policy and the generation of its name.
    pub(super) fn request_policy(&self) -> Option<(&PolicyId, u64)> {
        match (&self.revision, &self.observed.identity) {
            (Ok(revision), _) => {
                let is_request = revision.spec.request.is_some() && revision.experiment.is_none();
                is_request.then_some((&revision.policy, revision.generation))
            }
            (Err(_), Some(identity)) => self.observed.is_request.then_some((&identity.policy, identity.generation)),
            (Err(_), None) => None,
        }
    }

    /// Returns the spec of the policy; `None` if it cannot be read.
    pub(super) fn spec(&self) -> Option<&PolicySpec> {
        self.revision.as_ref().ok().map(|revision| &*revision.spec)
    }

    /// Returns the digests that the leader has pinned.
    pub(super) fn modules(&self) -> impl Iterator<Item = Digest> {
        self.observed.reported.modules.values().copied()
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Returns true if the revision decides requests. A disabled revision is not served by any replica.
    pub(super) fn is_live(&self) -> bool {
        self.is_enabled && self.observed.reported.is_live
    }

    /// Returns the preview for the next status update: the current counts, or the last reported counts if the current ones may not
    /// be reported yet. Final counts are reported at once.
    pub(super) fn preview(&self, now: Instant) -> Preview {
        // The counts are read after this check, so final counts are complete.
        let is_suspended = self.is_suspended();
        let is_due = is_suspended || self.preview_due.is_none_or(|due| now >= due);
        let report = match &self.counter {
            Some(counter) if is_due => Some(counter.report()),
            _ => self.observed.reported.replica.as_ref().and_then(|replica| replica.preview.clone()),
        };
        Preview { report, is_suspended }
    }

    /// Returns the error of the last status update; `None` if it was successful.
    pub(super) fn report_error(&self) -> Option<&str> {
        self.failed_report.as_ref().map(|(_, error, _)| error.as_str())
    }

    /// Returns the status to write now; `None` if the API server has it already, or if an update is running. After the API server
    /// refused the leader's part, the part waits for a newer state of the object, from which it is computed again.
    pub(super) fn begin_report(
        &mut self,
        slot: Option<&Slot>,
        replica: &Replica,
        is_leader: bool,
        now: Instant,
        time: Timestamp,
    ) -> Option<Update> {
        let is_early = self.failed_report.as_ref().is_some_and(|(_, _, retry_at)| now < *retry_at);
        if self.is_reporting || is_early {
            return None;
        }
        let preview = self.preview(now);
        // A report without counts does not delay the next report.
        let has_new_counts = preview.report.as_ref().is_some_and(|it| !it.counts.is_empty())
            && preview.report != self.observed.reported.replica.as_ref().and_then(|it| it.preview.clone());
        let is_outdated = self.outdated.is_some() && self.outdated == self.observed.reported.resource_version;
        let update = Update::of(self, slot, replica, is_leader && !is_outdated, preview, time)?;
        if has_new_counts {
            self.preview_due = Some(now + PREVIEW_REPORT_INTERVAL);
        }
        self.is_reporting = true;
        Some(update)
    }

    /// Takes the result of a status update. Returns true if the table must be published again.
    pub(super) fn take_reported(&mut self, name: &str, result: Result<Written, kube::Error>, now: Instant) -> bool {
        self.is_reporting = false;
        let had_failed = self.failed_report.is_some();
        let mut is_changed = false;
        self.failed_report = match result {
            Ok(Written { reported, outdated }) => {
                self.outdated = outdated;
                if let Some(reported) = reported.filter(|new| new.version >= self.observed.reported.version) {
                    is_changed = reported.serving_facts() != self.observed.reported.serving_facts();
                    self.observed.reported = reported;
                }
                None
            }
            Err(error) => {
                tracing::warn!(revision = name, %error, "cannot write the status of the revision; trying again");
                let mut delays =
                    self.failed_report.take().map_or_else(|| REPORT_BACKOFF.build(), |(delays, ..)| delays);
                // The backoff is endless, so `next` always returns a delay.
                let delay = delays.next().unwrap_or_default();
                Some((delays, error.to_string(), now + delay))
            }
        };
        is_changed || had_failed != self.failed_report.is_some()
    }
}

/// Returns true if a replica has reported that it does not evaluate the candidate any more.
fn is_final(replica: &ReplicaStatus) -> bool {
    replica.reason == reasons::SUSPENDED
}

#[cfg(test)]
mod tests;
