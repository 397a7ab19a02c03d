//! A converted policy before validation.

use proviso_crds::validation::FieldError;
use proviso_crds::{GROUP, VERSION};
use proviso_evaluation::documents::{DocumentError, DocumentPosition};
use proviso_evaluation::policy_spec;
use serde_json::{Map, Value, json};

use crate::error::ImportError;
use crate::imported::Imported;

/// The prefixes of annotations that belong to other tools.
const TOOL_ANNOTATIONS: [&str; 3] = ["kubectl.kubernetes.io/", "meta.helm.sh/", "argocd.argoproj.io/"];

/// A converted policy that is not validated yet.
#[derive(Debug)]
pub(crate) struct Draft {
    /// The document that the policy comes from, for messages.
    pub place: DocumentPosition,
    /// The namespace of a Policy; `None` for a `ClusterPolicy`.
    pub namespace: Option<String>,
    pub name: String,
    /// The `metadata` of the document that the policy comes from. Its labels and annotations are copied.
    pub origin: Value,
    pub spec: Value,
    pub notes: Vec<String>,
}

/// The drafts of some documents, or all errors of the documents.
pub(crate) type Drafts = Result<Vec<Draft>, Vec<ImportError>>;

impl Draft {
    /// Validates the draft and returns the policy.
    ///
    /// # Errors
    /// Returns all reasons for which a policy server would refuse the policy.
    pub(crate) fn finish(self) -> Result<Imported, Vec<ImportError>> {
        let at = |field: &str, message: String| {
            let error = FieldError::new(format!("as a policy of Proviso: {field}"), message);
            ImportError::from(DocumentError::Field { place: self.place.clone(), error })
        };
        let spec = policy_spec::read("spec", &self.spec).map_err(|error| vec![at(&error.field, error.message)])?;
        proviso_core::policy_id::check_name(&self.name)
            .map_err(|error| vec![at("metadata.name", error.to_string())])?;
        let found = proviso_programs::check("spec", &spec);
        if !found.is_empty() {
            return Err(found.into_iter().map(|error| at(&error.field, error.message)).collect());
        }
        let mut metadata = Map::from_iter([("name".to_owned(), self.name.into())]);
        metadata.extend(self.namespace.as_ref().map(|namespace| ("namespace".to_owned(), namespace.as_str().into())));
        for field in ["labels", "annotations"] {
            let kept: Map<_, _> = self.origin[field].as_object().into_iter().flatten().filter_map(user_entry).collect();
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

/// Returns the label or annotation; `None` if it belongs to another tool.
fn user_entry((key, value): (&String, &Value)) -> Option<(String, Value)> {
    (!TOOL_ANNOTATIONS.iter().any(|prefix| key.starts_with(prefix))).then(|| (key.clone(), value.clone()))
}
