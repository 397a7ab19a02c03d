//! Applies the merge patch (RFC 7396) of a policy.

use serde_json::{Map, Value};

use super::path::FieldPath;

/// The paths of the changed fields are larger than the limit.
#[derive(Debug)]
pub(super) struct PathsTooLarge;

/// The changed fields, with the size of their paths.
#[derive(Debug, Default)]
pub(super) struct ChangedFields {
    pub fields: Vec<FieldPath>,
    /// The size of the paths, in bytes.
    pub path_bytes: usize,
}

/// Returns the fields whose value a merge patch changes: fields that it sets to another value, and fields that it removes.
///
/// # Errors
/// Returns an error if the paths of the fields have more than `limit` bytes together. A patch of a megabyte can change many fields below
/// one long key, and so have paths of gigabytes.
pub(super) fn changed_fields(
    payload: &Value,
    patch: &Map<String, Value>,
    limit: usize,
) -> Result<ChangedFields, PathsTooLarge> {
    let mut changed = Changed { at: FieldPath::root(), at_bytes: 0, limit, found: ChangedFields::default() };
    changed.collect(Some(payload), patch)?;
    Ok(changed.found)
}

/// The search for changed fields.
struct Changed {
    /// The path of the current object, with its size.
    at: FieldPath,
    at_bytes: usize,
    limit: usize,
    found: ChangedFields,
}

impl Changed {
    fn collect(&mut self, before: Option<&Value>, patch: &Map<String, Value>) -> Result<(), PathsTooLarge> {
        let members = before.and_then(Value::as_object);
        for (key, value) in patch {
            let old = members.and_then(|members| members.get(key));
            let key_bytes = key.len() + size_of::<String>();
            self.at.push(key);
            self.at_bytes += key_bytes;
            match (value, old) {
                (Value::Null, None) => {}
                (Value::Object(patch), Some(Value::Object(_))) => self.collect(old, patch)?,
                (Value::Object(patch), None) => {
                    let found = self.found.fields.len();
                    self.collect(None, patch)?;
                    // The object itself is new, even if its patch only removes members.
                    if self.found.fields.len() == found {
                        self.add()?;
                    }
                }
                (value, Some(old)) if value == old => {}
                _ => self.add()?,
            }
            self.at.pop();
            self.at_bytes -= key_bytes;
        }
        Ok(())
    }

    /// Adds the current path.
    fn add(&mut self) -> Result<(), PathsTooLarge> {
        self.found.path_bytes += self.at_bytes;
        if self.found.path_bytes > self.limit {
            return Err(PathsTooLarge);
        }
        self.found.fields.push(self.at.clone());
        Ok(())
    }
}
