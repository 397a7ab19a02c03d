//! The state that this replica keeps for each `PolicyRevision`: the last observed object, the preview of a candidate, and the
//! state of the status updates.

use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_artifacts::Digest;
use proviso_core::Failure;
use proviso_crds::PreviewReport;

use super::reported::Reported;
use super::revision::{DesiredRevision, ObservedRevision};
use super::status::Update;
use crate::config::Replica;
use crate::lifecycle::{Desired, ModuleSource, Role, Scope, Slot};
use crate::preview::DivergenceCounter;
use crate::table::Experiment;

/// The minimum time between two reports of the counts of a preview.
const PREVIEW_REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// The delays after consecutive status updates that failed.
const REPORT_BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(1))
    .with_max_delay(Duration::from_mins(1))
    .without_max_times()
    .with_jitter();

#[derive(Debug)]
pub(super) struct Object {
    pub observed: ObservedRevision,
    /// The preview of a candidate while the candidate is loaded.
    experiment: Option<Arc<Experiment>>,
    /// The counts of a candidate since it was created. They are kept when the candidate is loaded again.
    counter: Option<Arc<DivergenceCounter>>,
    /// The earliest time of the next report of the counts.
    preview_due: Option<Instant>,
    is_reporting: bool,
    /// If the last status update failed: the next delays, its error, and the earliest time of the next update.
    failed_report: Option<(ExponentialBackoff, String, Instant)>,
}

impl Object {
    pub(super) fn new(observed: ObservedRevision) -> Self {
        Self { observed, experiment: None, counter: None, preview_due: None, is_reporting: false, failed_report: None }
    }

    /// Takes a newer state of the same object. Returns true if [`Reported::serving_facts`] changed.
    pub(super) fn observe(&mut self, observed: ObservedRevision) -> bool {
        let old = std::mem::replace(&mut self.observed, observed);
        let facts = old.reported.serving_facts();
        if old.reported.version > self.observed.reported.version {
            // The response to a status update is newer than the watch.
            self.observed.reported = old.reported;
        }
        facts != self.observed.reported.serving_facts()
    }

    /// Returns the desired revision, or the reason why it cannot be read; `None` if it is disabled.
    pub(super) fn desired(&self) -> Option<Result<Desired, Failure>> {
        let reported = &self.observed.reported;
        let to_desired = |revision: &DesiredRevision| Desired {
            policy: revision.policy.clone(),
            experiment: revision.experiment.clone(),
            uid: revision.origin_uid.clone(),
            generation: revision.generation,
            spec: Arc::clone(&revision.spec),
            scope: Scope::POLICY,
            place: None,
            modules: ModuleSource::Network(reported.modules.clone()),
            was_prepared: reported.is_initialized(),
        };
        match &self.observed.desired {
            Ok(revision) if !revision.is_enabled => None,
            revision => Some(revision.as_ref().map(to_desired).map_err(Clone::clone)),
        }
    }

    /// Starts the preview of the loaded candidate, which `make` makes. The counts continue those in the status, from an earlier
    /// process of this pod or from an earlier pod of the same name.
    pub(super) fn preview(&mut self, time: Time, make: impl FnOnce(Arc<DivergenceCounter>) -> Experiment) {
        let before = self.observed.reported.replica.as_ref().and_then(|replica| replica.preview.clone());
        let new = || Arc::new(DivergenceCounter::new(before.unwrap_or_else(|| PreviewReport::new(time))));
        let counter = self.counter.get_or_insert_with(new);
        self.experiment = Some(Arc::new(make(Arc::clone(counter))));
    }

    /// Returns the role of the revision in its policy; `None` if the revision cannot be read.
    pub(super) fn role(&self, slot: Option<&Slot>) -> Option<Role> {
        let revision = self.observed.desired.as_ref().ok()?;
        let is_loaded = slot.is_some_and(|slot| slot.loaded().is_some());
        Some(match &revision.experiment {
            Some(_) => Role::Candidate(self.experiment.clone().filter(|_| is_loaded)),
            None if self.observed.reported.is_live => Role::Live,
            None => Role::Other,
        })
    }

    /// Returns the digests that the leader has pinned.
    pub(super) fn modules(&self) -> impl Iterator<Item = Digest> {
        self.observed.reported.modules.values().copied()
    }

    /// Returns true if this revision is live and another replica serves it.
    pub(super) fn is_live_elsewhere(&self) -> bool {
        self.observed.reported.is_live && self.observed.reported.is_served_by_others
    }

    /// Returns the preview report for the next status update: the current counts, or the last reported counts if the current ones
    /// may not be reported yet.
    pub(super) fn preview_report(&self, now: Instant) -> Option<PreviewReport> {
        match &self.counter {
            Some(counter) if self.preview_due.is_none_or(|due| now >= due) => Some(counter.report()),
            _ => self.observed.reported.replica.as_ref().and_then(|replica| replica.preview.clone()),
        }
    }

    /// Returns the error of the last status update; `None` if it was successful.
    pub(super) fn report_error(&self) -> Option<&str> {
        self.failed_report.as_ref().map(|(_, error, _)| error.as_str())
    }

    /// Returns the status to write now; `None` if the API server has it already, or if an update is running.
    pub(super) fn begin_report(
        &mut self,
        slot: Option<&Slot>,
        replica: &Replica,
        is_leader: bool,
        now: Instant,
        time: Timestamp,
    ) -> Option<Update> {
        let is_early = self.failed_report.as_ref().is_some_and(|(_, _, retry_at)| now < *retry_at);
        if self.is_reporting || is_early {
            return None;
        }
        let preview = self.preview_report(now);
        // A report without counts does not delay the next report.
        let has_new_counts = preview.as_ref().is_some_and(|it| !it.counts.is_empty())
            && preview != self.observed.reported.replica.as_ref().and_then(|it| it.preview.clone());
        let update = Update::of(&self.observed, slot, replica, is_leader, preview, time)?;
        if has_new_counts {
            self.preview_due = Some(now + PREVIEW_REPORT_INTERVAL);
        }
        self.is_reporting = true;
        Some(update)
    }

    /// Takes the result of a status update. Returns true if the table must be published again.
    pub(super) fn take_reported(&mut self, name: &str, result: Result<Reported, kube::Error>, now: Instant) -> bool {
        self.is_reporting = false;
        let before = (self.failed_report.is_some(), self.observed.reported.serving_facts());
        self.failed_report = match result {
            Ok(reported) => {
                if reported.version >= self.observed.reported.version {
                    self.observed.reported = reported;
                }
                None
            }
            Err(error) => {
                tracing::warn!(revision = name, %error, "cannot write the status of the revision; trying again");
                let mut delays =
                    self.failed_report.take().map_or_else(|| REPORT_BACKOFF.build(), |(delays, ..)| delays);
                // The backoff is endless, so `next` always returns a delay.
                let delay = delays.next().unwrap_or_default();
                Some((delays, error.to_string(), now + delay))
            }
        };
        before != (self.failed_report.is_some(), self.observed.reported.serving_facts())
    }
}

#[cfg(test)]
mod tests {
    use super::super::revision::tests::object;
    use super::*;
    use serde_json::{Value, json};

    fn replica() -> Replica {
        Replica {
            policy_server: "default".to_owned(),
            namespace: "proviso".to_owned(),
            pod_name: "default-0".to_owned(),
            pod_uid: "pod".to_owned(),
        }
    }

    /// Returns the observed revision with this `resourceVersion` and status.
    fn observed(version: &str, enabled: bool, status: &Value) -> ObservedRevision {
        let mut object = object(enabled);
        object.metadata.resource_version = Some(version.to_owned());
        object.data["status"] = status.clone();
        ObservedRevision::read(&object, &replica())
    }

    fn failed() -> Slot {
        Slot::new(Err(Failure::new("Unsupported", "spec.a")))
    }

    fn slot(object: &Object) -> Option<Slot> {
        object.desired().map(Slot::new)
    }

    fn report(object: &mut Object, slot: Option<&Slot>) -> Option<Value> {
        let update = object.begin_report(slot, &replica(), true, Instant::now(), Timestamp::UNIX_EPOCH)?;
        Some(json!({"replica": update.replica, "leader": update.leader}))
    }

    #[test]
    fn an_enabled_revision_is_desired_and_known_when_the_leader_prepared_it() {
        let initialized = |status: &str| {
            json!({"conditions": [{"type": "Initialized", "status": status, "reason": "A", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
        };
        let was_prepared = |object: &Object| object.desired().map(|desired| desired.unwrap().was_prepared);
        let mut object = Object::new(observed("1", true, &Value::Null));
        assert_eq!(was_prepared(&object), Some(false));
        assert!(!object.observe(observed("2", true, &initialized("False"))) && was_prepared(&object) == Some(false));
        assert!(object.observe(observed("3", true, &initialized("True"))) && was_prepared(&object) == Some(true));

        // The condition Initialized stays True when a replica, even the leader, cannot load the revision any more.
        let written = report(&mut object, Some(&failed())).unwrap();
        assert!(written["leader"].is_null() && written["replica"]["replicas"][0]["ready"] == "False", "{written}");
        object.observe(observed("4", false, &initialized("True")));
        assert_eq!(was_prepared(&object), None, "it is disabled");
    }

    #[test]
    fn a_live_revision_that_another_replica_serves_is_live_elsewhere() {
        let status = |live: &str, pod: &str, ready: &str| {
            json!({
                "conditions": [{"type": "Live", "status": live, "reason": "A", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "replicas": [{"name": pod, "podUID": "u", "serverVersion": "0", "ready": ready, "reason": "A",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            })
        };
        for (live, pod, ready, is_live_elsewhere) in [
            ("True", "default-1", "True", true),
            ("False", "default-1", "True", false),
            ("True", "default-1", "False", false),
            ("True", "default-0", "True", false),
        ] {
            let object = Object::new(observed("1", true, &status(live, pod, ready)));
            assert_eq!(object.is_live_elsewhere(), is_live_elsewhere, "{live} {pod} {ready}");
        }
    }

    #[test]
    fn a_status_that_the_api_server_has_is_not_written_again() {
        let mut object = Object::new(observed("1", true, &Value::Null));
        let loading = slot(&object);
        assert!(report(&mut object, loading.as_ref()).is_none(), "nothing is known yet");
        let failed = failed();
        let written = report(&mut object, Some(&failed)).unwrap();
        let item = &written["replica"]["replicas"][0];
        assert_eq!(
            (&item["ready"], &item["reason"], &item["podUID"]),
            (&json!("False"), &json!("Unsupported"), &json!("pod"))
        );
        let condition = &written["leader"]["conditions"][0];
        assert_eq!((&condition["status"], &condition["observedGeneration"]), (&json!("False"), &json!(7)));
        assert!(report(&mut object, Some(&failed)).is_none(), "a status update is running");

        let status = json!({"replicas": [item], "conditions": [condition]});
        let response = observed("3", true, &status).reported;
        object.take_reported("a", Ok(response), Instant::now());
        object.observe(observed("2", true, &Value::Null));
        assert!(report(&mut object, Some(&failed)).is_none(), "the watch is older than the response");
        object.observe(observed("4", true, &json!({"replicas": [item]})));
        let written = report(&mut object, Some(&failed)).unwrap();
        assert!(written["replica"].is_null() && !written["leader"].is_null(), "another client removed the condition");
    }

    #[test]
    fn a_restarted_pod_does_not_report_an_unloaded_revision_as_ready() {
        let item = |uid: &str| {
            json!({"replicas": [{"name": "default-0", "podUID": uid, "serverVersion": "0", "ready": "True",
            "reason": "Loaded", "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
        };
        let report = |object: &mut Object| {
            let slot = slot(object);
            report(object, slot.as_ref())
        };
        let mut object = Object::new(observed("1", true, &item("old")));
        assert!(report(&mut object).is_none(), "the item has the uid of an earlier pod");
        let mut object = Object::new(observed("1", true, &item("pod")));
        assert_eq!(
            report(&mut object).unwrap()["replica"]["replicas"][0]["reason"],
            "Loading",
            "this pod was restarted"
        );
        let mut object = Object::new(observed("1", false, &item("old")));
        assert_eq!(report(&mut object).unwrap()["replica"], json!({}), "disabled");
    }

    #[test]
    fn changed_preview_counts_are_reported_at_most_every_ten_seconds() {
        let (mut object, now, failed) = (Object::new(observed("1", true, &Value::Null)), Instant::now(), failed());
        let counter = Arc::new(DivergenceCounter::new(PreviewReport::new(Time(Timestamp::UNIX_EPOCH))));
        object.counter = Some(Arc::clone(&counter));
        let mut version = 1;
        let mut reported = |object: &mut Object, seconds: u64| {
            let now = now + Duration::from_secs(seconds);
            let update = object.begin_report(Some(&failed), &replica(), false, now, Timestamp::UNIX_EPOCH)?;
            let status = update.replica.unwrap();
            version += 1;
            let response = observed(&version.to_string(), true, &status).reported;
            object.take_reported("a", Ok(response), now);
            status["replicas"][0]["preview"]["counts"]["dropped"].as_u64()
        };
        assert_eq!(reported(&mut object, 0), Some(0));
        assert_eq!(reported(&mut object, 1), None, "nothing has changed");
        counter.count_dropped();
        assert_eq!(reported(&mut object, 2), Some(1));
        counter.count_dropped();
        assert_eq!((reported(&mut object, 3), reported(&mut object, 11)), (None, None));
        assert_eq!((reported(&mut object, 12), reported(&mut object, 60)), (Some(2), None));
        // A restarted server of the same pod keeps the counts before it has loaded the candidate.
        let mut successor = Object::new(observed(
            "9",
            true,
            &json!({"replicas": [{
                "name": "default-0", "podUID": "pod", "serverVersion": "0", "ready": "True", "reason": "Loaded",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "preview": object.preview_report(now),
            }]}),
        ));
        let loading = slot(&successor);
        let item = report(&mut successor, loading.as_ref()).unwrap()["replica"]["replicas"][0].take();
        assert_eq!((&item["reason"], &item["preview"]["counts"]["dropped"]), (&json!("Loading"), &json!(2)));
    }

    #[test]
    fn a_failed_status_update_is_tried_again_later() {
        let (mut object, now, failed) = (Object::new(observed("1", true, &Value::Null)), Instant::now(), failed());
        report(&mut object, Some(&failed)).unwrap();
        let error = || Err(kube::Error::LinesCodecMaxLineLengthExceeded);
        assert!(object.take_reported("a", error(), now) && object.report_error().is_some());
        assert!(object.begin_report(Some(&failed), &replica(), true, now, Timestamp::UNIX_EPOCH).is_none());
        let later = now + Duration::from_secs(2);
        assert!(object.begin_report(Some(&failed), &replica(), true, later, Timestamp::UNIX_EPOCH).is_some());
    }
}
