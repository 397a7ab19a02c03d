//! The choice of the service provider.

use super::*;

fn choose(provider: &str) -> Value {
    json!({ "selected_provider": provider })
}

fn allow(names: &[&str]) -> Value {
    json!({"service_provider_constraints": {"allow_list": names}})
}

fn matching(patterns: &[&str]) -> Value {
    json!({"service_provider_constraints": {"patterns": patterns}})
}

#[test]
fn the_last_choice_that_all_policies_allow_is_the_provider() {
    let outcome = evaluate(
        json!({}),
        &[choose("aws"), allow(&["gcp", "aws", "ibm"]), matching(&["^[ag]"]), allow(&["aws", "gcp"]), choose("gcp")],
    );
    assert_eq!(outcome.decision, Decision::Approved, "a provider does not change the payload");
    assert_eq!(outcome.provider.as_deref(), Some("gcp"));
    let expected =
        ProviderConstraints { allow_list: Some(vec!["gcp".into(), "aws".into()]), patterns: vec!["^[ag]".into()] };
    assert_eq!(outcome.provider_constraints, expected);
}

#[test]
fn a_choice_that_a_policy_forbids_is_a_conflict_with_that_policy() {
    assert_conflict(&evaluate(json!({}), &[allow(&["aws", "gcp"]), choose("azure")]), "p2", "p1", None);
    assert_conflict(
        &evaluate(json!({}), &[allow(&["aws", "gcp"]), matching(&["^a"]), choose("gcp")]),
        "p3",
        "p2",
        None,
    );
    assert_conflict(&evaluate(json!({}), &[allow(&["aws", "gcp"]), allow(&["gcp"]), choose("aws")]), "p3", "p2", None);
}

#[test]
fn a_provider_chosen_earlier_is_checked_when_a_later_policy_constrains_providers() {
    let outcome = evaluate(json!({}), &[choose("azure"), json!({}), allow(&["aws"])]);
    assert_conflict(&outcome, "p3", "p1", None);
    let message = outcome.decision.message().unwrap();
    assert!(
        message.contains("on the service provider: the service provider \"azure\" is not in the allow-list"),
        "{message}"
    );
    assert_conflict(&evaluate(json!({}), &[choose("azure"), matching(&["^aws$"])]), "p2", "p1", None);
    // A policy that constrains and chooses replaces the earlier choice.
    let both = json!({"selected_provider": "aws", "service_provider_constraints": {"allow_list": ["aws"]}});
    assert_eq!(evaluate(json!({}), &[choose("azure"), both]).provider.as_deref(), Some("aws"));
}

#[test]
fn allow_lists_without_a_common_provider_are_a_conflict() {
    assert_conflict(&evaluate(json!({}), &[allow(&["aws"]), allow(&["gcp"])]), "p2", "p1", None);
}

#[test]
fn a_pattern_that_is_not_a_regular_expression_or_is_too_large_is_refused() {
    for pattern in ["(", "(?=a)", r"(a)\1", r"(\w{100}){100}"] {
        let outcome = evaluate(json!({}), &[matching(&[pattern])]);
        assert_failed(&outcome, "p1", "ResultInvalid", "service_provider_constraints.patterns[0]");
    }
    let many: Vec<_> = (0..101).map(|number| format!("a{number}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert_failed(&evaluate(json!({}), &[matching(&many)]), "p1", "ResultInvalid", "limit of 100 patterns");
}

#[test]
fn a_catastrophic_pattern_is_matched_in_linear_time() {
    // A backtracking engine needs 2^1000 steps.
    let outcome = evaluate(json!({}), &[matching(&["^(a+)+$"]), choose(&format!("{}!", "a".repeat(1000)))]);
    assert_conflict(&outcome, "p2", "p1", None);
}
