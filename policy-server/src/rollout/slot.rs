//! One policy or experiment on its way: what serves, what is being prepared, what did not work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proviso_artifacts::Digest;

use crate::folder::Wanted;
use crate::state::Record;
use crate::table::{Entry, Revision};

#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The generation that was accepted last.
    pub record: Option<Record>,
    /// That generation, loaded.
    pub live: Option<Arc<Revision>>,
    /// Since when older generations are not live any more.
    retired: Vec<(Instant, Arc<Revision>)>,
    /// The version that is being prepared.
    pub candidate: Option<Wanted>,
    /// The fingerprint of the record, while it is being loaded again.
    pub restoring: Option<Digest>,
    /// The version that did not work last, and why.
    pub failed: Option<(Digest, String)>,
}

impl From<Record> for Slot {
    fn from(record: Record) -> Self {
        Self { record: Some(record), ..Self::default() }
    }
}

impl Slot {
    /// Whether this version has to be prepared.
    pub(super) fn wants(&self, fingerprint: Digest) -> bool {
        let is_candidate = self.candidate.as_ref().is_some_and(|wanted| wanted.fingerprint == fingerprint);
        !(self.serves(fingerprint) || is_candidate || self.has_failed(fingerprint))
    }

    /// Takes note that the manifest is back at a version that needs no preparation. Returns whether that changes
    /// anything.
    pub(super) fn settle(&mut self, fingerprint: Digest) -> bool {
        if self.serves(fingerprint) {
            self.candidate.take().is_some() | self.failed.take().is_some()
        } else {
            self.has_failed(fingerprint) && self.candidate.take().is_some()
        }
    }

    fn serves(&self, fingerprint: Digest) -> bool {
        self.live.is_some() && self.record.as_ref().is_some_and(|record| record.fingerprint == fingerprint)
    }

    fn has_failed(&self, fingerprint: Digest) -> bool {
        self.failed.as_ref().is_some_and(|(failed, _)| *failed == fingerprint)
    }

    /// What would be recorded, were this version accepted: the same generation after a restart, else the next one.
    pub(super) fn next_record(&self, wanted: &Wanted) -> Record {
        let (uid, generation) = match &self.record {
            Some(record) if record.fingerprint == wanted.fingerprint => (record.uid.clone(), record.generation),
            Some(record) => (record.uid.clone(), record.generation + 1),
            None => (uuid::Uuid::new_v4().to_string(), 1),
        };
        Record {
            uid,
            generation,
            fingerprint: wanted.fingerprint,
            file: wanted.place.file.clone(),
            spec: wanted.spec.clone(),
            experiment: wanted.experiment.clone(),
            modules: wanted.modules.clone(),
        }
    }

    /// Makes a generation the live one; the one before it keeps answering.
    pub(super) fn accept(&mut self, record: Record, revision: Arc<Revision>, now: Instant) {
        if let Some(old) = self.live.replace(revision) {
            self.retired.push((now, old));
        }
        self.record = Some(record);
        self.failed = None;
    }

    /// Forgets generations that are not live since longer than `after`. Returns whether there were any.
    pub(super) fn retire(&mut self, now: Instant, after: Duration) -> bool {
        let before = self.retired.len();
        self.retired.retain(|(since, _)| now.duration_since(*since) < after);
        self.retired.len() < before
    }

    /// Whether nothing is being prepared.
    pub(super) fn is_idle(&self) -> bool {
        self.candidate.is_none() && self.restoring.is_none()
    }

    /// Whether its first version is still being prepared.
    pub(super) fn is_new(&self) -> bool {
        self.live.is_none() && self.failed.is_none()
    }

    /// The modules that what serves and what is being prepared need.
    pub(super) fn modules(&self) -> impl Iterator<Item = Digest> {
        let recorded = self.record.iter().flat_map(|record| record.modules.values());
        let wanted = self.candidate.iter().flat_map(|wanted| wanted.modules.values());
        recorded.chain(wanted).map(|digest| digest.0)
    }

    pub(super) fn to_entry(&self) -> Entry {
        Entry {
            live: self.live.clone(),
            retired: self.retired.iter().map(|(_, revision)| Arc::clone(revision)).collect(),
            experiments: Arc::default(),
            trouble: self.failed.as_ref().map(|(_, trouble)| trouble.clone()),
        }
    }
}
