//! One revision on its way: what is asked for, what came of it, and what was said about it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proviso_artifacts::Digest;
use proviso_core::Failure;
use proviso_crds::PreviewReport;

use super::revision::{Seen, Wanted};
use super::status::{Reported, Update};
use crate::config::Replica;
use crate::preparations::Backoff;
use crate::prepare::PrepareError;
use crate::preview::Tally;
use crate::table::{Experiment, Revision, Standing};

/// How often what came of a preview is reported at most.
const PREVIEW_EVERY: Duration = Duration::from_secs(10);
/// Of reports that the API server did not take.
const REPORT: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_mins(1) };

#[derive(Debug)]
pub(super) struct Slot {
    pub seen: Seen,
    /// The number of the preparation under way.
    preparing: Option<u64>,
    outcome: Option<Outcome>,
    /// Preparations that failed.
    attempts: u32,
    /// Of a candidate: what is previewed, while it is loaded.
    experiment: Option<Arc<Experiment>>,
    /// Of a candidate: what came of it since it was made, however often it was loaded.
    tally: Option<Arc<Tally>>,
    /// When what came of it may be reported again.
    preview_due: Option<Instant>,
    is_reporting: bool,
    /// Reports that failed in a row, why the last did, and when the next may start.
    unreported: Option<(u32, String, Instant)>,
}

/// What came of the last preparation.
#[derive(Debug)]
pub(super) enum Outcome {
    Loaded {
        revision: Arc<Revision>,
        /// The digests of its modules, by their references.
        modules: BTreeMap<String, Digest>,
    },
    Failed {
        failure: Failure,
        /// None where trying again would not help.
        retry_at: Option<Instant>,
    },
}

impl Slot {
    pub(super) fn new(seen: Seen) -> Self {
        Self {
            seen,
            preparing: None,
            outcome: None,
            attempts: 0,
            experiment: None,
            tally: None,
            preview_due: None,
            is_reporting: false,
            unreported: None,
        }
    }

    /// Takes note of what the object is now. Returns whether that makes a difference to what is served.
    pub(super) fn see(&mut self, seen: Seen) -> bool {
        let is_same_object = self.seen.uid == seen.uid;
        let is_same = is_same_object && self.seen.wanted == seen.wanted;
        let stage = self.seen.reported.stage();
        let old = std::mem::replace(&mut self.seen, seen);
        if !is_same_object {
            (self.is_reporting, self.unreported) = (false, None);
            (self.tally, self.preview_due) = (None, None);
        } else if old.reported.version > self.seen.reported.version {
            // The answer to a report is ahead of the watch.
            self.seen.reported = old.reported;
        }
        if !is_same {
            (self.preparing, self.outcome, self.attempts) = (None, None, 0);
            self.experiment = None;
        }
        !is_same || stage != self.seen.reported.stage()
    }

    /// What it asks for, if it is to be served.
    fn enabled(&self) -> Option<&Wanted> {
        self.seen.wanted.as_ref().ok().filter(|wanted| wanted.is_enabled)
    }

    /// What is to be prepared now, under this number. What was not prepared for all is for the leader alone.
    pub(super) fn begin(&mut self, ticket: u64, is_leader: bool, now: Instant) -> Option<&Wanted> {
        let is_due = match &self.outcome {
            None => true,
            Some(Outcome::Failed { retry_at: Some(retry_at), .. }) => now >= *retry_at,
            Some(_) => false,
        };
        let is_ours = is_leader || self.seen.reported.is_initialized();
        if !is_due || !is_ours || self.preparing.is_some() || self.enabled().is_none() {
            return None;
        }
        self.preparing = Some(ticket);
        self.enabled()
    }

    /// The preparation of this number ended: what it was about, if that is still asked for.
    pub(super) fn end(&mut self, ticket: u64) -> Option<Wanted> {
        self.preparing.take_if(|preparing| *preparing == ticket)?;
        self.enabled().cloned()
    }

    /// What was loaded for it is previewed from now on: it is the one that `make` makes. What a server before this one, in
    /// this pod or one of its name, has counted goes on.
    pub(super) fn preview(&mut self, time: Time, make: impl FnOnce(Arc<Revision>, Arc<Tally>) -> Experiment) {
        let Some(Outcome::Loaded { revision, .. }) = &self.outcome else { return };
        let before = self.seen.reported.replica.as_ref().and_then(|replica| replica.preview.clone());
        let new = || Arc::new(Tally::new(before.unwrap_or_else(|| PreviewReport::new(time))));
        let tally = self.tally.get_or_insert_with(new);
        self.experiment = Some(Arc::new(make(Arc::clone(revision), Arc::clone(tally))));
    }

    pub(super) fn experiment(&self) -> Option<&Arc<Experiment>> {
        self.experiment.as_ref()
    }

    /// What came of the preview, if that is to be told now; else what was told.
    pub(super) fn preview_report(&self, now: Instant) -> Option<PreviewReport> {
        match &self.tally {
            Some(tally) if self.preview_due.is_none_or(|due| now >= due) => Some(tally.report()),
            _ => self.seen.reported.replica.as_ref().and_then(|replica| replica.preview.clone()),
        }
    }

    pub(super) fn settle(&mut self, result: Result<(Revision, BTreeMap<String, Digest>), PrepareError>, now: Instant) {
        self.outcome = Some(match result {
            Ok((revision, modules)) => Outcome::Loaded { revision: Arc::new(revision), modules },
            Err(error) => {
                let retry_at = error.is_passing().then(|| now + Backoff::PREPARE.delay(self.attempts));
                self.attempts += 1;
                Outcome::Failed { failure: error.to_failure(), retry_at }
            }
        });
    }

    /// The modules that it consists of: what the leader has pinned, and what is loaded here.
    pub(super) fn modules(&self) -> impl Iterator<Item = Digest> {
        let loaded = match &self.outcome {
            Some(Outcome::Loaded { modules, .. }) => Some(modules),
            _ => None,
        };
        self.seen.reported.modules.values().chain(loaded.into_iter().flat_map(BTreeMap::values)).copied()
    }

    pub(super) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Whether there is nothing to wait for: what the leader has not prepared cannot be live, nor can an experiment.
    pub(super) fn is_tried(&self) -> bool {
        self.enabled().is_none_or(|wanted| wanted.experiment.is_some())
            || self.outcome.is_some()
            || !self.seen.reported.is_initialized()
    }

    /// Whether requests are decided by this revision, and other replicas serve it.
    pub(super) fn is_missed(&self) -> bool {
        self.seen.reported.is_live && self.seen.reported.is_served_by_others
    }

    pub(super) fn standing(&self) -> Standing {
        match (&self.seen.wanted, &self.outcome) {
            (Err(failure), _) | (Ok(_), Some(Outcome::Failed { failure, .. })) => Standing::Failed(failure.clone()),
            (Ok(wanted), _) if !wanted.is_enabled => Standing::Disabled,
            (Ok(_), None) if self.preparing.is_none() && !self.seen.reported.is_initialized() => Standing::Waiting,
            (Ok(_), None) => Standing::Loading,
            (Ok(_), Some(Outcome::Loaded { .. })) => Standing::Loaded,
        }
    }

    /// Why what is to be said about it cannot be said.
    pub(super) fn report_trouble(&self) -> Option<&str> {
        self.unreported.as_ref().map(|(_, error, _)| error.as_str())
    }

    /// What is to be written now, if anything is and nothing is being written.
    pub(super) fn begin_report(
        &mut self,
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
        // That nothing was counted yet puts nothing off.
        let is_news = preview.as_ref().is_some_and(|it| !it.counts.is_empty())
            && preview != self.seen.reported.replica.as_ref().and_then(|it| it.preview.clone());
        let update = Update::of(self, replica, is_leader, preview, time)?;
        if is_news {
            self.preview_due = Some(now + PREVIEW_EVERY);
        }
        self.is_reporting = true;
        Some(update)
    }

    /// Takes note of how a report ended. Returns whether there is anything new to tell or to serve.
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
                let more = self.unreported.take().map_or(0, |(failed, ..)| failed + 1);
                Some((more, error.to_string(), now + REPORT.delay(more)))
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

    fn fail(slot: &mut Slot, ticket: u64, error: PrepareError, now: Instant) {
        assert!(slot.begin(ticket, true, now).is_some());
        assert!(slot.end(ticket).is_some());
        slot.settle(Err(error), now);
    }

    fn report(slot: &mut Slot) -> Option<Value> {
        let update = slot.begin_report(&replica(), true, Instant::now(), Timestamp::UNIX_EPOCH)?;
        Some(json!({"replica": update.replica, "leader": update.leader}))
    }

    #[test]
    fn a_result_that_comes_too_late_does_not_count() {
        let (mut slot, now) = (Slot::new(seen("1", true, &Value::Null)), Instant::now());
        assert!(slot.begin(1, true, now).is_some() && slot.begin(2, true, now).is_none(), "one at a time");
        assert!(slot.see(seen("2", false, &Value::Null)) && slot.is_tried(), "it is disabled");
        assert!(slot.see(seen("3", true, &Value::Null)) && slot.begin(2, true, now).is_some());
        assert!(slot.end(1).is_none() && slot.end(2).is_some());
    }

    #[test]
    fn what_was_not_prepared_for_all_is_for_the_leader() {
        let initialized = |status: &str| {
            json!({"conditions": [{"type": "Initialized", "status": status, "reason": "A", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
        };
        let (mut slot, now) = (Slot::new(seen("1", true, &Value::Null)), Instant::now());
        assert!(slot.begin(1, false, now).is_none() && slot.is_tried(), "nobody waits for it");
        assert!(matches!(slot.standing(), Standing::Waiting));
        assert!(!slot.see(seen("2", true, &initialized("False"))) && slot.begin(1, false, now).is_none());
        assert!(slot.see(seen("3", true, &initialized("True"))) && !slot.is_tried());
        assert!(slot.begin(1, false, now).is_some() && matches!(slot.standing(), Standing::Loading));

        // That one replica cannot load what was prepared does not make it unprepared.
        assert!(slot.end(1).is_some());
        slot.settle(Err(PrepareError::Unsupported(String::new())), now);
        let written = report(&mut slot).unwrap();
        assert!(written["leader"].is_null() && written["replica"]["replicas"][0]["ready"] == "False", "{written}");
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
            let slot = Slot::new(seen("1", true, &status(live, pod, ready)));
            assert_eq!(slot.is_missed(), is_missed, "{live} {pod} {ready}");
        }
    }

    #[test]
    fn what_failed_in_passing_is_tried_again_and_nothing_else_is() {
        let (mut slot, now) = (Slot::new(seen("1", true, &Value::Null)), Instant::now());
        fail(&mut slot, 1, PrepareError::Stopped(String::new()), now);
        assert!(slot.begin(2, true, now + Duration::from_secs(4)).is_none() && slot.is_tried());
        fail(&mut slot, 2, PrepareError::Stopped(String::new()), now + Duration::from_secs(5));
        assert!(slot.begin(3, true, now + Duration::from_secs(14)).is_none());
        fail(&mut slot, 3, PrepareError::Unsupported(String::new()), now + Duration::from_secs(15));
        assert!(slot.begin(4, true, now + Duration::from_hours(1)).is_none());
    }

    #[test]
    fn only_what_the_api_server_does_not_know_is_written() {
        let mut slot = Slot::new(seen("1", true, &Value::Null));
        assert!(report(&mut slot).is_none(), "nothing is known yet");
        fail(&mut slot, 1, PrepareError::Unsupported("spec.a".to_owned()), Instant::now());
        let written = report(&mut slot).unwrap();
        let item = &written["replica"]["replicas"][0];
        assert_eq!(
            (&item["ready"], &item["reason"], &item["podUID"]),
            (&json!("False"), &json!("Unsupported"), &json!("pod"))
        );
        let condition = &written["leader"]["conditions"][0];
        assert_eq!((&condition["status"], &condition["observedGeneration"]), (&json!("False"), &json!(7)));
        assert!(report(&mut slot).is_none(), "a report is under way");

        let status = json!({"replicas": [item], "conditions": [condition]});
        let answer = seen("3", true, &status).reported;
        slot.take_reported("a", Ok(answer), Instant::now());
        slot.see(seen("2", true, &Value::Null));
        assert!(report(&mut slot).is_none(), "what the watch brings is older than the answer");
        slot.see(seen("4", true, &json!({"replicas": [item]})));
        let written = report(&mut slot).unwrap();
        assert!(written["replica"].is_null() && !written["leader"].is_null(), "somebody took the condition away");
    }

    #[test]
    fn what_a_predecessor_said_is_replaced_and_what_is_not_served_is_not_claimed() {
        let item = |uid: &str| {
            json!({"replicas": [{"name": "default-0", "podUID": uid, "serverVersion": "0", "ready": "True",
            "reason": "Loaded", "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
        };
        let mut slot = Slot::new(seen("1", true, &item("old")));
        assert!(report(&mut slot).is_none(), "nobody takes it for ours");
        let mut slot = Slot::new(seen("1", true, &item("pod")));
        assert_eq!(report(&mut slot).unwrap()["replica"]["replicas"][0]["reason"], "Loading", "this pod was restarted");
        let mut slot = Slot::new(seen("1", false, &item("old")));
        assert_eq!(report(&mut slot).unwrap()["replica"], json!({}), "disabled");
    }

    #[test]
    fn what_came_of_a_preview_is_told_when_it_changed_and_every_ten_seconds_at_most() {
        let (mut slot, now) = (Slot::new(seen("1", true, &Value::Null)), Instant::now());
        fail(&mut slot, 1, PrepareError::Unsupported("spec.a".to_owned()), now);
        let tally = Arc::new(Tally::new(PreviewReport::new(Time(Timestamp::UNIX_EPOCH))));
        slot.tally = Some(Arc::clone(&tally));
        let mut version = 1;
        let mut told = |slot: &mut Slot, seconds: u64| {
            let now = now + Duration::from_secs(seconds);
            let update = slot.begin_report(&replica(), false, now, Timestamp::UNIX_EPOCH)?;
            let status = update.replica.unwrap();
            version += 1;
            let answer = seen(&version.to_string(), true, &status).reported;
            slot.take_reported("a", Ok(answer), now);
            status["replicas"][0]["preview"]["counts"]["dropped"].as_u64()
        };
        assert_eq!(told(&mut slot, 0), Some(0));
        assert_eq!(told(&mut slot, 1), None, "nothing has changed");
        tally.drop_one();
        assert_eq!(told(&mut slot, 2), Some(1));
        tally.drop_one();
        assert_eq!((told(&mut slot, 3), told(&mut slot, 11)), (None, None));
        assert_eq!((told(&mut slot, 12), told(&mut slot, 60)), (Some(2), None));
        // Who comes after it and has loaded nothing yet takes none of that away.
        let mut successor = Slot::new(seen(
            "9",
            true,
            &json!({"replicas": [{
                "name": "default-0", "podUID": "pod", "serverVersion": "0", "ready": "True", "reason": "Loaded",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "preview": slot.preview_report(now),
            }]}),
        ));
        let item = report(&mut successor).unwrap()["replica"]["replicas"][0].take();
        assert_eq!((&item["reason"], &item["preview"]["counts"]["dropped"]), (&json!("Loading"), &json!(2)));
    }

    #[test]
    fn a_report_that_fails_is_tried_again_later() {
        let (mut slot, now) = (Slot::new(seen("1", true, &Value::Null)), Instant::now());
        fail(&mut slot, 1, PrepareError::Unsupported("spec.a".to_owned()), now);
        report(&mut slot).unwrap();
        let failed = || Err(kube::Error::LinesCodecMaxLineLengthExceeded);
        assert!(slot.take_reported("a", failed(), now) && slot.report_trouble().is_some());
        assert!(slot.begin_report(&replica(), true, now, Timestamp::UNIX_EPOCH).is_none());
        let later = now + Duration::from_secs(1);
        assert!(slot.begin_report(&replica(), true, later, Timestamp::UNIX_EPOCH).is_some());
    }
}
