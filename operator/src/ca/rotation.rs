//! The rotation of a signing key, for the CA and for the keys that sign modules. All verifiers learn the new key
//! before it signs, and the old key is removed when its signatures are no longer used. Pure.

use std::time::Duration;

use jiff::Timestamp;

/// The phase of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// One key signs; there is no other.
    Steady,
    /// The next key is published, but does not sign yet.
    Announced,
    /// The new key signs; signatures of the old key are still valid.
    Retiring,
}

/// The observed state of a rotation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RotationState {
    pub phase: Phase,
    /// The start of the phase: the time at which the signing key began to sign, the next key was announced, or the
    /// last signature of the retiring key was replaced.
    pub since: Timestamp,
    /// The time at which the signing key is to be replaced.
    pub renew_at: Timestamp,
    /// The time at which the signing key expires.
    pub expires_at: Timestamp,
    /// In the phase `Announced`: true if all verifiers know the next key. In the phase `Retiring`: true if no signature of
    /// the old key is in use.
    pub is_settled: bool,
}

/// The minimum durations of the phases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub announcement: Duration,
    pub retirement: Duration,
}

/// The next action of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait until this time.
    WaitUntil(Timestamp),
    /// Wait until the phase is settled.
    Wait,
    /// Create and publish another key.
    Announce,
    /// Sign with the other key.
    Promote,
    /// Remove the key that no longer signs.
    Retire,
}

/// Returns the next step of a rotation.
pub(crate) fn step(state: &RotationState, times: &Times, now: Timestamp) -> Step {
    let (due, action) = match state.phase {
        Phase::Steady => (state.renew_at, Step::Announce),
        // If the signing key has expired, waiting for verifiers would only prolong the outage.
        Phase::Announced if now >= state.expires_at => return Step::Promote,
        Phase::Announced => (state.since + times.announcement, Step::Promote),
        Phase::Retiring => (state.since + times.retirement, Step::Retire),
    };
    if now < due {
        return Step::WaitUntil(due);
    }
    if state.phase != Phase::Steady && !state.is_settled { Step::Wait } else { action }
}

/// Returns the time at which to replace a key that expires at `expires_at`: two keys exist in the last third of its
/// life.
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
    fn each_phase_ends_at_its_due_time_but_not_before_it_is_settled() {
        let times = Times { announcement: Duration::from_secs(10), retirement: Duration::from_secs(20) };
        for (phase, since, is_settled, now, expected) in [
            (Phase::Steady, 0, true, 0, Step::WaitUntil(at(600))),
            (Phase::Steady, 0, true, 599, Step::WaitUntil(at(600))),
            // No verifier has to know another key before it exists.
            (Phase::Steady, 0, false, 600, Step::Announce),
            (Phase::Steady, 0, true, 2000, Step::Announce),
            (Phase::Announced, 600, true, 600, Step::WaitUntil(at(610))),
            (Phase::Announced, 600, true, 609, Step::WaitUntil(at(610))),
            (Phase::Announced, 600, false, 610, Step::Wait),
            (Phase::Announced, 600, true, 610, Step::Promote),
            // The signing key has expired, so the promotion does not wait.
            (Phase::Announced, 895, false, 899, Step::WaitUntil(at(905))),
            (Phase::Announced, 895, false, 900, Step::Promote),
            (Phase::Retiring, 610, true, 629, Step::WaitUntil(at(630))),
            (Phase::Retiring, 610, false, 629, Step::WaitUntil(at(630))),
            (Phase::Retiring, 610, false, 700, Step::Wait),
            (Phase::Retiring, 610, true, 630, Step::Retire),
        ] {
            let state = RotationState { phase, since: at(since), renew_at: at(600), expires_at: at(900), is_settled };
            assert_eq!(step(&state, &times, at(now)), expected, "{phase:?} since {since}, {is_settled}, at {now}");
        }
    }

    #[test]
    fn renewal_starts_in_the_last_third_of_the_lifetime() {
        assert_eq!(renew_at(at(900), Duration::from_mins(15)), at(600));
    }
}
