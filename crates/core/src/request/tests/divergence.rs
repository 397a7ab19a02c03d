//! The difference between two outcomes.

use super::*;

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
            "payload": [{"op": "replace", "path": "/cpu", "value": 3}, {"op": "add", "path": "/gpu", "value": 1}],
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
