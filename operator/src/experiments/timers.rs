//! The times for which the operator has observed states of experiments, by its monotonic clock. They begin again when
//! another replica of the operator leads.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use proviso_core::experiment::rollout::Timer;

use crate::cache::lock;

/// The running timers of each experiment, by its uid.
#[derive(Debug, Default)]
pub(super) struct Timers(Mutex<HashMap<String, Vec<(Timer, Instant)>>>);

impl Timers {
    /// Returns the times for which the timers of an experiment have run.
    pub fn elapsed(&self, uid: &str, now: Instant) -> Vec<(Timer, Duration)> {
        let running = lock(&self.0);
        let elapsed = running.get(uid).into_iter().flatten();
        elapsed.map(|(timer, since)| (timer.clone(), now.saturating_duration_since(*since))).collect()
    }

    /// Keeps these timers of an experiment, and stops the others. A new timer begins now.
    pub fn keep(&self, uid: &str, timers: &[Timer], now: Instant) {
        let mut running = lock(&self.0);
        let before = running.remove(uid).unwrap_or_default();
        let since = |timer: &Timer| before.iter().find(|(known, _)| known == timer).map_or(now, |(_, since)| *since);
        let kept: Vec<_> = timers.iter().map(|timer| (timer.clone(), since(timer))).collect();
        if !kept.is_empty() {
            running.insert(uid.to_owned(), kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_runs_as_long_as_it_is_kept() {
        let (timers, start) = (Timers::default(), Instant::now());
        let (commit, stop) = (Timer::Commit("a".to_owned()), Timer::Stop("b".to_owned()));
        let after = |seconds| start + Duration::from_secs(seconds);
        let elapsed = |seconds| timers.elapsed("e", after(seconds));
        assert!(elapsed(0).is_empty());
        timers.keep("e", std::slice::from_ref(&commit), after(0));
        timers.keep("e", &[commit.clone(), stop.clone()], after(5));
        let expected = [(commit.clone(), Duration::from_secs(7)), (stop.clone(), Duration::from_secs(2))];
        assert_eq!(elapsed(7), expected);
        assert!(timers.elapsed("other", after(7)).is_empty());
        timers.keep("e", std::slice::from_ref(&stop), after(8));
        timers.keep("e", &[commit.clone(), stop.clone()], after(9));
        assert_eq!(elapsed(10), [(commit, Duration::from_secs(1)), (stop, Duration::from_secs(5))]);
        timers.keep("e", &[], after(11));
        assert!(elapsed(12).is_empty() && lock(&timers.0).is_empty());
    }
}
