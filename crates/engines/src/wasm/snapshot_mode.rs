//! The use of snapshots of initialised modules, and the result of the attempt to record one.

use serde::{Deserialize, Serialize};

/// The use of snapshots of a module's initialised state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SnapshotMode {
    /// Instances start with the recorded state, if that cannot change an answer.
    #[default]
    Automatic,
    /// Every instance initialises itself.
    Never,
}

impl SnapshotMode {
    /// Returns the name of the mode: `automatic` or `never`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Automatic => "automatic",
            Self::Never => "never",
        }
    }

    /// Returns the mode with this name; `None` if there is no such mode.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Automatic, Self::Never].into_iter().find(|mode| mode.as_str() == name)
    }
}

/// The result of the attempt to record the initialised state of a module.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Snapshot {
    /// Every instance starts with the recorded state.
    Recorded,
    /// The compiler has not tried: the module has no initialisation, or the mode is [`SnapshotMode::Never`].
    NotTried,
    /// Every instance initialises itself, because the recorded state could change an answer, or because the state cannot be
    /// recorded. The text is the cause.
    Refused(String),
}
