//! Failures: a machine-readable reason and a message for people.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

/// One word in `CamelCase`, such as the `reason` of a Kubernetes condition. A reason is stable: clients compare it, and log
/// lines have it as a field. A reason of another version of Proviso is kept unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Reason(Cow<'static, str>);

impl Reason {
    /// The module cache cannot be read or written.
    pub const CACHE_ERROR: Self = Self::new("CacheError");
    /// The program cannot be compiled.
    pub const COMPILE_ERROR: Self = Self::new("CompileError");
    /// The compilation of the program takes too long.
    pub const COMPILE_TIMEOUT: Self = Self::new("CompileTimeout");
    /// A field of an object has an invalid value.
    pub const INVALID: Self = Self::new("Invalid");
    /// The module cannot be fetched.
    pub const PULL_ERROR: Self = Self::new("PullError");
    /// The program does not accept its settings.
    pub const SETTINGS_INVALID: Self = Self::new("SettingsInvalid");
    /// A feature is not supported by this version of Proviso.
    pub const UNSUPPORTED: Self = Self::new("Unsupported");
    /// The module does not have the digest that the policy requires, or its signatures do not meet the requirements of the
    /// policy server.
    pub const VERIFICATION_ERROR: Self = Self::new("VerificationError");

    #[must_use]
    pub const fn new(reason: &'static str) -> Self {
        Self(Cow::Borrowed(reason))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&'static str> for Reason {
    fn from(reason: &'static str) -> Self {
        Self::new(reason)
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

/// The reason why something does not work, or does not work yet. Displayed as `reason: message`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Failure {
    pub reason: Reason,
    /// A description for people.
    pub message: String,
}

impl Failure {
    #[must_use]
    pub fn new(reason: impl Into<Reason>, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into() }
    }
}
