use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

fn fields(name: &str, priority: u32) -> UniqueFields {
    UniqueFields { level: Level::Global, user: None, display_name: name.to_owned(), priority }
}

/// Returns the claim of a policy. The newest generation is live if it has the same fields as `live`.
fn claim(policy: &str, age: Option<i64>, live: Option<(&str, u32)>, newest: (&str, u32)) -> Claim {
    Claim {
        policy: PolicyId::cluster(policy).unwrap(),
        tenant: None,
        live: live.map(|(name, priority)| fields(name, priority)),
        newest: Some(fields(newest.0, newest.1)),
        age: age.map(|second| (Timestamp::from_second(second).unwrap(), format!("uid-{policy}"))),
    }
}

/// Returns the losses as lines such as `b: priority cluster.a`.
fn lost(claims: &[Claim]) -> Vec<String> {
    let line = |claim: &Claim, loss: &InUse| {
        format!("{}: {} {}", claim.policy.name(), loss.value.field.as_str(), loss.by.name())
    };
    let losses = arbitrate(claims);
    claims.iter().zip(&losses).flat_map(|(claim, losses)| losses.iter().map(move |loss| line(claim, loss))).collect()
}

#[test]
fn the_live_policy_keeps_its_values_and_the_older_one_gets_free_values() {
    for (what, claims, expected) in [
        ("other values", vec![claim("a", Some(1), None, ("a", 1)), claim("b", Some(2), None, ("b", 2))], vec![]),
        (
            "the older one",
            vec![claim("a", Some(2), None, ("a", 1)), claim("b", Some(1), None, ("b", 1))],
            vec!["a: priority b"],
        ),
        (
            "the uid decides within a second",
            vec![claim("b", Some(1), None, ("b", 1)), claim("a", Some(1), None, ("a", 1))],
            vec!["b: priority a"],
        ),
        (
            "the younger one is live",
            vec![claim("a", Some(1), None, ("a", 1)), claim("b", Some(2), Some(("b", 1)), ("b", 1))],
            vec!["a: priority b"],
        ),
        (
            "both values",
            vec![claim("a", Some(1), None, ("x", 1)), claim("b", Some(2), None, ("x", 1))],
            vec!["b: displayName a", "b: priority a"],
        ),
        (
            "two live policies, as after a change of a tenant",
            vec![claim("a", Some(2), Some(("a", 1)), ("a", 1)), claim("b", Some(1), Some(("b", 1)), ("b", 1))],
            vec!["a: priority b"],
        ),
        (
            "an update that is not live yet holds the old and the new values",
            vec![
                claim("a", Some(1), Some(("a", 1)), ("a", 2)),
                claim("b", Some(2), None, ("b", 1)),
                claim("c", Some(3), None, ("c", 2)),
            ],
            vec!["b: priority a", "c: priority a"],
        ),
        (
            "an update that loses keeps the values of its live generation",
            vec![
                claim("a", Some(1), Some(("a", 1)), ("a", 1)),
                claim("b", Some(2), Some(("b", 2)), ("b", 1)),
                claim("c", Some(3), None, ("c", 2)),
            ],
            vec!["b: priority a", "c: priority b"],
        ),
        (
            "a loser by name does not block its priority",
            vec![
                claim("a", Some(1), None, ("x", 1)),
                claim("b", Some(2), None, ("x", 2)),
                claim("c", Some(3), None, ("c", 2)),
            ],
            vec!["b: displayName a"],
        ),
        (
            "two policies that swap their priorities",
            vec![claim("a", Some(1), Some(("a", 1)), ("a", 2)), claim("b", Some(2), Some(("b", 2)), ("b", 1))],
            vec!["a: priority b", "b: priority a"],
        ),
        (
            "without an age, both lose",
            vec![claim("a", None, None, ("a", 1)), claim("b", None, None, ("b", 1))],
            vec!["a: priority b", "b: priority a"],
        ),
        (
            "without an age, the live one keeps its values",
            vec![claim("a", None, None, ("a", 1)), claim("b", None, Some(("b", 1)), ("b", 1))],
            vec!["a: priority b"],
        ),
        (
            "without an age, a loser to a live policy does not block its other value",
            vec![
                claim("a", None, Some(("a", 1)), ("a", 1)),
                claim("b", None, None, ("b", 1)),
                claim("c", None, None, ("b", 2)),
            ],
            vec!["b: priority a"],
        ),
    ] {
        assert_eq!(lost(&claims), expected, "{what}");
    }
}

#[test]
fn values_are_unique_within_a_level_a_tenant_and_a_user() {
    let claim = |policy: &str, second, level, tenant: Option<&str>, user: Option<&str>| Claim {
        tenant: tenant.map(ToOwned::to_owned),
        newest: Some(UniqueFields { level, user: user.map(ToOwned::to_owned), ..fields("x", 500) }),
        ..claim(policy, Some(second), None, ("x", 500))
    };
    let mut claims = vec![
        claim("a", 1, Level::Global, None, None),
        claim("b", 2, Level::Tenant, Some("t"), None),
        claim("c", 3, Level::Tenant, Some("u"), None),
        claim("d", 4, Level::User, None, None),
        claim("e", 5, Level::User, None, Some("v")),
        claim("f", 6, Level::User, None, Some("w")),
        claim("g", 7, Level::User, Some("t"), Some("v")),
    ];
    assert_eq!(lost(&claims), Vec::<String>::new());
    claims.push(claim("h", 8, Level::User, Some("t"), Some("v")));
    assert_eq!(lost(&claims), ["h: displayName g", "h: priority g"]);
}

#[test]
fn the_message_names_the_field_the_policy_and_the_remedy() {
    let losses = arbitrate(&[claim("a", Some(1), None, ("x", 500)), claim("b", Some(2), None, ("x", 500))]);
    let failure = InUse::to_failure(&losses[1], "spec.request").unwrap();
    assert_eq!(failure.reason, reasons::NAME_IN_USE);
    assert_eq!(
        failure.message,
        "spec.request.displayName: \"x\" is in use by policy cluster.a among the Global policies: choose another name; \
         spec.request.priority: 500 is in use by policy cluster.a among the Global policies: choose another number from 1 to 1000"
    );
    assert_eq!(InUse::to_failure(&losses[0], "spec.request"), None);
    for (level, user, tenant, expected) in [
        (Level::Tenant, None, Some("t"), "the policies of the tenant t"),
        (Level::User, Some("u"), Some("t"), "the policies of the user u in the tenant t"),
        (Level::User, None, None, "the policies of all users"),
    ] {
        let scope = RequestScope { level, tenant: tenant.map(Into::into), user: user.map(Into::into) };
        assert_eq!(scope.to_string(), expected);
    }
}

/// Few values, so that many claims conflict.
fn any_fields() -> impl Strategy<Value = UniqueFields> {
    (0..3_u32, 1..4_u32, any::<bool>()).prop_map(|(name, priority, is_global)| UniqueFields {
        level: if is_global { Level::Global } else { Level::User },
        ..fields(&format!("n{name}"), priority)
    })
}

/// Returns claims of policies with different names. `has_age` is false for claims without an age.
fn any_claims(has_age: bool) -> impl Strategy<Value = Vec<Claim>> {
    let one = (proptest::option::of(any_fields()), proptest::option::of(any_fields()), any::<bool>(), 0..3_i64);
    proptest::collection::vec(one, 0..8).prop_map(move |claims| {
        let claim = |(index, (live, newest, is_newest_live, second)): (usize, (_, _, bool, i64))| {
            let live: Option<UniqueFields> = live;
            let newest = if is_newest_live { live.clone() } else { newest };
            let age = has_age.then_some(second);
            Claim { live, newest, ..claim(&format!("p{index}"), age, None, ("x", 1)) }
        };
        claims.into_iter().enumerate().map(claim).collect()
    })
}

/// Returns the values that the policies with a readable newest generation have won.
fn won(claims: &[Claim]) -> Vec<(PolicyId, UniqueValue)> {
    let losses = arbitrate(claims);
    let winners = claims.iter().zip(&losses).filter(|(_, losses)| losses.is_empty());
    winners
        .flat_map(|(claim, _)| claim.newest_values().into_iter().map(|value| (claim.policy.clone(), value)))
        .collect()
}

proptest! {
    #[test]
    fn no_value_has_two_winners(claims in prop_oneof![any_claims(true), any_claims(false)]) {
        let won = won(&claims);
        let values: BTreeSet<_> = won.iter().map(|(_, value)| value).collect();
        prop_assert_eq!(values.len(), won.len());
        // A winner takes no value of another live policy.
        for (winner, value) in &won {
            for other in claims.iter().filter(|other| other.policy != *winner) {
                let is_older = |it: &Claim| it.live_values().contains(value) && claims.iter().any(|own| {
                    own.policy == *winner && own.live_values().contains(value) && own.age <= it.age
                });
                prop_assert!(!other.live_values().contains(value) || is_older(other), "{} {:?}", winner, value);
            }
        }
    }

    #[test]
    fn the_order_of_the_claims_does_not_matter(
        (claims, shuffled) in prop_oneof![any_claims(true), any_claims(false)]
            .prop_flat_map(|claims| (Just(claims.clone()), Just(claims).prop_shuffle())),
    ) {
        let by_policy = |claims: &[Claim]| -> BTreeMap<PolicyId, Vec<InUse>> {
            claims.iter().map(|claim| claim.policy.clone()).zip(arbitrate(claims)).collect()
        };
        prop_assert_eq!(by_policy(&claims), by_policy(&shuffled));
    }

    #[test]
    fn each_loser_names_a_policy_with_the_value_and_blocks_nothing(
        claims in any_claims(true), removed in any::<Index>(),
    ) {
        let losses = arbitrate(&claims);
        let won = won(&claims);
        for (claim, losses) in claims.iter().zip(&losses) {
            for InUse { value, by } in losses {
                let holder = claims.iter().find(|it| it.policy == *by).unwrap();
                let has_value = won.contains(&(by.clone(), value.clone())) || holder.live_values().contains(value);
                prop_assert!(*by != claim.policy && has_value, "{} {:?}", by, value);
            }
        }
        // Without a loser that has no live generation, the others have the same results.
        let losers: Vec<usize> =
            (0..claims.len()).filter(|&it| claims[it].live.is_none() && !losses[it].is_empty()).collect();
        if !losers.is_empty() {
            let loser = losers[removed.index(losers.len())];
            let (mut others, mut expected) = (claims, losses);
            others.remove(loser);
            expected.remove(loser);
            prop_assert_eq!(arbitrate(&others), expected);
        }
    }

    #[test]
    fn a_live_policy_loses_its_own_values_to_an_older_live_policy_only(claims in any_claims(true)) {
        for (claim, losses) in claims.iter().zip(arbitrate(&claims)) {
            for InUse { value, by } in losses.into_iter().filter(|loss| claim.live_values().contains(&loss.value)) {
                let holder = claims.iter().find(|it| it.policy == by).unwrap();
                prop_assert!(holder.live_values().contains(&value) && holder.age < claim.age);
            }
        }
    }
}
