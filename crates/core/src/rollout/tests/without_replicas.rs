//! Policies that need no replicas: they configure components.

use super::*;

/// Returns a policy without webhooks and replicas. The generation `live` is live on record.
fn configuring(generation: i64, live: Option<i64>, revisions: Vec<Revision>) -> Observed {
    let revisions = revisions.into_iter().map(|revision| Revision { webhook: None, ..revision }).collect();
    let policy = policy(generation, live, revisions);
    Observed { needs_replicas: false, webhooks: Vec::new(), pods: Vec::new(), ..policy }
}

/// Returns an enabled revision with this result of its validation.
fn validated(generation: i64, result: Result<(), Failure>) -> Revision {
    Revision { initialized: Some(result), ..revision(generation) }
}

#[test]
fn a_valid_generation_is_live_at_once() {
    assert!(decide(&configuring(1, None, Vec::new())).create);
    let long_ago = Revision { waiting_for: 10 * REPORT_TIMEOUT, ..revision(1) };
    for (revision, live, progress, marks) in [
        (revision(1), None, Progress::Initializing, vec![]),
        // No leader is late, because no leader has to report.
        (long_ago, None, Progress::Initializing, vec![]),
        (validated(1, Ok(())), Some(1), Progress::Live, vec![(1, Mark::Live)]),
        (
            validated(1, Err(failure("SchemaMismatch"))),
            None,
            Progress::InitializationFailed(failure("SchemaMismatch")),
            vec![],
        ),
    ] {
        let decision = decide(&configuring(1, None, vec![revision]));
        assert_eq!((decision.live, decision.progress, decision.marks_before), (live, progress, marks));
        assert_eq!((decision.ready, decision.total, decision.requeue_after), (0, 0, None));
        assert!(decision.delete_webhooks.is_empty() && decision.silent.is_empty());
    }
}

#[test]
fn the_last_good_generation_stays_live_while_the_newest_is_not_valid() {
    for newest in [revision(2), validated(2, Err(failure("CompileError")))] {
        let decision = decide(&configuring(2, Some(1), vec![validated(1, Ok(())), newest]));
        assert_eq!((decision.live, decision.answering, decision.disable), (Some(1), Some(1), vec![]));
        assert_eq!((decision.marks_before, decision.marks_after), (vec![], vec![]));
    }
    let decision = decide(&configuring(2, Some(1), vec![validated(1, Ok(())), validated(2, Ok(()))]));
    assert_eq!((decision.live, decision.marks_before), (Some(2), vec![(2, Mark::Live)]));
    assert_eq!(decision.marks_after, [(1, Mark::Retired)]);
}

#[test]
fn a_live_generation_stays_live_if_a_later_validation_fails() {
    let decision = decide(&configuring(1, Some(1), vec![validated(1, Err(failure("CompileError")))]));
    assert_eq!((decision.live, decision.progress), (Some(1), Progress::Live));
}

#[test]
fn a_disabled_or_deleted_policy_is_not_live_and_its_record_says_so() {
    let observed = configuring(1, Some(1), vec![validated(1, Ok(()))]);
    let disabled = decide(&Observed { is_enabled: false, ..observed.clone() });
    assert_eq!((disabled.live, &disabled.progress, disabled.delete.len()), (None, &Progress::Disabled, 0));
    let deleted = decide(&Observed { is_deleted: true, ..observed.clone() });
    assert_eq!((deleted.live, deleted.is_cleaned_up), (None, false));
    for decision in [disabled, deleted] {
        assert_eq!(decision.marks_after, [(1, Mark::Retired)]);
    }
    let retired = vec![retired(validated(1, Ok(())), DELETION_GRACE_PERIOD.as_secs())];
    let deleted = Observed { is_deleted: true, revisions: retired, ..observed };
    assert_eq!(decide(&deleted).delete, [1]);
    assert!(decide(&Observed { revisions: Vec::new(), ..deleted }).is_cleaned_up);
}

#[test]
fn old_generations_are_kept_up_to_the_limit() {
    let old = |generation| Revision { is_enabled: false, ..retired(validated(generation, Ok(())), 600) };
    let revisions = vec![old(1), old(2), old(3), validated(4, Ok(()))];
    let observed = Observed { history_limit: 2, ..configuring(4, Some(4), revisions) };
    let decision = decide(&observed);
    assert_eq!((decision.live, decision.delete), (Some(4), vec![1]));
}
