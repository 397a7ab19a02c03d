//! A policy or an experiment of the folder: the version that its manifest has now, the generation that was accepted last, and
//! the earlier generations that still answer.

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

use super::scan::Wanted;
use crate::lifecycle::prepare::PrepareError;
use crate::lifecycle::{Desired, Loaded, ModuleSource, Scope, Slot};
use crate::manifests::{ExperimentId, ObjectId};
use crate::preview::{self, Tally};
use crate::state::{DigestText, Record};
use crate::table::Revision;

/// A version of an object with the generation that it has, or has once it is accepted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RevisionKey {
    pub object: ObjectId,
    pub generation: u64,
    /// Two versions that were never accepted may share a generation.
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
    /// Made when the object is first seen.
    pub uid: String,
    pub created: Time,
    /// When the experiment was started and stopped last.
    pub preview: Option<PreviewMetadata>,
    /// The counts of the experiment since it was started last.
    pub session: Option<Session>,
    /// The generation that was accepted last.
    pub record: Option<Record>,
    /// The version that the manifest had when it could be read last.
    pub wanted: Option<Wanted>,
    retired: Vec<Retired>,
    /// The revisions that are desired now.
    desired: Vec<RevisionKey>,
}

/// A preview from its start to its stop.
#[derive(Debug)]
pub(super) struct Session {
    started: Time,
    pub generation: u64,
    pub tally: Arc<Tally>,
}

/// A generation that is not live any more and still answers.
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
            wanted: None,
            retired: Vec::new(),
            desired: Vec::new(),
        }
    }

    /// The object as it was before a restart.
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

    /// The generation that was accepted last.
    pub(super) fn accepted(&self) -> Option<RevisionKey> {
        self.record.as_ref().map(|record| self.key(record.generation, record.fingerprint))
    }

    /// The version that the manifest has, or had when it could be read last.
    pub(super) fn newest(&self) -> Option<RevisionKey> {
        let fingerprint = self.wanted.as_ref()?.fingerprint;
        Some(self.key(self.generation(fingerprint), fingerprint))
    }

    /// The generations that are not live any more and still answer.
    pub(super) fn retired(&self) -> impl Iterator<Item = &RevisionKey> {
        self.retired.iter().map(|retired| &retired.key)
    }

    /// The policy; for an experiment, the policy that it wants to replace. `None` where the record is damaged.
    pub(super) fn policy(&self) -> Option<&PolicyId> {
        match (&self.id, &self.wanted, &self.record) {
            (ObjectId::Policy(policy), ..) => Some(policy),
            (_, Some(wanted), _) => Some(&wanted.policy),
            (_, None, Some(record)) => record.experiment.as_ref().map(|experiment| &experiment.policy),
            (_, None, None) => None,
        }
    }

    /// Takes over the version that the manifest has now. Returns whether the record changes: it names the file.
    pub(super) fn take(&mut self, wanted: Wanted) -> bool {
        if self.fingerprint().is_some_and(|before| before != wanted.fingerprint) {
            self.suspend(&wanted);
        }
        let is_moved = match &mut self.record {
            Some(record) if record.file != wanted.place.file => {
                record.file.clone_from(&wanted.place.file);
                true
            }
            _ => false,
        };
        self.wanted = Some(wanted);
        is_moved
    }

    /// The revisions that have to be loaded now. `slot` finds those that are desired already.
    pub(super) fn desired<'a>(
        &self,
        slot: impl Fn(&RevisionKey) -> Option<&'a Slot>,
    ) -> Vec<(RevisionKey, Result<Desired, Failure>)> {
        let mut desired = Vec::new();
        let newest = self.newest();
        if let (Some(key), Some(wanted)) = (&newest, &self.wanted) {
            desired.push((key.clone(), self.desire_manifest(key, wanted)));
        }
        if let (Some(key), Some(record)) = (self.accepted().filter(|key| newest.as_ref() != Some(key)), &self.record) {
            // After a restart, the generation that was accepted last is loaded again only where nothing newer works.
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

    /// Replaces the revisions that are desired now. Returns those that are not desired any more.
    pub(super) fn replace_desired(&mut self, desired: Vec<RevisionKey>) -> Vec<RevisionKey> {
        let mut released = std::mem::replace(&mut self.desired, desired);
        released.retain(|key| !self.desired.contains(key));
        released
    }

    fn desire_manifest(&self, key: &RevisionKey, wanted: &Wanted) -> Result<Desired, Failure> {
        let old = self.record.as_ref().and_then(|record| record.experiment.as_ref());
        if let Some(old) = old.filter(|old| old.policy != wanted.policy) {
            let (from, to) = (old.policy.to_string(), wanted.policy.to_string());
            let Failure { reason, message } = PrepareError::Immutable { from, to }.to_failure();
            return Err(Failure { reason, message: format!("{message} ({})", wanted.place) });
        }
        let folder = wanted.place.file.parent().map(ToOwned::to_owned).unwrap_or_default();
        // A version that was accepted before has the modules that it had then, wherever their tags point now.
        let accepted = self.record.as_ref().filter(|record| record.fingerprint == wanted.fingerprint);
        let mut digests = accepted.map(|record| record.modules.clone()).unwrap_or_default();
        digests.extend(wanted.modules.clone());
        Ok(Desired {
            policy: wanted.policy.clone(),
            experiment: self.experiment(),
            uid: self.uid.clone(),
            generation: key.generation,
            spec: Arc::clone(&wanted.spec),
            scope: Scope::of(&self.id),
            place: Some(wanted.place.clone()),
            modules: ModuleSource::Manifest { folder, digests },
            // The objects that a policy reads are in the same folder.
            is_known: true,
        })
    }

    /// The accepted generation of a record, with the modules that were kept with it.
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
            is_known: true,
        })
    }

    fn experiment(&self) -> Option<ExperimentId> {
        if let ObjectId::Experiment(experiment) = &self.id { Some(experiment.clone()) } else { None }
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

    /// Suspends the preview: an update of the experiment does (AIP-236). With `autoStart` the last good version is previewed
    /// until the new one works, as the last good version of a policy goes on serving.
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

    /// Begins to count anew where another preview than before is active. A preview that has stopped keeps its counts until then.
    pub(super) fn follow_preview(&mut self, live: &Revision) {
        let Some(preview) = &self.preview else { return };
        let is_counted =
            |session: &Session| (&session.started, session.generation) == (&preview.start_time, live.generation);
        if self.is_active(live.generation) && !self.session.as_ref().is_some_and(is_counted) {
            self.session = Some(Session {
                started: preview.start_time.clone(),
                generation: live.generation,
                tally: Arc::new(Tally::new(PreviewReport::new(preview::now()))),
            });
        }
    }

    /// Accepts the newest version, which is loaded: it is live from now on. The generation before it retires, if it was live.
    /// Returns whether it is another version than before.
    pub(super) fn accept(&mut self, loaded: &Loaded, was_live: bool, now: Instant) -> bool {
        let Some(wanted) = &self.wanted else { return false };
        let modules = loaded.modules.iter().map(|(name, digest)| (name.clone(), DigestText(*digest))).collect();
        let same = self.record.as_ref().filter(|record| record.fingerprint == wanted.fingerprint);
        let record = Record {
            uid: self.uid.clone(),
            generation: loaded.revision.generation,
            created: Some(self.created.clone()),
            updated: same.and_then(|record| record.updated.clone()).or_else(|| Some(Time(Timestamp::now()))),
            preview: None,
            fingerprint: wanted.fingerprint,
            file: wanted.place.file.clone(),
            spec: wanted.spec.as_ref().clone(),
            experiment: wanted.experiment.clone(),
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

    /// Forgets generations that are not live since longer than `after`. Returns whether there were any.
    pub(super) fn retire(&mut self, now: Instant, after: Duration) -> bool {
        let before = self.retired.len();
        self.retired.retain(|retired| now.duration_since(retired.since) < after);
        self.retired.len() < before
    }

    /// The file that the object was seen in last.
    pub(super) fn file(&self) -> Option<&Path> {
        let wanted = self.wanted.as_ref().map(|wanted| &wanted.place.file);
        wanted.or(self.record.as_ref().map(|record| &record.file)).map(PathBuf::as_path)
    }

    /// The modules of all its revisions.
    pub(super) fn modules(&self) -> impl Iterator<Item = Digest> {
        let recorded = self.record.iter().chain(self.retired.iter().map(|retired| &retired.record));
        let wanted = self.wanted.iter().map(|wanted| &wanted.modules);
        recorded.map(|record| &record.modules).chain(wanted).flat_map(BTreeMap::values).map(|digest| digest.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::Place;

    fn object() -> Object {
        Object::new(ObjectId::Policy("cluster.a".parse().unwrap()))
    }

    fn wanted(version: &str) -> Wanted {
        let spec = serde_json::json!({"program": {"cel": {"validations": []}}});
        Wanted {
            policy: "cluster.a".parse().unwrap(),
            spec: Arc::new(serde_json::from_value(spec).unwrap()),
            experiment: None,
            annotations: BTreeMap::new(),
            place: Place { file: "a.yaml".into(), document: 1, line: 1 },
            fingerprint: Digest::of(version.as_bytes()),
            modules: BTreeMap::new(),
        }
    }

    /// The object as a restarted server finds it in the state file.
    fn restarted(generation: u64, version: &str) -> Object {
        let Wanted { fingerprint, place, spec, .. } = wanted(version);
        let record = serde_json::json!({
            "uid": "u", "generation": generation, "fingerprint": fingerprint.to_string(), "file": place.file, "spec": spec,
            "modules": {},
        });
        let object = object();
        Object::restore(object.id, serde_json::from_value(record).unwrap())
    }

    /// The generations that are desired while those of `slots` are in this state.
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
        object.take(wanted("one"));
        assert_eq!(generations(&object, &BTreeMap::new()), [1]);
        let mut object = restarted(7, "one");
        object.take(wanted("two"));
        assert_eq!(object.newest().map(|key| key.generation), Some(8));
    }

    #[test]
    fn after_a_restart_the_accepted_generation_is_loaded_where_nothing_newer_works() {
        let mut object = restarted(7, "one");
        assert_eq!(generations(&object, &BTreeMap::new()), [7], "the manifest cannot be read");
        object.take(wanted("one"));
        assert_eq!(generations(&object, &BTreeMap::new()), [7], "the manifest still has the same version");
        object.take(wanted("two"));
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
        object.take(wanted("two"));
        let second = object.newest().unwrap();
        assert!(object.replace_desired(vec![second.clone()]).is_empty());
        object.take(wanted("three"));
        let third = object.newest().unwrap();
        assert!(second != third && second.generation == third.generation);
        assert_eq!(object.replace_desired(vec![third]), [second]);
    }

    #[test]
    fn an_experiment_cannot_move_to_another_policy() {
        let id = ExperimentId { namespace: None, name: "e".to_owned() };
        let of = |policy: &str| crate::state::ExperimentOf { policy: policy.parse().unwrap(), auto_start: false };
        let record = Record { experiment: Some(of("cluster.a")), ..restarted(1, "one").record.unwrap() };
        let mut object = Object::restore(ObjectId::Experiment(id), record);
        object.take(Wanted {
            policy: "cluster.b".parse().unwrap(),
            experiment: Some(of("cluster.b")),
            ..wanted("two")
        });
        let (_, desired) = object.desired(|_| None).remove(0);
        let failure = desired.unwrap_err().to_string();
        assert!(failure.starts_with("Invalid: spec.policyRef.name: cannot be changed"), "{failure}");
        assert!(failure.ends_with("(a.yaml:1: document 1)"), "{failure}");
    }
}
