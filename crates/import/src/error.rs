//! The errors of an import.

use std::fmt;

use proviso_evaluation::documents::{DocumentError, DocumentPosition};

/// All errors of an import. Displayed with one error per line.
#[derive(Debug, Default)]
pub struct ImportErrors(pub Vec<ImportError>);

/// The error of a document that cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A field is invalid, or has no equivalent.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// A constraint matches a custom kind without a known resource. The caller must pass the resource to [`crate::import`].
    #[error("{place}: {field}: the resource of the kind {kind} is not known here")]
    UnknownResource {
        place: DocumentPosition,
        field: String,
        kind: String,
        /// The resource by the rule that the kinds of Kubernetes follow. It may be wrong for a custom kind.
        guess: String,
    },
}

impl fmt::Display for ImportErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&errors.join("\n"))
    }
}

impl std::error::Error for ImportErrors {}
