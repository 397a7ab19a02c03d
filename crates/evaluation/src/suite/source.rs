//! Objects of a suite: in a file, or inline.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::documents;

/// An object, as the name of its file or inline.
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
    /// Returns an error if the file cannot be read, or does not have exactly one document.
    pub(super) fn read(&self, suite: &Path) -> Result<Value, String> {
        match self {
            Self::Inline(members) => Ok(Value::Object(members.clone())),
            Self::File(file) => {
                documents::only(&resolve(suite, file)).map(|it| it.value).map_err(|error| error.to_string())
            }
        }
    }
}

/// Returns the path of a file that a suite names. The name is relative to the folder of the suite.
pub(super) fn resolve(suite: &Path, file: &str) -> PathBuf {
    suite.parent().unwrap_or(Path::new("")).join(file)
}
