//! Requests that were not previewed: counted, and summed up in log lines, so that a flood of requests does not fill the log.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use proviso_core::PolicyId;

use super::line::DropLine;
use crate::table::Experiment;

/// The dropped evaluations that no log line has yet.
#[derive(Debug, Default)]
pub(super) struct DropLog(Mutex<BTreeMap<Versions, (PolicyId, u64)>>);

/// The versions that a dropped evaluation would have compared.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Versions {
    experiment: String,
    etag: String,
    live_etag: Option<String>,
}

impl DropLog {
    /// Counts a dropped evaluation.
    pub(super) fn count(&self, experiment: &Experiment, live_etag: Option<&str>) {
        experiment.count_dropped(live_etag);
        let versions = Versions {
            experiment: experiment.id.to_string(),
            etag: experiment.revision.etag.clone(),
            live_etag: live_etag.map(ToOwned::to_owned),
        };
        // The numbers are consistent even if a thread panicked while it held the lock.
        let mut dropped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.entry(versions).or_insert_with(|| (experiment.revision.policy.clone(), 0)).1 += 1;
    }

    /// Takes the lines to write now: one for each experiment. A second line of an experiment, about other versions, follows at the
    /// next call.
    pub(super) fn take(&self) -> Vec<DropLine> {
        let mut dropped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut taken, mut rest) = (Vec::<DropLine>::new(), BTreeMap::new());
        for (versions, (policy, number)) in std::mem::take(&mut *dropped) {
            if taken.last().is_some_and(|line| line.experiment == versions.experiment) {
                rest.insert(versions, (policy, number));
                continue;
            }
            let Versions { experiment, etag, live_etag } = versions;
            taken.push(DropLine::new(policy, experiment, etag, live_etag, number));
        }
        *dropped = rest;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preview::tests::experiment;

    #[test]
    fn drops_are_summed_up_in_one_line_of_each_experiment() {
        let (drops, one, two) = (DropLog::default(), experiment("one"), experiment("two"));
        for _ in 0..1_000 {
            drops.count(&one, Some("live"));
        }
        drops.count(&two, Some("live"));
        let lines = |drops: &DropLog| -> Vec<_> {
            drops.take().into_iter().map(|line| (line.experiment, line.live_etag, line.dropped)).collect()
        };
        let line = |name: &str, live_etag: &str, dropped: u64| {
            (format!("cluster.{name}"), Some(live_etag.to_owned()), dropped)
        };
        assert_eq!(lines(&drops), [line("one", "live", 1_000), line("two", "live", 1)]);
        assert!(lines(&drops).is_empty(), "each drop is in one line");
        // The live policy changes while evaluations are dropped.
        drops.count(&one, Some("a"));
        drops.count(&one, Some("b"));
        assert_eq!(lines(&drops), [line("one", "a", 1)]);
        drops.count(&one, Some("b"));
        assert_eq!(lines(&drops), [line("one", "b", 2)]);
        assert!(lines(&drops).is_empty());
    }
}
