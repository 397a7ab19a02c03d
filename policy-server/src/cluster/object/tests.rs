//! Tests of the state of an object: the revision that it desires, and the status that it reports.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::reported::Reported;
use super::super::revision::tests::{candidate_object, object, replica};
use super::super::status::SERVER_VERSION;
use super::*;
use crate::lifecycle::tests::{loaded, modules, revision_of};
use crate::preview::Versions;

/// Returns the observed revision with this `resourceVersion` and status.
fn observed(version: &str, enabled: bool, status: &Value) -> ObservedRevision {
    let mut object = object(enabled);
    object.metadata.resource_version = Some(version.to_owned());
    object.data["status"] = status.clone();
    ObservedRevision::read(&object, &replica())
}

/// Returns the observed revision with another value of this field of the spec.
fn observed_with(version: &str, field: &str, value: Value) -> ObservedRevision {
    let mut object = object(true);
    object.metadata.resource_version = Some(version.to_owned());
    let (parent, key) = field.rsplit_once('/').unwrap();
    object.data["spec"].pointer_mut(parent).unwrap()[key] = value;
    ObservedRevision::read(&object, &replica())
}

/// Returns the state of an object with this status.
fn object_with(status: &Value) -> Object {
    Object::new(observed("1", true, status), None)
}

/// Returns the result of a successful status update.
fn written(reported: Reported) -> Written {
    Written { reported: Some(reported), outdated: None }
}

fn failed() -> Slot {
    Slot::new(Err(Failure::new("Unsupported", "spec.a")))
}

fn slot(object: &Object) -> Option<Slot> {
    object.desired().map(Slot::new)
}

fn report(object: &mut Object, slot: Option<&Slot>) -> Option<Value> {
    let update = object.begin_report(slot, &replica(), true, Instant::now(), Timestamp::UNIX_EPOCH)?;
    Some(json!({"replica": update.replica, "leader": update.leader}))
}

#[test]
fn an_enabled_revision_is_desired_and_known_when_the_leader_prepared_it() {
    let initialized = |status: &str| {
        json!({"conditions": [{"type": "Initialized", "status": status, "reason": "A", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
    };
    let was_prepared = |object: &Object| object.desired().map(|desired| desired.unwrap().was_prepared);
    let mut object = object_with(&Value::Null);
    assert_eq!(was_prepared(&object), Some(false));
    let observe = |object: &mut Object, version: &str, enabled: bool, status: &str| {
        object.observe("a", observed(version, enabled, &initialized(status)), None)
    };
    // The table shows the failure: the requests of a request policy are refused.
    assert!(observe(&mut object, "2", true, "False") && was_prepared(&object) == Some(false));
    assert!(!observe(&mut object, "2", true, "False"));
    assert!(observe(&mut object, "3", true, "True") && was_prepared(&object) == Some(true));

    // The condition Initialized stays True when a replica, even the leader, cannot load the revision any more.
    let update = report(&mut object, Some(&failed())).unwrap();
    assert!(update["leader"].is_null() && update["replica"]["replicas"][0]["ready"] == "False", "{update}");
    observe(&mut object, "4", false, "True");
    assert_eq!(was_prepared(&object), None, "it is disabled");
}

/// Returns the item of the replica of this pod.
fn item(pod: &str, uid: &str, ready: &str) -> Value {
    json!({"name": pod, "podUID": uid, "serverVersion": SERVER_VERSION, "ready": ready, "reason": "Loaded",
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

#[test]
fn an_enabled_live_revision_is_served_by_the_pods_that_report_it() {
    let live = json!({"type": "Live", "status": "True", "reason": "A", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let items = json!([
        item("default-0", "old", "True"), item("default-1", "u", "True"), item("default-2", "u", "False"),
        item("default-3", "u", "Unknown"), {"name": "default-4", "ready": "True"}, "unreadable",
    ]);
    let status = json!({"conditions": [live], "replicas": items});
    let object = object_with(&status);
    let pods = object.observed.reported.served_by.iter().map(|pod| (pod.name.as_str(), pod.uid.as_str()));
    let pods: Vec<_> = pods.collect();
    assert_eq!(pods, [("default-0", "old"), ("default-1", "u")]);
    assert!(object.is_live());
    assert!(!Object::new(observed("1", false, &status), None).is_live(), "a disabled revision decides no requests");
    assert!(!object_with(&json!({"replicas": status["replicas"]})).is_live());
}

#[test]
fn a_revision_keeps_its_readable_form() {
    let mut object = object_with(&Value::Null);
    let message = |object: &Object| object.unreadable().map(|failure| failure.message.clone());
    let spec = Arc::clone(&object.revision.as_ref().unwrap().spec);
    let is_kept = |object: &Object| object.desired().is_some_and(|it| it.is_ok_and(|it| it.spec == spec));

    // The spec has an unknown field, and then a known field of another type.
    assert!(object.observe("a", observed_with("2", "/data/newer", json!(1)), None) && is_kept(&object));
    assert!(message(&object).unwrap().starts_with("spec.data.newer: ") && object.has_unexplained_fields());
    let (slot, now) = (loaded(BTreeMap::new()), Instant::now());
    let update = object.begin_report(Some(&slot), &replica(), false, now, Timestamp::UNIX_EPOCH);
    let reported = update.unwrap().replica.unwrap()["replicas"][0].take();
    assert_eq!((&reported["ready"], &reported["reason"]), (&json!("True"), &json!("LoadedBefore")));
    assert!(reported["message"].as_str().unwrap().contains("spec.data.newer"), "{reported}");

    // The schema explains the field.
    let schema: Schema =
        serde_json::from_value(json!({"properties": {"data": {"properties": {"newer": {"default": 1}}}}})).unwrap();
    assert!(object.interpret("a", Some(&schema)) && object.unreadable().is_none() && !object.has_unexplained_fields());
    assert!(object.observe("a", observed_with("3", "/data/program", json!(1)), Some(&schema)) && is_kept(&object));
    assert!(message(&object).unwrap().starts_with("spec.data.program"));

    // `enabled` of a form that cannot be read applies, unless it cannot be read either.
    let mut disabled = observed_with("4", "/data/program", json!(1));
    disabled.is_enabled = Some(false);
    object.observe("a", disabled, Some(&schema));
    assert!(object.desired().is_none());
    object.observe("a", observed_with("5", "/enabled", json!("yes")), Some(&schema));
    assert!(object.desired().is_none() && object.unreadable().is_some());
    object.observe("a", observed("6", true, &Value::Null), Some(&schema));
    assert!(is_kept(&object) && object.unreadable().is_none());
}

#[test]
fn a_revision_that_could_never_be_read_fails_under_the_identity_in_its_name() {
    let mut object = Object::new(observed_with("1", "/data/newer", json!(1)), None);
    let slot = slot(&object).unwrap();
    let view = object.view(Some(&slot)).unwrap();
    assert_eq!((view.policy.as_str(), view.generation), ("cluster.a", 1));
    assert!(matches!(view.role, Role::Other) && slot.failure().is_some() && object.has_unexplained_fields());
    // The schema explains the field: the revision can be loaded.
    let schema: Schema =
        serde_json::from_value(json!({"properties": {"data": {"properties": {"newer": {"default": 1}}}}})).unwrap();
    assert!(object.interpret("a", Some(&schema)) && object.desired().unwrap().is_ok());
    assert!(!object.has_unexplained_fields() && object.unreadable().is_none());
}

/// Returns the pin of each module, as a leader reports it.
fn pins(modules: &BTreeMap<String, Digest>) -> Value {
    let pin = |(module, digest): (&String, &Digest)| json!({"module": module, "digest": digest.to_string()});
    modules.iter().map(pin).collect()
}

#[test]
fn a_replica_is_ready_only_with_the_pinned_modules_and_a_leader_never_changes_a_pin() {
    let (one, two, now) = (modules("one"), modules("two"), Instant::now());
    let slot = loaded(one.clone());
    let part = |status: &Value, is_leader: bool| {
        let mut object = object_with(status);
        let update = object.begin_report(Some(&slot), &replica(), is_leader, now, Timestamp::UNIX_EPOCH);
        update.map(|update| (update.leader, update.replica, update.resource_version))
    };
    // The first leader pins its module. A replica without the pin is not ready, not even that of the leader.
    let (leader, replica, version) = part(&Value::Null, true).unwrap();
    assert_eq!((&leader.unwrap()["modules"], replica, version.as_deref()), (&pins(&one), None, Some("1")));
    assert!(part(&Value::Null, false).is_none());
    let (_, replica, _) = part(&json!({"modules": pins(&one)}), false).unwrap();
    assert_eq!(replica.unwrap()["replicas"][0]["ready"], "True");
    // Another leader has pinned another module.
    for is_leader in [true, false] {
        assert!(part(&json!({"modules": pins(&two)}), is_leader).is_none());
    }
    // A leader keeps the pins that it did not make.
    let mut other = pins(&one);
    other.as_array_mut().unwrap().push(json!({"module": "registry://r/z:v1", "digest": Digest::of(b"z").to_string()}));
    let (leader, ..) = part(&json!({"modules": other}), true).unwrap();
    assert_eq!(leader.unwrap()["modules"], other);
}

#[test]
fn a_refused_part_of_the_leader_waits_for_a_newer_state() {
    let (mut object, now) = (object_with(&Value::Null), Instant::now());
    let slot = loaded(BTreeMap::new());
    let is_led = |object: &mut Object| {
        let update = object.begin_report(Some(&slot), &replica(), true, now, Timestamp::UNIX_EPOCH)?;
        Some((update.leader.is_some(), update.resource_version))
    };
    assert_eq!(is_led(&mut object), Some((true, Some("1".to_owned()))));
    // The API server has a newer state, and accepts the item of the replica.
    let item = json!({"replicas": [item("default-0", "pod", "True")]});
    let refused = Written { reported: Some(observed("3", true, &item).reported), outdated: Some("1".to_owned()) };
    assert!(object.take_reported("a", Ok(refused), now), "the replica serves the revision");
    assert!(object.report_error().is_none(), "a conflict is no error");
    assert_eq!(is_led(&mut object), Some((true, Some("3".to_owned()))), "the response is the newer state");
    // The API server refuses the part again, and the replica has nothing else to write.
    let refused = || Ok(Written { reported: None, outdated: Some("3".to_owned()) });
    assert!(!object.take_reported("a", refused(), now));
    assert_eq!(is_led(&mut object), None, "the newer state is not known yet");
    object.observe("a", observed("2", true, &Value::Null), None);
    assert_eq!(is_led(&mut object), None, "an older state");
    object.observe("a", observed("4", true, &item), None);
    assert_eq!(is_led(&mut object), Some((true, Some("4".to_owned()))));
}

#[test]
fn a_status_that_the_api_server_has_is_not_written_again() {
    let mut object = object_with(&Value::Null);
    let loading = slot(&object);
    assert!(report(&mut object, loading.as_ref()).is_none(), "nothing is known yet");
    let failed = failed();
    let update = report(&mut object, Some(&failed)).unwrap();
    let item = &update["replica"]["replicas"][0];
    assert_eq!(
        (&item["ready"], &item["reason"], &item["podUID"]),
        (&json!("False"), &json!("Unsupported"), &json!("pod"))
    );
    let condition = &update["leader"]["conditions"][0];
    assert_eq!((&condition["status"], &condition["observedGeneration"]), (&json!("False"), &json!(7)));
    assert!(report(&mut object, Some(&failed)).is_none(), "a status update is running");

    let status = json!({"replicas": [item], "conditions": [condition]});
    let response = observed("3", true, &status).reported;
    object.take_reported("a", Ok(written(response)), Instant::now());
    object.observe("a", observed("2", true, &Value::Null), None);
    assert!(report(&mut object, Some(&failed)).is_none(), "the watch is older than the response");
    object.observe("a", observed("4", true, &json!({"replicas": [item]})), None);
    let update = report(&mut object, Some(&failed)).unwrap();
    assert!(update["replica"].is_null() && !update["leader"].is_null(), "another client removed the condition");
}

#[test]
fn a_restarted_pod_does_not_report_an_unloaded_revision_as_ready() {
    let item = |uid: &str| json!({"replicas": [item("default-0", uid, "True")]});
    let report = |object: &mut Object| {
        let slot = slot(object);
        report(object, slot.as_ref())
    };
    let mut object = object_with(&item("old"));
    assert!(report(&mut object).is_none(), "the item has the uid of an earlier pod");
    let mut object = object_with(&item("pod"));
    assert_eq!(report(&mut object).unwrap()["replica"]["replicas"][0]["reason"], "Loading", "this pod was restarted");
    let mut object = Object::new(observed("1", false, &item("old")), None);
    assert_eq!(report(&mut object).unwrap()["replica"], json!({}), "disabled");
}

#[test]
fn changed_preview_counts_are_reported_at_most_every_ten_seconds() {
    const VERSIONS: Versions<'static> = Versions { experiment: "e", live: None };
    let (mut object, now, failed) = (object_with(&Value::Null), Instant::now(), failed());
    let counter = Arc::new(DivergenceCounter::new(PreviewReport::new(Time(Timestamp::UNIX_EPOCH))));
    counter.follow(VERSIONS, &Time(Timestamp::UNIX_EPOCH));
    object.counter = Some(Arc::clone(&counter));
    let mut version = 1;
    let mut reported = |object: &mut Object, seconds: u64| {
        let now = now + Duration::from_secs(seconds);
        let update = object.begin_report(Some(&failed), &replica(), false, now, Timestamp::UNIX_EPOCH)?;
        let status = update.replica.unwrap();
        version += 1;
        let response = observed(&version.to_string(), true, &status).reported;
        object.take_reported("a", Ok(written(response)), now);
        status["replicas"][0]["preview"]["counts"]["dropped"].as_u64()
    };
    assert_eq!(reported(&mut object, 0), Some(0));
    assert_eq!(reported(&mut object, 1), None, "nothing has changed");
    counter.count_dropped(VERSIONS);
    assert_eq!(reported(&mut object, 2), Some(1));
    counter.count_dropped(VERSIONS);
    assert_eq!((reported(&mut object, 3), reported(&mut object, 11)), (None, None));
    assert_eq!((reported(&mut object, 12), reported(&mut object, 60)), (Some(2), None));
    // A restarted server of the same pod keeps the counts before it has loaded the candidate.
    let mut item = item("default-0", "pod", "True");
    item["preview"] = json!(object.preview(now).report);
    let mut successor = Object::new(observed("9", true, &json!({"replicas": [item]})), None);
    let loading = slot(&successor);
    let item = report(&mut successor, loading.as_ref()).unwrap()["replica"]["replicas"][0].take();
    assert_eq!((&item["reason"], &item["preview"]["counts"]["dropped"]), (&json!("Loading"), &json!(2)));
}

/// Returns the observed candidate with this `resourceVersion` and status.
fn observed_candidate(version: &str, enabled: bool, status: &Value) -> ObservedRevision {
    let mut object = candidate_object(enabled);
    object.metadata.resource_version = Some(version.to_owned());
    object.data["status"] = status.clone();
    ObservedRevision::read(&object, &replica())
}

/// Returns the state of a candidate with this status.
fn candidate_with(enabled: bool, status: &Value) -> Object {
    Object::new(observed_candidate("1", enabled, status), None)
}

/// Returns a loaded revision, its slot, and the versions of its evaluations while no generation is live.
fn loaded_candidate() -> (Arc<Revision>, Slot) {
    let slot = loaded(BTreeMap::new());
    (Arc::clone(&slot.loaded().unwrap().revision), slot)
}

const NO_LIVE: Versions<'static> = Versions { experiment: "etag", live: None };

fn time(seconds: i64) -> Time {
    Time(Timestamp::from_second(seconds).unwrap())
}

/// Starts the preview of a loaded candidate, and returns its counter.
fn start(object: &mut Object, revision: &Arc<Revision>, seconds: i64) -> Arc<DivergenceCounter> {
    assert!(object.follow_preview(Some(revision), &Metrics::new(), time(seconds)));
    let counter = Arc::clone(object.counter.as_ref().unwrap());
    counter.follow(NO_LIVE, &time(seconds));
    counter
}

/// Returns true if the candidate is previewed.
fn is_previewed(object: &Object, slot: &Slot) -> bool {
    matches!(object.view(Some(slot)).unwrap().role, Role::Candidate(Some(_)))
}

#[test]
fn a_stopped_candidate_reports_its_final_counts_at_once() {
    let (mut object, now) = (candidate_with(true, &Value::Null), Instant::now());
    let (revision, slot) = loaded_candidate();
    let counter = start(&mut object, &revision, 0);
    assert!(!object.follow_preview(Some(&revision), &Metrics::new(), time(1)) && is_previewed(&object, &slot));
    let mut version = 1;
    let mut reported = |object: &mut Object, seconds: u64| {
        let now = now + Duration::from_secs(seconds);
        let update = object.begin_report(Some(&slot), &replica(), false, now, Timestamp::UNIX_EPOCH)?;
        let status = update.replica?;
        version += 1;
        let response = observed_candidate(&version.to_string(), true, &status).reported;
        object.take_reported("b", Ok(written(response)), now);
        let item = &status["replicas"][0];
        let dropped = item["preview"]["counts"]["dropped"].as_u64().unwrap();
        Some((item["ready"].as_str().unwrap().to_owned(), item["reason"].as_str().unwrap().to_owned(), dropped))
    };
    let item = |reason: &str, dropped: u64| Some(("True".to_owned(), reason.to_owned(), dropped));
    counter.count_dropped(NO_LIVE);
    assert_eq!(reported(&mut object, 0), item("Loaded", 1));

    // One evaluation is running when the candidate is disabled.
    assert!(counter.begin());
    assert!(object.observe("b", observed_candidate("0", false, &Value::Null), None), "the table changes");
    assert!(object.desired().is_some_and(|desired| desired.is_ok()), "it stays loaded");
    assert!(object.follow_preview(Some(&revision), &Metrics::new(), time(1)) && !is_previewed(&object, &slot));
    assert!(!counter.begin(), "no evaluation begins any more");
    assert_eq!(reported(&mut object, 1), None, "an evaluation is running");
    counter.count_dropped(NO_LIVE);
    counter.end();
    assert_eq!(reported(&mut object, 1), item("Suspended", 2));
    assert_eq!(reported(&mut object, 60), None);
}

#[test]
fn a_candidate_that_was_never_enabled_is_prepared_and_not_previewed() {
    let (mut object, (revision, slot)) = (candidate_with(false, &Value::Null), loaded_candidate());
    assert!(object.desired().is_some_and(|desired| desired.is_ok_and(|desired| !desired.was_prepared)));
    assert!(!object.follow_preview(Some(&revision), &Metrics::new(), time(0)) && !is_previewed(&object, &slot));
    let update = report(&mut object, Some(&slot)).unwrap();
    assert_eq!(update["leader"]["conditions"][0]["status"], "True");
    let item = &update["replica"]["replicas"][0];
    assert_eq!(
        (&item["ready"], &item["reason"], &item["preview"]),
        (&json!("True"), &json!("Suspended"), &Value::Null)
    );
    // A revision of a policy is not loaded while it is disabled.
    assert!(Object::new(observed("1", false, &Value::Null), None).desired().is_none());
    // A disabled candidate that does not work reports that.
    let mut object = candidate_with(false, &Value::Null);
    let update = report(&mut object, Some(&failed())).unwrap();
    assert_eq!(update["leader"]["conditions"][0]["status"], "False");
    assert_eq!(update["replica"]["replicas"][0]["ready"], "False");
}

#[test]
fn a_restarted_replica_continues_the_counts_of_a_running_preview_only() {
    let counts = |reason: &str| {
        let mut item = item("default-0", "pod", "True");
        item["reason"] = json!(reason);
        let report = PreviewReport::new(time(3));
        item["preview"] = json!(report);
        item["preview"]["counts"]["dropped"] = json!(7);
        json!({"replicas": [item]})
    };
    let (revision, _) = loaded_candidate();
    for (reason, dropped, since) in [("Loaded", 7, 3), ("Suspended", 0, 9)] {
        let mut object = candidate_with(true, &counts(reason));
        assert!(object.follow_preview(Some(&revision), &Metrics::new(), time(9)));
        let report = object.counter.as_ref().unwrap().report();
        assert_eq!((report.counts.dropped, report.counts.since), (dropped, time(since)), "{reason}");
    }
}

#[test]
fn a_candidate_that_is_enabled_again_starts_new_counts() {
    let (mut object, (first, slot)) = (candidate_with(true, &Value::Null), loaded_candidate());
    let counter = start(&mut object, &first, 0);
    counter.count_dropped(NO_LIVE);
    // The candidate is loaded again, for example with another pinned module.
    let spec = json!({"program": {"cel": {"validations": []}}, "admission": {"rules": []}});
    let second = Arc::new(revision_of(&spec, true));
    let kept = start(&mut object, &second, 1);
    assert_eq!(kept.report().counts.dropped, 1);
    let mut enable = |enabled: bool, seconds: i64| {
        object.observe("b", observed_candidate(&seconds.to_string(), enabled, &Value::Null), None);
        object.follow_preview(Some(&second), &Metrics::new(), time(seconds));
        (is_previewed(&object, &slot), object.counter.as_ref().unwrap().report().counts.dropped)
    };
    assert_eq!(enable(false, 2), (false, 1));
    assert_eq!(enable(true, 3), (true, 0));
}

#[test]
fn a_failed_status_update_is_tried_again_later() {
    let (mut object, now, failed) = (object_with(&Value::Null), Instant::now(), failed());
    report(&mut object, Some(&failed)).unwrap();
    let error = || Err(kube::Error::LinesCodecMaxLineLengthExceeded);
    assert!(object.take_reported("a", error(), now) && object.report_error().is_some());
    assert!(object.begin_report(Some(&failed), &replica(), true, now, Timestamp::UNIX_EPOCH).is_none());
    let later = now + Duration::from_secs(2);
    assert!(object.begin_report(Some(&failed), &replica(), true, later, Timestamp::UNIX_EPOCH).is_some());
}
