//! Limits of one evaluation.

use super::super::limits::MAX_CONSTRAINT_BYTES;
use super::*;

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!(1), |value, _| json!({ "a": value }))
}

#[test]
fn a_payload_that_exceeds_a_limit_is_refused() {
    let new = |payload| Request::new(payload, None, None);
    assert!(new(nested(MAX_NESTING)).is_ok());
    assert_eq!(new(nested(MAX_NESTING + 1)), Err(RequestError::TooDeep));
    assert_eq!(new(json!([1])), Err(RequestError::NotAnObject("a list")));
    let text = |bytes: usize| json!({"a": "x".repeat(bytes)});
    assert!(new(text(MAX_PAYLOAD_BYTES - 8)).is_ok());
    assert_eq!(new(text(MAX_PAYLOAD_BYTES - 7)), Err(RequestError::TooLarge(MAX_PAYLOAD_BYTES + 1)));
}

#[test]
fn a_payload_that_patches_make_too_large_is_refused() {
    let half = "x".repeat(MAX_PAYLOAD_BYTES / 2);
    let outcome = evaluate(json!({}), &[patch(json!({"a": half})), patch(json!({"b": half}))]);
    assert_failed(&outcome, "p2", "LimitExceeded", "after the patch");
    // The sum of all patches may be larger than the payload.
    let outcome = evaluate(json!({}), &[patch(json!({"a": half})), patch(json!({"a": half})), patch(json!({"a": 1}))]);
    assert_allowed(&outcome, &json!({"a": 1}));
}

#[test]
fn a_result_that_exceeds_a_limit_is_refused() {
    let constraints = |count: usize| {
        let members: serde_json::Map<_, _> =
            (0..count).map(|number| (format!("f{number}"), json!({"minimum": 1}))).collect();
        json!({ "constraints": members })
    };
    assert_failed(&evaluate(json!({}), &[constraints(MAX_CONSTRAINTS + 1)]), "p1", "ResultInvalid", "at most 10000");
    let outcome = evaluate(json!({"f9999": 0}), &[constraints(MAX_CONSTRAINTS)]);
    assert_eq!(outcome.decision.status(), "REJECTED", "{:?}", outcome.decision.message());
    let outcome = evaluate(json!({}), &[constraints(MAX_CONSTRAINTS), constrain("other", json!({}))]);
    assert_failed(&outcome, "p2", "LimitExceeded", "at most 10000");

    assert_failed(&evaluate(json!({}), &[patch(nested(MAX_NESTING + 1))]), "p1", "ResultInvalid", "nests deeper");
    let deep = (0..=MAX_NESTING).fold(json!({}), |schema, _| json!({ "not": schema }));
    assert_failed(&evaluate(json!({}), &[constrain("x", deep)]), "p1", "ResultInvalid", "nests deeper");
    let large = json!({"const": "x".repeat(MAX_CONSTRAINT_BYTES)});
    assert_failed(&evaluate(json!({}), &[constrain("x", large)]), "p1", "ResultInvalid", "is larger than");
}

#[test]
fn patterns_that_would_need_too_much_memory_are_refused() {
    let outcome = evaluate(json!({}), &[constrain("x", json!({"pattern": r"^(\p{L}{1,200}){1,200}$"}))]);
    assert_failed(&outcome, "p1", "ResultInvalid", "has a pattern that cannot be used");
    // Each of these patterns needs more than a small one.
    let large: Vec<_> = (0..400).map(|number| json!({"pattern": format!("^[a-z]{{1,1500}}{number}$")})).collect();
    let outcome = evaluate(json!({}), &[constrain("x", json!({"allOf": large}))]);
    assert_failed(&outcome, "p1", "ResultInvalid", "compiled patterns");
    // All policies share the limit.
    let small: Vec<_> = (0..28).map(|number| json!({"pattern": format!("^[a-z]+{number}$")})).collect();
    let constraints = |prefix: &str| {
        let members: serde_json::Map<_, _> =
            (0..300).map(|number| (format!("{prefix}{number}"), json!({"allOf": small}))).collect();
        json!({ "constraints": members })
    };
    assert_failed(
        &evaluate(json!({}), &[constraints("a"), constraints("b")]),
        "p2",
        "ResultInvalid",
        "compiled patterns",
    );
}

#[test]
fn many_small_patterns_are_allowed() {
    let schemas: serde_json::Map<_, _> =
        (0..1000).map(|number| (format!("f{number}"), json!({"pattern": format!("^[a-z]+-{number}$")}))).collect();
    let outcome = evaluate(json!({"f7": "a-8"}), &[json!({"constraints": schemas})]);
    assert_eq!(outcome.decision.status(), "REJECTED", "{:?}", outcome.decision.message());
    // A name of Kubernetes needs more memory than most patterns.
    let names: serde_json::Map<_, _> = (0..1000)
        .map(|number| (format!("f{number}"), json!({"pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"})))
        .collect();
    let outcome = evaluate(json!({"f7": "-a"}), &[json!({"constraints": names})]);
    assert_eq!(outcome.decision.status(), "REJECTED", "{:?}", outcome.decision.message());
}

#[test]
fn a_validation_that_would_take_too_long_is_refused() {
    let items: Vec<_> = (0..40_000).collect();
    let options: Vec<_> = (200_000..300_000).collect();
    let outcome = evaluate(json!({"x": items}), &[constrain("x", json!({"items": {"not": {"enum": options}}}))]);
    assert_failed(&outcome, "p1", "LimitExceeded", "the validation of the field `x` would take too long");
    let outcome = evaluate(
        json!({}),
        &[constrain("x", json!({"enum": options})), constrain("x", json!({"not": {"enum": options}}))],
    );
    assert_failed(&outcome, "p2", "LimitExceeded", "would take too long");
}

#[test]
fn a_payload_of_too_many_values_is_refused() {
    let many = |count: usize| json!({"list": vec![json!({"": 0}); count]});
    assert!(matches!(Request::new(many(25_000), None, None), Err(RequestError::TooManyValues(50_002))));
    assert!(Request::new(many(24_000), None, None).is_ok());
    let outcome = evaluate(many(24_000), &[patch(json!({"more": vec![0; 2_000]}))]);
    let Decision::Failed { failure, .. } = &outcome.decision else { panic!("{:?}", outcome.decision) };
    assert!(failure.message.contains("more than 50000 values"), "{}", failure.message);
}

#[test]
fn a_patch_of_many_fields_below_a_long_key_is_refused_before_it_takes_gigabytes() {
    let fields: serde_json::Map<_, _> = (0..20_000).map(|number| (number.to_string(), json!(1))).collect();
    let outcome = evaluate(json!({}), &[patch(json!({"k".repeat(200_000): fields}))]);
    let Decision::Failed { failure, .. } = &outcome.decision else { panic!("{:?}", outcome.decision) };
    assert!(failure.message.contains("use shorter keys"), "{}", failure.message);
}

#[test]
fn the_reason_of_a_rejection_is_cut() {
    let outcome = evaluate(json!({}), &[json!({"reject": true, "reason": "ä".repeat(100_000)})]);
    assert!(outcome.decision.message().unwrap().len() < 5_000);
}
