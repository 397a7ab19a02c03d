//! When what signs is replaced: first everybody who verifies learns the new one, then it signs, then the old one is
//! forgotten. The same for the authority and for the keys that sign modules. Pure.

use std::time::Duration;

use jiff::Timestamp;

/// How far a replacement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// One signs, and there is no other.
    Steady,
    /// Another is known, and does not sign yet.
    Announced,
    /// The new one signs; what the old one signed still counts.
    Retiring,
}

/// What there is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub phase: Phase,
    /// When the one that signs began to, or the other was announced, or the last signature of the retiring one was replaced.
    pub since: Timestamp,
    /// When the one that signs is to be replaced.
    pub renew_at: Timestamp,
    /// From when on nobody believes the one that signs.
    pub expires_at: Timestamp,
    /// Whether all who verify are known to know the other, or nothing that the retiring one signed is in use any more.
    pub is_settled: bool,
}

/// How long the phases last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub announcement: Duration,
    pub retirement: Duration,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing before this time.
    WaitUntil(Timestamp),
    /// Nothing until what is unsettled has settled.
    Wait,
    /// Make another.
    Announce,
    /// Let the other sign.
    Promote,
    /// Forget the one that does not sign any more.
    Retire,
}

/// The next step of a replacement.
pub(crate) fn step(standing: &Standing, times: &Times, now: Timestamp) -> Step {
    let (due, action) = match standing.phase {
        Phase::Steady => (standing.renew_at, Step::Announce),
        // What nobody believes cannot be overlapped with.
        Phase::Announced if now >= standing.expires_at => return Step::Promote,
        Phase::Announced => (standing.since + times.announcement, Step::Promote),
        Phase::Retiring => (standing.since + times.retirement, Step::Retire),
    };
    if now < due {
        return Step::WaitUntil(due);
    }
    if standing.phase != Phase::Steady && !standing.is_settled { Step::Wait } else { action }
}

/// When to replace what expires then: for the last third of its life there are two.
pub(crate) fn renew_at(expires_at: Timestamp, lifetime: Duration) -> Timestamp {
    expires_at - lifetime / 3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn each_phase_ends_at_its_time_and_not_before_everybody_knows() {
        let times = Times { announcement: Duration::from_secs(10), retirement: Duration::from_secs(20) };
        for (phase, since, is_settled, now, expected) in [
            (Phase::Steady, 0, true, 0, Step::WaitUntil(at(600))),
            (Phase::Steady, 0, true, 599, Step::WaitUntil(at(600))),
            // Nobody has to know anything before there is another.
            (Phase::Steady, 0, false, 600, Step::Announce),
            (Phase::Steady, 0, true, 2000, Step::Announce),
            (Phase::Announced, 600, true, 600, Step::WaitUntil(at(610))),
            (Phase::Announced, 600, true, 609, Step::WaitUntil(at(610))),
            (Phase::Announced, 600, false, 610, Step::Wait),
            (Phase::Announced, 600, true, 610, Step::Promote),
            // Too late for care.
            (Phase::Announced, 895, false, 899, Step::WaitUntil(at(905))),
            (Phase::Announced, 895, false, 900, Step::Promote),
            (Phase::Retiring, 610, true, 629, Step::WaitUntil(at(630))),
            (Phase::Retiring, 610, false, 629, Step::WaitUntil(at(630))),
            (Phase::Retiring, 610, false, 700, Step::Wait),
            (Phase::Retiring, 610, true, 630, Step::Retire),
        ] {
            let standing = Standing { phase, since: at(since), renew_at: at(600), expires_at: at(900), is_settled };
            assert_eq!(step(&standing, &times, at(now)), expected, "{phase:?} since {since}, {is_settled}, at {now}");
        }
    }

    #[test]
    fn the_last_third_of_a_life_is_the_overlap() {
        assert_eq!(renew_at(at(900), Duration::from_mins(15)), at(600));
    }
}
