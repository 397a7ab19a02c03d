//! The previews of the experiments in a folder (AIP-236): their starts, stops and ends, and the counts of this server. This server is
//! the only replica, so a preview is loaded everywhere when it is loaded here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use proviso_core::experiment::MAX_EXPERIMENTS;
use proviso_core::experiment::preview::{Expiry, Obstacle, StopReason};
use proviso_core::{Failure, PolicyId, Reason};
use proviso_crds::{PreviewMetadata, PreviewReport, PreviewState, StopCause, reasons};

use super::FolderSource;
use super::object::Object;
use crate::manifests::ObjectId;
use crate::preview::{self, DivergenceCounter};
use crate::table::IdleReason;

/// The preview of an experiment. A stop of it ends the evaluations that have not begun.
#[derive(Debug, Default)]
pub(super) struct ExperimentPreview {
    /// The last start and stop; `None` before the first start.
    metadata: Option<PreviewMetadata>,
    /// The start time of the last preview that was loaded; `None` if none was.
    previewed_start_time: Option<Time>,
    /// The counts since the last start. They are kept after the stop.
    session: Option<Session>,
    /// The counters of the stopped previews whose evaluations may still run, with the times of their stops.
    stopping: Vec<(Time, Arc<DivergenceCounter>)>,
    /// True if the end of the preview is announced.
    is_ending: bool,
}

/// The counts of one preview, from its start to its stop.
#[derive(Debug)]
struct Session {
    started: Time,
    generation: u64,
    counter: Arc<DivergenceCounter>,
}

/// The facts that decide about the preview of an experiment.
#[derive(Debug)]
pub(super) struct Facts {
    /// The generation of the newest readable version.
    pub newest: u64,
    /// The generation that is loaded; `None` if none is. It may be older than the newest one.
    pub loaded: Option<u64>,
    /// The reason why a version that is not loaded does not work; `None` while it is prepared.
    pub failure: Option<Failure>,
    /// The reason why no version may be previewed: the policy does not exist, or has too many experiments.
    pub obstacle: Option<Failure>,
    pub auto_start: bool,
    pub ttl: Duration,
}

impl ExperimentPreview {
    /// Takes the state of an earlier process.
    pub(super) fn restore(metadata: Option<PreviewMetadata>, previewed_start_time: Option<Time>) -> Self {
        // An older version of the server recorded neither the end of a preview nor whether it was loaded.
        let older = metadata.as_ref().filter(|metadata| metadata.expire_time.is_none());
        let previewed_start_time = previewed_start_time.or_else(|| Some(older?.start_time.clone()));
        Self { metadata, previewed_start_time, ..Self::default() }
    }

    /// Returns the last start and stop, and the start time of the last preview that was loaded, for the state file.
    pub(super) fn to_state(&self) -> (Option<PreviewMetadata>, Option<Time>) {
        (self.metadata.clone(), self.previewed_start_time.clone())
    }

    /// Returns the metadata for this generation, the newest one; `None` before the first start.
    pub(super) fn of(&self, generation: u64) -> Option<PreviewMetadata> {
        let metadata = self.metadata.clone()?;
        Some(PreviewMetadata { state: metadata.state(signed(generation)), ..metadata })
    }

    /// Returns the counts and samples of this generation; `None` if the last preview was of another generation.
    pub(super) fn report(&self, generation: u64) -> Option<PreviewReport> {
        let session = self.session.as_ref().filter(|session| session.generation == generation)?;
        Some(session.counter.report())
    }

    /// Returns the counter of the active preview; `None` if nothing is previewed.
    pub(super) fn counter(&self) -> Option<&Arc<DivergenceCounter>> {
        self.session.as_ref().map(|session| &session.counter).filter(|counter| !counter.is_stopped())
    }

    /// Returns true if the preview was started at least once.
    pub(super) fn is_started(&self) -> bool {
        self.metadata.is_some()
    }

    /// Returns true if this generation is previewed, or will be previewed when it is loaded.
    pub(super) fn is_active(&self, generation: u64) -> bool {
        self.active().is_some_and(|metadata| metadata.generation == signed(generation))
    }

    fn active(&self) -> Option<&PreviewMetadata> {
        self.metadata.as_ref().filter(|metadata| metadata.state == PreviewState::Active)
    }

    /// Returns the time and the generation of the last start; `None` before the first start.
    pub(super) fn last_start(&self) -> Option<(&Time, i64)> {
        self.metadata.as_ref().map(|metadata| (&metadata.start_time, metadata.generation))
    }

    /// Returns true if the preview is active, but is not loaded yet since its start.
    pub(super) fn is_starting(&self) -> bool {
        self.active().is_some_and(|metadata| !self.has_loaded(Some(&metadata.start_time)))
    }

    /// Returns true if the preview that started at this time was loaded, and no later one was.
    pub(super) fn has_loaded(&self, start_time: Option<&Time>) -> bool {
        start_time.is_some() && self.previewed_start_time.as_ref() == start_time
    }

    /// Returns true if evaluations of a preview that stopped at this time, or before, may still run.
    pub(super) fn is_stopping(&self, stop_time: Option<&Time>) -> bool {
        // Times in JSON have a precision of one second.
        let is_stop = |time: &Time| stop_time.is_some_and(|stop_time| time.0.as_second() <= stop_time.0.as_second());
        self.stopping.iter().any(|(time, counter)| is_stop(time) && !counter.is_drained())
    }

    /// Returns the cause for which the preview stopped by itself; `None` if it is active, or if a caller stopped it.
    pub(super) fn stop_cause(&self) -> Option<&StopCause> {
        let stopped = self.metadata.as_ref().filter(|metadata| metadata.state == PreviewState::Suspended)?;
        stopped.stop_cause.as_ref()
    }

    /// Returns the reason why nothing is previewed.
    pub(super) fn idle_reason(&self, obstacle: Option<&IdleReason>, auto_start: bool) -> IdleReason {
        match (obstacle, self.stop_cause(), &self.metadata) {
            // An obstacle matters only to an experiment that somebody wants to preview.
            (Some(obstacle), cause, _) if auto_start || cause.is_some() => obstacle.clone(),
            (_, Some(StopCause { reason, message }), _) => {
                IdleReason::Failed(Failure::new(reason.clone(), message.clone()))
            }
            (_, None, Some(_)) if self.is_starting() => IdleReason::Preparing,
            (_, None, Some(_)) => IdleReason::Suspended,
            (_, None, None) => IdleReason::NotStarted,
        }
    }

    /// Starts a preview of this generation, which stops by itself after `ttl`.
    pub(super) fn start(&mut self, generation: u64, ttl: Duration, now: &Time) {
        let before = self.metadata.as_ref();
        // The time identifies the start, also if the clock steps back.
        let time = PreviewMetadata::time_after(before, now.0);
        self.metadata = Some(PreviewMetadata::start(before, signed(generation), time, ttl));
    }

    /// Stops the preview, if it was ever started. `cause` is `None` if a caller stops it.
    pub(super) fn stop(&mut self, cause: Option<StopCause>, now: &Time) {
        let time = PreviewMetadata::time_after(self.metadata.as_ref(), now.0);
        self.end(&time);
        self.metadata = self.metadata.take().map(|metadata| metadata.stop(time, cause));
    }

    /// Ends the evaluations: no other one begins.
    pub(super) fn end(&mut self, now: &Time) {
        if let Some(counter) = self.counter().map(Arc::clone) {
            counter.stop();
            self.stopping.push((now.clone(), counter));
        }
    }

    /// Takes an update of the experiment, which suspends its preview (AIP-236). With `autoStart`, the preview of the last good version
    /// continues until the new version works, as the last good generation of a policy keeps serving. `accepted` is the last accepted
    /// generation; 0 if there is none. Returns true if the preview is suspended.
    pub(super) fn take_update(&mut self, accepted: u64, auto_start: bool, now: &Time) -> bool {
        let Some(metadata) = self.active() else { return false };
        if auto_start && metadata.generation <= signed(accepted) {
            return false;
        }
        let message = "the experiment was changed: start the preview of its new version";
        self.stop(Some(stop_cause(&Failure::new(reasons::UPDATED, message))), now);
        true
    }

    /// Starts or suspends the preview as the facts require, and starts new counts if the preview is loaded for the first time since its
    /// start. Returns true if the state file changes.
    pub(super) fn follow(&mut self, facts: &Facts, now: &Time) -> bool {
        let is_newest_loaded = facts.loaded == Some(facts.newest);
        let starts_itself = facts.auto_start && facts.obstacle.is_none() && is_newest_loaded && self.may_start(facts);
        if starts_itself {
            self.start(facts.newest, facts.ttl, now);
        }
        let is_starting = self.is_starting();
        let refusal = facts.obstacle.as_ref().filter(|_| Obstacle::NotAccepted.suspends(!is_starting));
        let failure = facts.failure.as_ref().filter(|_| Obstacle::NotPrepared.suspends(!is_starting));
        if let Some(failure) = refusal.or(failure).filter(|_| self.active().is_some()) {
            self.stop(Some(stop_cause(failure)), now);
            return true;
        }
        let Some((start_time, generation)) = self.loaded_start(facts) else {
            self.end_outdated(now);
            return starts_itself;
        };
        let is_current = |session: &Session| {
            (&session.started, session.generation) == (&start_time, generation) && !session.counter.is_stopped()
        };
        if !self.session.as_ref().is_some_and(is_current) {
            self.end(now);
            let counter = Arc::new(DivergenceCounter::new(PreviewReport::new(preview::now())));
            self.session = Some(Session { started: start_time.clone(), generation, counter });
        }
        self.previewed_start_time = Some(start_time);
        is_starting
    }

    /// Returns the start time and the generation of the active preview, if its generation is loaded.
    fn loaded_start(&self, facts: &Facts) -> Option<(Time, u64)> {
        let generation = facts.loaded.filter(|loaded| self.is_active(*loaded))?;
        Some((self.active()?.start_time.clone(), generation))
    }

    /// Ends the evaluations if they do not belong to the active preview.
    fn end_outdated(&mut self, now: &Time) {
        let started = self.active().map(|metadata| &metadata.start_time);
        if self.session.as_ref().is_some_and(|session| Some(&session.started) != started) {
            self.end(now);
        }
    }

    /// Returns true if `autoStart` starts the newest version, which is loaded: it was never started, or its stop permits another start.
    fn may_start(&self, facts: &Facts) -> bool {
        match &self.metadata {
            Some(metadata) if metadata.generation == signed(facts.newest) => {
                metadata.stop_reason().is_some_and(StopReason::permits_restart)
            }
            _ => true,
        }
    }

    /// Follows the time: stops the preview at its end. Returns true if the preview was stopped, or its end must be announced.
    pub(super) fn follow_time(&mut self, now: &Time) -> bool {
        self.stopping.retain(|(_, counter)| !counter.is_drained());
        let expiry = self.active().and_then(|metadata| metadata.expiry(now.0));
        let has_ended = expiry.is_some_and(|expiry| expiry.is_over());
        if has_ended {
            let message = "its ttl has passed: start the preview again, or commit or delete the experiment";
            self.stop(Some(stop_cause(&Failure::new(reasons::EXPIRED, message))), now);
        }
        let is_ending = self.announced_end(now).is_some();
        let was_ending = std::mem::replace(&mut self.is_ending, is_ending);
        has_ended || is_ending != was_ending
    }

    /// Returns the time at which the active preview stops by itself; `None` if that is not soon.
    pub(super) fn announced_end(&self, now: &Time) -> Option<&Time> {
        let metadata = self.active()?;
        metadata.expiry(now.0).filter(Expiry::is_soon)?;
        metadata.expire_time.as_ref()
    }
}

impl FolderSource {
    /// Returns the experiments that may not be previewed, with the reason: their policy does not exist, has too many older
    /// experiments, or decides about other requests.
    pub(super) fn obstacles(&self) -> BTreeMap<ObjectId, IdleReason> {
        let experiments = self.objects.iter().filter_map(|(id, object)| {
            let policy = object.policy().filter(|_| matches!(id, ObjectId::Experiment(_)))?;
            Some((policy, (&object.created, id)))
        });
        let mut by_policy: BTreeMap<&PolicyId, Vec<_>> = BTreeMap::new();
        for (policy, experiment) in experiments {
            by_policy.entry(policy).or_default().push(experiment);
        }
        let mut obstacles = BTreeMap::new();
        for (policy, mut experiments) in by_policy {
            let policy_object = ObjectId::Policy(policy.clone());
            let (has_policy, live) = (self.objects.contains_key(&policy_object), self.observed(&policy_object));
            experiments.sort();
            for (older, (_, id)) in experiments.into_iter().enumerate() {
                if !has_policy {
                    obstacles.insert(id.clone(), IdleReason::PolicyNotFound(policy.clone()));
                } else if older >= MAX_EXPERIMENTS {
                    obstacles.insert(id.clone(), IdleReason::TooMany(policy.clone()));
                } else if let Some((live, candidate)) = live.as_ref().zip(self.observed(id))
                    && let Err(mismatch) = candidate.spec.check_experiment_of(policy, live.spec)
                {
                    obstacles.insert(id.clone(), IdleReason::OtherPoint(mismatch));
                }
            }
        }
        obstacles
    }

    /// Starts and suspends previews as the loaded versions, the policies and the limit of experiments require.
    pub(super) fn follow_previews(&mut self) {
        let (obstacles, now) = (self.obstacles(), Time(Timestamp::now()));
        let facts: Vec<_> = self
            .objects
            .iter()
            .filter_map(|(id, object)| Some((id.clone(), self.facts(object, obstacles.get(id))?)))
            .collect();
        for (id, facts) in facts {
            if let Some(object) = self.objects.get_mut(&id)
                && object.preview.follow(&facts, &now)
            {
                log(&id, object);
                self.save_due.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Returns the facts that decide about the preview of an experiment; `None` for a policy.
    fn facts(&self, object: &Object, obstacle: Option<&IdleReason>) -> Option<Facts> {
        let record = object.experiment_record()?;
        Some(Facts {
            newest: object.generation(object.fingerprint()?),
            loaded: self.live(object).map(|revision| revision.generation),
            failure: self.settled_failure(object),
            obstacle: obstacle.map(obstacle_to_failure),
            auto_start: record.auto_start,
            ttl: record.time_to_live(),
        })
    }

    /// Stops the previews whose time has passed, and announces the ends of others.
    pub(super) fn follow_time(&mut self) {
        let now = Time(Timestamp::now());
        for (id, object) in &mut self.objects {
            if !object.preview.follow_time(&now) {
                continue;
            }
            match object.preview.announced_end(&now) {
                Some(end) => tracing::info!(object = %id, end = %end.0, "preview stops soon"),
                None => log(id, object),
            }
            self.is_changed = true;
            self.save_due.get_or_insert_with(Instant::now);
        }
    }
}

fn signed(generation: u64) -> i64 {
    i64::try_from(generation).unwrap_or(i64::MAX)
}

fn stop_cause(failure: &Failure) -> StopCause {
    StopCause::new(failure.reason.as_str(), &failure.message)
}

/// Returns the failure of a start that meets this obstacle.
fn obstacle_to_failure(obstacle: &IdleReason) -> Failure {
    let reason = match obstacle {
        IdleReason::TooMany(_) => reasons::TOO_MANY,
        IdleReason::OtherPoint(_) => Reason::INVALID,
        _ => reasons::POLICY_NOT_FOUND,
    };
    Failure::new(reason, obstacle.to_string())
}

/// Logs the state of a preview, which has changed.
fn log(id: &ObjectId, object: &Object) {
    match object.preview.stop_cause() {
        None => tracing::info!(object = %id, "preview active"),
        Some(cause) => {
            tracing::warn!(object = %id, reason = cause.reason, error = cause.message, "preview suspended");
        }
    }
}

#[cfg(test)]
mod tests;
