//! The error of a policy that has no body for a component.

use std::time::Duration;

use proviso_core::Reason;
use proviso_core::configuration::{BodyError, ContentError};
use proviso_crds::validation::FieldError;
use proviso_engines::EvaluationError;
use serde::{Deserialize, Serialize};

/// The maximum length of the text of a compiler or an interpreter, in bytes. The rest is cut off.
const MAX_MESSAGE: usize = 1024;

/// The error of a policy that has no body for a component. The last delivered body of the policy stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Deserialize, Serialize)]
pub enum RenderError {
    /// The template or the schema does not compile.
    #[error("{0}")]
    Compile(String),
    /// The template has no object as its value, or takes too much memory.
    #[error("`spec.configuration.template` for this component: {0}")]
    Template(String),
    /// The time limit, in milliseconds.
    #[error(
        "`spec.configuration.template` takes longer than {0} ms for this component: make it simpler, or the settings that it reads smaller"
    )]
    Timeout(u64),
    /// The content does not match the schema.
    #[error("the content {0}")]
    Schema(String),
    /// The body is too large.
    #[error("{0}")]
    TooLarge(String),
    /// The content is nested too deep.
    #[error("{0}")]
    TooDeep(String),
    /// The program that renders templates has no result, for a reason that is not in the policy. A later attempt may succeed.
    #[error("the template was not evaluated: {0}")]
    Unavailable(String),
}

impl RenderError {
    /// Returns the stable name of the error, for conditions.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Compile(_) => Reason::COMPILE_ERROR,
            Self::Template(_) => Reason::new("TemplateFailed"),
            Self::Timeout(_) => Reason::new("TemplateTimeout"),
            Self::Schema(_) => Reason::new("SchemaViolation"),
            Self::TooLarge(_) => Reason::new("BodyTooLarge"),
            Self::TooDeep(_) => Reason::INVALID,
            Self::Unavailable(_) => Reason::new("RenderingUnavailable"),
        }
    }

    /// Returns true if the same policy may have a body for the same component at the next attempt.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Unavailable(_))
    }

    /// Returns the error of a field of the spec, which is relative to the spec.
    #[must_use]
    pub fn of_field(error: &FieldError) -> Self {
        Self::Compile(beginning(&format!("`spec.{}`: {}", error.field, error.message)))
    }

    /// Returns the error of an evaluation with this time limit.
    pub(super) fn of(error: EvaluationError, limit: Duration) -> Self {
        match error {
            // Without the words about the server that answers reviews.
            EvaluationError::Failed(why) | EvaluationError::InvalidAnswer(why) => Self::Template(beginning(&why)),
            EvaluationError::DeadlineExceeded => Self::Timeout(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
            EvaluationError::Overloaded(_) => Self::Unavailable(error.to_string()),
        }
    }
}

/// Returns the beginning of a text, which may have values of the component.
fn beginning(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_MESSAGE)].to_owned()
}

impl From<ContentError> for RenderError {
    fn from(error: ContentError) -> Self {
        Self::Schema(error.to_string())
    }
}

impl From<BodyError> for RenderError {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge { .. } => Self::TooLarge(error.to_string()),
            BodyError::TooDeep { .. } => Self::TooDeep(error.to_string()),
        }
    }
}
