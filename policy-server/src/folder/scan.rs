//! The folder of manifests, watched by looking: every quarter of a second, at names, times and sizes only. Unlike
//! notifications this also works for mounted ConfigMaps, network file systems and modules outside the folder
//! (docs/adr/0002).

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
use crate::manifests::{self, Annotations, Manifests, ObjectId, Place, Problem, Sourced};
use crate::state::{DigestText, ExperimentOf};

/// A file that changed this recently may change again within the same tick of its file system's clock.
const SETTLING: Duration = Duration::from_secs(2);

/// What the folder wants.
#[derive(Debug, Default)]
pub struct Scan {
    pub wanted: BTreeMap<ObjectId, Wanted>,
    pub namespaces: BTreeMap<String, Sourced<Labels>>,
    /// What programs may be allowed to read, Namespaces among them.
    pub objects: Vec<Sourced<Value>>,
    pub problems: Vec<Problem>,
}

/// A policy or an experiment as its manifest has it.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The policy; that of an experiment is the one it wants to replace.
    pub policy: PolicyId,
    pub spec: Arc<PolicySpec>,
    /// None for a policy.
    pub experiment: Option<ExperimentOf>,
    pub annotations: Annotations,
    pub place: Place,
    /// Of everything above but the annotations and the place, the bytes of the modules included.
    pub fingerprint: Digest,
    /// The modules in files that could be read, by their references.
    pub modules: BTreeMap<String, DigestText>,
}

impl Scan {
    /// Whether an object that was last seen in this file and is not wanted now may still be meant to be there.
    #[must_use]
    pub fn may_still_hold(&self, id: &ObjectId, file: &Path) -> bool {
        self.problems.iter().any(|problem| match &problem.object {
            Some(object) => object == id,
            None => file.starts_with(&problem.place.file),
        })
    }
}

/// Looks at a folder and remembers what it saw.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// None while the next look has to read, whatever it sees.
    seen: Option<u64>,
    modules: ModuleFiles,
}

/// The modules that manifests name, with what was read of them; none while one cannot be read.
type ModuleFiles = BTreeMap<PathBuf, Option<(Stamp, Digest)>>;

/// What changes when a file changes.
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
        // A time in the future is a wrong clock, not a fresh change.
        now.checked_sub(changed).is_some_and(|age| age < SETTLING)
    }
}

impl Folder {
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, seen: None, modules: ModuleFiles::new() }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the folder if it may have changed since the last time. Blocks on the disk.
    pub fn changed(&mut self) -> Option<Scan> {
        let (glance, is_settling) = self.glance();
        if self.seen == Some(glance) && !is_settling {
            return None;
        }
        let named: Vec<PathBuf> = self.modules.keys().cloned().collect();
        let scan = self.read();
        // The glance was taken before the reading: what changed meanwhile must not pass for seen. Modules that are
        // named for the first time were not in it.
        self.seen = self.modules.keys().eq(&named).then_some(glance);
        Some(scan)
    }

    /// Sums up names and stamps of all files that matter, and whether one of them changed just now.
    fn glance(&self) -> (u64, bool) {
        let mut hasher = DefaultHasher::new();
        let mut is_settling = false;
        let mut look = |path: &Path| {
            let stamp = Stamp::of(path);
            is_settling |= stamp.is_some_and(|stamp| stamp.is_settling());
            (path, stamp).hash(&mut hasher);
        };
        for entry in manifests::files(&self.path).flatten() {
            look(entry.path());
        }
        for path in self.modules.keys() {
            look(path);
        }
        (hasher.finish(), is_settling)
    }

    fn read(&mut self) -> Scan {
        let Manifests { policies, experiments, namespaces, objects, problems } = Manifests::read(&self.path);
        let mut scan = Scan { namespaces, objects, problems, ..Scan::default() };
        let mut modules = ModuleFiles::new();
        for (id, sourced) in policies {
            let wanted = self.wanted(id.clone(), None, sourced, &mut modules);
            scan.wanted.insert(ObjectId::Policy(id), wanted);
        }
        for (id, Sourced { spec, annotations, place }) in experiments {
            match PolicyId::new(id.namespace.as_deref(), &spec.policy_ref.name) {
                Ok(policy) => {
                    let experiment = ExperimentOf { policy: policy.clone(), auto_start: spec.auto_start };
                    let sourced = Sourced { spec: spec.policy, annotations, place };
                    let wanted = self.wanted(policy, Some(experiment), sourced, &mut modules);
                    scan.wanted.insert(ObjectId::Experiment(id), wanted);
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

    fn wanted(
        &self,
        policy: PolicyId,
        experiment: Option<ExperimentOf>,
        Sourced { spec, annotations, place }: Sourced<PolicySpec>,
        seen: &mut ModuleFiles,
    ) -> Wanted {
        let folder = place.file.parent().unwrap_or(&self.path);
        let mut modules = BTreeMap::new();
        let mut unread = Vec::new();
        for wasm in module_references(&spec.program) {
            let digest = match ModuleReference::parse(&wasm.module, folder) {
                Ok(ModuleReference::File(path)) => self.digest(path, seen),
                // What these name is asked once, when the version is prepared.
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
        Wanted { fingerprint: Digest::of(&all), policy, experiment, annotations, place, modules, spec: Arc::new(spec) }
    }

    /// The digest of a module, read only if it may have changed. The file is looked at from now on, even if it is
    /// not there.
    fn digest(&self, path: PathBuf, seen: &mut ModuleFiles) -> Option<Digest> {
        if let Some(read) = seen.get(&path) {
            return read.map(|(_, digest)| digest);
        }
        let known = self.modules.get(&path).copied().flatten();
        let read = Stamp::of(&path).and_then(|stamp| match known {
            Some((old, digest)) if old == stamp && !stamp.is_settling() => Some((stamp, digest)),
            _ => Module::read(&path).ok().map(|module| (stamp, module.digest)),
        });
        seen.insert(path, read);
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
        let scan = folder.changed().expect("a change is seen");
        scan.wanted.values().next().unwrap().fingerprint
    }

    #[test]
    fn a_module_that_comes_later_goes_or_changes_is_seen_wherever_it_is() {
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
    fn a_folder_that_does_not_change_is_not_read_again() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.json");
        std::fs::write(&path, POLICY).unwrap();
        let mut folder = Folder::new(root.path().to_owned());
        // The kernel sets the time of the last change: pretend that this was long ago by waiting for it to be.
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while folder.changed().is_some() {
            assert!(std::time::Instant::now() < deadline, "the folder is read again and again");
            std::thread::sleep(Duration::from_millis(20));
        }
        std::fs::remove_file(&path).unwrap();
        assert!(folder.changed().unwrap().wanted.is_empty());
    }
}
