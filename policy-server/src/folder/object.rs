//! A policy or an experiment of the folder: the version in its manifest, the last accepted generation, and the replaced
//! generations that still answer.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use proviso_artifacts::Digest;
use proviso_core::{Failure, PolicyId};

use super::preview::ExperimentPreview;
use super::scan::DesiredVersion;
use crate::lifecycle::prepare::PrepareError;
use crate::lifecycle::{Desired, Loaded, ModuleSource, Scope, Slot};
use crate::manifests::{ExperimentId, ObjectId};
use crate::state::{DigestText, ExperimentRecord, NewObject, Record};

/// A version of an object, with the generation that it has or will have when it is accepted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RevisionKey {
    pub object: ObjectId,
    pub generation: u64,
    /// The digest of the version. Two versions that were never accepted may share a generation.
    pub fingerprint: Digest,
}

impl fmt::Display for RevisionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} generation {}", self.object, self.generation)
    }
}

#[derive(Debug)]
pub(super) struct Object {
    id: ObjectId,
    /// The uid, generated when the object is first seen.
    pub uid: String,
    pub created: Time,
    /// The preview of an experiment. Nothing is previewed for a policy.
    pub preview: ExperimentPreview,
    /// The last accepted generation.
    pub record: Option<Record>,
    /// The version in the manifest when the manifest was readable last.
    pub manifest: Option<DesiredVersion>,
    retired: Vec<Retired>,
    /// The revisions that are desired now.
    desired: Vec<RevisionKey>,
}

/// A replaced generation that still answers.
#[derive(Debug)]
struct Retired {
    since: Instant,
    key: RevisionKey,
    record: Record,
}

impl Object {
    pub(super) fn new(id: ObjectId) -> Self {
        Self {
            id,
            uid: uuid::Uuid::new_v4().to_string(),
            created: Time(Timestamp::now()),
            preview: ExperimentPreview::default(),
            record: None,
            manifest: None,
            retired: Vec::new(),
            desired: Vec::new(),
        }
    }

    /// Restores the object from its record after a restart.
    pub(super) fn restore(id: ObjectId, record: Record) -> Self {
        let new = Self::new(id);
        Self {
            uid: record.uid.clone(),
            created: record.created.clone().unwrap_or_else(|| new.created.clone()),
            preview: ExperimentPreview::restore(record.preview.clone(), record.previewed_start_time.clone()),
            record: Some(record),
            ..new
        }
    }

    /// Restores an object of which no version was accepted before the restart.
    pub(super) fn restore_new(id: ObjectId, NewObject { uid, created }: NewObject) -> Self {
        Self { uid, created, ..Self::new(id) }
    }

    fn key(&self, generation: u64, fingerprint: Digest) -> RevisionKey {
        RevisionKey { object: self.id.clone(), generation, fingerprint }
    }

    /// Returns the key of the last accepted generation.
    pub(super) fn accepted(&self) -> Option<RevisionKey> {
        self.record.as_ref().map(|record| self.key(record.generation, record.fingerprint))
    }

    /// Returns the key of the version in the manifest when the manifest was readable last.
    pub(super) fn newest(&self) -> Option<RevisionKey> {
        let fingerprint = self.manifest.as_ref()?.fingerprint;
        Some(self.key(self.generation(fingerprint), fingerprint))
    }

    /// Returns the keys of the replaced generations that still answer.
    pub(super) fn retired(&self) -> impl Iterator<Item = &RevisionKey> {
        self.retired.iter().map(|retired| &retired.key)
    }

    /// Returns the policy; for an experiment, the policy of the experiment. Returns `None` if the record is damaged.
    pub(super) fn policy(&self) -> Option<&PolicyId> {
        match (&self.id, &self.manifest, &self.record) {
            (ObjectId::Policy(policy), ..) => Some(policy),
            (_, Some(version), _) => Some(&version.policy),
            (_, None, Some(record)) => record.experiment.as_ref().map(|experiment| &experiment.policy),
            (_, None, None) => None,
        }
    }

    /// Takes the version that the manifest has now. Returns true if the state file changes, because the manifest is in another file or
    /// the preview is suspended.
    pub(super) fn take(&mut self, version: DesiredVersion) -> bool {
        let is_update = self.fingerprint().is_some_and(|before| before != version.fingerprint);
        let accepted = self.record.as_ref().map_or(0, |record| record.generation);
        let starts_itself = version.experiment.as_ref().is_some_and(|experiment| experiment.auto_start);
        let is_suspended = is_update && self.preview.take_update(accepted, starts_itself, &Time(Timestamp::now()));
        let is_moved = match &mut self.record {
            Some(record) if record.file != version.place.file => {
                record.file.clone_from(&version.place.file);
                true
            }
            _ => false,
        };
        self.manifest = Some(version);
        is_moved || is_suspended
    }

    /// Returns the revisions that must be loaded now. `refusal` is the reason why a newer version than the accepted one must not become
    /// live, and `slot` returns the slot of a revision that is desired already.
    pub(super) fn desired<'a>(
        &self,
        refusal: Option<&Failure>,
        slot: impl Fn(&RevisionKey) -> Option<&'a Slot>,
    ) -> Vec<(RevisionKey, Result<Desired, Failure>)> {
        let mut desired = Vec::new();
        let newest = self.newest();
        let refusal = refusal.filter(|_| newest != self.accepted());
        if let (Some(key), Some(version)) = (&newest, &self.manifest) {
            let newest = self.desire_manifest(key, version);
            desired.push((key.clone(), newest.map(|newest| Desired { refusal: refusal.cloned(), ..newest })));
        }
        if let (Some(key), Some(record)) = (self.accepted().filter(|key| newest.as_ref() != Some(key)), &self.record) {
            // After a restart, the last accepted generation is loaded only if no newer version works.
            let has_newer = refusal.is_none()
                && newest.is_some_and(|newest| slot(&newest).is_none_or(|slot| slot.failure().is_none()));
            if !has_newer || slot(&key).is_some() {
                desired.push((key, self.desire_record(record)));
            }
        }
        for Retired { key, record, .. } in &self.retired {
            desired.push((key.clone(), self.desire_record(record)));
        }
        desired
    }

    /// Replaces the desired revisions. Returns the revisions that are not desired any more.
    pub(super) fn replace_desired(&mut self, desired: Vec<RevisionKey>) -> Vec<RevisionKey> {
        let mut released = std::mem::replace(&mut self.desired, desired);
        released.retain(|key| !self.desired.contains(key));
        released
    }

    fn desire_manifest(&self, key: &RevisionKey, version: &DesiredVersion) -> Result<Desired, Failure> {
        let old = self.record.as_ref().and_then(|record| record.experiment.as_ref());
        if let Some(old) = old.filter(|old| old.policy != version.policy) {
            let (from, to) = (old.policy.to_string(), version.policy.to_string());
            let Failure { reason, message } = PrepareError::Immutable { from, to }.to_failure();
            return Err(Failure { reason, message: format!("{message} ({})", version.place) });
        }
        let folder = version.place.file.parent().map(ToOwned::to_owned).unwrap_or_default();
        // An accepted version keeps the digests of its modules, even if a tag points to another module now.
        let accepted = self.record.as_ref().filter(|record| record.fingerprint == version.fingerprint);
        let mut digests = accepted.map(|record| record.modules.clone()).unwrap_or_default();
        digests.extend(version.modules.clone());
        Ok(Desired {
            policy: version.policy.clone(),
            experiment: self.experiment(),
            uid: self.uid.clone(),
            generation: key.generation,
            spec: Arc::clone(&version.spec),
            scope: Scope::of(&self.id),
            place: Some(version.place.clone()),
            modules: ModuleSource::Manifest { folder, digests },
            // The objects that a policy reads are in the same folder. If one is missing, the preparation need not fail.
            was_prepared: true,
            refusal: None,
        })
    }

    /// Returns the accepted generation of a record, with the modules that were cached with it.
    fn desire_record(&self, record: &Record) -> Result<Desired, Failure> {
        let policy = match (&self.id, &record.experiment) {
            (ObjectId::Policy(policy), _) => policy,
            (_, Some(experiment)) => &experiment.policy,
            _ => return Err(PrepareError::Record(self.id.clone()).to_failure()),
        };
        Ok(Desired {
            policy: policy.clone(),
            experiment: self.experiment(),
            uid: record.uid.clone(),
            generation: record.generation,
            spec: Arc::new(record.spec.clone()),
            scope: Scope::of(&self.id),
            place: None,
            modules: ModuleSource::Pinned(record.modules.clone()),
            was_prepared: true,
            refusal: None,
        })
    }

    fn experiment(&self) -> Option<ExperimentId> {
        if let ObjectId::Experiment(experiment) = &self.id { Some(experiment.clone()) } else { None }
    }

    /// Returns the generation that this version has, or will have when it is accepted.
    pub(super) fn generation(&self, fingerprint: Digest) -> u64 {
        match &self.record {
            Some(record) if record.fingerprint == fingerprint => record.generation,
            Some(record) => record.generation + 1,
            None => 1,
        }
    }

    /// Returns the fingerprint of the newest readable version.
    pub(super) fn fingerprint(&self) -> Option<Digest> {
        let manifest = self.manifest.as_ref().map(|version| version.fingerprint);
        manifest.or(self.record.as_ref().map(|record| record.fingerprint))
    }

    /// Returns the fields that only experiments have, of the newest readable version; `None` for a policy.
    pub(super) fn experiment_record(&self) -> Option<&ExperimentRecord> {
        let (manifest, record) = (self.manifest.as_ref(), self.record.as_ref());
        manifest.map_or_else(|| record?.experiment.as_ref(), |version| version.experiment.as_ref())
    }

    /// Starts the preview of the newest readable version.
    pub(super) fn start_preview(&mut self, now: &Time) {
        let ttl = self.experiment_record().map(ExperimentRecord::time_to_live);
        if let (Some(fingerprint), Some(ttl)) = (self.fingerprint(), ttl) {
            let generation = self.generation(fingerprint);
            self.preview.start(generation, ttl, now);
        }
    }

    /// Accepts the newest version, which is loaded: it is live from now on. The generation before it retires if it was live.
    /// Returns true if the version differs from the last accepted version.
    pub(super) fn accept(&mut self, loaded: &Loaded, was_live: bool, now: Instant) -> bool {
        let Some(version) = &self.manifest else { return false };
        let modules = loaded.modules.iter().map(|(name, digest)| (name.clone(), DigestText(*digest))).collect();
        let same = self.record.as_ref().filter(|record| record.fingerprint == version.fingerprint);
        let record = Record {
            uid: self.uid.clone(),
            generation: loaded.revision.generation,
            created: Some(self.created.clone()),
            updated: same.and_then(|record| record.updated.clone()).or_else(|| Some(Time(Timestamp::now()))),
            // The state file gets the preview of the object.
            preview: None,
            previewed_start_time: None,
            fingerprint: version.fingerprint,
            file: version.place.file.clone(),
            spec: version.spec.as_ref().clone(),
            experiment: version.experiment.clone(),
            modules,
        };
        let is_new = same.is_none();
        let old_key = self.accepted();
        let old = self.record.replace(record);
        if let (true, true, Some(key), Some(record)) = (is_new, was_live, old_key, old) {
            self.retired.push(Retired { since: now, key, record });
        }
        is_new
    }

    /// Removes the generations that were replaced more than `after` ago. Returns true if there were any.
    pub(super) fn retire(&mut self, now: Instant, after: Duration) -> bool {
        let before = self.retired.len();
        self.retired.retain(|retired| now.duration_since(retired.since) < after);
        self.retired.len() < before
    }

    /// Returns the file of the last readable manifest of the object.
    pub(super) fn file(&self) -> Option<&Path> {
        let manifest = self.manifest.as_ref().map(|version| &version.place.file);
        manifest.or(self.record.as_ref().map(|record| &record.file)).map(PathBuf::as_path)
    }

    /// Returns the modules of all revisions of the object.
    pub(super) fn modules(&self) -> impl Iterator<Item = Digest> {
        let recorded = self.record.iter().chain(self.retired.iter().map(|retired| &retired.record));
        let manifest = self.manifest.iter().map(|version| &version.modules);
        recorded.map(|record| &record.modules).chain(manifest).flat_map(BTreeMap::values).map(|digest| digest.0)
    }
}

#[cfg(test)]
pub(super) mod tests;
