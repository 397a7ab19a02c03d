//! The texts with which a run reports its history.

use std::fmt::Write as _;
use std::time::Duration;

use super::checker::Limits;
use super::history::{History, Outcome, Time};

/// The time before and after a violation whose events an excerpt has.
const CONTEXT: Duration = Duration::from_secs(10);
/// The largest number of requests in an excerpt.
const MAX_REQUESTS: usize = 20;

/// Returns the numbers of requests by their answers, and the number of requests outside of all outages.
#[must_use]
pub fn summary(history: &History, limits: Limits) -> String {
    let [mut allowed, mut denied, mut undecided, mut unanswered, mut calm] = [0_usize; 5];
    for request in &history.requests {
        let counter = match request.outcome {
            Outcome::Allowed(_) => &mut allowed,
            Outcome::Denied(_) => &mut denied,
            Outcome::Undecided(_) => &mut undecided,
            Outcome::Unanswered(_) => &mut unanswered,
        };
        *counter += 1;
        calm += usize::from(!history.is_outage(request.begin, request.end, limits.recovery));
    }
    let generations: usize = history.policies.values().map(|policy| policy.generations.len()).sum();
    let lived: usize = history.policies.values().map(|policy| policy.lived.len()).sum();
    format!(
        "{} requests: {allowed} allowed, {denied} denied, {undecided} without a decision, {unanswered} without an \
         answer; {calm} of them outside of outages; {generations} generations, {lived} of them were live",
        history.requests.len()
    )
}

/// Returns the events around a time: steps, outages, sightings of generations, and requests.
#[must_use]
pub fn excerpt(history: &History, at: Time) -> String {
    let (first, last) = (at.saturating_sub(CONTEXT), at + CONTEXT);
    let mut events: Vec<(Time, String)> = Vec::new();
    events.extend(history.notes.iter().map(|note| (note.at, note.text.clone())));
    for outage in &history.outages {
        events.push((outage.begin, format!("outage begins: {}", outage.cause)));
        events.extend(outage.end.map(|over| (over, format!("outage ends: {}", outage.cause))));
    }
    for (name, policy) in &history.policies {
        for sighting in &policy.sightings {
            events.push((sighting.first_answered, format!("policy {name}: generation {} is live", sighting.newest)));
        }
    }
    let near = |time: Time| first <= time && time <= last;
    let mut requests: Vec<_> = history.requests.iter().filter(|request| near(request.end)).collect();
    requests.sort_by_key(|request| request.end.abs_diff(at));
    requests.truncate(MAX_REQUESTS);
    for request in requests {
        let begin = request.begin.as_secs_f64();
        let text = format!("policy {}: request from {begin:.3} s: {}", request.policy, request.outcome);
        events.push((request.end, text));
    }
    events.retain(|(time, _)| near(*time));
    events.sort();
    events.into_iter().fold(String::new(), |mut text, (time, event)| {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{:>10.3} s  {event}", time.as_secs_f64());
        text
    })
}

#[cfg(test)]
mod tests {
    use super::super::history::{Note, OutageKind, Request};
    use super::*;

    #[test]
    fn an_excerpt_has_the_events_around_a_time_in_their_order() {
        let mut history = History::default();
        let at = Duration::from_secs;
        for second in [1, 20, 50] {
            history.notes.push(Note { at: at(second), text: format!("step {second}") });
        }
        let outage = history.begin_outage(at(21), OutageKind::Replica, "a fault".to_owned());
        history.end_outage(at(22), outage);
        history.policies.entry("a".to_owned()).or_default().sight(1, 1, at(15), at(16));
        let outcome = Outcome::Denied("one".to_owned());
        history.requests.push(Request { policy: "a".to_owned(), begin: at(18), end: at(19), outcome });
        let lines = excerpt(&history, at(20));
        let events: Vec<_> = lines.lines().map(|line| line.split_once(" s  ").unwrap().1).collect();
        let expected = [
            "policy a: generation 1 is live",
            "policy a: request from 18.000 s: denied by one",
            "step 20",
            "outage begins: a fault",
            "outage ends: a fault",
        ];
        assert_eq!(events, expected);
        let limits = Limits { grace: at(1), propagation: at(1), recovery: at(1) };
        assert!(summary(&history, limits).starts_with("1 requests: 0 allowed, 1 denied, 0 without a decision"));
    }
}
