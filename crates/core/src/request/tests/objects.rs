//! Kubernetes objects as requests.

use super::*;
use crate::review::Review;

fn binding() -> ObjectBinding {
    ObjectBinding::new("spec", Some("spec.provider"), None).unwrap()
}

/// Returns the review of a request by `ana`.
fn review(operation: &str, object: &Value, old: &Value) -> Review {
    let request = json!({
        "uid": "u", "operation": operation, "namespace": "team", "name": "a", "object": object, "oldObject": old,
        "kind": {"group": "example.com", "version": "v1", "kind": "Database"}, "userInfo": {"username": "ana"},
    });
    Review::admission(json!({"request": request}).to_string().into()).unwrap()
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Database", "metadata": {"name": "a", "labels": {"tier": "gold"}}, "spec": spec})
}

fn created(binding: &ObjectBinding, object: &Value) -> Result<Option<Request>, ObjectError> {
    binding.request(&review("CREATE", object, &Value::Null), Some("blue".to_owned()))
}

#[test]
fn the_request_has_the_authenticated_user_and_the_payload_of_the_object() {
    let spec = json!({"user": "ben", "tenant": "green", "size": 1});
    let request = created(&binding(), &object(spec.clone())).unwrap().unwrap();
    assert_eq!((request.user(), request.tenant()), (Some("ana"), Some("blue")));
    assert_eq!((request.payload(), request.service_type()), (&spec, Some("Database")));
}

#[test]
fn the_service_type_is_that_of_the_binding_or_of_the_payload_or_the_kind() {
    let bound = ObjectBinding::new("spec", None, Some("db".to_owned())).unwrap();
    for (binding, spec, expected) in [
        (binding(), json!({}), "Database"),
        (binding(), json!({"serviceType": "vm"}), "vm"),
        (binding(), json!({"service_type": ""}), "Database"),
        (bound.clone(), json!({}), "db"),
        (bound, json!({"service_type": "vm"}), "db"),
    ] {
        let request = created(&binding, &object(spec.clone())).unwrap().unwrap();
        assert_eq!(request.service_type(), Some(expected), "{spec}");
        assert_eq!(request.labels()["service_type"], expected, "{spec}");
    }
}

#[test]
fn selectors_see_the_labels_of_the_payload_before_those_of_the_object() {
    let mut with_labels = object(json!({"metadata": {"labels": {"tier": "silver"}}}));
    with_labels["metadata"]["labels"] = json!({"tier": "gold", "stage": "test", "service_type": "vm"});
    let request = created(&binding(), &with_labels).unwrap().unwrap();
    let labels: Vec<_> = request.labels().iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(labels, ["service_type=Database", "stage=test", "tier=silver"]);
}

#[test]
fn an_update_that_asks_for_nothing_has_no_request() {
    let binding = binding();
    let old = object(json!({"size": 1, "provider": "east"}));
    let change = |change: fn(&mut Value)| {
        let mut object = old.clone();
        change(&mut object);
        object
    };
    for (object, is_request) in [
        (old.clone(), false),
        (change(|it| it["metadata"]["finalizers"] = json!([])), false),
        (change(|it| it["metadata"]["annotations"] = json!({"a": "b"})), false),
        (change(|it| it["status"] = json!({"size": 2})), false),
        (change(|it| it["spec"]["size"] = json!(2)), true),
        (change(|it| it["spec"]["provider"] = json!("west")), true),
        (change(|it| it["metadata"]["labels"]["tier"] = json!("silver")), true),
    ] {
        let request = binding.request(&review("UPDATE", &object, &old), None).unwrap();
        assert_eq!(request.is_some(), is_request, "{object}");
        // Only an update can leave anything unchanged.
        assert!(binding.request(&review("CREATE", &object, &old), None).unwrap().is_some());
        assert!(binding.request(&review("UPDATE", &object, &Value::Null), None).unwrap().is_some());
    }
}

#[test]
fn an_object_without_a_readable_payload_is_denied_with_the_field() {
    let nested = ObjectBinding::new("spec.parameters", None, None).unwrap();
    let mut bad_labels = object(json!({}));
    bad_labels["metadata"]["labels"] = json!({"a": 1});
    for (binding, object, words) in [
        (binding(), json!({"metadata": {}}), "spec: is missing or null"),
        (binding(), object(Value::Null), "spec: is missing or null"),
        (binding(), object(json!([])), "spec: the payload is a list"),
        (binding(), object(json!({"provider": 1})), "spec: the service provider in the field `provider` is a number"),
        (binding(), bad_labels, "metadata.labels: cannot be read"),
        (nested.clone(), object(json!({})), "spec.parameters: is missing or null"),
        (nested, object(json!([])), "spec.parameters: is missing or null"),
        (binding(), Value::Null, "this review has none"),
    ] {
        let error = created(&binding, &object).unwrap_err();
        let verdict = error.verdict();
        assert!(!verdict.allowed && verdict.message.as_ref().unwrap().contains(words), "{verdict:?}");
    }
    let raw = Review::raw(r#"{"request": {"spec": {}}}"#.into()).unwrap();
    assert_eq!(binding().request(&raw, None), Err(ObjectError::NoObject));
}

/// Returns the verdict about an object with this payload, after policies with these results.
fn verdict(payload: Value, results: &[Value]) -> Result<crate::Verdict, Failure> {
    binding().verdict(&payload, &evaluate(payload.clone(), results))
}

#[test]
fn changed_members_of_the_payload_become_a_patch_of_the_object() {
    let payload = json!({"a": {"b": 1, "c": 2}, "d": [1], "e/f": 1, "same": true});
    let changes = json!({"a": {"b": 2}, "d": null, "e/f": 2, "new": {"x": 1}});
    let verdict = verdict(payload.clone(), &[patch(changes)]).unwrap();
    let mut patched = object(payload.clone());
    json_patch::patch(&mut patched, &verdict.patch.unwrap().0).unwrap();
    assert_eq!(patched, object(json!({"a": {"b": 2, "c": 2}, "e/f": 2, "new": {"x": 1}, "same": true})));
    let unchanged = self::verdict(payload, &[json!({})]).unwrap();
    assert!(unchanged.allowed && unchanged.patch.is_none(), "{unchanged:?}");
}

#[test]
fn a_patch_is_not_much_larger_than_the_payload() {
    let members = |value: u32| (0..100).map(|n| (n.to_string(), json!(value))).collect::<serde_json::Map<_, _>>();
    let payload = json!({"k".repeat(100_000): members(1)});
    let verdict = verdict(payload, &[patch(json!({"k".repeat(100_000): members(2)}))]).unwrap();
    assert!(serde_json::to_vec(&verdict.patch).unwrap().len() < 300_000);
}

#[test]
fn a_denial_names_policy_and_field_of_the_object() {
    let limit = constrain("a.cpu", json!({"maximum": 4}));
    for (payload, results, words, field) in [
        (
            json!({"a": {"cpu": 8}}),
            vec![limit.clone()],
            "the field `spec.a.cpu` violates the constraint of policy cluster.p1 (generation 101)",
            Some("spec.a.cpu"),
        ),
        (
            json!({}),
            vec![limit, patch(json!({"a": {"cpu": 8}}))],
            "policy cluster.p2 (generation 102) conflicts with policy cluster.p1 (generation 101) on the field `spec.a.cpu`",
            Some("spec.a.cpu"),
        ),
        (
            json!({}),
            vec![json!({"reject": true, "reason": "closed"})],
            "policy cluster.p1 (generation 101) rejects the request: closed",
            None,
        ),
    ] {
        let verdict = verdict(payload, &results).unwrap();
        assert_eq!((verdict.allowed, verdict.code, verdict.patch.is_none()), (false, Some(403), true));
        let message = verdict.message.unwrap();
        assert!(message.contains(words), "{message}");
        assert_eq!(verdict.causes.first().and_then(|cause| cause.field.as_deref()), field);
    }
    let long = verdict(json!({}), &[json!({"reject": true, "reason": "é".repeat(100_000)})]).unwrap();
    assert!(long.message.unwrap().chars().count() < 5_000);
    let failure = verdict(json!({}), &[json!({"unknown": 1})]).unwrap_err();
    assert_eq!(failure.reason.as_str(), "ResultInvalid");
    assert!(failure.message.contains("policy cluster.p1 (generation 101) failed"), "{failure}");
}

#[test]
fn the_audit_annotation_names_policies_and_fields_and_no_values() {
    let secret = json!({"patch": {"password": "hunter2"}, "constraints": {"password": {"const": "hunter2"}}, "selected_provider": "east"});
    let trail = |results: &[Value]| verdict(json!({}), results).unwrap().audit_annotations["request-policies"].clone();
    assert_eq!(
        trail(&[secret, json!({})]),
        "cluster.p1 (101) patched spec.password constrained spec.password chose provider east; cluster.p2 (102)"
    );
    assert_eq!(trail(&[]), "no policy covers the request");
    let many: serde_json::Map<_, _> = (0..100).map(|n| (format!("field-{n}"), json!(1))).collect();
    let many = trail(&vec![patch(Value::Object(many)); 400]);
    assert!(many.len() < 5_000 && many.contains("and 92 more") && many.ends_with(" more policies"), "{many}");
}

#[test]
fn paths_that_policies_must_not_change_are_refused() {
    for (payload, provider, expected) in [
        ("spec", None, None),
        ("spec.parameters", Some("spec.parameters.placement.provider"), None),
        ("/spec/a.b", Some("spec.a\\.b.provider"), None),
        ("", None, Some(("payload", "is empty"))),
        ("metadata", None, Some(("payload", "is within `metadata`"))),
        ("status.spec", None, Some(("payload", "is within `status`"))),
        ("spec..a", None, Some(("payload", "is not valid"))),
        ("spec.items.0", None, Some(("payload", "an index of a list"))),
        ("spec", Some("spec"), Some(("provider", "must be a field within `spec`"))),
        ("spec.a", Some("spec.provider"), Some(("provider", "must be a field within `spec.a`"))),
        ("spec", Some("metadata.annotations.provider"), Some(("provider", "is within `metadata`"))),
        ("spec", Some("spec.items.0.provider"), Some(("provider", "an index of a list"))),
    ] {
        match (ObjectBinding::new(payload, provider, None), expected) {
            (Ok(_), None) => {}
            (Err((argument, error)), Some((wanted, words))) => {
                assert!(argument == wanted && error.to_string().contains(words), "{payload}: {argument} {error}");
            }
            (found, _) => panic!("{payload} {provider:?}: {found:?}"),
        }
    }
}
