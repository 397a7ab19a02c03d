//! Polling of the folder of manifests, four times a second: a poll compares names, times and sizes, and reads files only after a
//! change. Unlike notifications, polling also works for mounted ConfigMaps, network file systems and modules outside of the
//! folder (docs/adr/0002).

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proviso_artifacts::{Digest, Module, ModuleReference};
use proviso_core::PolicyId;
use proviso_core::matching::Labels;
use proviso_crds::PolicySpec;
use serde_json::Value;

use crate::lifecycle::prepare::module_references;
use crate::manifests::{
    self, Annotations, DocumentPosition, Manifests, ObjectId, Problem, Sourced, SubscriptionId, SubscriptionManifest,
};
use crate::state::{DigestText, ExperimentRecord};

/// The time after a change during which a file is read at every poll. A second change within one tick of the file system's clock
/// would leave the same time.
const SETTLE_TIME: Duration = Duration::from_secs(2);

/// The result of one reading of the folder.
#[derive(Debug, Default)]
pub struct Scan {
    pub desired: BTreeMap<ObjectId, DesiredVersion>,
    pub subscriptions: BTreeMap<SubscriptionId, Sourced<SubscriptionManifest>>,
    pub namespaces: BTreeMap<String, Sourced<Labels>>,
    /// The objects that programs may read if their permissions allow it, Namespaces among them.
    pub objects: Vec<Sourced<Value>>,
    pub problems: Vec<Problem>,
}

/// The version of a policy or an experiment in its manifest.
#[derive(Clone, Debug)]
pub struct DesiredVersion {
    /// The policy; for an experiment, the policy of the experiment.
    pub policy: PolicyId,
    pub spec: Arc<PolicySpec>,
    /// The fields that only experiments have; `None` for a policy.
    pub experiment: Option<ExperimentRecord>,
    pub annotations: Annotations,
    pub place: DocumentPosition,
    /// The digest of the text of the document.
    pub digest: Digest,
    /// The digest of the spec, of the fields of the experiment, and of the bytes of the modules.
    pub fingerprint: Digest,
    /// The digests of the modules in readable files, by their references.
    pub modules: BTreeMap<String, DigestText>,
}

impl Scan {
    /// Returns true if an object that was last seen in this file may still exist although no readable document has it.
    #[must_use]
    pub fn may_still_hold(&self, id: &ObjectId, file: &Path) -> bool {
        manifests::may_still_hold(&self.problems, id, file)
    }
}

/// The folder of manifests, with the state of the last poll.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// The hash of the last poll; `None` if the next poll must read the folder in any case.
    last_hash: Option<u64>,
    modules: ModuleFiles,
}

/// The module files that manifests name, with their stamp and digest; `None` for an unreadable file.
type ModuleFiles = BTreeMap<PathBuf, Option<(Stamp, Digest)>>;

/// The metadata that change when a file changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    fn is_settling(&self) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let changed = Duration::from_secs(u64::try_from(self.changed.0).unwrap_or_default());
        // A time in the future means a wrong clock, not a recent change.
        now.checked_sub(changed).is_some_and(|age| age < SETTLE_TIME)
    }
}

impl Folder {
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, last_hash: None, modules: ModuleFiles::new() }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the folder if it may have changed since the last poll; `None` if it has not. Blocks on the disk.
    pub fn changed(&mut self) -> Option<Scan> {
        let (hash, is_settling) = self.stamp_hash();
        if self.last_hash == Some(hash) && !is_settling {
            return None;
        }
        let named: Vec<PathBuf> = self.modules.keys().cloned().collect();
        let scan = self.read();
        // The hash is older than the scan, so the next poll finds a change that came during the scan. The hash does not contain
        // modules that the scan found for the first time, so then the next poll must read again.
        self.last_hash = self.modules.keys().eq(&named).then_some(hash);
        Some(scan)
    }

    /// Returns a hash of the names and stamps of all manifests and modules, and true if one of them changed within
    /// [`SETTLE_TIME`].
    fn stamp_hash(&self) -> (u64, bool) {
        let mut hasher = DefaultHasher::new();
        let mut is_settling = false;
        let mut add = |path: &Path| {
            let stamp = Stamp::of(path);
            is_settling |= stamp.is_some_and(|stamp| stamp.is_settling());
            (path, stamp).hash(&mut hasher);
        };
        for entry in manifests::files(&self.path).flatten() {
            add(entry.path());
        }
        for path in self.modules.keys() {
            add(path);
        }
        (hasher.finish(), is_settling)
    }

    fn read(&mut self) -> Scan {
        let Manifests { policies, experiments, subscriptions, namespaces, objects, problems } =
            Manifests::read(&self.path);
        let mut scan = Scan { subscriptions, namespaces, objects, problems, ..Scan::default() };
        let mut modules = ModuleFiles::new();
        for (id, sourced) in policies {
            let version = self.version(id.clone(), None, sourced, &mut modules);
            scan.desired.insert(ObjectId::Policy(id), version);
        }
        for (id, Sourced { spec, annotations, place, digest }) in experiments {
            match PolicyId::new(id.namespace.as_deref(), &spec.policy_ref.name) {
                Ok(policy) => {
                    let experiment = ExperimentRecord {
                        policy: policy.clone(),
                        auto_start: spec.auto_start,
                        preview: spec.preview_settings(),
                        ttl: spec.ttl,
                    };
                    let sourced = Sourced { spec: spec.policy, annotations, place, digest };
                    let version = self.version(policy, Some(experiment), sourced, &mut modules);
                    scan.desired.insert(ObjectId::Experiment(id), version);
                }
                Err(error) => scan.problems.push(Problem {
                    place,
                    object: Some(ObjectId::Experiment(id)),
                    field: "spec.policyRef.name".to_owned(),
                    message: error.to_string(),
                }),
            }
        }
        self.modules = modules;
        scan
    }

    fn version(
        &self,
        policy: PolicyId,
        experiment: Option<ExperimentRecord>,
        Sourced { spec, annotations, place, digest }: Sourced<PolicySpec>,
        module_files: &mut ModuleFiles,
    ) -> DesiredVersion {
        let folder = place.file.parent().unwrap_or(&self.path);
        let mut modules = BTreeMap::new();
        let mut unread = Vec::new();
        for wasm in module_references(&spec.program) {
            let digest = match ModuleReference::parse(&wasm.module, folder) {
                Ok(ModuleReference::File(path)) => self.digest(path, module_files),
                // The digest of a remote module is looked up once, when the version is prepared.
                Ok(ModuleReference::Registry(_) | ModuleReference::Https(_)) | Err(_) => None,
            };
            match digest {
                Some(digest) => {
                    modules.insert(wasm.module.clone(), DigestText(digest));
                }
                None => unread.push(&wasm.module),
            }
        }
        let all = serde_json::to_vec(&(&spec, &experiment, &modules, &unread)).unwrap_or_default();
        let fingerprint = Digest::of(&all);
        DesiredVersion { fingerprint, policy, experiment, annotations, place, digest, modules, spec: Arc::new(spec) }
    }

    /// Returns the digest of a module file, which is read only if it may have changed; `None` if it is unreadable. Adds the file
    /// to the files of the next polls, even if it does not exist.
    fn digest(&self, path: PathBuf, module_files: &mut ModuleFiles) -> Option<Digest> {
        if let Some(read) = module_files.get(&path) {
            return read.map(|(_, digest)| digest);
        }
        let known = self.modules.get(&path).copied().flatten();
        let read = Stamp::of(&path).and_then(|stamp| match known {
            Some((old, digest)) if old == stamp && !stamp.is_settling() => Some((stamp, digest)),
            _ => Module::read(&path).ok().map(|module| (stamp, module.digest)),
        });
        module_files.insert(path, read);
        read.map(|(_, digest)| digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"{"apiVersion":"proviso.dev/v1alpha1","kind":"ClusterPolicy","metadata":{"name":"a"},"spec":{
        "program":{"wasm":{"module":"file://../m.wasm"}},"admission":{"rules":[{"operations":["*"],"apiGroups":["*"],
        "apiVersions":["*"],"resources":["*"]}]}}}"#;

    fn fingerprint(folder: &mut Folder) -> Digest {
        let scan = folder.changed().expect("the poll finds a change");
        scan.desired.values().next().unwrap().fingerprint
    }

    #[test]
    fn a_poll_finds_new_changed_and_removed_modules_outside_of_the_folder() {
        let root = tempfile::tempdir().unwrap();
        let manifests = root.path().join("manifests");
        std::fs::create_dir(&manifests).unwrap();
        std::fs::write(manifests.join("a.json"), POLICY).unwrap();
        let mut folder = Folder::new(manifests);
        let missing = fingerprint(&mut folder);
        std::fs::write(root.path().join("m.wasm"), "one").unwrap();
        let first = fingerprint(&mut folder);
        std::fs::write(root.path().join("m.wasm"), "two").unwrap();
        let second = fingerprint(&mut folder);
        assert!(missing != first && first != second);
        std::fs::remove_file(root.path().join("m.wasm")).unwrap();
        assert_eq!(fingerprint(&mut folder), missing);
    }

    #[test]
    fn an_unchanged_folder_is_not_read_again() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.json");
        std::fs::write(&path, POLICY).unwrap();
        let mut folder = Folder::new(root.path().to_owned());
        // The kernel sets the time of the last change, so wait until it is older than `SETTLE_TIME`.
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while folder.changed().is_some() {
            assert!(std::time::Instant::now() < deadline, "the folder is read again and again");
            std::thread::sleep(Duration::from_millis(20));
        }
        std::fs::remove_file(&path).unwrap();
        assert!(folder.changed().unwrap().desired.is_empty());
    }
}
