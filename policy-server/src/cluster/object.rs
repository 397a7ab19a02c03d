//! A `PolicyRevision` as this replica follows it: the object as it was observed last, the preview of a candidate, and the status
//! that is still to be written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_artifacts::Digest;
use proviso_core::Failure;
use proviso_crds::PreviewReport;

use super::reported::Reported;
use super::revision::{Seen, Wanted};
use super::status::Update;
use crate::config::Replica;
use crate::lifecycle::{Desired, ModuleSource, Role, Scope, Slot};
use crate::preview::Tally;
use crate::table::Experiment;

/// The shortest time between two reports of a preview.
const PREVIEW_EVERY: Duration = Duration::from_secs(10);
/// The delays before a status is written again that the API server did not take.
const REPORT_AGAIN: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(1))
    .with_max_delay(Duration::from_mins(1))
    .without_max_times()
    .with_jitter();

#[derive(Debug)]
pub(super) struct Object {
    pub seen: Seen,
    /// The preview of a candidate, while it is loaded.
    experiment: Option<Arc<Experiment>>,
    /// The counts of a candidate since it was made, however often it was loaded.
    tally: Option<Arc<Tally>>,
    /// When the counts may be reported again.
    preview_due: Option<Instant>,
    is_reporting: bool,
    /// The delays of reports that fail in a row, the error of the last, and when the next may start.
    unreported: Option<(ExponentialBackoff, String, Instant)>,
}

impl Object {
    pub(super) fn new(seen: Seen) -> Self {
        Self { seen, experiment: None, tally: None, preview_due: None, is_reporting: false, unreported: None }
    }

    /// Takes over a newer state of the same object. Returns whether its status says something else about who serves the revision.
    pub(super) fn see(&mut self, seen: Seen) -> bool {
        let old = std::mem::replace(&mut self.seen, seen);
        let stage = old.reported.stage();
        if old.reported.version > self.seen.reported.version {
            // The answer to a report is ahead of the watch.
            self.seen.reported = old.reported;
        }
        stage != self.seen.reported.stage()
    }

    /// The revision, or why it cannot be read; `None` if it is disabled.
    pub(super) fn desired(&self) -> Option<Result<Desired, Failure>> {
        let reported = &self.seen.reported;
        let desired = |wanted: &Wanted| Desired {
            policy: wanted.policy.clone(),
            experiment: wanted.experiment.clone(),
            uid: wanted.origin_uid.clone(),
            generation: wanted.generation,
            spec: Arc::clone(&wanted.spec),
            scope: Scope::POLICY,
            place: None,
            modules: ModuleSource::Network(reported.modules.clone()),
            is_known: reported.is_initialized(),
        };
        match &self.seen.wanted {
            Ok(wanted) if !wanted.is_enabled => None,
            wanted => Some(wanted.as_ref().map(desired).map_err(Clone::clone)),
        }
    }

    /// Previews the loaded candidate from now on: `make` makes the preview. The counts of an earlier server, in this pod or in
    /// one of its name, go on.
    pub(super) fn preview(&mut self, time: Time, make: impl FnOnce(Arc<Tally>) -> Experiment) {
        let before = self.seen.reported.replica.as_ref().and_then(|replica| replica.preview.clone());
        let new = || Arc::new(Tally::new(before.unwrap_or_else(|| PreviewReport::new(time))));
        let tally = self.tally.get_or_insert_with(new);
        self.experiment = Some(Arc::new(make(Arc::clone(tally))));
    }

    /// The part of the revision in its policy; `None` if it cannot be read.
    pub(super) fn role(&self, slot: Option<&Slot>) -> Option<Role> {
        let wanted = self.seen.wanted.as_ref().ok()?;
        let is_loaded = slot.is_some_and(|slot| slot.loaded().is_some());
        Some(match &wanted.experiment {
            Some(_) => Role::Candidate(self.experiment.clone().filter(|_| is_loaded)),
            None if self.seen.reported.is_live => Role::Live,
            None => Role::Other,
        })
    }

    /// The digests that the leader has pinned.
    pub(super) fn modules(&self) -> impl Iterator<Item = Digest> {
        self.seen.reported.modules.values().copied()
    }

    /// Whether requests are decided by this revision, and other replicas serve it.
    pub(super) fn is_missed(&self) -> bool {
        self.seen.reported.is_live && self.seen.reported.is_served_by_others
    }

    /// The preview report of the status to write: the counts now, if they may be reported again, else those of the last report.
    pub(super) fn preview_report(&self, now: Instant) -> Option<PreviewReport> {
        match &self.tally {
            Some(tally) if self.preview_due.is_none_or(|due| now >= due) => Some(tally.report()),
            _ => self.seen.reported.replica.as_ref().and_then(|replica| replica.preview.clone()),
        }
    }

    /// The error of the last status update.
    pub(super) fn report_trouble(&self) -> Option<&str> {
        self.unreported.as_ref().map(|(_, error, _)| error.as_str())
    }

    /// The status to write now; `None` if the API server has it already, or an update is under way.
    pub(super) fn begin_report(
        &mut self,
        slot: Option<&Slot>,
        replica: &Replica,
        is_leader: bool,
        now: Instant,
        time: Timestamp,
    ) -> Option<Update> {
        let is_early = self.unreported.as_ref().is_some_and(|(_, _, not_before)| now < *not_before);
        if self.is_reporting || is_early {
            return None;
        }
        let preview = self.preview_report(now);
        // A report without counts delays no later one.
        let is_news = preview.as_ref().is_some_and(|it| !it.counts.is_empty())
            && preview != self.seen.reported.replica.as_ref().and_then(|it| it.preview.clone());
        let update = Update::of(&self.seen, slot, replica, is_leader, preview, time)?;
        if is_news {
            self.preview_due = Some(now + PREVIEW_EVERY);
        }
        self.is_reporting = true;
        Some(update)
    }

    /// Takes the result of a status update. Returns whether there is anything new to publish.
    pub(super) fn take_reported(&mut self, name: &str, result: Result<Reported, kube::Error>, now: Instant) -> bool {
        self.is_reporting = false;
        let before = (self.unreported.is_some(), self.seen.reported.stage());
        self.unreported = match result {
            Ok(reported) => {
                if reported.version >= self.seen.reported.version {
                    self.seen.reported = reported;
                }
                None
            }
            Err(error) => {
                tracing::warn!(revision = name, %error, "its status cannot be written; trying again");
                let mut delays = self.unreported.take().map_or_else(|| REPORT_AGAIN.build(), |(delays, ..)| delays);
                // The delays have no end.
                let delay = delays.next().unwrap_or_default();
                Some((delays, error.to_string(), now + delay))
            }
        };
        before != (self.unreported.is_some(), self.seen.reported.stage())
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

    /// The revision as it is seen, its status at this version.
    fn seen(version: &str, enabled: bool, status: &Value) -> Seen {
        let mut object = object(enabled);
        object.metadata.resource_version = Some(version.to_owned());
        object.data["status"] = status.clone();
        Seen::read(&object, &replica())
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
    fn a_revision_is_desired_while_it_is_enabled_and_known_once_the_leader_has_prepared_it() {
        let initialized = |status: &str| {
            json!({"conditions": [{"type": "Initialized", "status": status, "reason": "A", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
        };
        let is_known = |object: &Object| object.desired().map(|desired| desired.unwrap().is_known);
        let mut object = Object::new(seen("1", true, &Value::Null));
        assert_eq!(is_known(&object), Some(false));
        assert!(!object.see(seen("2", true, &initialized("False"))) && is_known(&object) == Some(false));
        assert!(object.see(seen("3", true, &initialized("True"))) && is_known(&object) == Some(true));

        // The leader's condition stays true when a replica, be it the leader's, cannot load the revision any more.
        let written = report(&mut object, Some(&failed())).unwrap();
        assert!(written["leader"].is_null() && written["replica"]["replicas"][0]["ready"] == "False", "{written}");
        object.see(seen("4", false, &initialized("True")));
        assert_eq!(is_known(&object), None, "it is disabled");
    }

    #[test]
    fn what_is_live_and_served_elsewhere_is_missed_here() {
        let status = |live: &str, pod: &str, ready: &str| {
            json!({
                "conditions": [{"type": "Live", "status": live, "reason": "A", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "replicas": [{"name": pod, "podUID": "u", "serverVersion": "0", "ready": ready, "reason": "A",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            })
        };
        for (live, pod, ready, is_missed) in [
            ("True", "default-1", "True", true),
            ("False", "default-1", "True", false),
            ("True", "default-1", "False", false),
            ("True", "default-0", "True", false),
        ] {
            let object = Object::new(seen("1", true, &status(live, pod, ready)));
            assert_eq!(object.is_missed(), is_missed, "{live} {pod} {ready}");
        }
    }

    #[test]
    fn only_what_the_api_server_does_not_know_is_written() {
        let mut object = Object::new(seen("1", true, &Value::Null));
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
        assert!(report(&mut object, Some(&failed)).is_none(), "a report is under way");

        let status = json!({"replicas": [item], "conditions": [condition]});
        let answer = seen("3", true, &status).reported;
        object.take_reported("a", Ok(answer), Instant::now());
        object.see(seen("2", true, &Value::Null));
        assert!(report(&mut object, Some(&failed)).is_none(), "the watch is older than the answer");
        object.see(seen("4", true, &json!({"replicas": [item]})));
        let written = report(&mut object, Some(&failed)).unwrap();
        assert!(written["replica"].is_null() && !written["leader"].is_null(), "somebody took the condition away");
    }

    #[test]
    fn the_item_of_an_earlier_pod_is_replaced_and_a_revision_that_is_not_loaded_is_not_claimed() {
        let item = |uid: &str| {
            json!({"replicas": [{"name": "default-0", "podUID": uid, "serverVersion": "0", "ready": "True",
            "reason": "Loaded", "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
        };
        let report = |object: &mut Object| {
            let slot = slot(object);
            report(object, slot.as_ref())
        };
        let mut object = Object::new(seen("1", true, &item("old")));
        assert!(report(&mut object).is_none(), "nobody takes it for ours");
        let mut object = Object::new(seen("1", true, &item("pod")));
        assert_eq!(
            report(&mut object).unwrap()["replica"]["replicas"][0]["reason"],
            "Loading",
            "this pod was restarted"
        );
        let mut object = Object::new(seen("1", false, &item("old")));
        assert_eq!(report(&mut object).unwrap()["replica"], json!({}), "disabled");
    }

    #[test]
    fn the_counts_of_a_preview_are_reported_when_they_change_and_every_ten_seconds_at_most() {
        let (mut object, now, failed) = (Object::new(seen("1", true, &Value::Null)), Instant::now(), failed());
        let tally = Arc::new(Tally::new(PreviewReport::new(Time(Timestamp::UNIX_EPOCH))));
        object.tally = Some(Arc::clone(&tally));
        let mut version = 1;
        let mut reported = |object: &mut Object, seconds: u64| {
            let now = now + Duration::from_secs(seconds);
            let update = object.begin_report(Some(&failed), &replica(), false, now, Timestamp::UNIX_EPOCH)?;
            let status = update.replica.unwrap();
            version += 1;
            let answer = seen(&version.to_string(), true, &status).reported;
            object.take_reported("a", Ok(answer), now);
            status["replicas"][0]["preview"]["counts"]["dropped"].as_u64()
        };
        assert_eq!(reported(&mut object, 0), Some(0));
        assert_eq!(reported(&mut object, 1), None, "nothing has changed");
        tally.drop_one();
        assert_eq!(reported(&mut object, 2), Some(1));
        tally.drop_one();
        assert_eq!((reported(&mut object, 3), reported(&mut object, 11)), (None, None));
        assert_eq!((reported(&mut object, 12), reported(&mut object, 60)), (Some(2), None));
        // A later server of the same pod that has loaded nothing yet keeps the counts.
        let mut successor = Object::new(seen(
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
    fn a_report_that_fails_is_tried_again_later() {
        let (mut object, now, failed) = (Object::new(seen("1", true, &Value::Null)), Instant::now(), failed());
        report(&mut object, Some(&failed)).unwrap();
        let error = || Err(kube::Error::LinesCodecMaxLineLengthExceeded);
        assert!(object.take_reported("a", error(), now) && object.report_trouble().is_some());
        assert!(object.begin_report(Some(&failed), &replica(), true, now, Timestamp::UNIX_EPOCH).is_none());
        let later = now + Duration::from_secs(2);
        assert!(object.begin_report(Some(&failed), &replica(), true, later, Timestamp::UNIX_EPOCH).is_some());
    }
}
