mod canaries;

use proptest::prelude::*;
use proptest::sample::subsequence;

use super::*;
use crate::configuration::policy::Version;
use crate::configuration::subscription::{Filter, FilterError, Selector, Subscription};
use crate::configuration::testing::{attributes, id, item, policy};
use crate::failure::Failure;

fn resolve_all(selectors: Vec<Selector>, policies: Vec<ConfigurationPolicy>) -> Resolution {
    let subscription = Subscription { namespace: "a".to_owned(), selectors, ..Subscription::default() };
    resolve(&CompiledSubscription::new(&subscription), &Catalog::new(policies, []))
}

fn filter(change: impl FnOnce(&mut Filter)) -> Selector {
    let mut filter = Filter::default();
    change(&mut filter);
    Selector::Filter(filter)
}

fn named(pattern: &str) -> Selector {
    filter(|filter| filter.name_regex = Some(pattern.to_owned()))
}

fn selected(resolution: &Resolution) -> Vec<(&str, i64)> {
    resolution.selected.iter().map(|(id, policy)| (id.as_str(), policy.version.generation)).collect()
}

fn messages(failures: impl Iterator<Item = Failure>) -> Vec<String> {
    failures.map(|failure| failure.to_string()).collect()
}

#[test]
fn a_component_gets_the_newest_generation_of_each_selected_policy() {
    let policies = vec![
        policy("cluster.memory", 9),
        policy("cluster.memory", 10),
        policy("cluster.memory", 2),
        policy("ns.a.limits", 1),
        policy("cluster.other", 1),
    ];
    let selectors = vec![named(r"ns\..*"), Selector::Id(id("cluster.memory")), named(".*memory")];
    let resolution = resolve_all(selectors, policies);
    assert_eq!(selected(&resolution), [("cluster.memory", 10), ("ns.a.limits", 1)]);
    assert_eq!(resolution.keep, Keep::default());
    assert_eq!(resolution.selectors[1], SelectorOutcome::Selected(vec![id("cluster.memory")]));
}

#[test]
fn a_filter_is_compared_with_the_newest_generation_only() {
    let older = policy("cluster.memory", 1);
    let newer = ConfigurationPolicy { config_name: "renamed".to_owned(), ..policy("cluster.memory", 2) };
    let selector = || vec![filter(|filter| filter.config_name = Some("memory".to_owned()))];
    assert_eq!(selected(&resolve_all(selector(), vec![older.clone(), newer])), []);
    assert_eq!(selected(&resolve_all(selector(), vec![older])), [("cluster.memory", 1)]);
}

#[test]
fn a_subscription_selects_no_policy_of_another_namespace() {
    let policies = || vec![policy("ns.a.limits", 1), policy("ns.b.limits", 1), policy("cluster.limits", 1)];
    let resolution = resolve_all(vec![named(".*"), Selector::Id(id("ns.b.limits"))], policies());
    assert_eq!(selected(&resolution), [("cluster.limits", 1), ("ns.a.limits", 1)]);
    assert_eq!(
        messages(resolution.warnings()),
        [
            "NoPolicySelected: spec.policies[1]: the policy ns.b.limits is in another namespace: a subscription selects policies of the cluster and of its own namespace"
        ]
    );
    assert_eq!(resolution.failures().count(), 0);
}

#[test]
fn a_selector_without_policies_says_why() {
    let mut storage = policy("cluster.storage", 1);
    storage.config_name = "storage".to_owned();
    storage.attributes = attributes([("tier", "fast")]);
    let selectors = vec![
        Selector::Id(id("cluster.missing")),
        filter(|filter| {
            filter.name_regex = Some("cluster.*".to_owned());
            filter.config_name = Some("memory".to_owned());
            filter.owner = Some("DCAE".to_owned());
            filter.attributes = attributes([("tier", "fast")]);
        }),
    ];
    let resolution = resolve_all(selectors.clone(), vec![policy("cluster.memory", 1), storage]);
    assert_eq!(
        messages(resolution.warnings()),
        [
            "NoPolicySelected: spec.policies[0]: there is no enabled configuration policy cluster.missing with a version that can be delivered",
            "NoPolicySelected: spec.policies[1]: the filter selects none of 2 policies; each criterion alone: `nameRegex` 2, `configName` 1, `owner` 0, `attributes.tier` 1",
        ]
    );
    let resolution = resolve_all(selectors, vec![]);
    let why = SelectorOutcome::Nothing(NotSelected::NoMatch {
        policies: 0,
        alone: vec![
            (Criterion::NameRegex, 0),
            (Criterion::ConfigName, 0),
            (Criterion::Owner, 0),
            (Criterion::Attribute("tier".to_owned()), 0),
        ],
    });
    assert_eq!(resolution.selectors[1], why);
    assert_eq!(resolution.keep, Keep::default(), "a selector that works and selects nothing keeps nothing");
}

#[test]
fn a_unique_filter_with_several_policies_fails_and_keeps_them() {
    let unique = |pattern: &str| {
        filter(|filter| {
            filter.name_regex = Some(pattern.to_owned());
            filter.unique = true;
        })
    };
    let policies = || (0..7).map(|number| policy(&format!("cluster.m{number}"), 1)).collect::<Vec<_>>();
    let resolution = resolve_all(vec![unique("cluster.m1"), unique("cluster.*")], policies());
    assert_eq!(selected(&resolution), [("cluster.m1", 1)]);
    assert_eq!(resolution.keep, Keep::All);
    assert_eq!(
        messages(resolution.failures()),
        [
            "NotUnique: spec.policies[1]: the filter is `unique`, and selects 7 policies (cluster.m0, cluster.m1, cluster.m2, cluster.m3, cluster.m4, …): add criteria, or remove `unique`"
        ]
    );
    // Several versions of one policy are one policy.
    let resolution = resolve_all(vec![unique("cluster.*")], vec![policy("cluster.m", 1), policy("cluster.m", 2)]);
    assert_eq!(selected(&resolution), [("cluster.m", 2)]);
}

#[test]
fn an_invalid_filter_keeps_all_policies_and_the_other_selectors_work() {
    let resolution = resolve_all(vec![named("("), named("cluster.memory")], vec![policy("cluster.memory", 2)]);
    assert_eq!(selected(&resolution), [("cluster.memory", 2)]);
    assert_eq!(resolution.keep, Keep::All);
    let SelectorOutcome::Failed(error) = &resolution.selectors[0] else { panic!("{resolution:?}") };
    assert!(matches!(error, SelectionError::Filter(FilterError::Invalid { .. })), "{error:?}");
    let message = messages(resolution.failures()).remove(0);
    assert!(
        message.starts_with("Invalid: spec.policies[0]: `filter.nameRegex`: the regular expression \"(\""),
        "{message}"
    );
}

#[test]
fn a_selector_that_exceeds_the_limit_of_a_subscription_fails() {
    let policies = |count: usize| (0..count).map(|number| policy(&format!("cluster.m{number}"), 1)).collect::<Vec<_>>();
    let resolution = resolve_all(vec![named(".*")], policies(MAX_POLICIES));
    assert_eq!((resolution.selected.len(), resolution.keep), (MAX_POLICIES, Keep::default()));
    let mut policies = policies(10_000);
    policies.push(policy("ns.a.limits", 1));
    let resolution = resolve_all(vec![Selector::Id(id("ns.a.limits")), named("cluster.*")], policies);
    assert_eq!((selected(&resolution), &resolution.keep), (vec![("ns.a.limits", 1)], &Keep::All));
    assert_eq!(
        messages(resolution.failures()),
        [
            "TooManyPolicies: spec.policies[1]: the selector selects 10000 policies, and the subscription 10001 with it, at most 2000 are allowed: add criteria, or use several subscriptions"
        ]
    );
}

#[test]
fn an_unreadable_policy_stays_as_it_is() {
    let catalog = Catalog::new(
        [policy("cluster.memory", 1), policy("cluster.broken", 1)],
        [id("cluster.broken"), id("cluster.other"), id("ns.b.limits")],
    );
    let selectors = vec![Selector::Id(id("cluster.broken")), named("cluster.*")];
    let subscription = Subscription { namespace: "a".to_owned(), selectors, ..Subscription::default() };
    let resolution = resolve(&CompiledSubscription::new(&subscription), &catalog);
    assert_eq!(selected(&resolution), [("cluster.memory", 1)]);
    assert_eq!(resolution.keep, Keep::Only([id("cluster.broken"), id("cluster.other")].into()));
    assert_eq!(
        messages(resolution.failures()),
        ["PolicyUnreadable: spec.policies[0]: the policy cluster.broken cannot be read: see its status"]
    );
}

#[test]
fn a_policy_whose_body_fails_stays_as_it_is() {
    let resolution = resolve_all(vec![named(".*")], vec![policy("cluster.memory", 1), policy("cluster.large", 1)]);
    let body = |policy: &ConfigurationPolicy| match policy.id.name() {
        "large" => Err("too large"),
        name => Ok(item(&format!("cluster.{name}"), 1, &serde_json::json!(1))),
    };
    let (desired, errors) = resolution.desired(body);
    assert_eq!(errors, [(id("cluster.large"), "too large")]);
    assert_eq!(desired.items.keys().collect::<Vec<_>>(), [&id("cluster.memory")]);
    assert_eq!(desired.keep, Keep::Only([id("cluster.large")].into()));
}

const IDS: [&str; 6] = ["cluster.a", "cluster.b", "cluster.a.b", "ns.a.x", "ns.a.y", "ns.b.x"];

fn any_policy() -> impl Strategy<Value = ConfigurationPolicy> {
    (prop::sample::select(&IDS[..]), 1_i64..4, "[mn]", prop::option::of("[mn]"), prop::option::of("[01]")).prop_map(
        |(id, generation, config_name, owner, attribute)| ConfigurationPolicy {
            version: Version::of(generation),
            config_name,
            owner,
            attributes: attribute.into_iter().map(|value| ("key".to_owned(), value)).collect(),
            ..policy(id, 1)
        },
    )
}

fn any_selector() -> impl Strategy<Value = Selector> {
    let filter = (
        prop::option::of(prop::sample::select(&["cluster.*", ".*a", ".*", "ns.*x"][..])),
        prop::option::of("[mn]"),
        prop::option::of("[mn]"),
        prop::option::of("[01]"),
    );
    let filter = filter.prop_map(|(name, config_name, owner, attribute)| {
        Selector::Filter(Filter {
            name_regex: name.map(ToOwned::to_owned),
            config_name,
            owner,
            attributes: attribute.into_iter().map(|value| ("key".to_owned(), value)).collect(),
            unique: false,
        })
    });
    let ids = prop::sample::select(&["cluster.a", "ns.a.x", "ns.b.x", "cluster.z"][..]);
    prop_oneof![filter, ids.prop_map(|text| Selector::Id(id(text)))]
}

fn any_policies() -> impl Strategy<Value = Vec<ConfigurationPolicy>> {
    prop::collection::vec(any_policy(), 0..12)
}

fn any_selectors() -> impl Strategy<Value = Vec<Selector>> {
    prop::collection::vec(any_selector(), 0..4)
}

proptest! {
    #[test]
    fn a_resolution_does_not_depend_on_the_order_of_policies_and_selectors(
        (policies, shuffled) in any_policies().prop_flat_map(|policies| (Just(policies.clone()), Just(policies).prop_shuffle())),
        selectors in any_selectors(),
    ) {
        let resolution = resolve_all(selectors.clone(), policies);
        prop_assert_eq!(&resolution, &resolve_all(selectors.clone(), shuffled.clone()));
        let reversed = resolve_all(selectors.into_iter().rev().collect(), shuffled);
        prop_assert_eq!(resolution.selected, reversed.selected);
    }

    #[test]
    fn more_policies_or_more_selectors_never_select_less(
        policies in any_policies(),
        (selectors, fewer) in any_selectors().prop_flat_map(|all| {
            let count = all.len();
            (Just(all.clone()), subsequence(all, 0..=count))
        }),
        removed in prop::sample::select(&IDS[..]),
    ) {
        let all = resolve_all(selectors.clone(), policies.clone());
        let fewer = resolve_all(fewer, policies.clone());
        prop_assert!(fewer.selected.iter().all(|(id, policy)| all.selected.get(id) == Some(policy)));
        // Without one policy, in all its versions, the others are selected as before.
        let rest = policies.into_iter().filter(|policy| policy.id.as_str() != removed).collect();
        let mut expected = all.selected;
        expected.remove(&id(removed));
        prop_assert_eq!(resolve_all(selectors, rest).selected, expected);
    }

    #[test]
    fn every_selected_policy_is_the_newest_and_in_scope(policies in any_policies(), selectors in any_selectors()) {
        let resolution = resolve_all(selectors, policies.clone());
        for (id, selected) in &resolution.selected {
            let newest = policies.iter().filter(|policy| policy.id == *id).map(|policy| policy.version.generation).max();
            prop_assert_eq!(Some(selected.version.generation), newest);
            prop_assert!(id.namespace().is_none_or(|namespace| namespace == "a"));
        }
        let by_selectors: BTreeSet<_> = resolution.selectors.iter().flat_map(|outcome| match outcome {
            SelectorOutcome::Selected(ids) => ids.clone(),
            _ => Vec::new(),
        }).collect();
        prop_assert!(by_selectors.iter().eq(resolution.selected.keys()));
    }
}
