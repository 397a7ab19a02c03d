//! An imported policy.

use serde_json::Value;

/// An imported policy of Proviso.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    pub manifest: Value,
    /// Notes for the user, such as the origin of the policy.
    pub notes: Vec<String>,
}

impl Imported {
    /// Returns a file name for the policy: `NAMESPACE.NAME.yaml`, or `NAME.yaml` for a `ClusterPolicy`.
    #[must_use]
    pub fn file_name(&self) -> String {
        let metadata = &self.manifest["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        match text("namespace") {
            "" => format!("{}.yaml", text("name")),
            namespace => format!("{namespace}.{}.yaml", text("name")),
        }
    }

    /// Returns the manifest as YAML, after its notes as comments.
    ///
    /// # Errors
    /// Returns an error if the manifest cannot be serialized. This does not occur for a policy from [`crate::import`].
    pub fn to_yaml(&self) -> Result<String, serde_yaml::Error> {
        let mut text = serde_yaml::to_string(&self.manifest)?;
        for note in self.notes.iter().rev() {
            text.insert_str(0, &format!("# {note}\n"));
        }
        Ok(text)
    }
}
