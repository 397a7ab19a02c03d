//! Tests of the limits and of the order.

use super::*;

/// A budget of 16: 4 for a policy, 8 for a namespace.
fn ledger() -> Ledger<&'static str> {
    Ledger::new(Limits::of(16))
}

fn take(ledger: &mut Ledger<&'static str>, account: usize, times: usize) -> Vec<Option<Refusal>> {
    (0..times).map(|_| ledger.try_take(account, 1).err()).collect()
}

fn granted(ledger: &mut Ledger<&'static str>) -> Vec<&'static str> {
    std::iter::from_fn(|| ledger.grant().map(|(_, _, data)| data)).collect()
}

#[test]
fn a_quarter_is_for_one_policy_and_a_half_for_one_namespace() {
    for (total, per_policy, per_namespace) in [(64, 16, 32), (16, 4, 8), (6, 1, 3), (2, 1, 1), (1, 1, 1), (0, 1, 1)] {
        let limits = Limits::of(total);
        assert_eq!((limits.per_policy, limits.per_namespace), (per_policy, per_namespace), "{total}");
    }
    for (total, minimum, per_policy) in [(1024, 128, 256), (256, 128, 128), (128, 128, 64), (512, 128, 128)] {
        assert_eq!(Limits::with_minimum(total, minimum).per_policy, per_policy, "{total}");
    }
}

#[test]
fn a_policy_gets_its_share_and_no_more() {
    let mut ledger = ledger();
    let (greedy, other) = (ledger.add(None, Rank::Live), ledger.add(None, Rank::Live));
    assert_eq!(take(&mut ledger, greedy, 5)[3..], [None, Some(Refusal::Policy)]);
    assert_eq!(take(&mut ledger, other, 4), [None; 4]);
    ledger.release(greedy, 1);
    assert_eq!(take(&mut ledger, greedy, 2), [None, Some(Refusal::Policy)]);
}

#[test]
fn a_namespace_with_many_policies_leaves_half_to_the_others() {
    let mut ledger = ledger();
    let tenant: Vec<_> = (0..10).map(|_| ledger.add(Some("tenant"), Rank::Live)).collect();
    let taken = tenant.iter().filter(|account| ledger.try_take(**account, 1).is_ok()).count();
    assert_eq!((taken, ledger.refusal(tenant[9], 1)), (8, Some(Refusal::Namespace)));
    let others = [ledger.add(Some("other"), Rank::Live), ledger.add(None, Rank::Live)];
    for other in others {
        assert_eq!(take(&mut ledger, other, 4), [None; 4]);
    }
    assert_eq!((ledger.in_use(), ledger.refusal(others[1], 1)), (16, Some(Refusal::Policy)));
    let late = ledger.add(None, Rank::Live);
    assert_eq!(ledger.refusal(late, 1), Some(Refusal::Total));
}

#[test]
fn cluster_policies_count_each_by_itself() {
    let mut ledger = ledger();
    for _ in 0..4 {
        let policy = ledger.add(None, Rank::Live);
        assert_eq!(take(&mut ledger, policy, 4), [None; 4]);
    }
    assert_eq!(ledger.in_use(), 16);
}

#[test]
fn the_next_is_whose_namespace_holds_the_least_and_was_served_the_longest_ago() {
    let mut ledger = Ledger::new(Limits::of(2));
    let first = ledger.add(Some("many"), Rank::Live);
    ledger.wait(first, 1, "many-0");
    assert_eq!(granted(&mut ledger), ["many-0"]);
    for name in ["many-1", "many-2", "many-3"] {
        let account = ledger.add(Some("many"), Rank::Live);
        ledger.wait(account, 1, name);
    }
    assert!(granted(&mut ledger).is_empty(), "the namespace holds its half");
    let other = ledger.add(Some("other"), Rank::Live);
    ledger.wait(other, 1, "other-1");
    ledger.wait(other, 1, "other-2");
    assert_eq!(granted(&mut ledger), ["other-1"], "the other half was free");
    // Both namespaces hold nothing: they take turns, although `many` waits for longer.
    ledger.release(first, 1);
    ledger.release(other, 1);
    assert_eq!(granted(&mut ledger), ["many-1", "other-2"]);
}

#[test]
fn a_background_request_waits_until_no_live_one_waits() {
    let mut ledger = Ledger::new(Limits::of(1));
    let (holder, live, preview) =
        (ledger.add(None, Rank::Live), ledger.add(None, Rank::Live), ledger.add(None, Rank::Background));
    assert_eq!(ledger.try_take(holder, 1), Ok(()));
    ledger.wait(preview, 1, "preview");
    ledger.wait(live, 1, "live");
    ledger.release(holder, 1);
    assert_eq!(granted(&mut ledger), ["live"]);
    ledger.release(live, 1);
    assert_eq!(granted(&mut ledger), ["preview"]);
}

#[test]
fn a_large_request_is_granted_in_its_turn() {
    let mut ledger = ledger();
    let (holder, large, small) =
        (ledger.add(None, Rank::Live), ledger.add(Some("a"), Rank::Live), ledger.add(Some("b"), Rank::Live));
    assert_eq!(ledger.try_take(holder, 4), Ok(()));
    // More than a quarter: granted while the policy holds nothing else.
    ledger.wait(large, 16, "large");
    ledger.wait(small, 1, "small");
    assert!(granted(&mut ledger).is_empty(), "the small request does not overtake the large one");
    ledger.release(holder, 4);
    assert_eq!(granted(&mut ledger), ["large"]);
    ledger.release(large, 16);
    assert_eq!(granted(&mut ledger), ["small"]);
}

#[test]
fn a_cancelled_request_is_not_granted() {
    let mut ledger = ledger();
    let account = ledger.add(None, Rank::Live);
    take(&mut ledger, account, 4);
    let ticket = ledger.wait(account, 1, "gone");
    ledger.wait(account, 1, "next");
    assert_eq!((ledger.cancel(account, ticket), ledger.waiters()), (Some("gone"), 1));
    assert_eq!(ledger.cancel(account, ticket), None);
    ledger.release(account, 1);
    assert_eq!(granted(&mut ledger), ["next"]);
    assert!(!ledger.has_waiters());
}

#[test]
fn a_namespace_without_accounts_is_forgotten() {
    let mut ledger = ledger();
    let accounts = [ledger.add(Some("a"), Rank::Live), ledger.add(Some("a"), Rank::Background)];
    for account in accounts {
        ledger.remove(account);
    }
    assert!(ledger.namespaces.is_empty() && ledger.groups.is_empty() && ledger.accounts.is_empty());
}
