//! The report about a module. Its fields are an interface of this program.

use serde::Serialize;
use serde_json::Value;

use crate::module::Contents;

/// The report of `proviso inspect`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModuleReport {
    pub module: String,
    pub digest: String,
    /// The size in bytes.
    pub size: usize,
    pub mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    pub imports: Vec<String>,
    pub exports: Vec<String>,
}

impl ModuleReport {
    #[must_use]
    pub fn new(module: String, digest: String, size: usize, contents: Contents) -> Self {
        let mode = contents.mode();
        let Contents { metadata, imports, exports } = contents;
        Self { module, digest, size, mode, metadata, imports, exports }
    }
}
