//! The folder of manifests, watched by looking: every quarter of a second, at names, times and sizes only. Unlike
//! notifications this also works for mounted ConfigMaps, network file systems and modules outside the folder
//! (docs/adr/0002).

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use proviso_artifacts::{Digest, ModuleReference};
use proviso_core::PolicyId;
use proviso_core::matching::Labels;
use proviso_crds::PolicySpec;

use crate::manifests::{self, Manifests, ObjectId, Place, Problem};
use crate::prepare::{self, module_references};
use crate::state::{DigestText, ExperimentOf};

/// A file that changed this recently may change again within the same tick of its file system's clock.
const SETTLING: Duration = Duration::from_secs(2);

/// What the folder wants.
#[derive(Debug)]
pub struct Scan {
    pub wanted: BTreeMap<ObjectId, Wanted>,
    pub namespaces: BTreeMap<String, Labels>,
    pub problems: Vec<Problem>,
}

/// A policy or an experiment as its manifest has it.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The policy; that of an experiment is the one it wants to replace.
    pub policy: PolicyId,
    pub spec: PolicySpec,
    /// None for a policy.
    pub experiment: Option<ExperimentOf>,
    pub place: Place,
    /// Of everything above but the place, the bytes of the modules included.
    pub fingerprint: Digest,
    /// The modules that could be read, by their references.
    pub modules: BTreeMap<String, DigestText>,
}

impl Scan {
    /// Whether an object that was last seen in this file and is not wanted now may still be meant to be there.
    #[must_use]
    pub fn may_still_hold(&self, id: &ObjectId, file: &Path) -> bool {
        self.problems.iter().any(|problem| match &problem.object {
            Some(object) => object == id,
            None => problem.place.file == file || file.starts_with(&problem.place.file),
        })
    }
}

/// Looks at a folder and remembers what it saw.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    seen: Option<u64>,
    modules: HashMap<PathBuf, (Stamp, Digest)>,
}

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
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
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
        Self { path, seen: None, modules: HashMap::new() }
    }

    /// Reads the folder if it may have changed since the last time. Blocks on the disk.
    pub fn changed(&mut self) -> Option<Scan> {
        let (glance, is_settling) = self.glance();
        if self.seen == Some(glance) && !is_settling {
            return None;
        }
        self.seen = Some(glance);
        Some(self.read())
    }

    /// Sums up names and stamps of all files that matter, and whether one of them changed just now.
    fn glance(&self) -> (u64, bool) {
        let mut hasher = DefaultHasher::new();
        let mut is_settling = false;
        let mut look = |path: &Path, metadata: Option<std::fs::Metadata>| {
            let stamp = metadata.map(|metadata| Stamp::of(&metadata));
            is_settling |= stamp.is_some_and(|stamp| stamp.is_settling());
            (path, stamp).hash(&mut hasher);
        };
        for path in manifests::files(&self.path).flatten() {
            look(path.path(), std::fs::metadata(path.path()).ok());
        }
        let mut modules: Vec<_> = self.modules.keys().collect();
        modules.sort();
        for path in modules {
            look(path, std::fs::metadata(path).ok());
        }
        (hasher.finish(), is_settling)
    }

    fn read(&mut self) -> Scan {
        let Manifests { policies, experiments, namespaces, problems } = Manifests::read(&self.path);
        let mut modules = HashMap::new();
        let mut wanted = BTreeMap::new();
        for (id, sourced) in policies {
            let made = self.wanted(id.clone(), sourced.spec, None, sourced.place, &mut modules);
            wanted.insert(ObjectId::Policy(id), made);
        }
        let mut problems = problems;
        for (id, sourced) in experiments {
            let place = sourced.place;
            match PolicyId::new(id.namespace.as_deref(), &sourced.spec.policy_ref.name) {
                Ok(policy) => {
                    let experiment = ExperimentOf { policy: policy.clone(), auto_start: sourced.spec.auto_start };
                    let made = self.wanted(policy, sourced.spec.policy, Some(experiment), place, &mut modules);
                    wanted.insert(ObjectId::Experiment(id), made);
                }
                Err(error) => problems.push(Problem {
                    place,
                    object: Some(ObjectId::Experiment(id)),
                    field: "spec.policyRef.name".to_owned(),
                    message: error.to_string(),
                }),
            }
        }
        self.modules = modules;
        // The stamps of modules that were not known before count from the next glance on.
        self.seen = Some(self.glance().0);
        Scan { wanted, namespaces, problems }
    }

    fn wanted(
        &self,
        policy: PolicyId,
        spec: PolicySpec,
        experiment: Option<ExperimentOf>,
        place: Place,
        seen: &mut HashMap<PathBuf, (Stamp, Digest)>,
    ) -> Wanted {
        let folder = place.file.parent().unwrap_or(&self.path);
        let mut modules = BTreeMap::new();
        let mut unread = Vec::new();
        for wasm in module_references(&spec.program) {
            let read = ModuleReference::parse(&wasm.module, folder).ok().and_then(|reference| {
                let ModuleReference::File(path) = &reference;
                let stamp = Stamp::of(&std::fs::metadata(path).ok()?);
                let known = self
                    .modules
                    .get(path)
                    .or_else(|| seen.get(path))
                    .filter(|(old, _)| *old == stamp && !stamp.is_settling());
                let digest = match known {
                    Some((_, digest)) => *digest,
                    None => prepare::fetch(wasm, folder).ok()?.digest,
                };
                seen.insert(path.clone(), (stamp, digest));
                Some(digest)
            });
            match read {
                Some(digest) => {
                    modules.insert(wasm.module.clone(), DigestText(digest));
                }
                None => unread.push(&wasm.module),
            }
        }
        let all = serde_json::to_vec(&(&spec, &experiment, &modules, &unread)).unwrap_or_default();
        Wanted { fingerprint: Digest::of(&all), policy, experiment, place, modules, spec }
    }
}
