//! Failures: a reason for programs and a message for people.

use std::borrow::Cow;
use std::fmt;

/// One word in `CamelCase`, such as the `reason` of a Kubernetes condition. It is stable: clients compare it, and it is a
/// field of log lines. Another version of Proviso may give a reason that this version does not know: it is kept as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason(Cow<'static, str>);

impl Reason {
    /// An object says something that makes no sense.
    pub const INVALID: Self = Self::new("Invalid");

    #[must_use]
    pub const fn new(reason: &'static str) -> Self {
        Self(Cow::Borrowed(reason))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Reason {
    fn from(reason: String) -> Self {
        Self(Cow::Owned(reason))
    }
}

impl PartialEq<Reason> for String {
    fn eq(&self, reason: &Reason) -> bool {
        *self == *reason.0
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A failure says why something does not work, or does not work yet. It is displayed as `reason: message`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Failure {
    pub reason: Reason,
    /// For people.
    pub message: String,
}

impl Failure {
    #[must_use]
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason: Reason::new(reason), message: message.into() }
    }
}
