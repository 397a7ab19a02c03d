//! The bounds that a constraint sets to later policies and to the caller.

use super::*;

#[test]
fn a_later_policy_cannot_set_a_value_that_a_constraint_forbids() {
    let cases = [
        (json!({"const": "eu"}), json!("us")),
        (json!({"enum": ["eu", "us"]}), json!("asia")),
        (json!({"type": "string"}), json!(5)),
        (json!({"pattern": "^e"}), json!("us")),
        (json!({"minLength": 3}), json!("eu")),
        (json!({"mode": "immutable"}), json!("us")),
        (json!(false), json!("eu")),
        (json!({"not": {"const": "us"}}), json!("us")),
        (json!({"type": "object", "required": ["a"]}), json!({"b": 1})),
    ];
    for (schema, value) in cases {
        let outcome = evaluate(json!({}), &[constrain("region", schema.clone()), patch(json!({"region": value}))]);
        assert_conflict(&outcome, "p2", "p1", Some("region"));
        let message = outcome.decision.message().unwrap();
        assert!(message.starts_with("Policy Conflict Error: policy cluster.p2 (generation 102) conflicts with policy cluster.p1 (generation 101) on the field `region`"), "{message}");
    }
}

#[test]
fn a_later_policy_can_set_a_value_that_the_constraint_allows() {
    let cpu = json!({"patch": {"cpu": 2}, "constraints": {"cpu": {"minimum": 1, "maximum": 4}}});
    assert_allowed(&evaluate(json!({}), &[cpu, patch(json!({"cpu": 3}))]), &json!({"cpu": 3}));
    let locked = json!({"patch": {"region": "eu"}, "constraints": {"region": {"const": "eu"}}});
    assert_allowed(&evaluate(json!({}), &[locked, patch(json!({"region": "eu"}))]), &json!({"region": "eu"}));
}

#[test]
fn an_immutable_field_keeps_the_value_that_its_policy_set() {
    let tag = json!({"patch": {"billing_tag": "engineering"}, "constraints": {"billing_tag": {"mode": "immutable"}}});
    let outcome = evaluate(json!({}), &[tag.clone(), patch(json!({"billing_tag": "marketing"}))]);
    assert_conflict(&outcome, "p2", "p1", Some("billing_tag"));
    assert_allowed(&evaluate(json!({"billing_tag": "x"}), &[tag]), &json!({"billing_tag": "engineering"}));
    // A field without a value stays without one.
    let absent = constrain("gpu", json!({"mode": "immutable"}));
    assert_conflict(&evaluate(json!({}), &[absent, patch(json!({"gpu": 1}))]), "p2", "p1", Some("gpu"));
}

#[test]
fn a_later_policy_cannot_remove_or_replace_a_constrained_field_or_its_parent() {
    let payload =
        json!({"network": {"vlan": {"id": 5}, "mtu": 1500}, "disks": [{"size": 10}, {"size": 20}], "tags": {}});
    let cases = [
        ("network.vlan.id", json!({"network": {"vlan": {"id": null}}})),
        ("network.vlan.id", json!({"network": {"vlan": null}})),
        ("network.vlan.id", json!({"network": null})),
        ("network.vlan.id", json!({"network": "none"})),
        ("network.vlan.id", json!({"network": {"vlan": []}})),
        ("network.vlan.id", json!({"network": {"vlan": 7}})),
        ("disks.0.size", json!({"disks": null})),
        ("disks.0.size", json!({"disks": []})),
        ("disks.0.size", json!({"disks": [{"size": 11}, {"size": 20}]})),
        ("disks.0.size", json!({"disks": [{"size": 20}, {"size": 10}]})),
        ("disks.0.size", json!({"disks": {"0": {"size": 10}}})),
        ("disks.0.size", json!({"disks": {}})),
        // The parent exists, although the field does not.
        ("tags.owner", json!({"tags": null})),
        ("tags.owner", json!({"tags": "none"})),
        // Neither exists: the patch would make the field impossible.
        ("labels.owner", json!({"labels": "none"})),
        ("labels.owner", json!({"labels": ["none"]})),
    ];
    for (field, changes) in cases {
        let outcome = evaluate(payload.clone(), &[constrain(field, json!({"maximum": 100})), patch(changes.clone())]);
        assert_conflict(&outcome, "p2", "p1", Some(field));
        let outcome =
            evaluate(payload.clone(), &[patch(changes.clone()), constrain("unrelated", json!({"maximum": 1}))]);
        assert!(outcome.decision.is_allowed(), "without the constraint, {changes} is allowed: {outcome:?}");
    }
}

#[test]
fn a_patch_that_keeps_the_constrained_fields_is_applied() {
    let payload = json!({"network": {"vlan": {"id": 5}}, "disks": [{"size": 10}]});
    let cases = [
        ("network.vlan.id", json!({"network": {"mtu": 9000}})),
        ("network.vlan.id", json!({"network": {"vlan": {"id": 6}}})),
        ("network.gone", json!({"network": {"gone": null}})),
        ("disks.0.size", json!({"disks": [{"size": 10, "kind": "ssd"}, {"size": 900}]})),
        ("labels.owner", json!({"labels": {"owner": 1}})),
    ];
    for (field, changes) in cases {
        let outcome = evaluate(payload.clone(), &[constrain(field, json!({"maximum": 100})), patch(changes.clone())]);
        assert!(outcome.decision.is_allowed(), "{field} {changes}: {:?}", outcome.decision.message());
    }
}

#[test]
fn a_constraint_of_a_parent_or_of_a_list_binds_a_patch_within_it() {
    let network = constrain("network", json!({"properties": {"vlan": {"maximum": 100}}}));
    let outcome = evaluate(json!({}), &[network, patch(json!({"network": {"vlan": 101}}))]);
    assert_conflict(&outcome, "p2", "p1", Some("network"));
    let disks = constrain("disks", json!({"items": {"properties": {"size": {"maximum": 100}}}}));
    let outcome = evaluate(json!({}), &[disks, patch(json!({"disks": [{"size": 1}, {"size": 101}]}))]);
    assert_conflict(&outcome, "p2", "p1", Some("disks"));
    let root = constrain("", json!({"required": ["owner"]}));
    let outcome = evaluate(json!({"owner": "ann"}), &[root, patch(json!({"owner": null}))]);
    assert_conflict(&outcome, "p2", "p1", Some(""));
}

#[test]
fn a_value_of_the_caller_that_violates_a_constraint_is_rejected() {
    for (payload, field) in [
        (json!({"cpu": 16}), "cpu"),
        (json!({"vm": {"cpu": 16}}), "vm.cpu"),
        (json!({"disks": [1, 16]}), "disks.1"),
        // A parent of the wrong kind does not hide the field.
        (json!({"vm": "small"}), "vm.cpu"),
        (json!({"vm": ["small"]}), "vm.cpu"),
    ] {
        let outcome = evaluate(payload.clone(), &[constrain(field, json!({"maximum": 4})), json!({})]);
        let Decision::Rejected { policy, field: Some(rejected), .. } = &outcome.decision else {
            panic!("{payload}: {:?}", outcome.decision);
        };
        assert_eq!((policy.policy.name(), rejected.to_string().as_str()), ("p1", field));
    }
    let outcome = evaluate(json!({"cpu": 16}), &[constrain("cpu", json!({"maximum": 4}))]);
    let message = outcome.decision.message().unwrap();
    assert_eq!(
        message,
        "the field `cpu` violates the constraint of policy cluster.p1 (generation 101): 16 is greater than the maximum of 4"
    );
}

#[test]
fn a_later_policy_can_correct_a_value_of_the_caller() {
    let maximum = constrain("cpu", json!({"maximum": 4}));
    let outcome = evaluate(json!({"cpu": 16}), &[maximum.clone(), patch(json!({"cpu": 4}))]);
    assert_allowed(&outcome, &json!({"cpu": 4}));
    assert_conflict(&evaluate(json!({"cpu": 16}), &[maximum, patch(json!({"cpu": 32}))]), "p2", "p1", Some("cpu"));
    // Another patch of the same object does not make a policy responsible for a value that the caller omitted.
    let owner = constrain("", json!({"required": ["owner"]}));
    let outcome = evaluate(json!({}), &[owner.clone(), patch(json!({"region": "eu"})), patch(json!({"owner": "ann"}))]);
    assert_allowed(&outcome, &json!({"region": "eu", "owner": "ann"}));
    assert!(!evaluate(json!({}), &[owner, patch(json!({"region": "eu"}))]).decision.is_allowed());
}

#[test]
fn a_constraint_conflicts_with_the_policy_that_set_the_value_before() {
    let outcome = evaluate(json!({}), &[patch(json!({"cpu": 16})), json!({}), constrain("cpu", json!({"maximum": 4}))]);
    assert_conflict(&outcome, "p3", "p1", Some("cpu"));
    let outcome = evaluate(
        json!({}),
        &[
            patch(json!({"vm": {"cpu": 16}})),
            constrain("", json!({"properties": {"vm": {"properties": {"cpu": {"maximum": 4}}}}})),
        ],
    );
    assert_conflict(&outcome, "p2", "p1", Some(""));
    let same = json!({"patch": {"cpu": 16}, "constraints": {"cpu": {"maximum": 4}}});
    assert_conflict(&evaluate(json!({}), &[same]), "p1", "p1", Some("cpu"));
}

#[test]
fn a_missing_field_satisfies_each_constraint_except_required() {
    let outcome = evaluate(json!({}), &[constrain("vm.cpu", json!({"const": 4}))]);
    assert_eq!(outcome.decision, Decision::Approved);
    let outcome = evaluate(json!({}), &[constrain("", json!({"required": ["vm"]}))]);
    assert_eq!(outcome.decision.status(), "REJECTED");
}
