//! Tests of an object: which of its generations are loaded.

use super::*;
use crate::manifests::DocumentPosition;

fn object() -> Object {
    Object::new(ObjectId::Policy("cluster.a".parse().unwrap()))
}

pub(in crate::folder) fn desired_version(version: &str) -> DesiredVersion {
    let spec = serde_json::json!({"program": {"cel": {"validations": []}}});
    DesiredVersion {
        policy: "cluster.a".parse().unwrap(),
        spec: Arc::new(serde_json::from_value(spec).unwrap()),
        experiment: None,
        annotations: BTreeMap::new(),
        place: DocumentPosition { file: "a.yaml".into(), document: 1, line: 1 },
        fingerprint: Digest::of(version.as_bytes()),
        digest: Digest::of(version.as_bytes()),
        modules: BTreeMap::new(),
    }
}

/// Returns the object as a restarted server restores it from the state file.
pub(in crate::folder) fn restarted(generation: u64, version: &str) -> Object {
    let DesiredVersion { fingerprint, place, spec, .. } = desired_version(version);
    let record = serde_json::json!({
        "uid": "u", "generation": generation, "fingerprint": fingerprint.to_string(), "file": place.file, "spec": spec,
        "modules": {},
    });
    let object = object();
    Object::restore(object.id, serde_json::from_value(record).unwrap())
}

/// Returns the desired generations, given the slots of the generations that are desired already.
fn generations(object: &Object, slots: &BTreeMap<u64, Slot>) -> Vec<u64> {
    object.desired(None, |key| slots.get(&key.generation)).into_iter().map(|(key, _)| key.generation).collect()
}

fn preparing(object: &Object) -> Slot {
    let (_, desired) = object.desired(None, |_| None).remove(0);
    Slot::new(desired)
}

fn failed() -> Slot {
    Slot::new(Err(Failure::new("CompileError", "")))
}

#[test]
fn a_new_version_is_the_next_generation() {
    let mut object = object();
    assert!(generations(&object, &BTreeMap::new()).is_empty());
    object.take(desired_version("one"));
    assert_eq!(generations(&object, &BTreeMap::new()), [1]);
    let mut object = restarted(7, "one");
    object.take(desired_version("two"));
    assert_eq!(object.newest().map(|key| key.generation), Some(8));
}

#[test]
fn a_restarted_server_loads_the_accepted_generation_if_no_newer_one_works() {
    let mut object = restarted(7, "one");
    assert_eq!(generations(&object, &BTreeMap::new()), [7], "the manifest cannot be read");
    object.take(desired_version("one"));
    assert_eq!(generations(&object, &BTreeMap::new()), [7], "the manifest still has the same version");
    object.take(desired_version("two"));
    assert_eq!(generations(&object, &BTreeMap::new()), [8], "the new version may work");
    let mut slots = BTreeMap::from([(8, preparing(&object))]);
    assert_eq!(generations(&object, &slots), [8]);
    slots.insert(8, failed());
    assert_eq!(generations(&object, &slots), [8, 7], "the new version does not work");
    slots.insert(7, preparing(&restarted(7, "one")));
    slots.insert(8, preparing(&object));
    assert_eq!(generations(&object, &slots), [8, 7], "the accepted generation stays while another version is prepared");
}

#[test]
fn a_refused_version_leaves_the_accepted_generation_in_force() {
    let failure = Failure::new("PriorityInUse", "");
    let refused = |object: &Object| -> Vec<(u64, bool)> {
        let desired = object.desired(Some(&failure), |_| None);
        desired.into_iter().map(|(key, desired)| (key.generation, desired.unwrap().refusal.is_some())).collect()
    };
    let mut object = restarted(7, "one");
    object.take(desired_version("one"));
    assert_eq!(refused(&object), [(7, false)], "the accepted version keeps serving");
    object.take(desired_version("two"));
    assert_eq!(refused(&object), [(8, true), (7, false)]);
}

#[test]
fn two_versions_that_were_never_accepted_are_two_revisions() {
    let mut object = restarted(7, "one");
    object.take(desired_version("two"));
    let second = object.newest().unwrap();
    assert!(object.replace_desired(vec![second.clone()]).is_empty());
    object.take(desired_version("three"));
    let third = object.newest().unwrap();
    assert!(second != third && second.generation == third.generation);
    assert_eq!(object.replace_desired(vec![third]), [second]);
}

#[test]
fn an_experiment_cannot_move_to_another_policy() {
    let id = ExperimentId { namespace: None, name: "e".to_owned() };
    let of = |policy: &str| ExperimentRecord {
        policy: policy.parse().unwrap(),
        auto_start: false,
        preview: proviso_crds::PreviewSettings::default(),
        ttl: proviso_crds::DEFAULT_TTL.to_owned(),
    };
    let record = Record { experiment: Some(of("cluster.a")), ..restarted(1, "one").record.unwrap() };
    let mut object = Object::restore(ObjectId::Experiment(id), record);
    object.take(DesiredVersion {
        policy: "cluster.b".parse().unwrap(),
        experiment: Some(of("cluster.b")),
        ..desired_version("two")
    });
    let (_, desired) = object.desired(None, |_| None).remove(0);
    let failure = desired.unwrap_err().to_string();
    assert!(failure.starts_with("Invalid: spec.policyRef.name: cannot be changed"), "{failure}");
    assert!(failure.ends_with("(a.yaml:1: document 1)"), "{failure}");
}
