//! The difference between two outcomes.

use super::*;
use crate::divergence::Divergence;

fn between(live: &[Value], experiment: &[Value]) -> RequestDivergence {
    RequestDivergence::between(&evaluate(json!({"cpu": 1}), live), &evaluate(json!({"cpu": 1}), experiment))
}

#[test]
fn equal_outcomes_do_not_diverge() {
    let result = json!({"patch": {"cpu": 2}, "constraints": {"cpu": {"maximum": 4}}, "selected_provider": "aws"});
    let same = [result.clone()];
    assert!(between(&same, &same).is_same());
    let split =
        [patch(json!({"cpu": 2})), json!({"selected_provider": "aws"}), constrain("cpu", json!({"maximum": 4}))];
    assert!(between(&[result], &split).is_same(), "the effect counts, not the policies");
    let rejection = [json!({"rejected": true, "rejection_reason": "no"})];
    assert!(between(&rejection, &rejection).is_same());
}

#[test]
fn each_difference_of_allowed_requests_is_reported() {
    let divergence = between(
        &[
            json!({"patch": {"cpu": 2}, "constraints": {"cpu": {"maximum": 4}, "gpu": {"const": 1}}, "selected_provider": "aws"}),
        ],
        &[json!({
            "patch": {"cpu": 3, "gpu": 1}, "constraints": {"cpu": {"maximum": 8}, "ram": {"minimum": 1}}, "selected_provider": "gcp",
            "service_provider_constraints": {"allow_list": ["gcp"]},
        })],
    );
    assert_eq!(
        serde_json::to_value(&divergence).unwrap(),
        json!({
            "payload": {"fields": ["cpu", "gpu"], "omitted": 0},
            "provider": {"live": "aws", "experiment": "gcp"},
            "providerConstraints": {"live": {}, "experiment": {"allow_list": ["gcp"]}},
            "constraints": [
                {"field": "cpu", "live": {"maximum": 4}, "experiment": {"maximum": 8}},
                {"field": "gpu", "live": {"const": 1}, "experiment": null},
                {"field": "ram", "live": null, "experiment": {"minimum": 1}},
            ],
        })
    );
}

#[test]
fn a_refused_request_diverges_by_status_and_message_only() {
    let rejection = |reason: &str| json!({"rejected": true, "rejection_reason": reason});
    let divergence = between(&[patch(json!({"cpu": 2}))], &[rejection("no")]);
    assert_eq!(divergence.status, Some(Pair { live: "MODIFIED", experiment: "REJECTED" }));
    assert!(divergence.payload.is_empty() && divergence.message.is_none());
    let divergence = between(&[rejection("a")], &[rejection("b")]);
    assert_eq!(divergence.status, None);
    assert!(divergence.message.unwrap().experiment.unwrap().ends_with('b'));
    let divergence = between(&[rejection("a")], &[constrain("cpu", json!({"maximum": 0}))]);
    assert!(!divergence.is_same(), "a violated constraint is another rejection");
}

/// Compares two chains of one policy `p1`, which is the candidate.
fn compare(live: &Outcome, experiment: &Outcome) -> OutcomeComparison {
    OutcomeComparison::new(live, experiment, &PolicyId::cluster("p1").unwrap())
}

#[test]
fn a_comparison_has_the_class_and_names_the_fields_without_values() {
    let payload = json!({"cpu": 1, "password": "hunter2"});
    let outcome = |result: &Value| evaluate(payload.clone(), std::slice::from_ref(result));
    let (nothing, rejection) = (json!({}), json!({"rejected": true, "rejection_reason": "no"}));
    let secret = constrain("password", json!({"minLength": 20}));
    for (live, experiment, class, message) in [
        (&nothing, nothing.clone(), Divergence::Same, None),
        (&rejection, rejection.clone(), Divergence::Same, None),
        (
            &nothing,
            patch(json!({"cpu": 2, "a": {"b.c": 1}})),
            Divergence::MutationDiffers,
            Some(r"status APPROVED → MODIFIED; payload: a, cpu"),
        ),
        (
            &json!({"selected_provider": "aws"}),
            json!({"selected_provider": "gcp"}),
            Divergence::MutationDiffers,
            Some("provider aws → gcp"),
        ),
        (
            &json!({"selected_provider": "aws"}),
            nothing.clone(),
            Divergence::MutationDiffers,
            Some("provider aws → none"),
        ),
        (
            &nothing,
            json!({"constraints": {"cpu": {"maximum": 4}}, "service_provider_constraints": {"patterns": ["a"]}}),
            Divergence::DetailsDiffer,
            Some("constraints: cpu; constraints of the service provider"),
        ),
        (
            &nothing,
            rejection.clone(),
            Divergence::NewlyDenied,
            Some("status APPROVED → REJECTED; policy cluster.p1 (generation 101) rejects the request: no"),
        ),
        (
            &nothing,
            secret.clone(),
            Divergence::NewlyDenied,
            Some(
                "status APPROVED → REJECTED; the field `password` violates the constraint of policy cluster.p1 (generation 101)",
            ),
        ),
        (
            &rejection,
            nothing.clone(),
            Divergence::NewlyAllowed,
            Some("status REJECTED → APPROVED; policy cluster.p1 (generation 101) rejects the request: no"),
        ),
        (
            &rejection,
            secret,
            Divergence::MessageDiffers,
            Some("the field `password` violates the constraint of policy cluster.p1 (generation 101)"),
        ),
    ] {
        let comparison = compare(&outcome(live), &outcome(&experiment));
        assert_eq!((comparison.divergence, comparison.message().as_deref()), (class, message), "{live} {experiment}");
        assert_eq!(comparison.failure, None, "{live} {experiment}");
        assert!(!format!("{comparison:?}").contains("hunter2"), "{comparison:?}");
    }
}

#[test]
fn a_conflict_is_compared_without_its_values() {
    let lock = constrain("cpu", json!({"const": 1}));
    let live = evaluate(json!({"cpu": 1}), &[json!({}), lock.clone()]);
    let experiment = evaluate(json!({"cpu": 1}), &[patch(json!({"cpu": 2})), lock]);
    let comparison = compare(&live, &experiment);
    assert_eq!((comparison.divergence, comparison.experiment.status), (Divergence::NewlyDenied, "POLICY_CONFLICT"));
    let message = comparison.experiment.message.unwrap();
    assert!(message.ends_with("(generation 101) on the field `cpu`") && message.contains("cluster.p2"), "{message}");
}

#[test]
fn a_failure_is_a_divergence_unless_another_policy_fails_anyway() {
    let failure = || Err(Failure::new("Failed", "it failed"));
    let (allow, reject) = (|| Ok(Some(json!({}))), || Ok(Some(json!({"rejected": true}))));
    let chain = |results: &[Result<Option<Value>, Failure>]| evaluate_all(json!({}), results);
    for (live, experiment, class, has_failed) in [
        (chain(&[allow(), allow()]), chain(&[failure(), allow()]), Divergence::NewlyDenied, true),
        (chain(&[reject(), allow()]), chain(&[failure(), allow()]), Divergence::ExperimentError, true),
        // The live policy fails too: the failure of a candidate is never hidden.
        (chain(&[failure(), allow()]), chain(&[failure(), allow()]), Divergence::ExperimentError, true),
        // Another policy fails: with the candidate only, or anyway.
        (chain(&[allow(), allow()]), chain(&[allow(), failure()]), Divergence::NewlyDenied, true),
        (chain(&[allow(), failure()]), chain(&[allow(), failure()]), Divergence::Same, false),
        (chain(&[allow(), failure()]), chain(&[allow(), allow()]), Divergence::NewlyAllowed, false),
    ] {
        let comparison = compare(&live, &experiment);
        assert_eq!((comparison.divergence, comparison.failure.is_some()), (class, has_failed), "{comparison:?}");
    }
}

#[test]
fn a_comparison_of_many_fields_below_a_long_key_is_small() {
    let fields = |value: u32| (0..20_000).map(|n| (n.to_string(), json!(value))).collect::<serde_json::Map<_, _>>();
    let payload = |value: u32| json!({"k".repeat(500_000): fields(value)});
    let (live, experiment) = (evaluate(payload(1), &[]), evaluate(payload(2), &[]));
    let comparison = compare(&live, &experiment);
    assert_eq!((comparison.payload.fields.len(), comparison.payload.omitted), (20, 19_980));
    assert!(comparison.payload.fields.iter().all(|field| field.len() < 1_000));
}

#[test]
fn a_comparison_names_a_bounded_number_of_fields() {
    let fields: serde_json::Map<_, _> = (0..1_000).map(|number| (format!("f{number:04}"), json!(1))).collect();
    let comparison = compare(&evaluate(json!({}), &[json!({})]), &evaluate(json!({}), &[patch(Value::Object(fields))]));
    assert_eq!((comparison.payload.fields.len(), comparison.payload.omitted), (20, 980));
    assert!(comparison.message().unwrap().ends_with("f0019 and 980 more"));
}
