//! Failures: a reason for programs and a message for people.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

/// One word in `CamelCase`, such as the `reason` of a Kubernetes condition. It is stable: clients compare it, and it is a
/// field of log lines. Another version of Proviso may give a reason that this version does not know: it is kept as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Reason(Cow<'static, str>);

impl Reason {
    /// The cache of modules cannot be read or written.
    pub const CACHE_ERROR: Self = Self::new("CacheError");
    /// The program cannot be compiled.
    pub const COMPILE_ERROR: Self = Self::new("CompileError");
    /// Compiling the program takes too long.
    pub const COMPILE_TIMEOUT: Self = Self::new("CompileTimeout");
    /// A field of an object has a value that it cannot have.
    pub const INVALID: Self = Self::new("Invalid");
    /// The module cannot be fetched.
    pub const PULL_ERROR: Self = Self::new("PullError");
    /// The program does not accept its settings.
    pub const SETTINGS_INVALID: Self = Self::new("SettingsInvalid");
    /// This version of Proviso does not support it.
    pub const UNSUPPORTED: Self = Self::new("Unsupported");
    /// The module is another one than the policy asks for, or its signatures do not satisfy the policy server.
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

/// A failure says why something does not work, or does not work yet. It is displayed as `reason: message`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Failure {
    pub reason: Reason,
    /// For people.
    pub message: String,
}

impl Failure {
    #[must_use]
    pub fn new(reason: impl Into<Reason>, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into() }
    }
}
