//! The files that a suite names, and objects that stand in the suite itself.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::documents;

/// An object: the name of its file, or the object itself.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Source {
    File(String),
    Inline(Map<String, Value>),
}

impl Source {
    /// Returns the object.
    ///
    /// # Errors
    /// When the file cannot be read, or has no document or several.
    pub(super) fn read(&self, suite: &Path) -> Result<Value, String> {
        match self {
            Self::Inline(members) => Ok(Value::Object(members.clone())),
            Self::File(file) => {
                documents::only(&beside(suite, file)).map(|it| it.value).map_err(|error| error.to_string())
            }
        }
    }
}

/// Returns the path of a file that a suite names: relative to the folder of the suite.
pub(super) fn beside(suite: &Path, file: &str) -> PathBuf {
    suite.parent().unwrap_or(Path::new("")).join(file)
}
