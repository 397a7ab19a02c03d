//! The divergences of an experiment on this replica: counts, and samples of divergent requests. Samples contain the names of
//! objects and the messages, but never the content of objects.

use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_core::{Divergence, Review};
use proviso_crds::{DivergenceCounts, DivergenceSample, MAX_MESSAGE, PreviewReport};

/// The versions that an evaluation compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions<'a> {
    /// The etag of the experiment.
    pub experiment: &'a str,
    /// The etag of the live generation; `None` if no generation is live.
    pub live: Option<&'a str>,
}

/// The result of one evaluation.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    pub divergence: Divergence,
    /// True if the evaluation of the experiment failed.
    pub has_failed: bool,
    pub subject: &'a Subject,
    /// The arrival time of the request.
    pub arrived_at: Timestamp,
    /// The message of the sample, if the request is one.
    pub message: Option<&'a str>,
}

/// The names of a request in a sample. They may be longer than a sample allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The kind of the object, such as `Deployment.apps`, or the service type.
    pub kind: String,
    /// The namespace, or the tenant.
    pub namespace: String,
    pub user: String,
    pub name: String,
}

impl From<&Review> for Subject {
    fn from(review: &Review) -> Self {
        let head = review.head().cloned().unwrap_or_default();
        let kind = match head.kind.group.as_str() {
            "" => head.kind.kind,
            group => format!("{}.{group}", head.kind.kind),
        };
        Self { kind, namespace: head.namespace, user: head.user.username, name: head.name }
    }
}

/// The counts and samples of an experiment in comparison with one live generation, and the number of its evaluations that are queued
/// or running.
#[derive(Debug)]
pub struct DivergenceCounter(Mutex<State>);

#[derive(Debug)]
struct State {
    report: PreviewReport,
    /// The evaluations that are queued or running.
    unfinished: usize,
    is_stopped: bool,
}

impl DivergenceCounter {
    /// Makes a counter that continues an earlier report.
    #[must_use]
    pub fn new(report: PreviewReport) -> Self {
        Self(Mutex::new(State { report, unfinished: 0, is_stopped: false }))
    }

    /// Starts new counts at `now`, unless the counts belong to these versions already. From now on, only evaluations of these
    /// versions are counted: in other evaluations, the experiment was compared with another live policy.
    pub fn follow(&self, versions: Versions<'_>, now: &Time) {
        self.with(|State { report, .. }| {
            if !report.counts.is_of_versions(versions.experiment, versions.live) {
                let counts = DivergenceCounts::of_versions(versions.experiment, versions.live, now.clone());
                *report = PreviewReport { counts, samples: Vec::new() };
            }
        });
    }

    /// Begins an evaluation. Returns false if the preview was stopped. Otherwise, [`Self::end`] must follow.
    #[must_use]
    pub fn begin(&self) -> bool {
        self.with(|state| {
            state.unfinished += usize::from(!state.is_stopped);
            !state.is_stopped
        })
    }

    /// Ends an evaluation.
    pub fn end(&self) {
        self.with(|state| state.unfinished = state.unfinished.saturating_sub(1));
    }

    /// Stops the preview for good: no evaluation begins any more.
    pub fn stop(&self) {
        self.with(|state| state.is_stopped = true);
    }

    /// Returns true if the preview was stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.with(|state| state.is_stopped)
    }

    /// Returns true if the preview was stopped and all its evaluations have ended: the counts are final.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.with(|state| state.is_stopped && state.unfinished == 0)
    }

    /// Counts an evaluation of these versions.
    pub fn observe(&self, versions: Versions<'_>, observation: &Observation<'_>) {
        let is_divergent = observation.divergence != Divergence::Same;
        let sample = is_divergent.then(|| sample(observation));
        self.count(versions, |report| {
            report.counts.count(observation.divergence, observation.has_failed);
            if let Some(sample) = sample {
                report.sample(sample);
            }
        });
    }

    /// Counts a request that was not previewed with these versions.
    pub fn count_dropped(&self, versions: Versions<'_>) {
        self.count(versions, |report| report.counts.dropped = report.counts.dropped.saturating_add(1));
    }

    #[must_use]
    pub fn report(&self) -> PreviewReport {
        self.with(|state| state.report.clone())
    }

    /// Changes the report if it belongs to these versions.
    fn count(&self, versions: Versions<'_>, change: impl FnOnce(&mut PreviewReport)) {
        self.with(|State { report, .. }| {
            if report.counts.is_of_versions(versions.experiment, versions.live) {
                change(report);
            }
        });
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        // The state is consistent even if a thread panicked while it held the lock.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the current time in whole seconds, the precision of Kubernetes.
pub fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

fn sample(observation: &Observation<'_>) -> DivergenceSample {
    let Subject { kind, namespace, user, name } = observation.subject;
    let short = |text: &str| text.chars().take(MAX_MESSAGE).collect::<String>();
    let time = Time(observation.arrived_at);
    DivergenceSample {
        divergence: observation.divergence,
        kind: short(kind),
        namespace: short(namespace),
        user: short(user),
        count: 1,
        name: short(name),
        message: short(observation.message.unwrap_or_default()),
        first_seen: time.clone(),
        last_seen: time,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const FIRST: Versions<'static> = Versions { experiment: "e", live: Some("first") };

    fn at(seconds: i64) -> Time {
        Time(Timestamp::from_second(seconds).unwrap())
    }

    /// Returns a counter of these versions.
    fn counter(versions: Versions<'_>) -> DivergenceCounter {
        let counter = DivergenceCounter::new(PreviewReport::new(at(0)));
        counter.follow(versions, &at(0));
        counter
    }

    fn observe(counter: &DivergenceCounter, versions: Versions<'_>, divergence: Divergence, message: Option<&str>) {
        let request = json!({
            "uid": "u", "operation": "CREATE", "name": "web", "namespace": "team",
            "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
            "userInfo": {"username": "ann"}, "object": {"spec": "secret"},
        });
        let review = Review::admission(json!({"request": request}).to_string().into()).unwrap();
        let has_failed = divergence == Divergence::ExperimentError;
        let (subject, arrived_at) = (Subject::from(&review), Timestamp::UNIX_EPOCH);
        counter.observe(versions, &Observation { divergence, has_failed, subject: &subject, arrived_at, message });
    }

    #[test]
    fn a_sample_names_the_object_and_nothing_of_its_content() {
        let counter = counter(FIRST);
        observe(&counter, FIRST, Divergence::Same, None);
        observe(&counter, FIRST, Divergence::NewlyDenied, Some(&"é".repeat(300)));
        counter.count_dropped(FIRST);
        let report = counter.report();
        assert_eq!((report.counts.evaluated, report.counts.same, report.counts.dropped), (2, 1, 1));
        let [sample] = &report.samples[..] else { panic!("{report:?}") };
        assert_eq!((sample.kind.as_str(), sample.namespace.as_str()), ("Deployment.apps", "team"));
        assert_eq!((sample.user.as_str(), sample.name.as_str()), ("ann", "web"));
        assert_eq!(sample.last_seen, Time(Timestamp::UNIX_EPOCH));
        assert_eq!(sample.message.chars().count(), MAX_MESSAGE);
        assert!(!serde_json::to_string(&report).unwrap().contains("secret"));
    }

    #[test]
    fn new_counts_start_with_each_live_generation() {
        let counter = counter(FIRST);
        observe(&counter, FIRST, Divergence::NewlyDenied, None);
        counter.follow(FIRST, &at(5));
        assert_eq!(
            (counter.report().counts.evaluated, counter.report().counts.since),
            (1, at(0)),
            "nothing has changed"
        );

        let second = Versions { live: Some("second"), ..FIRST };
        counter.follow(second, &at(10));
        // An evaluation of the old generation ends late.
        observe(&counter, FIRST, Divergence::NewlyDenied, None);
        counter.count_dropped(FIRST);
        let report = counter.report();
        assert!(report.counts.is_empty() && report.samples.is_empty(), "{report:?}");
        assert_eq!((report.counts.since, report.counts.live_etag.as_deref()), (at(10), Some("second")));
        observe(&counter, second, Divergence::Same, None);
        assert_eq!(counter.report().counts.evaluated, 1);

        // No generation is live any more, and then the first one again.
        let none = Versions { live: None, ..FIRST };
        counter.follow(none, &at(20));
        counter.count_dropped(none);
        assert_eq!((counter.report().counts.dropped, counter.report().counts.live_etag), (1, None));
        counter.follow(FIRST, &at(30));
        assert!(counter.report().counts.is_empty(), "the earlier counts of the first generation are gone");
    }

    #[test]
    fn the_counts_of_an_earlier_process_continue_only_for_the_same_versions() {
        let earlier = counter(FIRST);
        observe(&earlier, FIRST, Divergence::Same, None);
        for (versions, evaluated, since) in [
            (FIRST, 1, at(0)),
            (Versions { live: Some("second"), ..FIRST }, 0, at(9)),
            (Versions { live: None, ..FIRST }, 0, at(9)),
            (Versions { experiment: "f", ..FIRST }, 0, at(9)),
        ] {
            let restarted = DivergenceCounter::new(earlier.report());
            restarted.follow(versions, &at(9));
            let counts = restarted.report().counts;
            assert_eq!((counts.evaluated, counts.since), (evaluated, since), "{versions:?}");
        }
    }

    #[test]
    fn a_stopped_preview_ends_its_evaluations_and_begins_no_more() {
        let counter = counter(FIRST);
        assert!(counter.begin() && counter.begin());
        counter.stop();
        assert!(counter.is_stopped() && !counter.begin() && !counter.is_drained());
        observe(&counter, FIRST, Divergence::Same, None);
        counter.end();
        assert!(!counter.is_drained());
        counter.count_dropped(FIRST);
        counter.end();
        assert!(counter.is_drained());
        assert_eq!((counter.report().counts.evaluated, counter.report().counts.dropped), (1, 1));
    }

    #[test]
    fn no_evaluation_is_missed_when_a_preview_stops() {
        let counter = Arc::new(counter(FIRST));
        let evaluate = |counter: Arc<DivergenceCounter>| {
            let mut begun = 0_u64;
            while counter.begin() {
                begun += 1;
                counter.count_dropped(FIRST);
                counter.end();
            }
            begun
        };
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let counter = Arc::clone(&counter);
                std::thread::spawn(move || evaluate(counter))
            })
            .collect();
        while counter.report().counts.dropped < 100 {
            std::thread::yield_now();
        }
        counter.stop();
        while !counter.is_drained() {
            std::thread::yield_now();
        }
        let final_counts = counter.report().counts;
        let begun: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!((final_counts.dropped, counter.report().counts), (begun, final_counts.clone()));
    }

    proptest! {
        /// The live generation changes among evaluations of different generations.
        #[test]
        fn counts_never_mix_live_generations(steps in prop::collection::vec((any::<bool>(), 0..3_usize), 0..40)) {
            const LIVE: [Option<&str>; 3] = [None, Some("a"), Some("b")];
            let of = |live: usize| Versions { experiment: "e", live: LIVE[live] };
            let (counter, mut live, mut expected) = (counter(of(0)), 0, 0);
            for (changes_live, generation) in steps {
                if changes_live {
                    counter.follow(of(generation), &at(1));
                    expected = if generation == live { expected } else { 0 };
                    live = generation;
                } else {
                    observe(&counter, of(generation), Divergence::Same, None);
                    expected += u64::from(generation == live);
                }
            }
            let counts = counter.report().counts;
            prop_assert_eq!((counts.same, counts.live_etag.as_deref()), (expected, LIVE[live]));
        }
    }
}
