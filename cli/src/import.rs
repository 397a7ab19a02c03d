//! From the policies of other systems to ours. Pure. What has no equivalent is an error that names file and field: a policy
//! that decides otherwise than the one it came from is worse than none.

mod admission_policy;
mod binding;
mod constraint;
mod kubewarden;
mod list;
mod places;

use std::collections::BTreeMap;
use std::fmt;

use proviso_crds::validation::FieldError;
use proviso_crds::{GROUP, VERSION};
use serde_json::{Map, Value, json};

use crate::documents::{Document, DocumentError, Place};
use crate::manifest;
use crate::resources::Named;

/// What the names of annotations begin with that other programs write for themselves.
const BOOKKEEPING: [&str; 3] = ["kubectl.kubernetes.io/", "meta.helm.sh/", "argocd.argoproj.io/"];

/// A policy of ours, and what a person should know about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    pub manifest: Value,
    pub notes: Vec<String>,
}

/// All that stands in the way. One error a line.
#[derive(Debug, Default)]
pub struct ImportErrors(pub Vec<DocumentError>);

impl fmt::Display for ImportErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&errors.join("\n"))
    }
}

impl std::error::Error for ImportErrors {}

/// A policy on its way: where it comes from, and what it is to be.
#[derive(Debug)]
struct Draft {
    place: Place,
    /// Of a Policy; none for a `ClusterPolicy`.
    namespace: Option<String>,
    name: String,
    /// `metadata` of what it comes from, whose labels and annotations stay.
    origin: Value,
    spec: Value,
    notes: Vec<String>,
}

type Drafts = Result<Vec<Draft>, Vec<DocumentError>>;

fn wrong(field: impl Into<String>, message: impl Into<String>) -> FieldError {
    FieldError { field: field.into(), message: message.into() }
}

/// Turns all of these documents into policies.
///
/// # Errors
/// All that has no equivalent; then nothing is returned.
pub fn import(documents: Vec<Document>, named: &Named) -> Result<Vec<Imported>, ImportErrors> {
    let mut errors = Vec::new();
    let mut by_origin: BTreeMap<Origin, Vec<Document>> = BTreeMap::new();
    for document in list::flatten(documents) {
        match Origin::of(&document) {
            Some(origin) => by_origin.entry(origin).or_default().push(document),
            None => errors.push(document.wrong(wrong("kind", unknown(&document)))),
        }
    }
    let mut drafts = Vec::new();
    for (origin, documents) in by_origin {
        let result = match origin {
            Origin::Gatekeeper => constraint::import(&documents, named),
            Origin::Kubewarden => kubewarden::import(&documents),
            Origin::Kubernetes => admission_policy::import(&documents),
        };
        match result {
            Ok(found) => drafts.extend(found),
            Err(found) => errors.extend(found),
        }
    }
    let mut imported = Vec::new();
    for draft in drafts {
        match draft.finish() {
            Ok(policy) => imported.push(policy),
            Err(found) => errors.extend(found),
        }
    }
    if errors.is_empty() { Ok(imported) } else { Err(ImportErrors(errors)) }
}

/// Whose policies a document is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Gatekeeper,
    Kubewarden,
    Kubernetes,
}

impl Origin {
    fn of(document: &Document) -> Option<Self> {
        match document.group() {
            crate::gatekeeper::TEMPLATES | crate::gatekeeper::CONSTRAINTS => Some(Self::Gatekeeper),
            kubewarden::GROUP if kubewarden::KINDS.contains(&document.kind()) => Some(Self::Kubewarden),
            admission_policy::GROUP if admission_policy::KINDS.contains(&document.kind()) => Some(Self::Kubernetes),
            _ => None,
        }
    }
}

fn unknown(document: &Document) -> String {
    format!(
        "is {} of {}, which is no policy that can be imported: a ConstraintTemplate with its constraints, a policy of \
         Kubewarden, or a ValidatingAdmissionPolicy or MutatingAdmissionPolicy with its bindings",
        document.value["kind"], document.value["apiVersion"]
    )
}

impl Draft {
    /// The policy, if a policy server would take it.
    fn finish(self) -> Result<Imported, Vec<DocumentError>> {
        let at = |field: &str, message: String| DocumentError::Field {
            place: self.place.clone(),
            error: wrong(format!("as a policy of Proviso: {field}"), message),
        };
        let spec =
            manifest::spec(&self.spec).map_err(|(field, message)| vec![at(&format!("spec.{field}"), message)])?;
        proviso_core::policy_id::check_name(&self.name)
            .map_err(|error| vec![at("metadata.name", error.to_string())])?;
        let found = proviso_programs::check("spec", &spec);
        if !found.is_empty() {
            return Err(found.into_iter().map(|error| at(&error.field, error.message)).collect());
        }
        let mut metadata = Map::from_iter([("name".to_owned(), self.name.into())]);
        metadata.extend(self.namespace.as_ref().map(|namespace| ("namespace".to_owned(), namespace.as_str().into())));
        for field in ["labels", "annotations"] {
            let kept: Map<_, _> = self.origin[field].as_object().into_iter().flatten().filter_map(kept).collect();
            if !kept.is_empty() {
                metadata.insert(field.to_owned(), kept.into());
            }
        }
        let kind = if self.namespace.is_some() { "Policy" } else { "ClusterPolicy" };
        let manifest = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": kind, "metadata": metadata, "spec": self.spec,
        });
        Ok(Imported { manifest, notes: self.notes })
    }
}

/// A label or annotation that people wrote.
fn kept((key, value): (&String, &Value)) -> Option<(String, Value)> {
    (!BOOKKEEPING.iter().any(|prefix| key.starts_with(prefix))).then(|| (key.clone(), value.clone()))
}

impl Imported {
    /// `namespace.name` or `name`, for a file.
    #[must_use]
    pub fn file_name(&self) -> String {
        let metadata = &self.manifest["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        match text("namespace") {
            "" => format!("{}.yaml", text("name")),
            namespace => format!("{namespace}.{}.yaml", text("name")),
        }
    }

    /// The manifest, below its notes.
    ///
    /// # Errors
    /// Never for what was read from YAML.
    pub fn to_yaml(&self) -> Result<String, serde_yaml::Error> {
        let mut text = serde_yaml::to_string(&self.manifest)?;
        for note in self.notes.iter().rev() {
            text.insert_str(0, &format!("# {note}\n"));
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
