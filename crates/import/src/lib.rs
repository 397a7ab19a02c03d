//! Converts policies of other systems to policies of Proviso: Gatekeeper's constraints, Kubewarden's policies and groups,
//! and Kubernetes' `ValidatingAdmissionPolicies` and `MutatingAdmissionPolicies`.
//!
//! A field without an equivalent is an error that names the file and the field. A policy that decides differently from its
//! original would be worse than no policy.

mod admission_policy;
mod binding;
mod constraint;
mod constraint_match;
mod draft;
mod error;
mod imported;
mod kubewarden;
mod list;
mod resources;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use proviso_crds::validation::FieldError;
use proviso_evaluation::documents::Document;
use proviso_evaluation::gatekeeper::{CONSTRAINTS_GROUP, TEMPLATES_GROUP};

pub use error::{ImportError, ImportErrors};
pub use imported::Imported;
pub use resources::ResourceNames;

/// Converts documents to policies. `resources` has the resource names of the custom kinds that constraints match.
///
/// # Errors
/// Returns an error for each document and field without an equivalent. Then no policy is returned.
pub fn import(documents: Vec<Document>, resources: &ResourceNames) -> Result<Vec<Imported>, ImportErrors> {
    let mut errors = Vec::new();
    let mut by_origin: BTreeMap<Origin, Vec<Document>> = BTreeMap::new();
    for document in list::flatten(documents) {
        match Origin::of(&document) {
            Some(origin) => by_origin.entry(origin).or_default().push(document),
            None => errors.push(document.error(FieldError::new("kind", unknown(&document))).into()),
        }
    }
    let mut drafts = Vec::new();
    for (origin, documents) in by_origin {
        let result = match origin {
            Origin::Gatekeeper => constraint::import(&documents, resources),
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

/// The system that a document comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Gatekeeper,
    Kubewarden,
    Kubernetes,
}

impl Origin {
    fn of(document: &Document) -> Option<Self> {
        match document.group() {
            TEMPLATES_GROUP | CONSTRAINTS_GROUP => Some(Self::Gatekeeper),
            kubewarden::GROUP if kubewarden::KINDS.contains(&document.kind()) => Some(Self::Kubewarden),
            admission_policy::GROUP if admission_policy::KINDS.contains(&document.kind()) => Some(Self::Kubernetes),
            _ => None,
        }
    }
}

fn unknown(document: &Document) -> String {
    format!(
        "is {} of {}, which cannot be imported: use a ConstraintTemplate with its constraints, a policy of \
         Kubewarden, or a ValidatingAdmissionPolicy or MutatingAdmissionPolicy with its bindings",
        document.value["kind"], document.value["apiVersion"]
    )
}
