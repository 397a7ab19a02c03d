//! The progress of operations (AIP-151) over a folder. The state of the folder shows the progress only until the next change, so results
//! are recorded after every change.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Instant;

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

/// Returns the progress of a start, which waits until the preview of this start or of a later one is loaded. A stop after that does not
/// change the result.
fn start_progress(object: &Object, awaited: &AwaitedEffect) -> Progress {
    let preview = &object.preview;
    if preview.has_loaded(awaited.start.as_ref()) {
        return Progress::Done;
    }
    if preview.is_starting() {
        return Progress::Running("its program to be prepared".to_owned());
    }
    Progress::Failed(preview.stop_cause().map_or_else(
        || Error::new(Code::Aborted, "SUSPENDED", "the preview was stopped before it was loaded"),
        suspended_by,
    ))
}

/// Returns the progress of a stop, which waits for the end of the evaluations.
fn stop_progress(object: &Object, awaited: &AwaitedEffect) -> Progress {
    if object.preview.is_stopping(awaited.start.as_ref()) {
        Progress::Running("the evaluations in progress to end".to_owned())
    } else {
        Progress::Done
    }
}
