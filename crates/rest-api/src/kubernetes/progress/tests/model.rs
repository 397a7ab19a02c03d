//! Random sequences of events in the life of an experiment. Each recorded result must agree with the events, and stay.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use proviso_crds::{PreviewMetadata, PreviewState};
use serde_json::Value;

use super::super::*;
use super::condition;
use crate::operation::OperationResult;

/// An event in the life of an experiment.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A caller of the API starts or stops the preview.
    Start,
    Stop,
    /// Every replica has loaded the candidate of the last start.
    Load,
    /// The last start fails, and the operator suspends the preview.
    Fail,
    /// Somebody changes the spec, past the API.
    Edit,
    /// The operator reports the state of the preview, or suspends the preview after an update.
    Reconcile,
    /// The operator starts the same version again.
    Restart,
    /// A client polls every operation.
    Poll,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    use Event::{Edit, Fail, Load, Poll, Reconcile, Restart, Start, Stop};
    proptest::collection::vec(
        proptest::sample::select(vec![Start, Stop, Load, Fail, Edit, Reconcile, Restart, Poll]),
        0..40,
    )
}

/// An operation of the model, with the facts that its result must agree with.
#[derive(Debug)]
struct ModelOperation {
    effect: Effect,
    at: Time,
    version: i64,
    result: Option<OperationResult>,
}

/// An experiment whose operator and callers do only what the protocol permits.
struct Model {
    clock: i64,
    generation: i64,
    status: ExperimentStatus,
    operations: Vec<ModelOperation>,
    /// The starts that every replica has loaded, with their generations.
    loaded: Vec<(Time, i64)>,
}

impl Model {
    fn new() -> Self {
        Self {
            clock: 0,
            generation: 1,
            status: ExperimentStatus::default(),
            operations: Vec::new(),
            loaded: Vec::new(),
        }
    }

    fn now(&mut self) -> Time {
        self.clock += 1;
        Time(Timestamp::from_second(self.clock).unwrap())
    }

    /// Records each result that is decided. A recorded result stays, as in the stores.
    fn poll(&mut self) {
        for operation in self.operations.iter_mut().filter(|operation| operation.result.is_none()) {
            let observed = Observed {
                generation: self.generation,
                auto_start: false,
                waits_for: WaitsFor::Replicas,
                problem: None,
                status: &self.status,
            };
            operation.result = match experiment(operation.effect, operation.version, Some(&operation.at), &observed) {
                Progress::Running(_) => None,
                Progress::Done => Some(OperationResult::Response(Value::Null)),
                Progress::Failed(error) => Some(OperationResult::Error(error.to_status())),
            };
        }
    }

    fn is_active(&self) -> bool {
        let preview = self.status.preview_metadata.as_ref();
        self.is_same_version() && preview.is_some_and(|preview| preview.state == PreviewState::Active)
    }

    fn is_same_version(&self) -> bool {
        self.status.preview_metadata.as_ref().is_some_and(|preview| preview.generation == self.generation)
    }

    fn is_loaded(&self) -> bool {
        let start = self.status.preview_metadata.as_ref().map(|preview| &preview.start_time);
        start.is_some() && self.status.previewed_start_time.as_ref() == start
    }

    fn start(&mut self) -> Time {
        let now = self.now();
        let before = self.status.preview_metadata.take();
        let started = PreviewMetadata::start(before.as_ref(), self.generation, now.clone(), Duration::from_hours(1));
        self.status.preview_metadata = Some(started);
        now
    }

    fn suspend(&mut self, cause: Option<&str>) -> Option<Time> {
        let now = self.now();
        let cause = cause.map(|reason| StopCause { reason: reason.to_owned(), message: String::new() });
        self.status.preview_metadata = Some(self.status.preview_metadata.take()?.stop(now.clone(), cause));
        Some(now)
    }

    fn report(&mut self, status: &str, reason: &str) {
        let condition: Condition =
            serde_json::from_value(condition("Previewing", status, reason, self.generation)).unwrap();
        self.status.conditions = vec![condition];
    }

    fn begin(&mut self, effect: Effect, at: Option<Time>) {
        let version = self.generation;
        self.operations.extend(at.map(|at| ModelOperation { effect, at, version, result: None }));
    }

    fn reconcile(&mut self) {
        let Some(preview) = self.status.preview_metadata.clone() else { return };
        let reported = self.status.conditions.first().map(|condition| condition.reason.clone()).unwrap_or_default();
        let has_begun_to_stop = ["Stopping", "Suspended"].contains(&reported.as_str());
        match preview.state {
            PreviewState::Active if preview.generation != self.generation => {
                self.suspend(Some("Updated"));
            }
            PreviewState::Active if self.is_loaded() => self.report("True", "Previewing"),
            PreviewState::Active => self.report("False", "Loading"),
            PreviewState::Suspended if has_begun_to_stop => self.report("False", "Suspended"),
            PreviewState::Suspended => self.report("False", "Stopping"),
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Start => {
                self.poll();
                let at = self.start();
                self.begin(Effect::StartPreview, Some(at));
            }
            Event::Stop => {
                self.poll();
                let at = self.suspend(None);
                self.begin(Effect::StopPreview, at);
            }
            Event::Load if self.is_active() => {
                let start = self.status.preview_metadata.as_ref().map(|preview| preview.start_time.clone()).unwrap();
                self.loaded.push((start.clone(), self.generation));
                self.status.previewed_start_time = Some(start);
            }
            Event::Fail if self.is_active() && !self.is_loaded() => {
                self.suspend(Some("LoadingFailed"));
            }
            Event::Edit => self.generation += 1,
            Event::Reconcile => self.reconcile(),
            Event::Restart if !self.is_active() && self.is_same_version() => {
                self.start();
            }
            Event::Poll => self.poll(),
            Event::Load | Event::Fail | Event::Restart => {}
        }
    }

    /// Checks each recorded start against the facts.
    fn check(&self) -> Result<(), TestCaseError> {
        for operation in self.operations.iter().filter(|operation| operation.effect == Effect::StartPreview) {
            let is_loaded = self.loaded.iter().any(|(start, _)| *start == operation.at);
            let later = |(start, version): &(Time, i64)| *start > operation.at && *version == operation.version;
            match &operation.result {
                Some(OperationResult::Response(_)) => {
                    prop_assert!(is_loaded || self.loaded.iter().any(later), "done, but not loaded: {operation:?}");
                }
                Some(OperationResult::Error(_)) => prop_assert!(!is_loaded, "failed, but loaded: {operation:?}"),
                None => {}
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn a_recorded_result_agrees_with_the_facts_stays_and_comes_in_the_end(events in events()) {
        let mut model = Model::new();
        for event in events {
            let before: Vec<_> = model.operations.iter().map(|operation| operation.result.clone()).collect();
            model.apply(event);
            for (before, operation) in before.iter().zip(&model.operations) {
                prop_assert!(before.is_none() || *before == operation.result, "{event:?}: {operation:?}");
            }
            model.check()?;
        }
        // The replicas load an active preview, and finish a stopped one.
        for event in [Event::Reconcile, Event::Load, Event::Reconcile, Event::Reconcile, Event::Reconcile, Event::Poll] {
            model.apply(event);
        }
        model.check()?;
        for operation in &model.operations {
            prop_assert!(operation.result.is_some(), "never ends: {operation:?} {:?}", model.status);
        }
    }
}
