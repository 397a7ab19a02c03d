use super::*;
use crate::configuration::testing::{attributes, id, policy};

fn name_matches(pattern: &str, policy_id: &str) -> bool {
    let filter = Filter { name_regex: Some(pattern.to_owned()), ..Filter::default() };
    CompiledFilter::new(&filter).unwrap().selects(&policy(policy_id, 1))
}

#[test]
fn a_regular_expression_must_match_the_whole_id() {
    for (pattern, policy_id, expected) in [
        ("cluster.memory", "cluster.memory", true),
        (r"cluster\.mem.*", "cluster.memory", true),
        ("cluster.mem", "cluster.memory", false),
        ("memory", "cluster.memory", false),
        ("a|cluster.memory", "cluster.memory", true),
        ("cluster|memory", "cluster.memory", false),
        (r"ns\.team-a\..*", "ns.team-a.limits", true),
        ("(?i)CLUSTER.MEMORY", "cluster.memory", true),
        (r"\w+\.\w+", "cluster.memory", true),
        ("", "cluster.memory", false),
    ] {
        assert_eq!(name_matches(pattern, policy_id), expected, "{pattern:?} {policy_id}");
    }
}

#[test]
fn invalid_long_and_complex_regular_expressions_are_refused() {
    let compile = |pattern: &str| {
        CompiledFilter::new(&Filter { name_regex: Some(pattern.to_owned()), ..Filter::default() })
            .map(|_| ())
            .unwrap_err()
    };
    // The second pattern would be valid between the anchors, and match any text that begins with `a`. The comment of the third one
    // would hide an anchor.
    for pattern in ["(", "a)|(?:b", "(?x)a # comment", r"(a)\1", "(?=a)", "*"] {
        assert!(matches!(compile(pattern), FilterError::Invalid { .. }), "{pattern}");
    }
    assert_eq!(compile(&"a".repeat(1025)), FilterError::TooLong { size: 1025 });
    assert!(matches!(compile("((a{100}){100}){100}"), FilterError::TooComplex { .. }));
}

#[test]
fn a_pattern_with_exponential_backtracking_elsewhere_is_linear() {
    let long = format!("cluster.{}", "a".repeat(140));
    assert!(!name_matches(r"cluster\.(a+)+b", &long));
}

#[test]
fn criteria_of_a_filter_are_anded() {
    let mut policy = policy("cluster.memory", 1);
    policy.owner = Some("DCAE".to_owned());
    policy.attributes = attributes([("key1", "value1"), ("key2", "value2")]);
    let all = Filter {
        name_regex: Some("cluster.*".to_owned()),
        config_name: Some("memory".to_owned()),
        owner: Some("DCAE".to_owned()),
        attributes: attributes([("key1", "value1")]),
        unique: false,
    };
    let selects = |change: fn(&mut Filter)| {
        let mut filter = all.clone();
        change(&mut filter);
        CompiledFilter::new(&filter).unwrap().selects(&policy)
    };
    assert!(selects(|_| {}));
    assert!(selects(|filter| *filter = Filter::default()), "a filter without criteria selects every policy");
    assert!(!selects(|filter| filter.name_regex = Some("ns.*".to_owned())));
    assert!(!selects(|filter| filter.config_name = Some("storage".to_owned())));
    assert!(!selects(|filter| filter.owner = Some("other".to_owned())));
    assert!(!selects(|filter| filter.attributes = attributes([("key1", "value1"), ("key3", "value3")])));
    assert!(!selects(|filter| filter.attributes = attributes([("key1", "value2")])));
    // ONAP's policy-handler compares attributes with all matching conditions.
    assert!(selects(|filter| filter.attributes = attributes([("ConfigName", "memory"), ("ONAPName", "DCAE")])));
    assert!(!selects(|filter| filter.attributes = attributes([("ConfigName", "storage")])));
}

#[test]
fn a_policy_without_an_owner_does_not_meet_a_required_owner() {
    let filter = Filter { owner: Some("DCAE".to_owned()), ..Filter::default() };
    assert!(!CompiledFilter::new(&filter).unwrap().selects(&policy("cluster.memory", 1)));
}

#[test]
fn a_subscription_is_concerned_by_policies_that_it_may_select() {
    let subscription = Subscription {
        namespace: "a".to_owned(),
        selectors: vec![
            Selector::Id(id("cluster.memory")),
            Selector::Filter(Filter { config_name: Some("storage".to_owned()), ..Filter::default() }),
        ],
        canary_for: vec![CanaryFor { policy: id("cluster.canary"), experiment: "bigger".to_owned() }],
    };
    let subscription = CompiledSubscription::new(&subscription);
    let mut storage = policy("ns.a.storage", 1);
    assert!(!subscription.is_concerned_by(&storage));
    storage.config_name = "storage".to_owned();
    assert!(subscription.is_concerned_by(&storage));
    storage.id = id("ns.b.storage");
    assert!(!subscription.is_concerned_by(&storage), "a policy of another namespace");
    assert!(subscription.is_concerned_by(&policy("cluster.memory", 1)));
    assert!(subscription.is_concerned_by(&policy("cluster.canary", 1)));
}
