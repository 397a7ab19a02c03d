//! The folder of manifests, read: which objects stand in it, and what is wrong with the others. One bad document
//! stops nothing else. What the objects mean together is for [`crate::folder`].

mod document;
pub mod edit;
mod id;
mod nodes;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use proviso_core::matching::Labels;
use proviso_core::{Failure, PolicyId, Reason};
use proviso_crds::{ExperimentSpec, PolicySpec};
use serde_json::Value;

pub use document::Annotations;
pub use id::{ExperimentId, ObjectId};

/// The largest file, in bytes. A manifest is bounded by etcd's 1.5 MiB anyway; a file may hold several.
const MAX_FILE: u64 = 16 * 1024 * 1024;

/// What one reading of the folder found.
#[derive(Debug, Default)]
pub struct Manifests {
    pub policies: BTreeMap<PolicyId, Sourced<PolicySpec>>,
    pub experiments: BTreeMap<ExperimentId, Sourced<ExperimentSpec>>,
    /// Labels of namespaces.
    pub namespaces: BTreeMap<String, Sourced<Labels>>,
    /// Objects of kinds that are not ours, Namespaces among them, as they stand there: programs may be allowed to read them. The
    /// first counts of two of one name.
    pub objects: Vec<Sourced<Value>>,
    pub problems: Vec<Problem>,
}

/// A spec and where it was read.
#[derive(Clone, Debug)]
pub struct Sourced<T> {
    pub spec: T,
    pub annotations: Annotations,
    pub place: Place,
}

/// A document in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub file: PathBuf,
    /// Counted from 1.
    pub document: usize,
    /// Where in the file it is, counted from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: document {}", self.file.display(), self.line, self.document)
    }
}

/// A document, or a part of one, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub place: Place,
    /// The object, where the document still says which it is.
    pub object: Option<ObjectId>,
    /// Such as `spec.program.rego.dialect`; empty where the document as a whole is wrong.
    pub field: String,
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

impl Problem {
    /// What it is to the object.
    #[must_use]
    pub fn to_failure(&self) -> Failure {
        Failure { reason: Reason::INVALID, message: self.to_string() }
    }
}

impl Manifests {
    /// Reads all `*.yaml`, `*.yml` and `*.json` below `folder`, hidden ones aside. What cannot be read becomes a
    /// problem.
    #[must_use]
    pub fn read(folder: &Path) -> Self {
        let mut manifests = Self::default();
        for entry in files(folder) {
            match entry {
                Ok(entry) => manifests.read_file(entry.path()),
                Err(error) => {
                    let path = error.path().unwrap_or(folder).to_owned();
                    manifests.file_problem(path, error.to_string());
                }
            }
        }
        manifests
    }

    fn read_file(&mut self, path: &Path) {
        let text = std::fs::metadata(path).and_then(|metadata| {
            if metadata.len() > MAX_FILE {
                return Err(std::io::Error::other(format!("the file is larger than {MAX_FILE} bytes (16 MiB)")));
            }
            std::fs::read_to_string(path)
        });
        match text {
            Ok(text) => self.read_text(path, &text),
            // Removed between the listing and the reading: the next reading sees it gone.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => self.file_problem(path.to_owned(), format!("cannot be read: {error}")),
        }
    }

    fn file_problem(&mut self, file: PathBuf, message: String) {
        let place = Place { file, document: 1, line: 1 };
        self.problems.push(Problem { place, object: None, field: String::new(), message });
    }

    /// Adds the documents of one file.
    fn read_text(&mut self, path: &Path, text: &str) {
        for (index, (line, text)) in document::split(text).into_iter().enumerate() {
            let place = Place { file: path.to_owned(), document: index + 1, line };
            match document::read(text) {
                Ok(Some(object)) => self.add(place, object),
                Ok(None) => {}
                Err(faults) => self.problems.extend(faults.into_iter().map(|fault| Problem {
                    place: Place { line: line + fault.line - 1, ..place.clone() },
                    object: fault.object,
                    field: fault.field,
                    message: fault.message,
                })),
            }
        }
    }

    fn add(&mut self, place: Place, object: document::Object) {
        use document::Object;
        let Some(id) = object.id() else {
            if let Object::Other(object) = object {
                self.objects.push(Sourced { spec: *object, annotations: Annotations::new(), place });
            }
            return;
        };
        let taken = match &id {
            ObjectId::Policy(id) => self.policies.get(id).map(|policy| &policy.place),
            ObjectId::Experiment(id) => self.experiments.get(id).map(|experiment| &experiment.place),
            ObjectId::Namespace(name) => self.namespaces.get(name).map(|namespace| &namespace.place),
        };
        if let Some(first) = taken {
            let message = format!("{id} stands already at {first}: remove one of the two");
            self.problems.push(Problem { place, object: Some(id), field: "metadata.name".to_owned(), message });
            return;
        }
        match object {
            Object::Policy(id, spec, annotations) => {
                self.policies.insert(id, Sourced { spec: *spec, annotations, place });
            }
            Object::Experiment(id, spec, annotations) => {
                self.experiments.insert(id, Sourced { spec: *spec, annotations, place });
            }
            Object::Namespace(name, labels, object) => {
                let whole = Sourced { spec: *object, annotations: Annotations::new(), place: place.clone() };
                self.objects.push(whole);
                self.namespaces.insert(name, Sourced { spec: labels, annotations: Annotations::new(), place });
            }
            Object::Other(_) => {}
        }
    }
}

/// The manifests below `folder`, hidden ones aside, in an order that is always the same: of two documents about one
/// object the same one must win at each reading.
pub fn files(folder: &Path) -> impl Iterator<Item = walkdir::Result<walkdir::DirEntry>> {
    walkdir::WalkDir::new(folder)
        .follow_links(true)
        .sort_by_file_name()
        .into_iter()
        .filter_entry(|entry| entry.depth() == 0 || !is_hidden(entry.file_name()))
        .filter(|entry| match entry {
            Ok(entry) => entry.file_type().is_file() && is_manifest(entry.path()),
            // Editors leave hidden links to nowhere behind.
            Err(error) => !error.path().and_then(Path::file_name).is_some_and(is_hidden),
        })
}

/// Also skips the `..data` folders of mounted ConfigMaps, whose files are linked beside them.
fn is_hidden(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Whether this is the name of a manifest.
fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known))
}
