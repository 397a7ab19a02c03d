//! The progress of operations (AIP-151) over a folder. The state of the folder shows the progress only until the next change, so results
//! are recorded after every change.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use proviso_core::Failure;
use proviso_rest_api::kubernetes::suspended_by;
use proviso_rest_api::{
    AwaitedEffect, Code, Effect, Error, OperationResult, OperationSummary, Progress, StoredOperation,
};
use serde_json::Value;

use super::FolderSource;
use super::object::Object;
use super::store::{ObservedObject, experiment_object, policy_object};

type Result<T> = std::result::Result<T, Error>;

impl FolderSource {
    pub(crate) fn create_operation(&mut self, operation: StoredOperation) {
        self.operations.add(operation, Timestamp::now());
        self.save_due.get_or_insert_with(Instant::now);
    }

    pub(crate) fn operation(&self, id: &str) -> Result<StoredOperation> {
        self.operations.get(id, Timestamp::now())
    }

    pub(crate) fn all_operations(&self) -> Vec<OperationSummary> {
        self.operations.all(Timestamp::now())
    }

    pub(crate) fn finish_operation(&mut self, id: &str, result: OperationResult) -> Result<StoredOperation> {
        let finished = self.operations.finish(id, result, Timestamp::now())?;
        self.save_due.get_or_insert_with(Instant::now);
        Ok(finished)
    }

    /// Records the results of the operations that have ended. A later change, such as a stop of a preview, does not change them.
    pub(super) fn finish_operations(&mut self) {
        if !self.has_listed {
            // The objects that are new since the last state file are not known yet.
            return;
        }
        let pending: Vec<_> = self.operations.pending().map(Arc::clone).collect();
        for operation in pending {
            let progress = self.progress(&operation.awaited);
            let resource = (progress == Progress::Done).then(|| self.resource(&operation.awaited)).flatten();
            if let Some(result) = operation.result_of(&progress, resource) {
                // The operation may have expired.
                let _ = self.finish_operation(&operation.id, result);
            }
        }
    }

    /// Returns the resource after the effect in its JSON form; `None` if the response of the method is empty.
    fn resource(&self, awaited: &AwaitedEffect) -> Option<Value> {
        match (awaited.effect, awaited.experiment()) {
            (Effect::Delete | Effect::Commit, _) => None,
            (_, Some(name)) => self.stored_experiment(&name).ok().map(|experiment| experiment.to_json()),
            (_, None) => self.stored_policy(&awaited.policy).ok().map(|policy| policy.to_json()),
        }
    }

    pub(crate) fn progress(&self, awaited: &AwaitedEffect) -> Progress {
        let object = match (awaited.effect, awaited.experiment()) {
            (Effect::Commit, _) | (_, None) => policy_object(&awaited.policy),
            (_, Some(name)) => experiment_object(&name),
        };
        let observed = self.observed(&object).filter(|observed| observed.object.uid == awaited.uid);
        match (observed, awaited.effect) {
            (None, Effect::Delete) => Progress::Done,
            (None, _) => Progress::Failed(Error::not_found(&awaited.target())),
            (Some(_), Effect::Delete) => Progress::Running("it to be gone".to_owned()),
            (Some(observed), Effect::StartPreview) => start_progress(observed.object, awaited),
            (Some(observed), Effect::StopPreview) => stop_progress(observed.object, awaited),
            (Some(observed), Effect::Create | Effect::Update | Effect::Commit) => {
                let problem = || self.problem(&object, observed.object).filter(|_| self.is_settled(observed.object));
                self.version_progress(&observed, &awaited.version, problem)
            }
        }
    }

    /// Returns the progress of an operation that waits until a version is loaded. `problem` returns the reason why the newest version
    /// does not serve.
    fn version_progress(
        &self,
        observed: &ObservedObject<'_>,
        version: &str,
        problem: impl FnOnce() -> Option<Failure>,
    ) -> Progress {
        let (generation, fingerprint) = version.split_once('-').unwrap_or_default();
        let generation: u64 = generation.parse().unwrap_or_default();
        let accepted = observed.object.record.as_ref();
        let accepted_generation = accepted.map_or(0, |record| record.generation);
        let is_same = accepted.is_some_and(|record| record.fingerprint.to_string() == fingerprint);
        let waits_for = match accepted_generation.cmp(&generation) {
            Ordering::Equal if is_same && self.live(observed.object).is_some() => return Progress::Done,
            Ordering::Equal if is_same => "it to be loaded",
            // A newer version serves: the operation is done, because its version served before or was replaced.
            Ordering::Greater => return Progress::Done,
            Ordering::Less if observed.fingerprint == fingerprint => "its program to be prepared",
            _ => {
                let message = "another version replaced this version before it served";
                return Progress::Failed(Error::new(Code::Aborted, "SUPERSEDED", message));
            }
        };
        problem().map_or_else(
            || Progress::Running(waits_for.to_owned()),
            |problem| Progress::Failed(Error::failed_version(&problem)),
        )
    }
}

/// Returns the progress of a start, which waits until its version is loaded, for this start or for a later start of the same version.
/// A stop after that does not change the result. A later start of another version shows nothing about this start.
fn start_progress(object: &Object, awaited: &AwaitedEffect) -> Progress {
    let (preview, start) = (&object.preview, awaited.start.as_ref());
    if preview.has_loaded(start) {
        return Progress::Done;
    }
    let later = preview.last_start().filter(|(time, _)| start.is_some_and(|start| *time > start));
    if let Some((time, generation)) = later {
        if !is_version(object, generation, &awaited.version) {
            return Progress::Failed(replaced_by(time));
        }
        if preview.has_loaded(Some(time)) {
            return Progress::Done;
        }
    }
    if preview.is_starting() {
        return Progress::Running("its program to be prepared".to_owned());
    }
    Progress::Failed(preview.stop_cause().map_or_else(
        || Error::new(Code::Aborted, "SUSPENDED", "the preview was stopped before it was loaded"),
        suspended_by,
    ))
}

/// Returns true if a start of this generation has started `version`, as far as the object shows it. The generation alone does not show
/// it, because versions that were never accepted may share one.
fn is_version(object: &Object, generation: i64, version: &str) -> bool {
    let mut known = [object.accepted(), object.newest()].into_iter().flatten();
    known.any(|key| {
        i64::try_from(key.generation) == Ok(generation) && format!("{}-{}", key.generation, key.fingerprint) == version
    })
}

/// Returns the error of a start that was not recorded as done when the preview was started again at `time`.
fn replaced_by(time: &Time) -> Error {
    let message = format!("the start at {} replaced this one before the server had loaded the experiment", time.0);
    Error::new(Code::Aborted, "REPLACED", message)
}

/// Returns the progress of a stop, which waits for the end of the evaluations.
fn stop_progress(object: &Object, awaited: &AwaitedEffect) -> Progress {
    if object.preview.is_stopping(awaited.start.as_ref()) {
        Progress::Running("the evaluations in progress to end".to_owned())
    } else {
        Progress::Done
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proviso_artifacts::Digest;

    use super::super::object::tests::{desired_version, restarted};
    use super::super::preview::Facts;
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn at(seconds: i64) -> Time {
        Time(Timestamp::from_second(seconds).unwrap())
    }

    /// Starts the preview of this generation.
    fn start(object: &mut Object, generation: u64, seconds: i64) {
        object.preview.start(generation, HOUR, &at(seconds));
    }

    /// Loads this generation, which has this version.
    fn load(object: &mut Object, generation: u64, version: &str) {
        object.record = restarted(generation, version).record;
        let (newest, loaded) = (generation, Some(generation));
        let facts = Facts { newest, loaded, failure: None, obstacle: None, auto_start: false, ttl: HOUR };
        object.preview.follow(&facts, &at(1_000));
    }

    /// Returns the progress of the start of this version at second 10.
    fn progress(object: &Object, generation: u64, version: &str) -> Progress {
        let awaited = AwaitedEffect {
            effect: Effect::StartPreview,
            policy: "cluster.a".parse().unwrap(),
            experiment: Some("e".to_owned()),
            uid: "u".to_owned(),
            version: format!("{generation}-{}", Digest::of(version.as_bytes())),
            start: Some(at(10)),
        };
        start_progress(object, &awaited)
    }

    fn is_running(progress: &Progress) -> bool {
        matches!(progress, Progress::Running(_))
    }

    #[test]
    fn a_start_is_done_when_its_version_is_loaded_also_for_a_later_start() {
        let mut object = restarted(1, "one");
        start(&mut object, 1, 10);
        assert!(is_running(&progress(&object, 1, "one")));
        start(&mut object, 1, 20);
        assert!(is_running(&progress(&object, 1, "one")));
        load(&mut object, 1, "one");
        assert_eq!(progress(&object, 1, "one"), Progress::Done);
        object.preview.stop(None, &at(30));
        assert_eq!(progress(&object, 1, "one"), Progress::Done, "a stop does not undo it");
        // The version of this start is loaded, and that of a later start is not.
        let mut object = restarted(1, "one");
        start(&mut object, 1, 10);
        load(&mut object, 1, "one");
        object.manifest = Some(desired_version("two"));
        start(&mut object, 2, 20);
        assert_eq!(progress(&object, 1, "one"), Progress::Done);
    }

    #[test]
    fn a_start_of_another_version_does_not_finish_an_earlier_start() {
        // The second version was never accepted, so the third one has the same generation.
        for (generation, version, later_generation, later_version) in [(1, "one", 2, "two"), (2, "two", 2, "three")] {
            let mut object = restarted(1, "one");
            object.manifest = Some(desired_version(version));
            start(&mut object, generation, 10);
            assert!(is_running(&progress(&object, generation, version)));
            object.manifest = Some(desired_version(later_version));
            start(&mut object, later_generation, 20);
            let check = |object: &Object, what: &str| {
                let Progress::Failed(error) = progress(object, generation, version) else {
                    panic!("{what}: {version} is not loaded");
                };
                assert_eq!((error.code, error.reason()), (Code::Aborted, "REPLACED"), "{what}");
                assert!(error.message.starts_with("the start at 1970-01-01T00:00:20Z replaced this one"), "{error}");
            };
            check(&object, "another version is prepared");
            load(&mut object, later_generation, later_version);
            check(&object, "another version is loaded");
            object.preview.stop(None, &at(30));
            check(&object, "another version was loaded and stopped");
        }
    }
}
