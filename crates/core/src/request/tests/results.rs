//! Results of policies: both notations, rejections, patches, and results that cannot be read.

use super::*;

#[test]
fn both_notations_are_read_into_the_same_result() {
    let published = json!({
        "rejected": false, "patch": {"a": 1}, "constraints": {"a": {"const": 1}}, "selected_provider": "aws",
        "service_provider_constraints": {"allow_list": ["aws"], "patterns": ["^a"]},
    });
    let adr = json!({
        "reject": false, "patch": {"a": 1}, "constraints": {"/a": {"const": 1}},
        "serviceProvider": {"value": "aws", "constraints": {"allowList": ["aws"], "patterns": ["^a"]}},
    });
    let read = PolicyResult::parse(published).unwrap();
    assert_eq!(PolicyResult::parse(adr).unwrap(), read);
    assert_eq!(read.provider.as_deref(), Some("aws"));
    let rejected = PolicyResult::parse(json!({"rejected": true, "rejection_reason": "no"})).unwrap();
    assert_eq!(PolicyResult::parse(json!({"reject": true, "reason": "no"})).unwrap(), rejected);
    assert_eq!(rejected.rejection.as_deref(), Some("no"));
}

#[test]
fn a_result_without_content_has_no_effect() {
    for result in [json!({}), json!({"rejected": false, "selected_provider": "", "patch": null, "constraints": null})] {
        assert_eq!(PolicyResult::parse(result).unwrap(), PolicyResult::default());
    }
}

#[test]
fn the_error_of_a_malformed_result_names_the_field() {
    let cases = [
        (json!([]), "``", "is a list"),
        (json!({"rejected": "yes"}), "`rejected`", "must be a boolean"),
        (json!({"rejected": true, "rejection_reason": 5}), "`rejection_reason`", "must be a string"),
        (json!({"rejected": true, "reject": true}), "`reject`", "together with `rejected`"),
        (json!({"patch": [1]}), "`patch`", "must be an object"),
        (json!({"patchs": {}}), "`patchs`", "is unknown"),
        (json!({"constraints": {"a": 5}}), "`constraints[\"a\"]`", "must be a JSON Schema"),
        (json!({"constraints": {"a..b": {}}}), "`constraints[\"a..b\"]`", "empty key"),
        (json!({"constraints": {"a": {"mode": "mutable"}}}), "`constraints[\"a\"]`", "immutable"),
        (json!({"selected_provider": 1}), "`selected_provider`", "must be a string"),
        (json!({"selected_provider": "a", "serviceProvider": {}}), "`serviceProvider`", "together with"),
        (json!({"serviceProvider": {"name": "a"}}), "`serviceProvider.name`", "is unknown"),
        (
            json!({"serviceProvider": {"constraints": {"allow": []}}}),
            "`serviceProvider.constraints.allow`",
            "is unknown",
        ),
        (
            json!({"service_provider_constraints": {"allow_list": [1]}}),
            "`service_provider_constraints.allow_list[0]`",
            "must be a string",
        ),
        (
            json!({"service_provider_constraints": {"allow_list": []}}),
            "`service_provider_constraints.allow_list`",
            "is empty",
        ),
    ];
    for (result, field, words) in cases {
        let error = PolicyResult::parse(result.clone()).unwrap_err().to_string();
        assert!(error.contains(field) && error.contains(words), "{result}: {error}");
        assert_failed(&evaluate(json!({}), &[result]), "p1", "ResultInvalid", words);
    }
}

#[test]
fn a_rejection_ends_the_chain_at_once() {
    let rejection = json!({"rejected": true, "rejection_reason": "no encryption", "patch": {"a": 1}});
    let outcome = evaluate(json!({}), &[patch(json!({"b": 1})), rejection, json!({"rejected": "never read"})]);
    let Decision::Rejected { policy, reason, field: None } = &outcome.decision else { panic!("{outcome:?}") };
    assert_eq!((policy.policy.name(), policy.generation, reason.as_str()), ("p2", 102, "no encryption"));
    assert_eq!(outcome.trail.len(), 2);
    assert_eq!(outcome.payload, json!({"b": 1}), "the patch of a policy that rejects has no effect");
    assert_eq!(
        outcome.decision.message().unwrap(),
        "policy cluster.p2 (generation 102) rejects the request: no encryption"
    );
}

#[test]
fn an_undefined_result_is_skipped() {
    let outcome = evaluate_all(json!({}), &[Ok(None), Ok(Some(patch(json!({"a": 1}))))]);
    assert_allowed(&outcome, &json!({"a": 1}));
    assert_eq!(outcome.trail.iter().map(|entry| entry.is_undefined).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn a_failed_evaluation_ends_the_chain_and_names_the_policy() {
    let failure = Failure::new("EvaluationError", "division by zero");
    let outcome = evaluate_all(json!({}), &[Ok(None), Err(failure), Ok(None)]);
    assert_failed(&outcome, "p2", "EvaluationError", "division by zero");
    assert!(!outcome.decision.is_allowed());
    assert_eq!(outcome.decision.status(), "FAILED");
}

#[test]
fn a_patch_is_merged_into_the_payload() {
    let cases = [
        (
            json!({"a": {"b": 1, "c": 2}}),
            json!({"a": {"b": 5}}),
            json!({"a": {"b": 5, "c": 2}}),
            "MODIFIED",
            vec!["a.b"],
        ),
        (json!({"a": 1, "b": 2}), json!({"a": null}), json!({"b": 2}), "MODIFIED", vec!["a"]),
        (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]}), "MODIFIED", vec!["a"]),
        (json!({"a": 1}), json!({"a": {"b": null}}), json!({"a": {}}), "MODIFIED", vec!["a"]),
        (json!({}), json!({"a": {"b": null}}), json!({"a": {}}), "MODIFIED", vec!["a"]),
        (json!({}), json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": 1, "c": 2}}), "MODIFIED", vec!["a.b", "a.c"]),
        (json!({"a": 1}), json!({"a": 1, "b": null}), json!({"a": 1}), "APPROVED", vec![]),
        (json!({"a": 1}), json!({}), json!({"a": 1}), "APPROVED", vec![]),
    ];
    for (payload, changes, expected, status, changed) in cases {
        let outcome = evaluate(payload, &[patch(changes.clone())]);
        assert_allowed(&outcome, &expected);
        assert_eq!(outcome.decision.status(), status, "{changes}");
        assert_eq!(outcome.trail[0].patched.iter().map(ToString::to_string).collect::<Vec<_>>(), changed, "{changes}");
    }
}
