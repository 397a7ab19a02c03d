//! The errors of the preparation of revisions.

use proviso_artifacts::{CacheError, DigestError, FetchError, ReferenceError};
use proviso_capabilities::{HostCallError, KindUnavailable};
use proviso_core::{Failure, Reason};
use proviso_crds::reasons;
use proviso_crds::validation::FieldError;
use proviso_engines::{CompileError, EvaluationError, SettingsError};

use crate::compile::CompileFailure;
use crate::manifests::ObjectId;
use crate::tenants::TenantsError;

/// The error of a revision that cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("{field}: {error}")]
    Reference { field: String, error: ReferenceError },
    #[error("{field}: {error}")]
    Fetch { field: String, error: Box<FetchError> },
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error("the module {0} is not in the state folder any more")]
    Lost(String),
    #[error("{field}: {error}")]
    Compile { field: String, error: CompileFailure },
    #[error("{0}: is not served by this version: remove it")]
    Unsupported(String),
    #[error("{0}: is missing")]
    NoProgram(String),
    #[error("the module {0} changed while it was being read")]
    Changed(String),
    #[error("{field}: {error}")]
    Digest { field: String, error: DigestError },
    #[error("the record of {0} names no policy: remove it from the state folder")]
    Record(ObjectId),
    #[error(
        "spec: has none of `admission`, `request` and `configuration`: say which requests the policy decides about, or what it configures"
    )]
    NoPoint,
    #[error("{0}: a file:// module is for a policy server over a folder: name one that every replica can fetch")]
    File(String),
    #[error("{0}")]
    Field(FieldError),
    #[error("{0}")]
    NotPermitted(FieldError),
    #[error(transparent)]
    Tenants(#[from] TenantsError),
    #[error("{field}: {error}")]
    Context { field: String, error: Box<HostCallError> },
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("spec.admission: {0}")]
    Match(#[from] kube::core::ParseExpressionError),
    #[error("spec.request.selector: {0}")]
    RequestSelector(kube::core::ParseExpressionError),
    #[error("the preparation stopped: {0}")]
    Stopped(String),
    #[error("spec.policyRef.name: cannot be changed from {from} to {to}: make a new experiment")]
    Immutable { from: String, to: String },
}

impl PrepareError {
    /// Returns the stable name of the error: the log field and, in a cluster, the reason of the condition.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Reference { .. } | Self::Lost(_) | Self::Changed(_) => Reason::PULL_ERROR,
            Self::Fetch { error, .. } => error.reason(),
            Self::Cache(error) => error.reason(),
            Self::Compile { error, .. } => error.reason(),
            Self::Unsupported(_) => Reason::UNSUPPORTED,
            Self::Settings(error) => error.reason(),
            Self::NotPermitted(_) | Self::Tenants(_) => reasons::NOT_PERMITTED,
            Self::Context { error, .. } => error.reason(),
            Self::Field(_)
            | Self::Match(_)
            | Self::Immutable { .. }
            | Self::Digest { .. }
            | Self::Record(_)
            | Self::RequestSelector(_)
            | Self::NoPoint
            | Self::NoProgram(_)
            | Self::File(_) => Reason::INVALID,
            Self::Stopped(_) => Reason::COMPILE_ERROR,
        }
    }
}

impl PrepareError {
    /// Returns the failure of the revision.
    #[must_use]
    pub fn to_failure(&self) -> Failure {
        Failure::new(self.reason(), self.to_string())
    }

    /// Returns the message for the author of a namespaced policy in a cluster: it does not tell what listens where. The log of the
    /// replica has the whole message.
    #[must_use]
    pub fn tenant_message(&self) -> String {
        const IN_LOG: &str = "an administrator finds the cause in the log of the policy server";
        match self {
            Self::Fetch { field, error } => format!("{field}: cannot be fetched: {}; {IN_LOG}", error.category()),
            Self::Cache(_) => format!("the module cache cannot be used: {IN_LOG}"),
            Self::Tenants(_) => format!("the limits of namespaced policies cannot be read: {IN_LOG}"),
            Self::Context { field, error } => match error.as_ref() {
                HostCallError::ApiServer(_)
                | HostCallError::KindUnavailable { cause: KindUnavailable::NotReady(_), .. } => {
                    format!("{field}: the objects cannot be read now")
                }
                error => format!("{field}: {error}"),
            },
            error => error.to_string(),
        }
    }

    /// Returns true if the same version may work later, because the cause is not in the version itself.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Fetch { error, .. } => error.is_transient(),
            Self::Compile { error, .. } => error.is_transient(),
            Self::Settings(SettingsError::EvaluationFailed(error)) => {
                matches!(error, EvaluationError::DeadlineExceeded | EvaluationError::Overloaded(_))
            }
            Self::Context { error, .. } => may_be_readable(error),
            // The next poll of the folder finds the new version of a file that changed.
            // An administrator can permit a use later.
            Self::Cache(_) | Self::Changed(_) | Self::Stopped(_) | Self::NotPermitted(_) | Self::Tenants(_) => true,
            _ => false,
        }
    }
}

/// Returns true if the objects may be readable later: permissions and kinds can change without the policy.
fn may_be_readable(error: &HostCallError) -> bool {
    matches!(error, HostCallError::KindUnavailable { cause, .. } if !matches!(cause, KindUnavailable::ClusterScoped(_)))
}

/// Adds the field to a compiler error.
pub(super) fn in_field(field: &str) -> impl FnOnce(CompileError) -> PrepareError {
    let field = field.to_owned();
    |error| PrepareError::Compile { field, error: error.into() }
}
