use proptest::prelude::*;

use super::*;

/// The default of the operator.
const RETIRE_AFTER: Duration = Duration::from_mins(5);

fn pod(name: &str) -> Pod {
    Pod { name: name.to_owned(), uid: format!("{name}-uid") }
}

fn failure(reason: &'static str) -> Failure {
    Failure::new(reason, "")
}

/// Returns an enabled revision that the leader prepares.
fn revision(generation: i64) -> Revision {
    Revision { generation, is_enabled: true, initialized: None, replicas: Vec::new(), retired_for: None }
}

/// Returns an enabled revision that these pods serve.
fn served(generation: i64, pods: &[&str]) -> Revision {
    let replicas = pods.iter().map(|name| Replica { pod: pod(name), result: Some(Ok(())) }).collect();
    Revision { initialized: Some(Ok(())), replicas, ..revision(generation) }
}

/// Returns a policy with two Ready pods.
fn policy(generation: i64, live: Option<i64>, revisions: Vec<Revision>) -> Observed {
    let pods = vec![pod("a"), pod("b")];
    Observed {
        generation,
        is_enabled: true,
        is_deleted: false,
        live,
        is_break_glass: false,
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
fn a_failed_rollout_leaves_the_previous_generation_live() {
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
fn a_report_of_an_earlier_pod_of_the_same_name_does_not_count() {
    let mut observed = policy(1, None, vec![served(1, &["a", "b"])]);
    observed.pods[1].uid = "another".to_owned();
    assert_eq!(decide(&observed).progress, Progress::Loading);
}

#[test]
fn a_generation_does_not_go_live_without_a_ready_pod() {
    let mut observed = policy(2, Some(1), vec![served(1, &["a"]), served(2, &["a"])]);
    observed.pods.clear();
    assert_eq!((decide(&observed).live, decide(&observed).progress), (Some(1), Progress::NoReplicas));
}

#[test]
fn the_live_generation_survives_a_new_replica_and_a_failed_preparation() {
    let mut live = served(3, &["a"]);
    live.initialized = Some(Err(failure("CacheError")));
    let decision = decide(&policy(3, Some(3), vec![live]));
    assert_eq!((decision.live, decision.ready, decision.total), (Some(3), 1, 2));
}

#[test]
fn the_previous_generation_answers_until_it_is_retired() {
    let replaced = |seconds| Revision { retired_for: Some(Duration::from_secs(seconds)), ..served(1, &["a", "b"]) };
    let both = |old| decide(&policy(2, Some(2), vec![old, served(2, &["a", "b"])]));
    // The switch itself. The later decisions follow after 299 s and 300 s.
    let switch = decide(&policy(2, Some(1), vec![served(1, &["a", "b"]), served(2, &["a", "b"])]));
    assert_eq!((switch.live, switch.disable, switch.requeue_after), (Some(2), vec![], Some(RETIRE_AFTER)));
    assert_eq!(
        (both(replaced(299)).disable, both(replaced(299)).requeue_after),
        (vec![], Some(Duration::from_secs(1)))
    );
    assert_eq!((both(replaced(300)).disable, both(replaced(300)).requeue_after), (vec![1], None));
}

#[test]
fn a_superseded_generation_that_was_never_live_is_disabled_at_once() {
    let decision = decide(&policy(3, Some(1), vec![served(1, &["a", "b"]), revision(2), revision(3)]));
    assert_eq!((decision.live, decision.disable), (Some(1), vec![2]));
}

#[test]
fn a_disabled_policy_has_no_webhook_and_keeps_its_history() {
    let mut observed = policy(2, Some(1), vec![served(1, &["a", "b"]), revision(2)]);
    observed.is_enabled = false;
    let decision = decide(&observed);
    assert_eq!((decision.live, decision.progress), (None, Progress::Disabled));
    assert_eq!((decision.disable, decision.delete, decision.requeue_after), (vec![2], vec![], Some(RETIRE_AFTER)));
}

#[test]
fn a_deleted_policy_loses_its_webhook_before_its_revisions() {
    let mut observed = policy(2, Some(2), vec![served(1, &[]), served(2, &["a", "b"])]);
    observed.is_deleted = true;
    let decision = decide(&observed);
    assert_eq!((decision.live, decision.delete, decision.is_cleaned_up), (None, vec![1], false));
    assert_eq!(decision.requeue_after, Some(DELETION_GRACE_PERIOD));
    observed.live = None;
    observed.revisions = vec![Revision { retired_for: Some(DELETION_GRACE_PERIOD), ..served(2, &["a", "b"]) }];
    assert_eq!(decide(&observed).delete, [2]);
    observed.revisions.clear();
    assert!(decide(&observed).is_cleaned_up && !decide(&observed).create);
}

#[test]
fn break_glass_keeps_the_webhook_until_the_policy_is_removed() {
    let mut observed = policy(2, Some(1), vec![served(1, &["a", "b"]), served(2, &["a", "b"])]);
    observed.is_break_glass = true;
    let decision = decide(&observed);
    assert_eq!((decision.is_break_glass, decision.live, decision.progress), (true, Some(1), Progress::BreakGlass));
    assert_eq!((decision.disable, decision.delete), (vec![], vec![]));
    // A retired generation is enabled again if an administrator points the webhook at it.
    observed.revisions[0] = Revision { is_enabled: false, retired_for: Some(RETIRE_AFTER), ..served(1, &[]) };
    assert_eq!(decide(&observed).enable, [1]);
    observed.live = Some(2);
    assert_eq!((decide(&observed).is_break_glass, decide(&observed).progress), (true, Progress::Live));
    for removed in
        [Observed { is_enabled: false, ..observed.clone() }, Observed { is_deleted: true, ..observed.clone() }]
    {
        let decision = decide(&removed);
        assert_eq!((decision.is_break_glass, decision.live), (false, None));
    }
}

#[test]
fn the_history_limit_deletes_the_oldest_revisions() {
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
        let retired_for = (replaced < 600).then(|| Duration::from_secs(replaced));
        Revision { generation, is_enabled, initialized: result(initialized), replicas: replicas.to_vec(), retired_for }
    }
}

prop_compose! {
    fn any_policy()(
        generation in 1_i64..6, live in 0_i64..6, mut revisions in prop::collection::vec(any_revision(), 0..6),
        is_enabled: bool, is_deleted: bool, is_break_glass: bool, history_limit in 0_usize..3,
    ) -> Observed {
        revisions.sort_by_key(|revision| revision.generation);
        revisions.dedup_by_key(|revision| revision.generation);
        let live = (live > 0).then_some(live);
        Observed { is_enabled, is_deleted, is_break_glass, history_limit, ..policy(generation, live, revisions) }
    }
}

proptest! {
    #[test]
    fn a_generation_goes_live_only_if_every_ready_pod_serves_it(observed in any_policy()) {
        let decision = decide(&observed);
        if let Some(live) = decision.live.filter(|live| observed.live != Some(*live)) {
            let revision = observed.revisions.iter().find(|revision| revision.generation == live).unwrap();
            prop_assert!(observed.pods.iter().all(|pod| serves(revision, pod)));
            prop_assert_eq!(&revision.initialized, &Some(Ok(())));
        }
    }

    #[test]
    fn the_current_and_the_next_live_generation_stay_enabled(observed in any_policy()) {
        let decision = decide(&observed);
        for generation in observed.live.into_iter().chain(decision.live) {
            prop_assert!(!decision.disable.contains(&generation), "{decision:?}");
            prop_assert!(!decision.delete.contains(&generation), "{decision:?}");
        }
    }

    #[test]
    fn a_decision_that_is_carried_out_is_not_repeated(observed in any_policy()) {
        let decision = decide(&observed);
        let mut after = observed;
        for revision in after.revisions.iter_mut().filter(|revision| after.live == Some(revision.generation)) {
            revision.retired_for = (decision.live != after.live).then_some(Duration::ZERO);
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
