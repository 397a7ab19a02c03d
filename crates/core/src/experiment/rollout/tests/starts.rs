//! Starts: by `autoStart`, that fail, that are repeated, and that end by themselves.

use super::*;

/// Returns an experiment whose start no replica has loaded yet.
fn starting() -> Observed {
    let mut starting = active();
    starting.session.as_mut().unwrap().was_loaded = false;
    starting.candidates[0].replicas.clear();
    starting
}

fn suspended(stop_reason: StopReason) -> Observed {
    let session = Session { stop_reason, was_loaded: false, ..session(false, 1) };
    Observed { auto_start: true, session: Some(session), ..idle() }
}

fn start_failure() -> Timer {
    Timer::StartFailure("10:00".to_owned())
}

#[test]
fn auto_start_follows_creation_and_updates_but_not_a_stop() {
    let auto = Observed { auto_start: true, ..idle() };
    let updated = Some(Change::Suspend(Suspension::Updated));
    for (observed, expected) in [
        (auto.clone(), Some(Change::Start)),
        (Observed { session: Some(session(true, 1)), ..auto.clone() }, None),
        (Observed { session: Some(session(false, 1)), ..auto.clone() }, None),
        (Observed { generation: 2, session: Some(session(true, 1)), ..auto.clone() }, Some(Change::Start)),
        (Observed { generation: 2, session: Some(session(false, 1)), ..auto.clone() }, Some(Change::Start)),
        (Observed { policy: None, ..auto.clone() }, None),
        (Observed { older: 10, ..auto.clone() }, None),
        (Observed { is_deleted: true, ..auto.clone() }, None),
        (Observed { commit: Some(commit(true)), ..auto }, None),
        // An update suspends the preview, unless it starts a new one.
        (Observed { generation: 2, ..active() }, updated),
        (Observed { generation: 2, policy: None, auto_start: true, ..active() }, updated),
        (Observed { generation: 2, session: Some(session(false, 1)), ..idle() }, None),
        (active(), None),
    ] {
        assert_eq!(decide(&observed).change, expected, "{observed:?}");
    }
}

/// The name of a case, the change of what is observed, and whether it suspends the preview at once, before and after it was loaded.
type Case = (&'static str, fn(&mut Observed), bool, bool);

#[test]
fn a_start_that_cannot_work_is_suspended_at_once() {
    let failed = Some(Change::Suspend(Suspension::Failed));
    let cases: [Case; 8] = [
        ("no policy", |it| it.policy = None, true, true),
        ("a malformed policy", |it| (it.policy, it.is_policy_malformed) = (None, true), true, true),
        ("too many", |it| it.older = 10, true, true),
        ("not initialized", |it| it.candidates[0].initialized = Some(Err(failure())), true, false),
        ("initializing", |it| it.candidates[0].initialized = None, false, false),
        ("no candidate yet", |it| it.candidates.clear(), false, false),
        ("no replicas", |it| it.pods.clear(), false, false),
        ("loading", |_| {}, false, false),
    ];
    for (what, change, is_at_once, is_at_once_after_loading) in cases {
        for (was_loaded, expected) in [(false, is_at_once), (true, is_at_once_after_loading)] {
            let mut observed = starting();
            observed.session.as_mut().unwrap().was_loaded = was_loaded;
            change(&mut observed);
            assert_eq!(decide(&observed).change, failed.filter(|_| expected), "{what}, loaded before: {was_loaded}");
        }
    }
}

#[test]
fn missing_and_failing_replicas_have_half_a_minute() {
    let no_replicas = Observed { pods: Vec::new(), ..starting() };
    let mut failing = starting();
    failing.candidates[0].replicas = vec![replica("a", Some(Ok(()))), replica("b", Some(Err(failure())))];
    for observed in [no_replicas, failing] {
        let after = |seconds| {
            decide(&Observed { elapsed: vec![(start_failure(), Duration::from_secs(seconds))], ..observed.clone() })
        };
        for (seconds, left) in [(0, 30), (29, 1)] {
            let decision = after(seconds);
            assert_eq!((decision.change, decision.timers), (None, vec![start_failure()]));
            assert_eq!(decision.requeue_after, Some(Duration::from_secs(left)));
        }
        assert_eq!(after(30).change, Some(Change::Suspend(Suspension::Failed)));
        // The time of an earlier start does not count.
        let earlier = (Timer::StartFailure("9:00".to_owned()), Duration::from_mins(9));
        assert_eq!(decide(&Observed { elapsed: vec![earlier], ..observed.clone() }).change, None);
        // After the start was loaded once, the preview goes on.
        let mut loaded = Observed { elapsed: vec![(start_failure(), Duration::from_mins(9))], ..observed };
        loaded.session.as_mut().unwrap().was_loaded = true;
        let decision = decide(&loaded);
        assert_eq!((decision.change, decision.timers), (None, Vec::new()));
    }
    // A start that makes progress has no limit: a large module takes long to compile.
    let slow = Observed { elapsed: vec![(start_failure(), Duration::from_mins(9))], ..starting() };
    assert_eq!((decide(&slow).change, decide(&slow).timers), (None, Vec::new()));
}

#[test]
fn a_failed_start_is_repeated_when_its_cause_is_gone_or_after_five_minutes() {
    let retry = |minutes| vec![(Timer::Retry("10:00".to_owned()), Duration::from_mins(minutes))];
    let restarts = |observed: &Observed| decide(observed).change == Some(Change::Start);
    assert!(restarts(&suspended(StopReason::NotAccepted)));
    assert!(!restarts(&Observed { policy: None, ..suspended(StopReason::NotAccepted) }));
    assert!(!restarts(&Observed { older: 10, ..suspended(StopReason::NotAccepted) }));
    assert!(restarts(&suspended(StopReason::NoReplicas)));
    assert!(!restarts(&Observed { pods: Vec::new(), elapsed: retry(9), ..suspended(StopReason::NoReplicas) }));
    let failed = suspended(StopReason::Failed);
    let decision = decide(&Observed { elapsed: retry(4), ..failed.clone() });
    assert_eq!((decision.change, decision.requeue_after), (None, Some(Duration::from_mins(1))));
    assert!(restarts(&Observed { elapsed: retry(5), ..failed.clone() }));
    assert!(!restarts(&Observed { elapsed: retry(5), policy: None, ..failed.clone() }));
    // Without `autoStart`, and after a stop by a caller or at the end of its life, only a caller starts it.
    assert!(!restarts(&Observed { elapsed: retry(9), auto_start: false, ..failed.clone() }));
    assert!(decide(&Observed { auto_start: false, ..failed }).timers.is_empty());
    assert!(!restarts(&Observed { elapsed: retry(9), ..suspended(StopReason::Lasting) }));
    assert!(restarts(&Observed { generation: 2, ..suspended(StopReason::Lasting) }));
}

#[test]
fn a_preview_ends_with_its_time_to_live_and_announces_the_end() {
    let (hour, day) = (Duration::from_hours(1), Duration::from_hours(24));
    let with = |left, ttl| {
        let mut observed = active();
        observed.session.as_mut().unwrap().expiry = Some(Expiry { left, ttl });
        observed
    };
    for (left, ttl, expires_soon, requeue_after) in [
        (14 * day, 14 * day, false, Some(13 * day)),
        (day + hour, 14 * day, false, Some(hour)),
        (day, 14 * day, true, Some(day)),
        (hour, 14 * day, true, Some(hour)),
        // Half of a shorter life.
        (3 * hour, 4 * hour, false, Some(hour)),
        (2 * hour, 4 * hour, true, Some(2 * hour)),
    ] {
        let decision = decide(&with(left, ttl));
        assert_eq!((decision.expires_soon, decision.requeue_after), (expires_soon, requeue_after), "{left:?} {ttl:?}");
        assert_eq!(decision.change, None);
    }
    let over = with(Duration::ZERO, day);
    assert_eq!(decide(&over).change, Some(Change::Suspend(Suspension::Expired)));
    assert_eq!(decide(&over).requeue_after, None);
    // A suspended preview has no end, and metadata of an older version has none either.
    let mut suspended = with(hour, day);
    suspended.session.as_mut().unwrap().is_active = false;
    assert!(!decide(&suspended).expires_soon && !decide(&active()).expires_soon);
    assert_eq!(decide(&active()).requeue_after, None);
}
