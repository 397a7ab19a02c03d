//! Limits the rate of log lines about denials and failed evaluations: a client that sends many denied requests must not fill the
//! log, nor hide the denials of other policies in it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// The lines per second and the burst of one policy.
const PER_POLICY: (u32, u32) = (5, 20);
/// The lines per second and the burst of all policies together.
const ALL_POLICIES: (u32, u32) = (50, 200);

/// The rate limiter of all policies together.
#[derive(Clone, Debug)]
pub struct DenialLog(Arc<DefaultDirectRateLimiter>);

/// The rate limiter of one policy.
#[derive(Clone, Debug)]
pub struct PolicyDenialLog {
    own: Arc<DefaultDirectRateLimiter>,
    all: DenialLog,
    omitted: Arc<AtomicU64>,
}

impl Default for DenialLog {
    fn default() -> Self {
        Self(limiter(ALL_POLICIES))
    }
}

impl DenialLog {
    #[must_use]
    pub fn policy(&self) -> PolicyDenialLog {
        PolicyDenialLog { own: limiter(PER_POLICY), all: self.clone(), omitted: Arc::default() }
    }
}

impl PolicyDenialLog {
    /// Returns the number of lines omitted since the last written line; `None` if the limits omit this line too.
    #[must_use]
    pub fn admit(&self) -> Option<u64> {
        if self.own.check().is_ok() && self.all.0.check().is_ok() {
            return Some(self.omitted.swap(0, Ordering::Relaxed));
        }
        self.omitted.fetch_add(1, Ordering::Relaxed);
        None
    }
}

fn limiter((per_second, burst): (u32, u32)) -> Arc<DefaultDirectRateLimiter> {
    let at_least_one = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
    Arc::new(RateLimiter::direct(Quota::per_second(at_least_one(per_second)).allow_burst(at_least_one(burst))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_denials_of_one_policy_does_not_hide_other_policies() {
        let all = DenialLog::default();
        let (flooded, other) = (all.policy(), all.policy());
        let admitted: Vec<u64> = (0..100_000).filter_map(|_| flooded.admit()).collect();
        assert!(admitted.len() >= 20 && admitted.len() < 1_000, "{}", admitted.len());
        assert_eq!(other.admit(), Some(0));
        // Each line has the number of lines omitted before it. The next line will have the rest.
        let omitted = admitted.iter().sum::<u64>() + flooded.omitted.load(Ordering::Relaxed);
        assert_eq!(omitted + u64::try_from(admitted.len()).unwrap(), 100_000);
    }

    #[test]
    fn all_policies_together_have_a_limit() {
        let all = DenialLog::default();
        let admitted = (0..10_000).filter(|_| all.policy().admit().is_some()).count();
        assert!((200..5_000).contains(&admitted), "{admitted}");
    }
}
