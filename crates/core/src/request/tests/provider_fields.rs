//! The service provider as a field of the payload.

use super::*;

const FIELD: &str = "placement.provider";

fn with_provider_in(payload: Value) -> Result<Request, RequestError> {
    request(payload).with_provider_in(FIELD.parse().unwrap())
}

/// Evaluates a request whose provider is in the field [`FIELD`].
fn evaluate_field(payload: Value, results: &[Value]) -> Outcome {
    let results: Vec<_> = results.iter().map(|result| Ok(Some(result.clone()))).collect();
    evaluate_request(with_provider_in(payload).unwrap(), &results)
}

fn placed(provider: &str) -> Value {
    json!({"placement": {"provider": provider}})
}

fn choose(provider: &str) -> Value {
    json!({"serviceProvider": {"value": provider}})
}

fn allow(names: &[&str]) -> Value {
    json!({"serviceProvider": {"constraints": {"allowList": names}}})
}

#[test]
fn the_provider_and_its_field_always_have_the_same_value() {
    let (fixed, other) = (json!({"placement": {"zone": "a"}}), json!({"placement": {"zone": "a", "provider": "east"}}));
    for (payload, results, provider, expected) in [
        // The caller chooses, or nobody does.
        (placed("east"), vec![], Some("east"), placed("east")),
        (json!({}), vec![allow(&["east"])], None, json!({})),
        (placed(""), vec![allow(&["east"])], None, placed("")),
        // A policy chooses.
        (json!({}), vec![choose("east")], Some("east"), placed("east")),
        (fixed.clone(), vec![choose("east")], Some("east"), other),
        (json!({"placement": "x"}), vec![choose("east")], Some("east"), placed("east")),
        (placed("west"), vec![choose("east")], Some("east"), placed("east")),
        // A patch of the field is a choice, too.
        (placed("west"), vec![patch(placed("east"))], Some("east"), placed("east")),
        (placed("west"), vec![choose("north"), patch(placed("east"))], Some("east"), placed("east")),
        (placed("west"), vec![patch(json!({"placement": null}))], None, json!({})),
        (placed("west"), vec![patch(json!({"placement": {"provider": null}}))], None, json!({"placement": {}})),
        (placed("west"), vec![patch(json!({"placement": 1})), allow(&["east"])], None, json!({"placement": 1})),
        // A policy may correct the caller before or after the constraint.
        (placed("west"), vec![choose("east"), allow(&["east"])], Some("east"), placed("east")),
        (placed("west"), vec![allow(&["east"]), choose("east")], Some("east"), placed("east")),
        (placed("west"), vec![allow(&["east"]), patch(placed("east"))], Some("east"), placed("east")),
        (placed("west"), vec![allow(&["east"]), patch(json!({"placement": null}))], None, json!({})),
    ] {
        let outcome = evaluate_field(payload.clone(), &results);
        assert_allowed(&outcome, &expected);
        assert_eq!(outcome.provider.as_deref(), provider, "{payload} {results:?}");
        let is_modified = outcome.decision == Decision::Modified;
        assert_eq!(is_modified, payload != expected, "{payload} {results:?}");
    }
}

#[test]
fn policies_see_the_provider_that_the_caller_wants() {
    let chain = Chain::start(with_provider_in(placed("east")).unwrap(), [policy("p1", Level::Global, 1)], cache());
    let Progress::Next(chain) = chain else { panic!("{chain:?}") };
    assert_eq!(chain.input().service_provider.value, Some("east"));
    assert_eq!(chain.published_input().provider, "east");
}

#[test]
fn a_provider_of_the_caller_that_a_policy_forbids_is_rejected_in_the_name_of_the_policy() {
    let pattern = json!({"serviceProvider": {"constraints": {"patterns": ["^east-"]}}});
    for (constraint, words) in
        [(allow(&["east-1"]), "\"west\" is not in the allow-list"), (pattern, "\"west\" does not match the pattern")]
    {
        let outcome = evaluate_field(placed("west"), &[json!({}), constraint.clone(), json!({})]);
        let Decision::Rejected { policy, reason, field } = &outcome.decision else { panic!("{:?}", outcome.decision) };
        assert_eq!((policy.policy.name(), field), ("p2", &Some(FIELD.parse().unwrap())));
        assert!(reason.contains(words), "{reason}");
        // The choice of a policy is a conflict at once.
        let chosen = evaluate_field(placed("west"), &[constraint, patch(placed("north"))]);
        assert_conflict(&chosen, "p2", "p1", None);
    }
}

#[test]
fn a_constraint_of_the_field_binds_the_choice_of_the_provider() {
    let lock = constrain(FIELD, json!({"const": "east"}));
    for (payload, results) in [
        (placed("east"), vec![lock.clone(), choose("west")]),
        (
            placed("east"),
            vec![constrain("placement", json!({"required": ["provider"]})), patch(json!({"placement": null}))],
        ),
        (json!({}), vec![lock.clone(), choose("west")]),
        (placed("east"), vec![constrain(FIELD, json!({"mode": "immutable"})), choose("west")]),
    ] {
        let field = evaluate_field(payload, &results);
        assert!(matches!(field.decision, Decision::Conflict(_)), "{results:?}: {:?}", field.decision);
    }
    // The value of one result is locked as it is after the result.
    let both = json!({"serviceProvider": {"value": "east"}, "constraints": {FIELD: {"mode": "immutable"}}});
    assert_allowed(&evaluate_field(json!({}), std::slice::from_ref(&both)), &placed("east"));
    assert_conflict(&evaluate_field(json!({}), &[both, choose("west")]), "p2", "p1", Some(FIELD));
}

#[test]
fn the_trail_shows_the_choice_and_the_changed_field() {
    let outcome = evaluate_field(json!({}), &[choose("east"), patch(placed("west"))]);
    let trail: Vec<_> = outcome
        .trail
        .iter()
        .map(|entry| {
            (entry.provider.as_deref().unwrap(), entry.patched.iter().map(ToString::to_string).collect::<Vec<_>>())
        })
        .collect();
    assert_eq!(trail, [("east", vec![FIELD.to_owned()]), ("west", vec![FIELD.to_owned()])]);
}

#[test]
fn values_that_are_no_provider_are_refused_with_their_field() {
    for (payload, words) in [
        (json!({"placement": {"provider": 1}}), "`placement.provider` is a number"),
        (placed(&"x".repeat(1025)), "`placement.provider` has 1025 bytes"),
    ] {
        let error = with_provider_in(payload).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    for (result, words) in [
        (patch(json!({"placement": {"provider": {}}})), "sets `placement.provider` to an object"),
        (json!({"patch": {"placement": "x"}, "selected_provider": "east"}), "has a string in `placement`"),
    ] {
        assert_failed(&evaluate_field(json!({}), &[result]), "p1", "ResultInvalid", words);
    }
}
