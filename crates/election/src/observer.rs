//! The rule of the election: a candidate measures the age of a Lease with its own monotonic clock, from its first observation of
//! a renewal. It never compares the time that the holder wrote with its own clock, because the clocks may differ.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use crate::{LEASE_DURATION, RENEW_INTERVAL};

/// The leader, and the end of its claim by the clock of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) holder: String,
    pub(crate) until: Instant,
}

/// A renewal of the Lease by its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renewal {
    holder: String,
    /// The time by the clock of the holder. It only distinguishes this renewal from others.
    time: MicroTime,
    duration: Duration,
}

/// The next step of a replica after a read of the Lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The claim of the leader is valid.
    Follow(Leader),
    /// The claim of this former leader has expired.
    TakeOver(Leader),
    /// The Lease has no holder, or this replica holds it and must renew it.
    Claim,
}

/// The observations of one replica.
#[derive(Debug)]
pub(crate) struct Observer {
    identity: String,
    /// The last observed renewal, and the time of its first observation.
    observed: Option<(Renewal, Instant)>,
    /// The start of the last renewal by this process; `None` if this replica does not hold the Lease.
    renewed: Option<Instant>,
}

impl Renewal {
    /// Returns the last renewal of a Lease; `None` if the Lease has no holder.
    pub(crate) fn read(lease: &Lease) -> Option<Self> {
        let LeaseSpec { holder_identity, renew_time, lease_duration_seconds, .. } = lease.spec.as_ref()?;
        let holder = holder_identity.clone().filter(|holder| !holder.is_empty())?;
        let seconds = u64::try_from((*lease_duration_seconds)?).ok()?;
        Some(Self { holder, time: renew_time.clone()?, duration: Duration::from_secs(seconds) })
    }

    pub(crate) fn is_by(&self, identity: &str) -> bool {
        self.holder == identity
    }
}

impl Observer {
    pub(crate) fn new(identity: String) -> Self {
        Self { identity, observed: None, renewed: None }
    }

    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns true if this replica holds the Lease.
    pub(crate) fn is_holder(&self) -> bool {
        self.renewed.is_some()
    }

    /// Returns true if this replica must renew its claim, and no other replica can have taken it over yet.
    pub(crate) fn can_renew_unread(&self, now: Instant) -> bool {
        self.renewed.is_some_and(|at| (at + RENEW_INTERVAL..at + LEASE_DURATION).contains(&now))
    }

    /// Returns the step after a read of the Lease at this time.
    pub(crate) fn step(&mut self, renewal: Option<Renewal>, now: Instant) -> Step {
        let Some(renewal) = renewal else {
            (self.observed, self.renewed) = (None, None);
            return Step::Claim;
        };
        let since = match &self.observed {
            Some((known, since)) if *known == renewal => *since,
            _ => now,
        };
        let holder = renewal.holder.clone();
        let leader = if renewal.is_by(&self.identity) {
            // A process that has not renewed the Lease itself continues the claim of an earlier process of this replica.
            match self.renewed {
                Some(at) if now < at + RENEW_INTERVAL => Leader { holder, until: at + LEASE_DURATION },
                _ => return Step::Claim,
            }
        } else {
            self.renewed = None;
            Leader { holder, until: since + renewal.duration }
        };
        self.observed = Some((renewal, since));
        if now < leader.until { Step::Follow(leader) } else { Step::TakeOver(leader) }
    }

    /// Records the holder after a write that began at this time.
    pub(crate) fn claimed(&mut self, holder: &str, begun: Instant) -> Leader {
        self.renewed = (holder == self.identity).then_some(begun);
        Leader { holder: holder.to_owned(), until: begun + LEASE_DURATION }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::chrono::DateTime;

    use super::*;

    /// A renewal at a time by the clock of the holder, in seconds.
    fn renewal(holder: &str, time: i64) -> Option<Renewal> {
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(DateTime::from_timestamp(1_000_000 + time, 0).unwrap())),
            ..LeaseSpec::default()
        };
        Renewal::read(&Lease { spec: Some(spec), ..Lease::default() })
    }

    #[test]
    fn only_renewals_count_and_not_the_clock_of_the_holder() {
        // Five minutes are 300 seconds.
        for skew in [-300, 0, 300] {
            let mut observer = Observer::new("own".to_owned());
            let start = Instant::now();
            let at = |second: u64| start + Duration::from_secs(second);
            let other = |until: u64| Leader { holder: "other".to_owned(), until: at(until) };
            for (now, renewed, wanted) in [
                // The holder renews its claim at the seconds 0 and 6, and is killed afterwards.
                (2, 0, Step::Follow(other(17))),
                (4, 0, Step::Follow(other(17))),
                (8, 6, Step::Follow(other(23))),
                (22, 6, Step::Follow(other(23))),
                (23, 6, Step::TakeOver(other(23))),
                (25, 6, Step::TakeOver(other(23))),
                // The holder was only frozen.
                (26, 25, Step::Follow(other(41))),
            ] {
                let step = observer.step(renewal("other", skew + renewed), at(now));
                assert_eq!(step, wanted, "skew {skew}, second {now}");
            }
        }
    }

    #[test]
    fn another_holder_has_the_whole_duration() {
        let mut observer = Observer::new("own".to_owned());
        let start = Instant::now();
        observer.step(renewal("one", 0), start);
        let later = start + Duration::from_secs(20);
        // The same time by chance, from another clock.
        let wanted = Leader { holder: "two".to_owned(), until: later + Duration::from_secs(15) };
        assert_eq!(observer.step(renewal("two", 0), later), Step::Follow(wanted));
    }

    #[test]
    fn a_lease_without_a_holder_is_claimed_at_once() {
        let mut observer = Observer::new("own".to_owned());
        let vacant = Lease { spec: Some(LeaseSpec::default()), ..Lease::default() };
        assert_eq!(observer.step(Renewal::read(&vacant), Instant::now()), Step::Claim);
        assert_eq!(observer.step(renewal("", 0), Instant::now()), Step::Claim);
        assert_eq!(observer.step(Renewal::read(&Lease::default()), Instant::now()), Step::Claim);
    }

    #[test]
    fn the_leader_renews_its_claim_in_time_and_stops_when_another_replica_leads() {
        let mut observer = Observer::new("own".to_owned());
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        // An earlier process of this replica holds the Lease.
        assert_eq!(observer.step(renewal("own", 300), at(0)), Step::Claim);
        let leader = observer.claimed("own", at(0));
        assert_eq!(leader, Leader { holder: "own".to_owned(), until: at(15) });
        assert_eq!(observer.step(renewal("own", 0), at(4)), Step::Follow(leader));
        assert_eq!(observer.step(renewal("own", 0), at(5)), Step::Claim);
        for (second, can_renew) in [(4, false), (5, true), (14, true), (15, false)] {
            assert_eq!(observer.can_renew_unread(at(second)), can_renew, "second {second}");
        }
        assert!(matches!(observer.step(renewal("other", -300), at(16)), Step::Follow(it) if it.holder == "other"));
        assert!(!observer.is_holder() && !observer.can_renew_unread(at(16)));
    }
}
