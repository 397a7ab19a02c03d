//! The divergences of an experiment on this replica: counts, and samples of divergent requests. Samples contain the names of
//! objects and the messages, but never the content of objects.

use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_core::{Divergence, Review};
use proviso_crds::{DivergenceSample, MAX_MESSAGE, PreviewReport};

/// The counts and samples of an experiment.
#[derive(Debug)]
pub struct DivergenceCounter(Mutex<PreviewReport>);

impl DivergenceCounter {
    /// Makes a counter that continues an earlier report.
    #[must_use]
    pub fn new(report: PreviewReport) -> Self {
        Self(Mutex::new(report))
    }

    /// Counts an evaluation of a request that arrived at `arrived_at`. `message` is the message of the denial, if one side
    /// denies.
    pub fn observe(&self, divergence: Divergence, review: &Review, arrived_at: Timestamp, message: Option<&str>) {
        let sample = (divergence != Divergence::Same).then(|| sample(divergence, review, message, Time(arrived_at)));
        self.with(|report| {
            report.counts.count(divergence);
            if let Some(sample) = sample {
                report.sample(sample);
            }
        });
    }

    /// Counts a request that was not previewed.
    pub fn count_dropped(&self) {
        self.with(|report| report.counts.dropped = report.counts.dropped.saturating_add(1));
    }

    #[must_use]
    pub fn report(&self) -> PreviewReport {
        self.with(|report| report.clone())
    }

    fn with<T>(&self, change: impl FnOnce(&mut PreviewReport) -> T) -> T {
        // The report is consistent even if a thread panicked while it held the lock.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the current time in whole seconds, the precision of Kubernetes.
pub fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

fn sample(divergence: Divergence, review: &Review, message: Option<&str>, time: Time) -> DivergenceSample {
    let head = review.head().cloned().unwrap_or_default();
    let kind = match head.kind.group.as_str() {
        "" => head.kind.kind,
        group => format!("{}.{group}", head.kind.kind),
    };
    let short = |text: &str| text.chars().take(MAX_MESSAGE).collect::<String>();
    DivergenceSample {
        divergence,
        kind: short(&kind),
        namespace: short(&head.namespace),
        user: short(&head.user.username),
        count: 1,
        name: short(&head.name),
        message: short(message.unwrap_or_default()),
        first_seen: time.clone(),
        last_seen: time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_sample_names_the_object_and_nothing_of_its_content() {
        let request = json!({
            "uid": "u", "operation": "CREATE", "name": "web", "namespace": "team",
            "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
            "userInfo": {"username": "ann"}, "object": {"spec": "secret"},
        });
        let review = Review::admission(json!({"request": request}).to_string().into()).unwrap();
        let counter = DivergenceCounter::new(PreviewReport::new(now()));
        counter.observe(Divergence::Same, &review, Timestamp::UNIX_EPOCH, None);
        counter.observe(Divergence::NewlyDenied, &review, Timestamp::UNIX_EPOCH, Some(&"é".repeat(300)));
        counter.count_dropped();
        let report = counter.report();
        assert_eq!((report.counts.evaluated, report.counts.same, report.counts.dropped), (2, 1, 1));
        let [sample] = &report.samples[..] else { panic!("{report:?}") };
        assert_eq!((sample.kind.as_str(), sample.namespace.as_str()), ("Deployment.apps", "team"));
        assert_eq!((sample.user.as_str(), sample.name.as_str()), ("ann", "web"));
        assert_eq!(sample.last_seen, Time(Timestamp::UNIX_EPOCH));
        assert_eq!(sample.message.chars().count(), MAX_MESSAGE);
        assert!(!serde_json::to_string(&report).unwrap().contains("secret"));
    }
}
