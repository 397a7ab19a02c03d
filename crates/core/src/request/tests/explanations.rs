//! The trail, and the explanation of a field.

use super::Relation::{Child, Field, Parent};
use super::*;

#[test]
fn the_trail_has_the_part_of_each_policy() {
    let outcome = evaluate(
        json!({"region": "us"}),
        &[
            json!({"patch": {"region": "eu"}, "constraints": {"region": {"const": "eu"}, "vm.cpu": {"maximum": 4}}}),
            json!({"patch": {"vm": {"cpu": 2}}, "selected_provider": "aws", "service_provider_constraints": {"patterns": ["^a"]}}),
            json!({}),
        ],
    );
    assert_eq!(
        serde_json::to_value(&outcome.trail).unwrap(),
        json!([
            {
                "policy": "cluster.p1", "generation": 101, "level": "Global", "priority": 1, "isUndefined": false, "patched": ["region"],
                "constrained": [
                    {"field": "region", "constraint": {"const": "eu"}, "isLock": true},
                    {"field": "vm.cpu", "constraint": {"maximum": 4}, "isLock": false},
                ],
            },
            {
                "policy": "cluster.p2", "generation": 102, "level": "Global", "priority": 2, "isUndefined": false, "patched": ["vm.cpu"],
                "constrained": [], "provider": "aws", "providerConstraints": {"patterns": ["^a"]},
            },
            {
                "policy": "cluster.p3", "generation": 103, "level": "Global", "priority": 3, "isUndefined": false, "patched": [],
                "constrained": [],
            },
        ])
    );
}

#[test]
fn the_explanation_of_a_field_names_its_value_its_writer_and_its_holds() {
    let outcome = evaluate(
        json!({"vm": {"cpu": 1, "name": "a"}}),
        &[
            constrain("vm", json!({"required": ["cpu"]})),
            constrain("vm.cpu", json!({"maximum": 4})),
            json!({"patch": {"vm": {"cpu": 2}}, "constraints": {"vm.cpu": {"mode": "immutable"}, "vm.name": {"minLength": 1}}}),
        ],
    );
    let explain = |field: &str| {
        let explanation = outcome.explain(&field.parse().unwrap());
        let holds = explanation.holds.iter().map(|hold| {
            (hold.policy.revision.policy.name().to_owned(), hold.field.to_string(), hold.relation, hold.is_lock)
        });
        let set_by = explanation.set_by.map(|entry| entry.revision.policy.name().to_owned());
        (explanation.value.cloned(), set_by, holds.collect::<Vec<_>>())
    };
    let vm = |relation| ("p1".to_owned(), "vm".to_owned(), relation, false);
    let cpu = |relation| ("p2".to_owned(), "vm.cpu".to_owned(), relation, false);
    let lock = |relation| ("p3".to_owned(), "vm.cpu".to_owned(), relation, true);
    let name = |relation| ("p3".to_owned(), "vm.name".to_owned(), relation, false);
    assert_eq!(explain("vm.cpu"), (Some(json!(2)), Some("p3".into()), vec![vm(Parent), cpu(Field), lock(Field)]));
    assert_eq!(explain("vm.name"), (Some(json!("a")), None, vec![vm(Parent), name(Field)]));
    let payload = json!({"cpu": 2, "name": "a"});
    assert_eq!(
        explain("vm"),
        (Some(payload), Some("p3".into()), vec![vm(Field), cpu(Child), lock(Child), name(Child)])
    );
    assert_eq!(explain("region"), (None, None, vec![]));
}
