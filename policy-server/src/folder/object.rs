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
use proviso_crds::{PreviewMetadata, PreviewReport, PreviewState};

use super::scan::DesiredVersion;
use crate::lifecycle::prepare::PrepareError;
use crate::lifecycle::{Desired, Loaded, ModuleSource, Scope, Slot};
use crate::manifests::{ExperimentId, ObjectId};
use crate::preview::{self, DivergenceCounter};
use crate::state::{DigestText, Record};
use crate::table::Revision;

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
    /// The last start and stop of the preview; `None` for a policy.
    pub preview: Option<PreviewMetadata>,
    /// The counts of the experiment since the last start of its preview.
    pub session: Option<Session>,
    /// The last accepted generation.
    pub record: Option<Record>,
    /// The version in the manifest when the manifest was readable last.
    pub manifest: Option<DesiredVersion>,
    retired: Vec<Retired>,
    /// The revisions that are desired now.
    desired: Vec<RevisionKey>,
}

/// One preview of an experiment, from its start to its stop.
#[derive(Debug)]
pub(super) struct Session {
    started: Time,
    pub generation: u64,
    pub counter: Arc<DivergenceCounter>,
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
            preview: None,
            session: None,
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
            preview: record.preview.clone(),
            record: Some(record),
            ..new
        }
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

    /// Takes the version that the manifest has now. Returns true if the record changes, because the manifest is in another file.
    pub(super) fn take(&mut self, version: DesiredVersion) -> bool {
        if self.fingerprint().is_some_and(|before| before != version.fingerprint) {
            self.suspend(&version);
        }
        let is_moved = match &mut self.record {
            Some(record) if record.file != version.place.file => {
                record.file.clone_from(&version.place.file);
                true
            }
            _ => false,
        };
        self.manifest = Some(version);
        is_moved
    }

    /// Returns the revisions that must be loaded now. `slot` returns the slot of a revision that is desired already.
    pub(super) fn desired<'a>(
        &self,
        slot: impl Fn(&RevisionKey) -> Option<&'a Slot>,
    ) -> Vec<(RevisionKey, Result<Desired, Failure>)> {
        let mut desired = Vec::new();
        let newest = self.newest();
        if let (Some(key), Some(version)) = (&newest, &self.manifest) {
            desired.push((key.clone(), self.desire_manifest(key, version)));
        }
        if let (Some(key), Some(record)) = (self.accepted().filter(|key| newest.as_ref() != Some(key)), &self.record) {
            // After a restart, the last accepted generation is loaded only if no newer version works.
            let has_newer = newest.is_some_and(|newest| slot(&newest).is_none_or(|slot| slot.failure().is_none()));
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

    /// Suspends the preview, because an update of an experiment suspends it (AIP-236). With `autoStart`, the preview of the last
    /// good version continues until the new version works, as the last good generation of a policy keeps serving.
    fn suspend(&mut self, version: &DesiredVersion) {
        let accepted = self.record.as_ref().map_or(0, |record| record.generation);
        let starts_itself = version.experiment.as_ref().is_some_and(|experiment| experiment.auto_start);
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

    /// Returns true if this generation is previewed.
    pub(super) fn is_active(&self, generation: u64) -> bool {
        let generation = i64::try_from(generation).unwrap_or(i64::MAX);
        self.preview.as_ref().is_some_and(|preview| preview.state(generation) == PreviewState::Active)
    }

    /// Starts new counts if another preview is active than before. The counts of a stopped preview are kept until then.
    pub(super) fn follow_preview(&mut self, live: &Revision) {
        let Some(preview) = &self.preview else { return };
        let is_counted =
            |session: &Session| (&session.started, session.generation) == (&preview.start_time, live.generation);
        if self.is_active(live.generation) && !self.session.as_ref().is_some_and(is_counted) {
            self.session = Some(Session {
                started: preview.start_time.clone(),
                generation: live.generation,
                counter: Arc::new(DivergenceCounter::new(PreviewReport::new(preview::now()))),
            });
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
            preview: None,
            fingerprint: version.fingerprint,
            file: version.place.file.clone(),
            spec: version.spec.as_ref().clone(),
            experiment: version.experiment.clone(),
            modules,
        };
        let is_new = same.is_none();
        let generation = i64::try_from(record.generation).unwrap_or(i64::MAX);
        let starts_itself = record.experiment.as_ref().is_some_and(|experiment| experiment.auto_start);
        if starts_itself && self.preview.as_ref().is_none_or(|preview| preview.generation != generation) {
            self.preview = Some(PreviewMetadata::start(self.preview.as_ref(), generation, Time(Timestamp::now())));
        }
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
mod tests {
    use super::*;
    use crate::manifests::DocumentPosition;

    fn object() -> Object {
        Object::new(ObjectId::Policy("cluster.a".parse().unwrap()))
    }

    fn desired_version(version: &str) -> DesiredVersion {
        let spec = serde_json::json!({"program": {"cel": {"validations": []}}});
        DesiredVersion {
            policy: "cluster.a".parse().unwrap(),
            spec: Arc::new(serde_json::from_value(spec).unwrap()),
            experiment: None,
            annotations: BTreeMap::new(),
            place: DocumentPosition { file: "a.yaml".into(), document: 1, line: 1 },
            fingerprint: Digest::of(version.as_bytes()),
            modules: BTreeMap::new(),
        }
    }

    /// Returns the object as a restarted server restores it from the state file.
    fn restarted(generation: u64, version: &str) -> Object {
        let DesiredVersion { fingerprint, place, spec, .. } = desired_version(version);
        let record = serde_json::json!({
            "uid": "u", "generation": generation, "fingerprint": fingerprint.to_string(), "file": place.file, "spec": spec,
            "modules": {},
        });
        let object = object();
        Object::restore(object.id, serde_json::from_value(record).unwrap())
    }

    /// Returns the desired generations, given the slots of the generations that are desired already.
    fn generations(object: &Object, slots: &BTreeMap<u64, Slot>) -> Vec<u64> {
        object.desired(|key| slots.get(&key.generation)).into_iter().map(|(key, _)| key.generation).collect()
    }

    fn preparing(object: &Object) -> Slot {
        let (_, desired) = object.desired(|_| None).remove(0);
        Slot::new(desired)
    }

    fn failed() -> Slot {
        Slot::new(Err(Failure::new("CompileError", "")))
    }

    #[test]
    fn a_new_version_is_the_next_generation() {
        let mut object = object();
        assert!(generations(&object, &BTreeMap::new()).is_empty());
        object.take(desired_version("one"));
        assert_eq!(generations(&object, &BTreeMap::new()), [1]);
        let mut object = restarted(7, "one");
        object.take(desired_version("two"));
        assert_eq!(object.newest().map(|key| key.generation), Some(8));
    }

    #[test]
    fn a_restarted_server_loads_the_accepted_generation_if_no_newer_one_works() {
        let mut object = restarted(7, "one");
        assert_eq!(generations(&object, &BTreeMap::new()), [7], "the manifest cannot be read");
        object.take(desired_version("one"));
        assert_eq!(generations(&object, &BTreeMap::new()), [7], "the manifest still has the same version");
        object.take(desired_version("two"));
        assert_eq!(generations(&object, &BTreeMap::new()), [8], "the new version may work");
        let mut slots = BTreeMap::from([(8, preparing(&object))]);
        assert_eq!(generations(&object, &slots), [8]);
        slots.insert(8, failed());
        assert_eq!(generations(&object, &slots), [8, 7], "the new version does not work");
        slots.insert(7, preparing(&restarted(7, "one")));
        slots.insert(8, preparing(&object));
        assert_eq!(
            generations(&object, &slots),
            [8, 7],
            "the accepted generation stays while another version is prepared"
        );
    }

    #[test]
    fn two_versions_that_were_never_accepted_are_two_revisions() {
        let mut object = restarted(7, "one");
        object.take(desired_version("two"));
        let second = object.newest().unwrap();
        assert!(object.replace_desired(vec![second.clone()]).is_empty());
        object.take(desired_version("three"));
        let third = object.newest().unwrap();
        assert!(second != third && second.generation == third.generation);
        assert_eq!(object.replace_desired(vec![third]), [second]);
    }

    #[test]
    fn an_experiment_cannot_move_to_another_policy() {
        let id = ExperimentId { namespace: None, name: "e".to_owned() };
        let of = |policy: &str| crate::state::ExperimentRecord { policy: policy.parse().unwrap(), auto_start: false };
        let record = Record { experiment: Some(of("cluster.a")), ..restarted(1, "one").record.unwrap() };
        let mut object = Object::restore(ObjectId::Experiment(id), record);
        object.take(DesiredVersion {
            policy: "cluster.b".parse().unwrap(),
            experiment: Some(of("cluster.b")),
            ..desired_version("two")
        });
        let (_, desired) = object.desired(|_| None).remove(0);
        let failure = desired.unwrap_err().to_string();
        assert!(failure.starts_with("Invalid: spec.policyRef.name: cannot be changed"), "{failure}");
        assert!(failure.ends_with("(a.yaml:1: document 1)"), "{failure}");
    }
}
