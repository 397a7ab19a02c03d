//! Each invariant can be violated, by a history that differs from a right one in one event.

use super::super::history::{Note, OutageKind, PreviewCount};
use super::*;

const LIMITS: Limits = Limits { grace: seconds(10), propagation: seconds(5), recovery: seconds(2) };

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns the history of the policy `a`. Generation 1 denies and is live until a time between 19 s and 20 s. Then generation 2
/// denies. Generation 3 fails. Generation 4, a rollback to the spec of generation 1, is live from a time between 59 s and 60 s.
/// Generation 5 allows, and is never live.
fn history() -> History {
    let mut policy = PolicyHistory::default();
    for (generation, marker, verdict) in [
        (1, "one", Verdict::Denies),
        (2, "two", Verdict::Denies),
        (3, "three", Verdict::Fails),
        (4, "one", Verdict::Denies),
        (5, "five", Verdict::Allows),
    ] {
        policy.add(generation, marker, verdict);
    }
    for second in 0..100 {
        let live = match second {
            0..20 => 1,
            20..60 => 2,
            _ => 4,
        };
        policy.sight(live, live, seconds(second), seconds(second));
    }
    History { policies: [("a".to_owned(), policy)].into(), ..History::default() }
}

fn policy(history: &mut History) -> &mut PolicyHistory {
    history.policies.get_mut("a").unwrap()
}

fn denied(marker: &str) -> Outcome {
    Outcome::Denied(marker.to_owned())
}

fn request(begin: u64, end: u64, outcome: Outcome) -> Request {
    Request { policy: "a".to_owned(), begin: seconds(begin), end: seconds(end), outcome }
}

/// Returns the violated invariants of the history with this request.
fn violated(mut history: History, request: Request) -> Vec<Invariant> {
    history.requests.push(request);
    check(&history, LIMITS).into_iter().map(|violation| violation.invariant).collect()
}

fn assert_right(history: History, request: Request) {
    let text = format!("{request:?}");
    let found = violated(history, request);
    assert!(found.is_empty(), "{text}: {found:?}");
}

fn assert_violated(history: History, request: Request, invariant: Invariant) {
    let text = format!("{request:?}");
    assert_eq!(violated(history, request), [invariant], "{text}");
}

#[test]
fn a_generation_answers_while_it_is_live_and_during_its_grace() {
    for (begin, end, marker) in [
        (0, 1, "one"),
        (19, 19, "one"),
        // Replaced at 20 s at the latest, and then 10 s of grace, and 5 s until an API server learns of it.
        (35, 36, "one"),
        (18, 19, "two"),
        (20, 21, "two"),
        (75, 75, "two"),
        // Generation 4 has the spec of generation 1.
        (59, 59, "one"),
        (99, 99, "one"),
    ] {
        assert_right(history(), request(begin, end, denied(marker)));
    }
}

#[test]
fn a_retired_generation_does_not_answer() {
    assert_violated(history(), request(36, 36, denied("one")), Invariant::RetiredGenerationsDoNotAnswer);
    assert_violated(history(), request(76, 76, denied("two")), Invariant::RetiredGenerationsDoNotAnswer);
    // The API server does not learn of the switch while etcd does not work.
    let mut interrupted = history();
    let number = interrupted.begin_outage(seconds(21), OutageKind::ControlPlane, "etcd is frozen".to_owned());
    interrupted.end_outage(seconds(26), number);
    assert_right(interrupted.clone(), request(40, 40, denied("one")));
    assert_violated(interrupted, request(41, 41, denied("one")), Invariant::RetiredGenerationsDoNotAnswer);
    let mut other = history();
    other.begin_outage(seconds(21), OutageKind::Replica, "a replica is frozen".to_owned());
    assert_violated(other, request(40, 40, denied("one")), Invariant::RetiredGenerationsDoNotAnswer);
}

#[test]
fn a_generation_does_not_answer_before_it_is_live() {
    assert_violated(history(), request(17, 18, denied("two")), Invariant::OnlyLiveGenerationsAnswer);
    // Generation 2 may have become live as soon as 19 s.
    assert_right(history(), request(17, 19, denied("two")));
}

#[test]
fn a_generation_that_was_never_live_does_not_answer() {
    let mut history = history();
    policy(&mut history).add(6, "six", Verdict::Denies);
    assert_violated(history.clone(), request(50, 50, denied("six")), Invariant::OnlyLiveGenerationsAnswer);
    // The condition `Live` of its revision shows that it was live between two looks at the webhook.
    policy(&mut history).lived.insert(6);
    assert_right(history, request(99, 99, denied("six")));
}

#[test]
fn an_answer_is_the_answer_of_a_known_spec() {
    for outcome in [denied("other"), denied("five"), denied("three"), Outcome::Allowed(Some("one".to_owned()))] {
        assert_violated(history(), request(50, 50, outcome), Invariant::AnswersAreOfKnownSpecs);
    }
    let foreign = Request { policy: "b".to_owned(), ..request(50, 50, denied("two")) };
    assert_violated(history(), foreign, Invariant::AnswersAreOfKnownSpecs);
}

#[test]
fn a_request_is_allowed_only_if_a_generation_in_its_window_allows() {
    let allowed = || request(50, 50, Outcome::Allowed(None));
    assert_violated(history(), allowed(), Invariant::AllowedOnlyIfAGenerationAllows);
    for verdict in [Verdict::Allows, Verdict::AllowsMarked] {
        let mut history = history();
        policy(&mut history).generations.remove(&2);
        policy(&mut history).add(2, "two", verdict);
        if verdict == Verdict::Allows {
            assert_right(history.clone(), allowed());
            // The window of generation 2 has ended.
            let late = request(76, 76, Outcome::Allowed(None));
            assert_violated(history, late, Invariant::AllowedOnlyIfAGenerationAllows);
        } else {
            // A spec that marks objects has not seen this one.
            assert_violated(history.clone(), allowed(), Invariant::AllowedOnlyIfAGenerationAllows);
            assert_right(history, request(50, 50, Outcome::Allowed(Some("two".to_owned()))));
        }
    }
}

#[test]
fn a_request_stays_without_a_decision_only_in_an_outage() {
    for outcome in [Outcome::Undecided("no replica".to_owned()), Outcome::Unanswered("closed".to_owned())] {
        assert_violated(history(), request(50, 51, outcome.clone()), Invariant::UndecidedOnlyInOutages);
        for kind in [OutageKind::ControlPlane, OutageKind::Replica, OutageKind::NoReplica] {
            let mut history = history();
            let number = history.begin_outage(seconds(40), kind, "a fault".to_owned());
            history.end_outage(seconds(45), number);
            for (begin, end) in [(30, 40), (41, 42), (30, 60), (47, 60)] {
                assert_right(history.clone(), request(begin, end, outcome.clone()));
            }
            for (begin, end) in [(30, 39), (48, 60)] {
                let request = request(begin, end, outcome.clone());
                assert_violated(history.clone(), request, Invariant::UndecidedOnlyInOutages);
            }
        }
    }
    let mut lasting = history();
    lasting.begin_outage(seconds(40), OutageKind::NoReplica, "a fault".to_owned());
    assert_right(lasting, request(90, 91, Outcome::Undecided(String::new())));
}

#[test]
fn the_webhook_does_not_return_to_an_older_generation() {
    let mut history = history();
    policy(&mut history).sight(2, 2, seconds(100), seconds(101));
    let violations = check(&history, LIMITS);
    assert_eq!(violations.len(), 1, "{violations:?}");
    assert_eq!((violations[0].invariant, violations[0].at), (Invariant::LiveGenerationsOnlyGrow, seconds(101)));
}

#[test]
fn two_webhooks_count_with_both_generations() {
    // The policy changes from validating to mutating: a look finds generations 4 and 6, and the next one only 6.
    let mut history = history();
    policy(&mut history).add(6, "six", Verdict::Denies);
    policy(&mut history).sight(4, 6, seconds(100), seconds(101));
    policy(&mut history).sight(6, 6, seconds(102), seconds(103));
    assert_eq!(policy(&mut history).live_after(6), seconds(99));
    assert_eq!(policy(&mut history).replaced_by(4), Some(seconds(103)));
    assert!(check(&history, LIMITS).is_empty());
}

#[test]
fn a_preview_counts_each_request_once() {
    let count = |counted: u64, is_complete: bool| {
        let preview = PreviewCount { at: seconds(1), experiment: "x".to_owned(), counted, requests: 10, is_complete };
        let history = History { previews: vec![preview], ..history() };
        check(&history, LIMITS).into_iter().map(|violation| violation.invariant).collect::<Vec<_>>()
    };
    assert_eq!((count(10, true), count(9, false)), (vec![], vec![]));
    assert_eq!(count(11, false), [Invariant::PreviewsCountRequestsOnce]);
    assert_eq!(count(9, true), [Invariant::PreviewsCountRequestsOnce]);
}

#[test]
fn crashes_and_refusals_are_violations_in_the_order_of_time() {
    let note = |second: u64| vec![Note { at: seconds(second), text: "a note".to_owned() }];
    let history = History { crashes: note(9), refusals: note(8), ..history() };
    let found: Vec<_> = check(&history, LIMITS).into_iter().map(|violation| violation.invariant).collect();
    assert_eq!(found, [Invariant::GoodSpecsAreAccepted, Invariant::ProcessesDoNotCrash]);
}

#[test]
fn the_newest_good_generation_is_live_after_quiet() {
    let state = |newest: i64, live: Option<i64>, reported: Option<i64>, missing: &[&str]| {
        let missing_on = missing.iter().map(ToString::to_string).collect();
        let state = FinalPolicy { name: "a".to_owned(), newest, live, reported, missing_on };
        check_final(seconds(200), &[state], &history()).pop().map(|violation| violation.text)
    };
    assert_eq!(state(4, Some(4), Some(4), &[]), None);
    // The newest generation fails: the newest good one that was live goes on answering.
    let mut failed = history();
    policy(&mut failed).add(6, "six", Verdict::Fails);
    let live = |generation: i64| FinalPolicy {
        name: "a".to_owned(),
        newest: 6,
        live: Some(generation),
        reported: Some(generation),
        missing_on: Vec::new(),
    };
    assert!(check_final(seconds(200), &[live(4)], &failed).is_empty());
    // A good generation that no look has found live.
    assert!(check_final(seconds(200), &[live(5)], &failed).is_empty());
    for wrong in [2, 3, 6] {
        assert_eq!(check_final(seconds(200), &[live(wrong)], &failed).len(), 1, "{wrong}");
    }
    for (newest, live, reported, missing, words) in [
        (4, None, None, &[][..], "no generation is live"),
        (5, Some(4), Some(4), &[][..], "not the newest, 5"),
        (3, Some(3), Some(3), &[][..], "cannot be prepared"),
        (3, Some(2), Some(2), &[][..], "the newer 4 was live"),
        (4, Some(4), Some(2), &[][..], "the status reports Some(2)"),
        (4, Some(4), Some(4), &["replica-1"][..], "not loaded on replica-1"),
    ] {
        let found = state(newest, live, reported, missing);
        assert!(found.as_ref().is_some_and(|text| text.contains(words)), "{words}: {found:?}");
    }
    let unknown = FinalPolicy { name: "b".to_owned(), ..live(4) };
    assert_eq!(check_final(seconds(200), &[unknown], &failed).len(), 1);
}
