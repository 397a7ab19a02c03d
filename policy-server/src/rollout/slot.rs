//! One policy or experiment on its way: what serves, what is being prepared, what did not work.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use proviso_artifacts::Digest;
use proviso_core::Failure;
use proviso_crds::{PreviewMetadata, PreviewReport, PreviewState};

use crate::folder::Wanted;
use crate::preparations::Backoff;
use crate::preview::{self, Tally};
use crate::state::{DigestText, Record};
use crate::table::{Entry, Revision};

#[derive(Debug)]
pub(super) struct Slot {
    /// Made when the object is first seen.
    pub uid: String,
    pub created: Time,
    /// Of an experiment: how it was started and stopped last.
    pub preview: Option<PreviewMetadata>,
    /// What came of it since then.
    pub tally: Option<Session>,
    /// The generation that was accepted last.
    pub record: Option<Record>,
    /// That generation, loaded.
    pub live: Option<Arc<Revision>>,
    retired: Vec<Retired>,
    /// As the manifest had it when it could be read last.
    pub wanted: Option<Wanted>,
    /// The version that is being prepared.
    pub preparing: Option<Digest>,
    /// Whether the generation that was accepted last is being loaded again.
    pub is_restoring: bool,
    pub failed: Option<Failed>,
    /// Why the generation that was accepted last cannot be loaded again.
    pub lost: Option<Failure>,
}

/// A preview from its start to its stop.
#[derive(Debug)]
pub(super) struct Session {
    started: Time,
    pub generation: u64,
    pub tally: Arc<Tally>,
}

/// The version that did not work last.
#[derive(Debug)]
pub(super) struct Failed {
    fingerprint: Digest,
    failure: Failure,
    attempts: u32,
    /// None where trying again would not help.
    retry_at: Option<Instant>,
}

/// A generation that is not live any more and still answers.
#[derive(Debug)]
struct Retired {
    since: Instant,
    revision: Arc<Revision>,
    modules: BTreeMap<String, DigestText>,
}

/// What a version of a manifest asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It has to be prepared.
    Prepare,
    /// It serves, is being prepared, or has failed; whether taking note of that changed anything.
    Settled { changed: bool },
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            uid: uuid::Uuid::new_v4().to_string(),
            created: Time(Timestamp::now()),
            preview: None,
            tally: None,
            record: None,
            live: None,
            retired: Vec::new(),
            wanted: None,
            preparing: None,
            is_restoring: false,
            failed: None,
            lost: None,
        }
    }
}

impl From<Record> for Slot {
    fn from(record: Record) -> Self {
        let slot = Self::default();
        Self {
            uid: record.uid.clone(),
            created: record.created.clone().unwrap_or_else(|| slot.created.clone()),
            preview: record.preview.clone(),
            record: Some(record),
            ..slot
        }
    }
}

impl Slot {
    /// Takes note of what the manifest has now.
    pub(super) fn want(&mut self, wanted: Wanted, now: Instant) -> Next {
        let fingerprint = wanted.fingerprint;
        if self.fingerprint().is_some_and(|before| before != fingerprint) {
            self.suspend(&wanted);
        }
        self.wanted = Some(wanted);
        if self.preparing == Some(fingerprint) {
            Next::Settled { changed: false }
        } else if self.serves(fingerprint) {
            Next::Settled { changed: self.preparing.take().is_some() | self.failed.take().is_some() }
        } else if self.has_failed(fingerprint) && !self.is_due(now) {
            Next::Settled { changed: self.preparing.take().is_some() }
        } else {
            self.preparing = Some(fingerprint);
            Next::Prepare
        }
    }

    fn serves(&self, fingerprint: Digest) -> bool {
        self.live.is_some() && self.record.as_ref().is_some_and(|record| record.fingerprint == fingerprint)
    }

    fn has_failed(&self, fingerprint: Digest) -> bool {
        self.failed.as_ref().is_some_and(|failed| failed.fingerprint == fingerprint)
    }

    /// Whether a version that failed for a passing reason is to be tried again.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.preparing.is_none()
            && self.failed.as_ref().and_then(|failed| failed.retry_at).is_some_and(|retry_at| now >= retry_at)
    }

    /// What would be recorded, were this version accepted: the same generation after a restart, else the next one. Its
    /// modules are those that it turns out to have.
    pub(super) fn next_record(&self, wanted: &Wanted) -> Record {
        let same = self.record.as_ref().filter(|record| record.fingerprint == wanted.fingerprint);
        Record {
            uid: self.uid.clone(),
            generation: self.generation(wanted.fingerprint),
            created: Some(self.created.clone()),
            updated: same.and_then(|record| record.updated.clone()).or_else(|| Some(Time(Timestamp::now()))),
            preview: None,
            fingerprint: wanted.fingerprint,
            file: wanted.place.file.clone(),
            spec: wanted.spec.clone(),
            experiment: wanted.experiment.clone(),
            modules: BTreeMap::new(),
        }
    }

    /// The generation that this version has, or has once it is accepted.
    pub(super) fn generation(&self, fingerprint: Digest) -> u64 {
        match &self.record {
            Some(record) if record.fingerprint == fingerprint => record.generation,
            Some(record) => record.generation + 1,
            None => 1,
        }
    }

    /// The newest version that could be read.
    pub(super) fn fingerprint(&self) -> Option<Digest> {
        let wanted = self.wanted.as_ref().map(|wanted| wanted.fingerprint);
        wanted.or(self.record.as_ref().map(|record| record.fingerprint))
    }

    /// An update suspends (AIP-236). Where previewing starts by itself, the last good version is previewed until the new
    /// one works, as it goes on serving with a policy.
    fn suspend(&mut self, wanted: &Wanted) {
        let accepted = self.record.as_ref().map_or(0, |record| record.generation);
        let starts_itself = wanted.experiment.as_ref().is_some_and(|experiment| experiment.auto_start);
        let preview = self.preview.take();
        self.preview = preview.map(|preview| {
            let is_pending = u64::try_from(preview.generation).is_ok_and(|generation| generation > accepted);
            if preview.state == PreviewState::Active && (is_pending || !starts_itself) {
                preview.stop(Time(Timestamp::now()))
            } else {
                preview
            }
        });
    }

    /// Whether this generation is previewed.
    pub(super) fn is_active(&self, generation: u64) -> bool {
        let generation = i64::try_from(generation).unwrap_or(i64::MAX);
        self.preview.as_ref().is_some_and(|preview| preview.state(generation) == PreviewState::Active)
    }

    /// Counts anew what is previewed anew. What has stopped keeps its counts until then.
    pub(super) fn follow_preview(&mut self) {
        let (Some(preview), Some(live)) = (&self.preview, &self.live) else { return };
        let is_counted =
            |session: &Session| (&session.started, session.generation) == (&preview.start_time, live.generation);
        if self.is_active(live.generation) && !self.tally.as_ref().is_some_and(is_counted) {
            self.tally = Some(Session {
                started: preview.start_time.clone(),
                generation: live.generation,
                tally: Arc::new(Tally::new(PreviewReport::new(preview::now()))),
            });
        }
    }

    /// Makes a generation the live one; the one before it keeps answering.
    pub(super) fn accept(&mut self, record: Record, revision: Arc<Revision>, now: Instant) {
        let generation = i64::try_from(record.generation).unwrap_or(i64::MAX);
        let starts_itself = record.experiment.as_ref().is_some_and(|experiment| experiment.auto_start);
        if starts_itself && self.preview.as_ref().is_none_or(|preview| preview.generation != generation) {
            self.preview = Some(PreviewMetadata::start(self.preview.as_ref(), generation, Time(Timestamp::now())));
        }
        let old = self.live.replace(revision);
        let old_record = self.record.replace(record);
        if let Some(revision) = old {
            let modules = old_record.map(|record| record.modules).unwrap_or_default();
            self.retired.push(Retired { since: now, revision, modules });
        }
        (self.failed, self.lost) = (None, None);
    }

    /// Takes note that a version does not work; `passing` reasons let it be tried again, less and less often.
    pub(super) fn fail(&mut self, fingerprint: Digest, failure: Failure, passing: bool, now: Instant) {
        let attempts = match &self.failed {
            Some(failed) if failed.fingerprint == fingerprint => failed.attempts + 1,
            _ => 0,
        };
        let retry_at = passing.then(|| now + Backoff::PREPARE.delay(attempts));
        self.failed = Some(Failed { fingerprint, failure, attempts, retry_at });
    }

    /// Forgets generations that are not live since longer than `after`. Returns whether there were any.
    pub(super) fn retire(&mut self, now: Instant, after: Duration) -> bool {
        let before = self.retired.len();
        self.retired.retain(|retired| now.duration_since(retired.since) < after);
        self.retired.len() < before
    }

    /// Whether nothing is being prepared.
    pub(super) fn is_idle(&self) -> bool {
        self.preparing.is_none() && !self.is_restoring
    }

    /// The file that the object was seen in last.
    pub(super) fn file(&self) -> Option<&Path> {
        let wanted = self.wanted.as_ref().map(|wanted| &wanted.place.file);
        wanted.or(self.record.as_ref().map(|record| &record.file)).map(PathBuf::as_path)
    }

    /// Lets the record name the file that the object stands in now. Returns whether that is another one.
    pub(super) fn move_file(&mut self) -> bool {
        match (&mut self.record, &self.wanted) {
            (Some(record), Some(wanted)) if record.file != wanted.place.file => {
                record.file.clone_from(&wanted.place.file);
                true
            }
            _ => false,
        }
    }

    /// Why what is wanted does not serve.
    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failed.as_ref().map(|failed| &failed.failure).or(self.lost.as_ref())
    }

    /// The modules that what serves, served, and is being prepared need.
    pub(super) fn modules(&self) -> impl Iterator<Item = Digest> {
        let recorded = self.record.iter().map(|record| &record.modules);
        let wanted = self.wanted.iter().map(|wanted| &wanted.modules);
        let retired = self.retired.iter().map(|retired| &retired.modules);
        recorded.chain(wanted).chain(retired).flat_map(BTreeMap::values).map(|digest| digest.0)
    }

    pub(super) fn to_entry(&self) -> Entry {
        Entry {
            live: self.live.clone(),
            others: self.retired.iter().map(|retired| Arc::clone(&retired.revision)).collect(),
            experiments: Arc::default(),
            is_preparing: !self.is_idle(),
            failure: self.failure().cloned(),
            ..Entry::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(version: &str) -> Wanted {
        let place = crate::manifests::Place { file: "a.yaml".into(), document: 1, line: 1 };
        let spec = serde_json::json!({"program": {"cel": {"validations": []}}});
        Wanted {
            policy: proviso_core::PolicyId::cluster("a").unwrap(),
            spec: serde_json::from_value(spec).unwrap(),
            experiment: None,
            annotations: BTreeMap::new(),
            place,
            fingerprint: Digest::of(version.as_bytes()),
            modules: BTreeMap::new(),
        }
    }

    #[test]
    fn a_version_that_failed_for_good_is_not_tried_again_until_it_changes() {
        let (mut slot, now) = (Slot::default(), Instant::now());
        assert_eq!(slot.want(wanted("a"), now), Next::Prepare);
        assert_eq!(slot.want(wanted("a"), now), Next::Settled { changed: false }, "it is being prepared");
        slot.preparing = None;
        slot.fail(wanted("a").fingerprint, Failure::new("CompileError", ""), false, now);
        let later = now + Duration::from_hours(1);
        assert!(!slot.is_due(later));
        assert_eq!(slot.want(wanted("a"), later), Next::Settled { changed: false });
        assert_eq!(slot.want(wanted("b"), later), Next::Prepare);
        assert_eq!(slot.want(wanted("a"), later), Next::Settled { changed: true }, "back to what failed");
    }

    #[test]
    fn a_version_that_failed_in_passing_is_tried_again_less_and_less_often() {
        let (mut slot, mut now) = (Slot::default(), Instant::now());
        let mut delays = Vec::new();
        for _ in 0..8 {
            assert_eq!(slot.want(wanted("a"), now), Next::Prepare);
            slot.preparing = None;
            slot.fail(wanted("a").fingerprint, Failure::new("CompileTimeout", ""), true, now);
            let due = (0..400).find(|seconds| slot.is_due(now + Duration::from_secs(*seconds))).unwrap();
            delays.push(due);
            now += Duration::from_secs(due);
        }
        assert_eq!(delays, [5, 10, 20, 40, 80, 160, 300, 300]);
    }
}
