//! Counting of the previewed requests of an experiment by one replica, and the sum over all replicas.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_core::Divergence;

use crate::{DivergenceCounts, DivergenceSample, PreviewReport};

/// The maximum number of sample groups in one report.
pub const MAX_SAMPLES: usize = 20;
/// The maximum length of the message of a sample, in characters.
pub const MAX_MESSAGE: usize = 256;

impl DivergenceCounts {
    /// Returns counts of zero that start at `since`.
    #[must_use]
    pub fn new(since: Time) -> Self {
        Self {
            evaluated: 0,
            same: 0,
            newly_denied: 0,
            newly_allowed: 0,
            mutation_differs: 0,
            message_differs: 0,
            details_differ: 0,
            errors: 0,
            dropped: 0,
            since,
            etag: None,
            live_etag: None,
        }
    }

    /// Returns counts of zero that start at `since`, for a version of an experiment in comparison with a live version.
    #[must_use]
    pub fn of_versions(etag: &str, live_etag: Option<&str>, since: Time) -> Self {
        Self { etag: Some(etag.to_owned()), live_etag: live_etag.map(ToOwned::to_owned), ..Self::new(since) }
    }

    /// Returns true if the counts belong to these versions. Counts of different versions must not be mixed.
    #[must_use]
    pub fn is_of_versions(&self, etag: &str, live_etag: Option<&str>) -> bool {
        self.etag.as_deref() == Some(etag) && self.live_etag.as_deref() == live_etag
    }

    /// Returns true if no request was counted yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.evaluated == 0 && self.dropped == 0
    }

    /// Returns the number of requests with this divergence. The number of `ExperimentError` includes the failed evaluations that
    /// count as `NewlyDenied`.
    #[must_use]
    pub fn of(&self, divergence: Divergence) -> u64 {
        match divergence {
            Divergence::Same => self.same,
            Divergence::NewlyDenied => self.newly_denied,
            Divergence::NewlyAllowed => self.newly_allowed,
            Divergence::MutationDiffers => self.mutation_differs,
            Divergence::MessageDiffers => self.message_differs,
            Divergence::DetailsDiffer => self.details_differ,
            Divergence::ExperimentError => self.errors,
        }
    }

    /// Counts one evaluation. If the evaluation failed, it counts as an error too.
    pub fn count(&mut self, divergence: Divergence, has_failed: bool) {
        if has_failed && divergence != Divergence::ExperimentError {
            self.errors = self.errors.saturating_add(1);
        }
        let count = self.of_mut(divergence);
        *count = count.saturating_add(1);
        self.evaluated = self.evaluated.saturating_add(1);
    }

    fn of_mut(&mut self, divergence: Divergence) -> &mut u64 {
        match divergence {
            Divergence::Same => &mut self.same,
            Divergence::NewlyDenied => &mut self.newly_denied,
            Divergence::NewlyAllowed => &mut self.newly_allowed,
            Divergence::MutationDiffers => &mut self.mutation_differs,
            Divergence::MessageDiffers => &mut self.message_differs,
            Divergence::DetailsDiffer => &mut self.details_differ,
            Divergence::ExperimentError => &mut self.errors,
        }
    }

    /// Adds the numbers of other counts.
    fn add(&mut self, other: &Self) {
        for divergence in Divergence::ALL {
            let count = self.of_mut(divergence);
            *count = count.saturating_add(other.of(divergence));
        }
        self.evaluated = self.evaluated.saturating_add(other.evaluated);
        self.dropped = self.dropped.saturating_add(other.dropped);
    }
}

impl DivergenceSample {
    /// Returns the values that all requests of this group share.
    fn group_key(&self) -> (Divergence, &str, &str, &str) {
        (self.divergence, &self.kind, &self.namespace, &self.user)
    }

    /// Adds the requests of another sample of the same group.
    fn merge(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.first_seen = self.first_seen.clone().min(other.first_seen);
        if other.last_seen >= self.last_seen {
            (self.name, self.message, self.last_seen) = (other.name, other.message, other.last_seen);
        }
    }
}

impl PreviewReport {
    /// Returns an empty report that starts at `since`.
    #[must_use]
    pub fn new(since: Time) -> Self {
        Self { counts: DivergenceCounts::new(since), samples: Vec::new() }
    }

    /// Adds a sample to its group. If the report is full, a new group replaces the group with the fewest requests; among
    /// several, the one whose last request is the oldest.
    pub fn sample(&mut self, sample: DivergenceSample) {
        if let Some(found) = self.samples.iter_mut().find(|it| it.group_key() == sample.group_key()) {
            return found.merge(sample);
        }
        if self.samples.len() >= MAX_SAMPLES {
            let smallest = self.samples.iter().enumerate().min_by_key(|(_, it)| (it.count, it.last_seen.clone()));
            if let Some((index, _)) = smallest {
                self.samples.swap_remove(index);
            }
        }
        self.samples.push(sample);
    }

    /// Returns the sum of the reports about a version of an experiment, in comparison with a live version. Reports about other
    /// versions are left out. The sum counts since the earliest of the reports, or since `start` if there is none. The groups with
    /// the most requests come first, and at most [`MAX_SAMPLES`] groups are kept.
    #[must_use]
    pub fn sum<'a>(
        reports: impl IntoIterator<Item = &'a Self>,
        start: &Time,
        etag: &str,
        live_etag: Option<&str>,
    ) -> Self {
        let reports = reports.into_iter().filter(|report| report.counts.is_of_versions(etag, live_etag));
        let mut sum = DivergenceCounts::of_versions(etag, live_etag, start.clone());
        let mut since: Option<&Time> = None;
        let mut groups: BTreeMap<_, DivergenceSample> = BTreeMap::new();
        for report in reports {
            let begin = &report.counts.since;
            since = Some(since.map_or(begin, |since| since.min(begin)));
            sum.add(&report.counts);
            for sample in &report.samples {
                match groups.get_mut(&sample.group_key()) {
                    Some(found) => found.merge(sample.clone()),
                    None => drop(groups.insert(sample.group_key(), sample.clone())),
                }
            }
        }
        if let Some(since) = since {
            sum.since = since.clone();
        }
        let mut samples: Vec<_> = groups.into_values().collect();
        // The sort is stable, so groups of the same size stay ordered by their keys.
        samples.sort_by_key(|sample| std::cmp::Reverse(sample.count));
        samples.truncate(MAX_SAMPLES);
        Self { counts: sum, samples }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Time {
        Time(k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap())
    }

    fn sample(user: &str, seconds: i64) -> DivergenceSample {
        DivergenceSample {
            divergence: Divergence::NewlyDenied,
            kind: "Pod".to_owned(),
            namespace: "team".to_owned(),
            user: user.to_owned(),
            count: 1,
            name: format!("at-{seconds}"),
            message: "no".to_owned(),
            first_seen: at(seconds),
            last_seen: at(seconds),
        }
    }

    #[test]
    fn similar_requests_form_one_group_that_names_the_last_object() {
        let mut report = PreviewReport::new(at(0));
        for seconds in [5, 9, 7] {
            report.sample(sample("ann", seconds));
        }
        for other in [
            DivergenceSample { divergence: Divergence::NewlyAllowed, ..sample("ann", 1) },
            DivergenceSample { kind: "Job.batch".to_owned(), ..sample("ann", 1) },
            DivergenceSample { namespace: "other".to_owned(), ..sample("ann", 1) },
            sample("bob", 1),
        ] {
            report.sample(other);
        }
        assert_eq!(report.samples.len(), 5);
        let first = &report.samples[0];
        assert_eq!((first.count, &first.first_seen, &first.last_seen), (3, &at(5), &at(9)));
        assert_eq!(first.name, "at-9");
    }

    #[test]
    fn a_full_report_keeps_the_largest_groups_and_the_newest() {
        let mut report = PreviewReport::new(at(0));
        for _ in 0..3 {
            report.sample(sample("often", 0));
        }
        for user in 0..100 {
            report.sample(sample(&user.to_string(), user));
        }
        let users: Vec<_> = report.samples.iter().map(|it| it.user.as_str()).collect();
        assert_eq!(users.len(), MAX_SAMPLES);
        assert!(users.contains(&"often") && users.contains(&"99") && !users.contains(&"50"), "{users:?}");
    }

    fn report(etag: &str, live_etag: Option<&str>, since: i64) -> PreviewReport {
        let counts = DivergenceCounts::of_versions(etag, live_etag, at(since));
        PreviewReport { counts, samples: Vec::new() }
    }

    #[test]
    fn a_failed_evaluation_is_an_error_whatever_it_counts_as() {
        let mut counts = DivergenceCounts::new(at(0));
        counts.count(Divergence::NewlyDenied, true);
        counts.count(Divergence::NewlyDenied, false);
        counts.count(Divergence::ExperimentError, true);
        assert_eq!((counts.evaluated, counts.newly_denied, counts.errors), (3, 2, 2));
    }

    #[test]
    fn the_sum_of_reports_merges_groups_and_adds_counts() {
        let (mut first, mut second) = (report("e", Some("live"), 3), report("e", Some("live"), 2));
        for divergence in Divergence::ALL {
            first.counts.count(divergence, divergence == Divergence::ExperimentError);
            second.counts.count(divergence, divergence == Divergence::ExperimentError);
        }
        first.counts.count(Divergence::Same, false);
        first.counts.count(Divergence::NewlyDenied, true);
        first.counts.dropped = 2;
        second.counts.dropped = 3;
        first.sample(sample("ann", 5));
        second.sample(sample("ann", 4));
        for _ in 0..3 {
            second.sample(sample("bob", 6));
        }
        let sum = PreviewReport::sum([&first, &second], &at(1), "e", Some("live"));
        let counts = &sum.counts;
        assert_eq!((counts.evaluated, counts.same, counts.errors, counts.dropped), (16, 3, 3, 5));
        assert_eq!((counts.newly_denied, counts.details_differ), (3, 2));
        assert_eq!(
            (&counts.since, counts.etag.as_deref(), counts.live_etag.as_deref()),
            (&at(2), Some("e"), Some("live"))
        );
        let samples: Vec<_> = sum.samples.iter().map(|it| (it.user.as_str(), it.count, it.name.as_str())).collect();
        assert_eq!(samples, [("bob", 3, "at-6"), ("ann", 2, "at-5")]);
    }

    #[test]
    fn the_sum_leaves_out_reports_about_other_versions() {
        let mut reports = [
            report("e", Some("live"), 5),
            report("e", Some("older"), 2),
            report("e", None, 2),
            report("other", Some("live"), 2),
            // The report of an older policy server has no etags.
            PreviewReport::new(at(2)),
        ];
        for report in &mut reports {
            report.counts.count(Divergence::Same, false);
            report.sample(sample("ann", 5));
        }
        let of = |live_etag: Option<&str>| PreviewReport::sum(&reports, &at(9), "e", live_etag);
        let counted = |sum: PreviewReport| (sum.counts.evaluated, sum.samples.len(), sum.counts.since);
        assert_eq!(counted(of(Some("live"))), (1, 1, at(5)));
        assert_eq!(counted(of(None)), (1, 1, at(2)));
        assert_eq!(counted(of(Some("newer"))), (0, 0, at(9)));
        assert_eq!(of(Some("newer")).counts, DivergenceCounts::of_versions("e", Some("newer"), at(9)));
    }
}
