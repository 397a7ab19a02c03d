mod properties;
mod without_replicas;

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
    Revision {
        generation,
        is_enabled: true,
        initialized: None,
        waiting_for: Duration::ZERO,
        replicas: Vec::new(),
        mark: None,
        marked_for: Duration::ZERO,
        webhook: Some(WebhookKind::Validating),
    }
}

fn report(name: &str, result: Option<Result<(), Failure>>) -> Replica {
    Replica { pod: pod(name), result, warning: None }
}

/// Returns an enabled revision that these pods serve.
fn served(generation: i64, pods: &[&str]) -> Revision {
    let replicas = pods.iter().map(|name| report(name, Some(Ok(())))).collect();
    Revision { initialized: Some(Ok(())), replicas, ..revision(generation) }
}

/// Returns the revision with the mark of a generation that was retired before this number of seconds.
fn retired(revision: Revision, seconds: u64) -> Revision {
    Revision { mark: Some(Mark::Retired), marked_for: Duration::from_secs(seconds), ..revision }
}

/// Returns a webhook that exists for an hour.
fn webhook(kind: WebhookKind, calls: &[i64]) -> Webhook {
    Webhook { kind, calls: calls.to_vec(), age: Duration::from_hours(1) }
}

/// Returns a policy with two Ready pods. The generation `live` is live on record, and the webhook calls it.
fn policy(generation: i64, live: Option<i64>, mut revisions: Vec<Revision>) -> Observed {
    for revision in revisions.iter_mut().filter(|revision| live == Some(revision.generation)) {
        revision.mark = Some(Mark::Live);
    }
    let ready = |name| ReadyPod { pod: pod(name), ready_for: Duration::from_hours(1) };
    Observed {
        generation,
        needs_replicas: true,
        is_enabled: true,
        is_deleted: false,
        refusal: None,
        reported_live: live,
        webhooks: live.map(|live| webhook(WebhookKind::Validating, &[live])).into_iter().collect(),
        is_break_glass: false,
        revisions,
        pods: vec![ready("a"), ready("b")],
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
    let half = Revision { replicas: vec![report("b", Some(Err(failure("CacheError"))))], ..served(2, &["a"]) };
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
    observed.pods[1].pod.uid = "another".to_owned();
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
    let both = |seconds| {
        let old = retired(served(1, &["a", "b"]), seconds);
        decide(&policy(2, Some(2), vec![old, served(2, &["a", "b"])]))
    };
    // The switch itself. The later decisions follow after 299 s and 300 s.
    let switch = decide(&policy(2, Some(1), vec![served(1, &["a", "b"]), served(2, &["a", "b"])]));
    assert_eq!((switch.live, switch.disable, switch.requeue_after), (Some(2), vec![], Some(RETIRE_AFTER)));
    assert_eq!((both(299).disable, both(299).requeue_after), (vec![], Some(Duration::from_secs(1))));
    assert_eq!((both(300).disable, both(300).requeue_after), (vec![1], None));
}

#[test]
fn the_record_is_written_before_a_switch_and_the_grace_period_begins_after_it() {
    let mut observed = policy(2, Some(1), vec![served(1, &["a", "b"]), served(2, &["a", "b"])]);
    let switch = decide(&observed);
    assert_eq!((switch.marks_before, switch.marks_after), (vec![(2, Mark::Live)], vec![(1, Mark::Retired)]));
    // An operator that stopped before the switch finds both generations marked. The newest one is live on record. The other
    // one has its whole grace period before it, no matter how long ago the newest one was marked.
    observed.revisions[1].mark = Some(Mark::Live);
    observed.revisions[1].marked_for = Duration::from_hours(1);
    for calls in [1, 2] {
        observed.webhooks[0].calls = vec![calls];
        let late = decide(&observed);
        assert_eq!((late.live, late.marks_before, late.disable), (Some(2), vec![], vec![]), "webhook at {calls}");
        assert_eq!((late.marks_after, late.requeue_after), (vec![(1, Mark::Retired)], Some(RETIRE_AFTER)));
    }
}

#[test]
fn the_record_and_not_the_path_of_the_webhook_is_live() {
    let failing = || Revision { initialized: Some(Err(failure("CompileError"))), ..revision(3) };
    let unprepared = |generation| Revision { is_enabled: false, ..revision(generation) };
    let works = || Revision { is_enabled: false, ..served(1, &[]) };
    let revisions = || vec![works(), served(2, &["a", "b"]), failing()];
    for (case, reported_live, calls, revisions, expected) in [
        ("an older generation", Some(2), vec![1], revisions(), Some(2)),
        ("the newest generation, which fails", Some(2), vec![3], revisions(), Some(2)),
        ("an unknown generation", Some(2), vec![7], revisions(), Some(2)),
        ("another policy", Some(2), vec![], revisions(), Some(2)),
        ("two generations on record", Some(1), vec![1], vec![served(1, &["a"]), served(2, &["a"])], Some(2)),
    ] {
        let mut observed = Observed { reported_live, ..policy(3, Some(2), revisions) };
        observed.webhooks[0].calls = calls;
        if case == "two generations on record" {
            observed.revisions[0].mark = Some(Mark::Live);
        }
        assert_eq!((observed.live(), decide(&observed).live), (expected, expected), "{case}");
    }
    // Without a mark, the path counts if it names a revision that works, or the generation that the status reports.
    for (case, reported_live, calls, revisions, expected) in [
        ("an initialized revision", None, vec![1], vec![works(), failing()], Some(1)),
        ("an enabled revision", None, vec![2], vec![revision(2), failing()], Some(2)),
        ("a revision that never worked", None, vec![2], vec![unprepared(2), failing()], None),
        ("an unknown generation", None, vec![7], vec![works(), failing()], None),
        ("another policy", Some(1), vec![], vec![works(), failing()], None),
        ("a deleted revision that was live", Some(2), vec![2], vec![works(), failing()], Some(2)),
    ] {
        let mut observed = Observed { reported_live, ..policy(3, None, revisions) };
        observed.webhooks = vec![webhook(WebhookKind::Validating, &calls)];
        assert_eq!((observed.live(), decide(&observed).live), (expected, expected), "{case}");
        let removed = if expected.is_none() { vec![WebhookKind::Validating] } else { vec![] };
        assert_eq!(decide(&observed).delete_webhooks, removed, "{case}");
    }
}

#[test]
fn a_generation_that_a_hand_edit_called_has_its_whole_grace_period_after_the_repair() {
    let mut observed = policy(3, Some(3), vec![retired(served(1, &["a"]), 600), revision(2), served(3, &["a", "b"])]);
    for called in [1, 2] {
        observed.webhooks[0].calls = vec![called];
        let decision = decide(&observed);
        assert_eq!((decision.live, decision.disable.contains(&called)), (Some(3), false), "generation {called}");
        assert_eq!(decision.marks_before, [(called, Mark::Called)]);
        assert_eq!(decision.marks_after, [(called, Mark::Retired)]);
    }
    // The operator stopped after it had repaired the webhook.
    observed.webhooks[0].calls = vec![3];
    observed.revisions[0].mark = Some(Mark::Called);
    let decision = decide(&observed);
    assert_eq!((decision.marks_after, decision.disable), (vec![(1, Mark::Retired)], vec![2]));
}

#[test]
fn both_webhooks_exist_while_a_policy_turns_mutating() {
    let mutating = |marked_for| Revision {
        webhook: Some(WebhookKind::Mutating),
        marked_for: Duration::from_secs(marked_for),
        ..served(2, &["a", "b"])
    };
    let overlap = |mark, age, retire_after| {
        let mut observed = policy(2, Some(1), vec![served(1, &["a", "b"]), mutating(age)]);
        observed.retire_after = retire_after;
        if age > 0 {
            observed.revisions[0].mark = mark;
            observed.revisions[1].mark = Some(Mark::Live);
            let new = Webhook { age: Duration::from_secs(age), ..webhook(WebhookKind::Mutating, &[2]) };
            observed.webhooks.push(new);
        }
        decide(&observed)
    };
    let switch = overlap(None, 0, RETIRE_AFTER);
    assert_eq!((switch.live, switch.delete_webhooks), (Some(2), vec![]));
    assert_eq!((switch.marks_before, switch.marks_after), (vec![(2, Mark::Live)], vec![(1, Mark::Called)]));
    assert_eq!(switch.requeue_after, Some(WEBHOOK_OVERLAP));
    let during = overlap(Some(Mark::Called), 29, RETIRE_AFTER);
    assert_eq!((during.delete_webhooks, during.marks_after, during.disable), (vec![], vec![], vec![]));
    assert_eq!(during.requeue_after, Some(Duration::from_secs(1)));
    // The grace period of the old generation begins when the old webhook is deleted.
    let after = overlap(Some(Mark::Called), 30, RETIRE_AFTER);
    assert_eq!(after.delete_webhooks, [WebhookKind::Validating]);
    assert_eq!((after.marks_after, after.disable), (vec![(1, Mark::Retired)], vec![]));
    let short = overlap(Some(Mark::Called), 5, Duration::from_secs(5));
    assert_eq!(short.delete_webhooks, [WebhookKind::Validating], "the grace period is shorter than the overlap");
}

#[test]
fn an_old_webhook_that_changes_its_rules_does_not_end_the_overlap() {
    let old = Revision { webhook: Some(WebhookKind::Mutating), mark: Some(Mark::Called), ..served(2, &["a", "b"]) };
    let mut observed = policy(3, Some(3), vec![old, served(3, &["a", "b"])]);
    observed.webhooks.push(webhook(WebhookKind::Mutating, &[2]));
    assert!(decide(&observed).delete_webhooks.is_empty());
    observed.revisions[1].marked_for = WEBHOOK_OVERLAP;
    assert_eq!(decide(&observed).delete_webhooks, [WebhookKind::Mutating]);
}

#[test]
fn a_missing_report_is_a_problem_after_a_time_limit() {
    let (limit, second) = (REPORT_TIMEOUT, Duration::from_secs(1));
    let earlier = limit.saturating_sub(second);
    for (waiting_for, progress, requeue_after) in
        [(earlier, Progress::Initializing, Some(second)), (limit, Progress::NotPrepared, None)]
    {
        let decision = decide(&policy(2, Some(1), vec![served(1, &[]), Revision { waiting_for, ..revision(2) }]));
        assert_eq!((decision.live, decision.progress, decision.requeue_after), (Some(1), progress, requeue_after));
    }
    for (waiting_for, ready_for, progress, requeue_after) in [
        (limit, limit, Progress::Silent, None),
        (earlier, limit, Progress::Loading, Some(second)),
        (limit, earlier, Progress::Loading, Some(second)),
    ] {
        let mut observed = policy(1, None, vec![Revision { waiting_for, ..served(1, &["a"]) }]);
        observed.pods[1].ready_for = ready_for;
        let decision = decide(&observed);
        assert_eq!((decision.progress.clone(), decision.requeue_after), (progress, requeue_after));
        assert_eq!(decision.silent, if decision.progress == Progress::Silent { vec!["b"] } else { vec![] });
        // A replica that reports that it is still loading is not silent.
        observed.revisions[0].replicas.push(report("b", None));
        assert_eq!((decide(&observed).progress, decide(&observed).silent), (Progress::Loading, vec![]));
    }
    // A replica that joins later does not change the live generation, and is named if it stays silent.
    let decision = decide(&policy(1, Some(1), vec![Revision { waiting_for: limit, ..served(1, &["a"]) }]));
    assert_eq!((decision.progress, decision.silent), (Progress::Live, vec!["b".to_owned()]));
}

#[test]
fn a_replica_that_serves_with_a_restriction_is_a_warning() {
    let mut revision = served(1, &["a", "b"]);
    revision.replicas[1].warning = Some(failure("LoadedBefore"));
    let decision = decide(&policy(1, None, vec![revision]));
    assert_eq!((decision.progress, decision.ready), (Progress::Live, 2));
    assert_eq!(decision.warnings, [("b".to_owned(), failure("LoadedBefore"))]);
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
    assert_eq!(decision.delete_webhooks, [WebhookKind::Validating]);
    assert_eq!((decision.marks_before, decision.marks_after), (vec![], vec![(2, Mark::Retired)]));
    assert_eq!(decision.requeue_after, Some(DELETION_GRACE_PERIOD));
    observed.webhooks.clear();
    observed.revisions = vec![retired(served(2, &["a", "b"]), DELETION_GRACE_PERIOD.as_secs())];
    assert_eq!(decide(&observed).delete, [2]);
    observed.revisions.clear();
    assert!(decide(&observed).is_cleaned_up && !decide(&observed).create);
    observed.webhooks = vec![webhook(WebhookKind::Mutating, &[])];
    assert!(!decide(&observed).is_cleaned_up, "a webhook is left");
}

#[test]
fn break_glass_keeps_the_webhook_until_the_policy_is_removed() {
    let mut observed = policy(2, Some(1), vec![served(1, &["a", "b"]), served(2, &["a", "b"])]);
    observed.is_break_glass = true;
    let decision = decide(&observed);
    assert_eq!((decision.is_break_glass, decision.live, decision.progress), (true, Some(1), Progress::BreakGlass));
    assert_eq!((decision.disable, decision.delete, decision.delete_webhooks), (vec![], vec![], vec![]));
    assert_eq!((decision.marks_before, decision.marks_after), (vec![], vec![]));
    // An administrator points the webhook at a retired generation. It is enabled, and the record stays.
    observed = policy(3, Some(3), vec![retired(served(1, &[]), 600), served(3, &["a", "b"])]);
    (observed.is_break_glass, observed.revisions[0].is_enabled) = (true, false);
    observed.webhooks[0].calls = vec![1];
    let decision = decide(&observed);
    assert_eq!((decision.enable, decision.live, decision.answering), (vec![1], Some(3), Some(1)));
    assert_eq!((decision.marks_before, decision.marks_after), (vec![(1, Mark::Called)], vec![]));
    assert_eq!(decision.progress, Progress::BreakGlass, "the newest generation does not answer");
    // The end of break-glass restores the record, and the other generation has its whole grace period.
    observed.is_break_glass = false;
    observed.revisions[0].mark = Some(Mark::Called);
    let decision = decide(&observed);
    assert_eq!((decision.live, decision.answering, decision.disable), (Some(3), Some(3), vec![]));
    assert_eq!(decision.marks_after, [(1, Mark::Retired)]);
    observed.is_break_glass = true;
    observed.webhooks[0].calls = vec![3];
    assert_eq!((decide(&observed).is_break_glass, decide(&observed).progress), (true, Progress::Live));
    for removed in
        [Observed { is_enabled: false, ..observed.clone() }, Observed { is_deleted: true, ..observed.clone() }]
    {
        let decision = decide(&removed);
        assert_eq!((decision.is_break_glass, decision.live), (false, None));
        assert_eq!(decision.delete_webhooks, [WebhookKind::Validating]);
    }
}

#[test]
fn a_refused_generation_is_not_scheduled_and_the_live_generation_stays() {
    let refusal = Some(failure("NamespaceNotAllowed"));
    let refused = |observed: Observed| decide(&Observed { refusal: refusal.clone(), ..observed });
    let decision = refused(policy(1, None, Vec::new()));
    assert_eq!((decision.create, decision.live), (false, None));
    assert_eq!(decision.progress, Progress::Refused(failure("NamespaceNotAllowed")));

    // An edit of a policy that is not allowed any more.
    let decision = refused(policy(2, Some(1), vec![served(1, &["a", "b"])]));
    assert_eq!((decision.create, decision.live, decision.answering), (false, Some(1), Some(1)));
    assert!(matches!(decision.progress, Progress::Refused(_)) && decision.disable.is_empty());

    // The revision of the generation exists already, and every replica serves it.
    let revisions = vec![served(1, &["a", "b"]), served(2, &["a", "b"])];
    let decision = refused(policy(2, Some(1), revisions));
    assert_eq!((decision.live, decision.disable), (Some(1), vec![2]));

    // The live generation is the newest one.
    let decision = refused(policy(1, Some(1), vec![served(1, &["a", "b"])]));
    assert_eq!((decision.live, decision.progress, decision.disable), (Some(1), Progress::Live, vec![]));
    assert!(decision.refusal.is_some());

    // A refused policy can be disabled, which needs no revision.
    let observed = policy(2, Some(1), vec![served(1, &["a", "b"])]);
    let decision = refused(Observed { is_enabled: false, ..observed });
    assert_eq!((decision.create, decision.live, decision.progress), (false, None, Progress::Disabled));
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
