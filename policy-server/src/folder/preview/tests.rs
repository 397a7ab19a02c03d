//! Tests of the state of a preview: its starts, stops and end.

use super::*;

const HOUR: Duration = Duration::from_hours(1);

fn at(seconds: i64) -> Time {
    Time(Timestamp::from_second(seconds).unwrap())
}

fn facts(newest: u64, loaded: Option<u64>) -> Facts {
    Facts { newest, loaded, failure: None, obstacle: None, auto_start: false, ttl: HOUR }
}

fn auto_start(newest: u64, loaded: Option<u64>) -> Facts {
    Facts { auto_start: true, ..facts(newest, loaded) }
}

fn failing(reason: &'static str) -> Failure {
    Failure::new(reason, "why")
}

/// Returns a preview of generation 1 that started at second 10 and was loaded.
fn active() -> ExperimentPreview {
    let mut preview = ExperimentPreview::default();
    preview.start(1, HOUR, &at(10));
    assert!(preview.follow(&facts(1, Some(1)), &at(11)));
    preview
}

/// Returns true if the preview is active, and the reason of its suspension.
fn state(preview: &ExperimentPreview) -> (bool, Option<&str>) {
    (preview.active().is_some(), preview.stop_cause().map(|cause| cause.reason.as_str()))
}

#[test]
fn a_start_is_done_when_its_version_is_loaded_and_stays_done_after_a_stop() {
    let mut preview = ExperimentPreview::default();
    preview.start(2, HOUR, &at(10));
    assert!(!preview.follow(&facts(2, Some(1)), &at(11)));
    assert!(preview.is_starting() && !preview.has_loaded(Some(&at(10))) && preview.counter().is_none());
    assert!(matches!(preview.idle_reason(None, false), IdleReason::Preparing));
    assert!(preview.follow(&facts(2, Some(2)), &at(12)));
    assert!(!preview.is_starting() && preview.has_loaded(Some(&at(10))) && preview.counter().is_some());
    assert!(!preview.follow(&facts(2, Some(2)), &at(13)), "nothing has changed");

    preview.stop(None, &at(20));
    assert!(preview.has_loaded(Some(&at(10))) && !preview.is_starting());
    assert!(matches!(preview.idle_reason(None, false), IdleReason::Suspended));
    preview.start(2, HOUR, &at(30));
    assert!(preview.has_loaded(Some(&at(10))) && !preview.has_loaded(Some(&at(30))));
    // A restarted server loads the version again, and the start stays done.
    let (metadata, previewed_start_time) = active().to_state();
    let mut restored = ExperimentPreview::restore(metadata, previewed_start_time);
    assert!(restored.has_loaded(Some(&at(10))) && !restored.is_starting());
    assert!(!restored.follow(&facts(1, Some(1)), &at(40)) && restored.counter().is_some());
}

#[test]
fn a_start_that_fails_is_suspended_with_the_cause() {
    let broken = Facts { failure: Some(failing("CompileError")), ..facts(1, None) };
    let lost = Facts { obstacle: Some(failing("PolicyNotFound")), ..facts(1, Some(1)) };
    let excess =
        Facts { obstacle: Some(failing("TooMany")), failure: Some(failing("CompileError")), ..facts(1, Some(1)) };
    for (facts, reason) in [(&broken, "CompileError"), (&lost, "PolicyNotFound"), (&excess, "TooMany")] {
        let mut preview = ExperimentPreview::default();
        preview.start(1, HOUR, &at(10));
        assert!(preview.follow(facts, &at(11)));
        assert_eq!(state(&preview), (false, Some(reason)));
        assert!(!preview.follow(facts, &at(12)), "{reason}: suspended once");
        // A start without `autoStart` is not repeated.
        preview.follow(&self::facts(1, Some(1)), &at(13));
        assert_eq!(state(&preview), (false, Some(reason)));
    }
    // After the start, only a missing policy suspends the preview: the last good version stays loaded.
    let mut preview = active();
    assert!(!preview.follow(&Facts { failure: Some(failing("CompileError")), ..facts(2, Some(1)) }, &at(20)));
    assert_eq!(state(&preview), (true, None));
    assert!(preview.follow(&lost, &at(21)));
    assert_eq!(state(&preview), (false, Some("PolicyNotFound")));
    assert!(preview.counter().is_none());
}

#[test]
fn auto_start_starts_a_loaded_version_that_was_not_started_yet() {
    let stopped = |cause: Option<Failure>| {
        let mut preview = active();
        preview.stop(cause.as_ref().map(stop_cause), &at(20));
        preview
    };
    let never = ExperimentPreview::default;
    let lost = Facts { obstacle: Some(failing("PolicyNotFound")), ..auto_start(1, Some(1)) };
    for (what, mut preview, facts, wanted) in [
        ("new", never(), auto_start(1, Some(1)), true),
        ("not loaded", never(), auto_start(1, None), false),
        ("an older version is loaded", never(), auto_start(2, Some(1)), false),
        ("without its policy", never(), lost, false),
        ("without autoStart", never(), facts(1, Some(1)), false),
        ("stopped by a caller", stopped(None), auto_start(1, Some(1)), false),
        ("changed after a stop", stopped(None), auto_start(2, Some(2)), true),
        ("expired", stopped(Some(failing("Expired"))), auto_start(1, Some(1)), false),
        ("changed after the end", stopped(Some(failing("Expired"))), auto_start(2, Some(2)), true),
        ("the policy exists again", stopped(Some(failing("PolicyNotFound"))), auto_start(1, Some(1)), true),
        ("changed while it was prepared", stopped(Some(failing("Updated"))), auto_start(1, Some(1)), true),
    ] {
        preview.follow(&facts, &at(30));
        assert_eq!(preview.active().is_some(), wanted, "{what}");
        assert_eq!(preview.has_loaded(Some(&at(30))), wanted, "{what}: it is loaded at once");
    }
}

#[test]
fn an_update_suspends_the_preview_unless_it_starts_by_itself() {
    let mut preview = active();
    assert!(preview.take_update(1, false, &at(20)));
    assert_eq!(state(&preview), (false, Some("Updated")));
    assert!(!preview.take_update(1, false, &at(21)), "suspended once");
    // With autoStart, the last good version is previewed until the new one is loaded.
    let mut preview = active();
    assert!(!preview.take_update(1, true, &at(20)));
    preview.follow(&auto_start(2, Some(1)), &at(21));
    assert!(preview.is_active(1) && preview.report(1).is_some() && preview.report(2).is_none());
    preview.follow(&auto_start(2, Some(2)), &at(22));
    assert!(preview.is_active(2) && preview.report(2).is_some() && preview.report(1).is_none());
    // A version that is still prepared is not previewed any more after a change.
    let mut preview = ExperimentPreview::default();
    preview.start(2, HOUR, &at(10));
    assert!(preview.take_update(1, true, &at(20)));
}

#[test]
fn a_stop_waits_for_the_evaluations_that_have_begun() {
    let mut preview = active();
    let counter = Arc::clone(preview.counter().unwrap());
    assert!(counter.begin());
    preview.stop(None, &at(20));
    assert!(!counter.begin(), "no other evaluation begins");
    assert!(preview.counter().is_none() && preview.report(1).is_some(), "the counts are kept");
    assert!(preview.is_stopping(Some(&at(20))) && !preview.is_stopping(Some(&at(19))));
    // A later start has its own counts, and does not hide the stop.
    preview.start(1, HOUR, &at(30));
    preview.follow(&facts(1, Some(1)), &at(31));
    assert!(!Arc::ptr_eq(preview.counter().unwrap(), &counter));
    preview.follow_time(&at(32));
    assert!(preview.is_stopping(Some(&at(20))));
    counter.end();
    assert!(!preview.is_stopping(Some(&at(20))));
    preview.follow_time(&at(33));
    assert!(preview.stopping.is_empty());
}

#[test]
fn a_preview_ends_by_itself_and_says_so_before() {
    let mut preview = active();
    assert!(!preview.follow_time(&at(10 + 1_799)));
    assert_eq!(preview.announced_end(&at(10 + 1_799)), None);
    assert!(preview.follow_time(&at(10 + 1_800)), "at half of a short time");
    assert_eq!(preview.announced_end(&at(10 + 1_800)), Some(&at(10 + 3_600)));
    assert!(!preview.follow_time(&at(10 + 3_599)), "announced once");
    assert!(preview.follow_time(&at(10 + 3_600)));
    assert_eq!(state(&preview), (false, Some("Expired")));
    assert!(preview.counter().is_none());
    assert!(!preview.follow_time(&at(10 + 3_700)), "ended once");
    // A long preview says so a day before.
    let day = 24 * 60 * 60;
    let mut preview = ExperimentPreview::default();
    preview.start(1, 14 * 24 * HOUR, &at(0));
    assert_eq!(preview.announced_end(&at(13 * day - 1)), None);
    assert_eq!(preview.announced_end(&at(13 * day)), Some(&at(14 * day)));
    // The metadata of an older version has no end.
    let metadata = PreviewMetadata { expire_time: None, ..preview.metadata.unwrap() };
    let mut preview = ExperimentPreview::restore(Some(metadata), None);
    assert!(!preview.follow_time(&at(100 * day)) && preview.active().is_some() && !preview.is_starting());
}

#[test]
fn each_start_and_stop_has_another_time_in_whole_seconds() {
    let mut preview = ExperimentPreview::default();
    let mut times = Vec::new();
    // Two starts and two stops are in the same second, and then the clock steps back.
    for milliseconds in [100_300, 100_900, 40_000] {
        let now = Time(Timestamp::from_millisecond(milliseconds).unwrap());
        preview.start(1, HOUR, &now);
        times.extend(preview.metadata.as_ref().map(|metadata| metadata.start_time.clone()));
        preview.stop(None, &now);
        times.extend(preview.metadata.as_ref().and_then(|metadata| metadata.stop_time.clone()));
    }
    assert_eq!(times, [100, 101, 102, 103, 104, 105].map(at));
}

#[test]
fn a_start_and_a_stop_after_a_step_of_the_clock_are_not_those_before_it() {
    let mut preview = active();
    let counter = Arc::clone(preview.counter().unwrap());
    assert!(counter.begin());
    preview.stop(None, &at(3));
    let stop_time = preview.metadata.as_ref().unwrap().stop_time.clone();
    assert!(preview.is_stopping(stop_time.as_ref()), "an evaluation still runs");
    preview.start(1, HOUR, &at(4));
    let start_time = preview.metadata.as_ref().unwrap().start_time.clone();
    assert!(!preview.has_loaded(Some(&start_time)), "only the start before it was loaded");
    counter.end();
}
