use proptest::prelude::*;

use super::*;

/// Five minutes, as the operator has it by default.
const RETIRE_AFTER: Duration = Duration::from_mins(5);

fn pod(name: &str) -> Pod {
    Pod { name: name.to_owned(), uid: format!("{name}-uid") }
}

fn failure(reason: &'static str) -> Failure {
    Failure::new(reason, "")
}

/// An enabled revision that the leader is at work on.
fn revision(generation: i64) -> Revision {
    Revision { generation, is_enabled: true, initialized: None, replicas: Vec::new(), replaced_for: None }
}

/// One that these pods serve.
fn served(generation: i64, pods: &[&str]) -> Revision {
    let replicas = pods.iter().map(|name| Replica { pod: pod(name), result: Some(Ok(())) }).collect();
    Revision { initialized: Some(Ok(())), replicas, ..revision(generation) }
}

/// A policy at this generation with two pods.
fn policy(generation: i64, live: Option<i64>, revisions: Vec<Revision>) -> Observed {
    let pods = vec![pod("a"), pod("b")];
    Observed {
        generation,
        is_enabled: true,
        is_deleted: false,
        live,
        is_held: false,
        revisions,
        pods,
        history_limit: 10,
        retire_after: RETIRE_AFTER,
    }
}

#[test]
fn a_first_generation_goes_live_when_every_ready_pod_serves_it() {
    let mut observed = policy(1, None, Vec::new());
    let decision = decide(&observed);
    assert!(decision.create && decision.live.is_none());
    for (revision, progress, ready) in [
        (revision(1), Progress::Initializing, 0),
        (served(1, &[]), Progress::Loading, 0),
        (served(1, &["a"]), Progress::Loading, 1),
        (served(1, &["a", "b"]), Progress::Live, 2),
    ] {
        observed.revisions = vec![revision];
        let decision = decide(&observed);
        assert_eq!((decision.progress.clone(), decision.ready, decision.total), (progress, ready, 2));
        assert_eq!(decision.live, (decision.progress == Progress::Live).then_some(1));
        assert!(!decision.create && decision.delete.is_empty());
    }
}

#[test]
fn whatever_fails_leaves_the_generation_before_it_live() {
    let not_loaded = |name: &str| Replica { pod: pod(name), result: Some(Err(failure("CacheError"))) };
    let half = Revision { replicas: vec![not_loaded("b")], ..served(2, &["a"]) };
    let cases = [
        Revision { initialized: Some(Err(failure("PullError"))), ..revision(2) },
        Revision { replicas: [half.replicas.clone(), served(2, &["a"]).replicas].concat(), ..half },
        revision(2),
    ];
    for newest in cases {
        let decision = decide(&policy(2, Some(1), vec![served(1, &["a", "b"]), newest]));
        assert_eq!((decision.live, decision.disable), (Some(1), Vec::new()), "{:?}", decision.progress);
    }
}

#[test]
fn a_pod_of_the_same_name_does_not_count_for_its_predecessor() {
    let mut observed = policy(1, None, vec![served(1, &["a", "b"])]);
    observed.pods[1].uid = "another".to_owned();
    assert_eq!(decide(&observed).progress, Progress::Loading);
}

#[test]
fn without_a_ready_pod_nothing_goes_live() {
    let mut observed = policy(2, Some(1), vec![served(1, &["a"]), served(2, &["a"])]);
    observed.pods.clear();
    assert_eq!((decide(&observed).live, decide(&observed).progress), (Some(1), Progress::NoReplicas));
}

#[test]
fn what_is_live_stays_live_when_a_replica_comes_or_its_preparation_fails_again() {
    let mut live = served(3, &["a"]);
    live.initialized = Some(Err(failure("CacheError")));
    let decision = decide(&policy(3, Some(3), vec![live]));
    assert_eq!((decision.live, decision.ready, decision.total), (Some(3), 1, 2));
}

#[test]
fn the_generation_before_the_live_one_answers_for_a_while() {
    let replaced = |seconds| Revision { replaced_for: Some(Duration::from_secs(seconds)), ..served(1, &["a", "b"]) };
    let both = |old| decide(&policy(2, Some(2), vec![old, served(2, &["a", "b"])]));
    // The switch itself, then time passes.
    let switch = decide(&policy(2, Some(1), vec![served(1, &["a", "b"]), served(2, &["a", "b"])]));
    assert_eq!((switch.live, switch.disable, switch.look_again), (Some(2), vec![], Some(RETIRE_AFTER)));
    assert_eq!((both(replaced(299)).disable, both(replaced(299)).look_again), (vec![], Some(Duration::from_secs(1))));
    assert_eq!((both(replaced(300)).disable, both(replaced(300)).look_again), (vec![1], None));
}

#[test]
fn of_two_edits_in_quick_succession_the_first_is_dropped_at_once() {
    let decision = decide(&policy(3, Some(1), vec![served(1, &["a", "b"]), revision(2), revision(3)]));
    assert_eq!((decision.live, decision.disable), (Some(1), vec![2]));
}

#[test]
fn a_disabled_policy_has_no_webhook_and_keeps_its_history() {
    let mut observed = policy(2, Some(1), vec![served(1, &["a", "b"]), revision(2)]);
    observed.is_enabled = false;
    let decision = decide(&observed);
    assert_eq!((decision.live, decision.progress), (None, Progress::Disabled));
    assert_eq!((decision.disable, decision.delete, decision.look_again), (vec![2], vec![], Some(RETIRE_AFTER)));
}

#[test]
fn a_deleted_policy_loses_its_webhook_first_and_its_revisions_later() {
    let mut observed = policy(2, Some(2), vec![served(1, &[]), served(2, &["a", "b"])]);
    observed.is_deleted = true;
    let decision = decide(&observed);
    assert_eq!((decision.live, decision.delete, decision.is_gone), (None, vec![1], false));
    assert_eq!(decision.look_again, Some(DELETE_AFTER));
    observed.live = None;
    observed.revisions = vec![Revision { replaced_for: Some(DELETE_AFTER), ..served(2, &["a", "b"]) }];
    assert_eq!(decide(&observed).delete, [2]);
    observed.revisions.clear();
    assert!(decide(&observed).is_gone && !decide(&observed).create);
}

#[test]
fn a_webhook_that_somebody_holds_stays_where_it_is_and_goes_with_its_policy() {
    let mut observed = policy(2, Some(1), vec![served(1, &["a", "b"]), served(2, &["a", "b"])]);
    observed.is_held = true;
    let decision = decide(&observed);
    assert_eq!((decision.is_held, decision.live, decision.progress), (true, Some(1), Progress::Held));
    assert_eq!((decision.disable, decision.delete), (vec![], vec![]));
    // Also where whoever holds it has pointed it at one that was let go already.
    observed.revisions[0] = Revision { is_enabled: false, replaced_for: Some(RETIRE_AFTER), ..served(1, &[]) };
    assert_eq!(decide(&observed).enable, [1]);
    observed.live = Some(2);
    assert_eq!((decide(&observed).is_held, decide(&observed).progress), (true, Progress::Live));
    for taken_away in
        [Observed { is_enabled: false, ..observed.clone() }, Observed { is_deleted: true, ..observed.clone() }]
    {
        let decision = decide(&taken_away);
        assert_eq!((decision.is_held, decision.live), (false, None));
    }
}

#[test]
fn history_has_a_limit_and_forgets_the_oldest() {
    let old = |generation| Revision { is_enabled: false, ..served(generation, &[]) };
    let revisions = [7, 3, 5, 4, 6].map(old).into_iter().chain([served(8, &["a", "b"])]).collect();
    let observed = Observed { history_limit: 2, ..policy(8, Some(8), revisions) };
    assert_eq!(decide(&observed).delete, [5, 4, 3]);
}

#[test]
fn a_revision_that_becomes_newest_again_is_enabled() {
    let disabled = Revision { is_enabled: false, ..served(1, &[]) };
    assert_eq!(decide(&policy(1, None, vec![disabled])).enable, [1]);
}

prop_compose! {
    fn any_revision()(
        generation in 1_i64..6, is_enabled: bool, initialized in 0..3, a in 0..3, b in 0..3, replaced in 0_u64..700,
    ) -> Revision {
        let result = |code| match code { 0 => None, 1 => Some(Ok(())), _ => Some(Err(failure("X"))) };
        let replicas = [("a", a), ("b", b)].map(|(name, code)| Replica { pod: pod(name), result: result(code) });
        let replaced_for = (replaced < 600).then(|| Duration::from_secs(replaced));
        Revision { generation, is_enabled, initialized: result(initialized), replicas: replicas.to_vec(), replaced_for }
    }
}

prop_compose! {
    fn any_policy()(
        generation in 1_i64..6, live in 0_i64..6, mut revisions in prop::collection::vec(any_revision(), 0..6),
        is_enabled: bool, is_deleted: bool, is_held: bool, history_limit in 0_usize..3,
    ) -> Observed {
        revisions.sort_by_key(|revision| revision.generation);
        revisions.dedup_by_key(|revision| revision.generation);
        let live = (live > 0).then_some(live);
        Observed { is_enabled, is_deleted, is_held, history_limit, ..policy(generation, live, revisions) }
    }
}

proptest! {
    #[test]
    fn nothing_goes_live_that_a_ready_pod_does_not_serve(observed in any_policy()) {
        let decision = decide(&observed);
        if let Some(live) = decision.live.filter(|live| observed.live != Some(*live)) {
            let revision = observed.revisions.iter().find(|revision| revision.generation == live).unwrap();
            prop_assert!(observed.pods.iter().all(|pod| serves(revision, pod)));
            prop_assert_eq!(&revision.initialized, &Some(Ok(())));
        }
    }

    #[test]
    fn what_answers_now_or_from_now_on_is_neither_disabled_nor_deleted(observed in any_policy()) {
        let decision = decide(&observed);
        for generation in observed.live.into_iter().chain(decision.live) {
            prop_assert!(!decision.disable.contains(&generation), "{decision:?}");
            prop_assert!(!decision.delete.contains(&generation), "{decision:?}");
        }
    }

    #[test]
    fn what_was_decided_is_decided_no_second_time(observed in any_policy()) {
        let decision = decide(&observed);
        let mut after = observed;
        for revision in after.revisions.iter_mut().filter(|revision| after.live == Some(revision.generation)) {
            revision.replaced_for = (decision.live != after.live).then_some(Duration::ZERO);
        }
        after.live = decision.live;
        after.revisions.retain(|revision| !decision.delete.contains(&revision.generation));
        for revision in &mut after.revisions {
            revision.is_enabled |= decision.enable.contains(&revision.generation);
            revision.is_enabled &= !decision.disable.contains(&revision.generation);
        }
        let again = decide(&after);
        let changes = [&again.enable, &again.disable, &again.delete];
        prop_assert!(changes.iter().all(|changes| changes.is_empty()), "{decision:?} then {again:?}");
        prop_assert_eq!(again.live, decision.live);
    }
}
