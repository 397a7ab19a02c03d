//! Reads a folder of manifests: returns the objects of its documents, and the problems of the documents that are not valid. An
//! invalid document does not affect the others. [`crate::folder`] joins policies and experiments.

mod document;
pub mod edit;
mod id;
mod nodes;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use proviso_artifacts::Digest;
use proviso_core::matching::Labels;
use proviso_core::{Failure, PolicyId, Reason};
use proviso_crds::{ExperimentSpec, PolicySpec, PolicySubscriptionSpec};
use serde_json::Value;

pub use document::Annotations;
pub use id::{ExperimentId, ObjectId, SubscriptionId};

/// The maximum size of a file, in bytes. A file may contain many objects; etcd limits each to 1.5 MiB.
const MAX_FILE: u64 = 16 * 1024 * 1024;

/// The objects and problems of a folder of manifests.
#[derive(Debug, Default)]
pub struct Manifests {
    pub policies: BTreeMap<PolicyId, Sourced<PolicySpec>>,
    pub experiments: BTreeMap<ExperimentId, Sourced<ExperimentSpec>>,
    pub subscriptions: BTreeMap<SubscriptionId, Sourced<SubscriptionManifest>>,
    /// The labels of the namespaces.
    pub namespaces: BTreeMap<String, Sourced<Labels>>,
    /// The objects of all kinds outside of Proviso's API group, Namespaces among them. Programs may read them if their
    /// permissions allow it. If two objects have the same name, programs read the last.
    pub objects: Vec<Sourced<Value>>,
    pub problems: Vec<Problem>,
}

/// A `PolicySubscription` in a manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct SubscriptionManifest {
    pub spec: PolicySubscriptionSpec,
    /// `metadata.labels`, which the templates of policies read.
    pub labels: BTreeMap<String, String>,
}

/// A spec and the document that contains it.
#[derive(Clone, Debug)]
pub struct Sourced<T> {
    pub spec: T,
    pub annotations: Annotations,
    pub place: DocumentPosition,
    /// The digest of the text of the document.
    pub digest: Digest,
}

/// The location of a document in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentPosition {
    pub file: PathBuf,
    /// The number of the document in the file, from 1.
    pub document: usize,
    /// The line in the file, from 1.
    pub line: usize,
}

impl fmt::Display for DocumentPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: document {}", self.file.display(), self.line, self.document)
    }
}

/// The problem of an invalid document or field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub place: DocumentPosition,
    /// The object; `None` if the document does not identify its object.
    pub object: Option<ObjectId>,
    /// The path of the field, such as `spec.program.rego.dialect`; empty if the problem concerns the whole document.
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
    /// Returns the problem as the failure of its object.
    #[must_use]
    pub fn to_failure(&self) -> Failure {
        Failure { reason: Reason::INVALID, message: self.to_string() }
    }
}

/// Returns true if an object that was last seen in this file may still exist although no readable document has it: its document, its
/// file or a folder of its file is unreadable.
#[must_use]
pub fn may_still_hold(problems: &[Problem], id: &ObjectId, file: &Path) -> bool {
    problems.iter().any(|problem| match &problem.object {
        Some(object) => object == id,
        None => file.starts_with(&problem.place.file),
    })
}

impl Manifests {
    /// Reads all `*.yaml`, `*.yml` and `*.json` files below `folder`, except hidden ones. An unreadable file becomes a problem.
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
            // The file was removed after the listing: ignore it, as the next reading will.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => self.file_problem(path.to_owned(), format!("cannot be read: {error}")),
        }
    }

    fn file_problem(&mut self, file: PathBuf, message: String) {
        let place = DocumentPosition { file, document: 1, line: 1 };
        self.problems.push(Problem { place, object: None, field: String::new(), message });
    }

    /// Adds the documents of one file.
    fn read_text(&mut self, path: &Path, text: &str) {
        for (index, (line, text)) in document::split(text).into_iter().enumerate() {
            let place = DocumentPosition { file: path.to_owned(), document: index + 1, line };
            match document::read(text) {
                Ok(Some(object)) => self.add(place, Digest::of(text.as_bytes()), object),
                Ok(None) => {}
                Err(faults) => self.problems.extend(faults.into_iter().map(|fault| Problem {
                    place: DocumentPosition { line: line + fault.line - 1, ..place.clone() },
                    object: fault.object,
                    field: fault.field,
                    message: fault.message,
                })),
            }
        }
    }

    fn add(&mut self, place: DocumentPosition, digest: Digest, object: document::Object) {
        use document::Object;
        let Some(id) = object.id() else {
            if let Object::Other(object) = object {
                self.objects.push(Sourced { spec: *object, annotations: Annotations::new(), place, digest });
            }
            return;
        };
        let taken = match &id {
            ObjectId::Policy(id) => self.policies.get(id).map(|policy| &policy.place),
            ObjectId::Experiment(id) => self.experiments.get(id).map(|experiment| &experiment.place),
            ObjectId::Subscription(id) => self.subscriptions.get(id).map(|subscription| &subscription.place),
            ObjectId::Namespace(name) => self.namespaces.get(name).map(|namespace| &namespace.place),
        };
        if let Some(first) = taken {
            let message = format!("{id} is already defined at {first}: remove one of the two");
            self.problems.push(Problem { place, object: Some(id), field: "metadata.name".to_owned(), message });
            return;
        }
        match object {
            Object::Policy(id, spec, annotations) => {
                self.policies.insert(id, Sourced { spec: *spec, annotations, place, digest });
            }
            Object::Experiment(id, spec, annotations) => {
                self.experiments.insert(id, Sourced { spec: *spec, annotations, place, digest });
            }
            Object::Subscription(id, spec, annotations) => {
                self.subscriptions.insert(id, Sourced { spec: *spec, annotations, place, digest });
            }
            Object::Namespace(name, labels, object) => {
                let whole = Sourced { spec: *object, annotations: Annotations::new(), place: place.clone(), digest };
                self.objects.push(whole);
                self.namespaces.insert(name, Sourced { spec: labels, annotations: Annotations::new(), place, digest });
            }
            Object::Other(_) => {}
        }
    }
}

/// Returns the manifest files below `folder`, except hidden ones, sorted by name. The order is stable, so that of two documents
/// about the same object, the same one counts at each reading.
pub fn files(folder: &Path) -> impl Iterator<Item = walkdir::Result<walkdir::DirEntry>> {
    walkdir::WalkDir::new(folder)
        .follow_links(true)
        .sort_by_file_name()
        .into_iter()
        .filter_entry(|entry| entry.depth() == 0 || !is_hidden(entry.file_name()))
        .filter(|entry| match entry {
            Ok(entry) => entry.file_type().is_file() && is_manifest(entry.path()),
            // Editors create hidden symbolic links without a target (lock files).
            Err(error) => !error.path().and_then(Path::file_name).is_some_and(is_hidden),
        })
}

/// Returns true for hidden files and folders, such as the `..data` folders of mounted ConfigMaps. The visible files of such a
/// mount are symbolic links into `..data`.
fn is_hidden(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Returns true if the path has the extension of a manifest.
fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known))
}
