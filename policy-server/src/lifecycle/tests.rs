//! Tests of slots: which revisions are prepared, kept and prepared again.

use proviso_core::PolicyId;
use proviso_crds::PolicySpec;
use proviso_engines::Program;
use proviso_programs::{Conditions, compile_cel};
use serde_json::{Map, Value, json};

use super::*;
use crate::budgets::Budgets;
use crate::container::Container;
use crate::manifests::ExperimentId;
use crate::table::{AdmissionPoint, Point};

fn spec() -> PolicySpec {
    serde_json::from_value(json!({"program": {"cel": {"validations": []}}, "admission": {"rules": []}})).unwrap()
}

fn desired(generation: u64, was_prepared: bool) -> Desired {
    Desired {
        policy: PolicyId::cluster("a").unwrap(),
        experiment: None,
        uid: "u".to_owned(),
        generation,
        spec: Arc::new(spec()),
        scope: Scope::POLICY,
        place: None,
        modules: ModuleSource::Network(BTreeMap::new()),
        was_prepared,
        refusal: None,
    }
}

fn fail(slot: &mut Slot, is_transient: bool, now: Instant) {
    let error = if is_transient { PrepareError::Stopped(String::new()) } else { PrepareError::NoPoint };
    slot.preparing = None;
    slot.settle(Err(error), now);
}

/// Returns the module with this content, by its reference.
pub(crate) fn modules(content: &str) -> BTreeMap<String, Digest> {
    BTreeMap::from([("registry://r/a:v1".to_owned(), Digest::of(content.as_bytes()))])
}

/// Returns the desired revision with the module pinned to this content.
fn pinned(content: &str) -> Desired {
    Desired { modules: ModuleSource::Network(modules(content)), ..desired(1, true) }
}

/// Returns the revision of a spec with a CEL program. `is_in_cluster` is false for a revision over a folder.
pub(crate) fn revision_of(spec: &Value, is_in_cluster: bool) -> Revision {
    let (policy, spec): (_, PolicySpec) =
        (PolicyId::cluster("a").unwrap(), serde_json::from_value(spec.clone()).unwrap());
    let admission = spec.admission.as_ref().unwrap();
    let proviso_crds::Program::Cel(source) = &spec.program else { panic!("no CEL program") };
    let program = Program::Cel(compile_cel(source, &Map::new()).unwrap());
    Revision {
        generation: 1,
        etag: "etag".to_owned(),
        point: Point::Admission(AdmissionPoint {
            matching: admission.to_match().unwrap(),
            coverage: admission.coverage(),
            conditions: Conditions::evaluable(&admission.match_conditions),
            fails_closed: admission.fails_closed(),
            is_matched_by_api_server: is_in_cluster,
            enforcement: admission.to_enforcement(),
        }),
        enabled: spec.enabled,
        // Long enough for a busy machine.
        timeout: Duration::from_mins(1),
        accounts: Budgets::new(64, 128 << 20, Container { memory: None, cpus: 2 }).accounts(&policy),
        metrics: Metrics::new().policy(&policy, program.engine()),
        policy,
        program: program.into(),
    }
}

/// Returns the slot of a loaded revision with these modules.
pub(crate) fn loaded(modules: BTreeMap<String, Digest>) -> Slot {
    let revision = revision_of(&json!({"program": {"cel": {"validations": []}}, "admission": {"rules": []}}), true);
    let mut slot = Slot::new(Ok(desired(1, true)));
    slot.settle(Ok(Loaded { revision: Arc::new(revision), modules }), Instant::now());
    slot
}

#[test]
fn a_loaded_revision_is_kept_if_it_cannot_be_read_any_more() {
    let mut slot = loaded(modules("one"));
    assert!(!slot.update(Err(Failure::new("Invalid", "spec.x"))));
    assert!(slot.loaded().is_some() && matches!(slot.state(), RolloutState::Loaded));
    assert!(!slot.update(Ok(desired(1, true))) && slot.loaded().is_some(), "it can be read again");
}

#[test]
fn a_revision_with_another_module_than_the_pinned_one_is_prepared_again() {
    let (mut slot, now) = (loaded(modules("one")), Instant::now());
    assert!(!slot.update(Ok(pinned("one"))) && slot.loaded().is_some(), "the pin has the loaded module");
    assert!(slot.update(Ok(pinned("two"))) && slot.loaded().is_none() && slot.is_due(false, now));
    // Another leader pins a module while this replica prepares the revision.
    let mut slot = Slot::new(Ok(desired(1, true)));
    slot.preparing = Some(1);
    assert!(!slot.update(Ok(desired(1, true))) && slot.preparing.is_some(), "nothing was pinned");
    assert!(slot.update(Ok(pinned("two"))) && slot.is_due(false, now), "the running preparation does not count");
}

#[test]
fn a_revision_that_failed_for_good_is_not_prepared_again() {
    let (mut slot, now) = (Slot::new(Ok(desired(1, true))), Instant::now());
    assert!(slot.is_due(false, now));
    fail(&mut slot, false, now);
    assert!(!slot.is_due(true, now + Duration::from_hours(1)));
    assert!(!slot.update(Ok(desired(1, true))), "the same revision");
    assert!(slot.update(Ok(desired(2, true))) && slot.is_due(false, now), "the next generation");
}

#[test]
fn preparations_that_fail_for_a_transient_reason_back_off() {
    let (mut slot, mut now) = (Slot::new(Ok(desired(1, true))), Instant::now());
    let mut delays = Vec::new();
    for _ in 0..8 {
        fail(&mut slot, true, now);
        let due = (0..700).find(|seconds| slot.is_due(false, now + Duration::from_secs(*seconds))).unwrap();
        delays.push(due);
        now += Duration::from_secs(due);
    }
    // The jitter adds up to the delay itself.
    for (delay, least) in delays.iter().zip([5, 10, 20, 40, 80, 160, 300, 300]) {
        assert!((least..=2 * least + 1).contains(delay), "{delays:?}");
    }
}

#[test]
fn a_failed_revision_is_prepared_again_when_its_module_source_changes() {
    let (mut slot, now) = (Slot::new(Ok(desired(1, true))), Instant::now());
    fail(&mut slot, false, now);
    let pinned = ModuleSource::Pinned(BTreeMap::new());
    assert!(slot.update(Ok(Desired { modules: pinned, ..desired(1, true) })) && slot.is_due(false, now));
}

#[test]
fn only_the_leader_prepares_a_revision_that_is_new_to_all_replicas() {
    let (mut slot, now) = (Slot::new(Ok(desired(1, false))), Instant::now());
    assert!(!slot.is_due(false, now) && slot.is_due(true, now));
    assert!(matches!(slot.state(), RolloutState::Waiting) && slot.is_tried(), "readiness does not wait for it");
    assert!(!slot.update(Ok(desired(1, true))), "the leader has prepared it");
    assert!(slot.is_due(false, now) && !slot.is_tried() && matches!(slot.state(), RolloutState::Loading));
}

#[test]
fn a_revision_that_cannot_be_read_fails_without_being_prepared() {
    let failure = Failure::new("Invalid", "spec.x");
    let mut slot = Slot::new(Err(failure.clone()));
    assert!(!slot.is_due(true, Instant::now()) && slot.is_settled() && slot.is_tried());
    assert_eq!(slot.failure(), Some(&failure));
    assert!(!slot.update(Err(failure)) && slot.update(Ok(desired(1, true))));
}

#[test]
fn a_refused_revision_is_prepared_when_the_refusal_ends() {
    let refused = || Ok(Desired { refusal: Some(Failure::new("PriorityInUse", "")), ..desired(1, true) });
    let (mut slot, now) = (Slot::new(refused()), Instant::now());
    assert!(!slot.is_due(true, now) && slot.is_settled() && slot.is_tried() && slot.failure().is_some());
    assert!(!slot.update(refused()), "the same refusal");
    assert!(slot.update(Ok(desired(1, true))) && slot.is_due(false, now));
    // A running preparation does not count after a refusal, and a loaded revision stays loaded.
    slot.preparing = Some(1);
    assert!(slot.update(refused()) && slot.preparing.is_none() && !slot.is_due(true, now));
    let mut slot = loaded(BTreeMap::new());
    assert!(!slot.update(refused()) && slot.loaded().is_some());
}

#[test]
fn readiness_does_not_wait_for_a_candidate() {
    let experiment = ExperimentId { namespace: None, name: "e".to_owned() };
    let slot = Slot::new(Ok(Desired { experiment: Some(experiment), ..desired(1, true) }));
    assert!(slot.is_tried() && !slot.is_settled());
}
