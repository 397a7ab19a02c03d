//! Applies the merge patch (RFC 7396) of a policy.

use serde_json::{Map, Value};

use super::path::FieldPath;

/// The paths of the changed fields are larger than their budget.
#[derive(Debug)]
pub(super) struct PathsTooLarge;

/// Returns the fields whose value a merge patch changes: fields that it sets to another value, and fields that it removes. Takes the
/// size of their paths, in bytes, from the budget.
///
/// # Errors
/// Returns an error if the paths need more than the budget. A patch of a megabyte can change many fields below one long key, and so have
/// paths of gigabytes.
pub(super) fn changed_fields(
    payload: &Value,
    patch: &Map<String, Value>,
    budget: &mut usize,
) -> Result<Vec<FieldPath>, PathsTooLarge> {
    let mut changed = Changed { at: FieldPath::root(), budget, fields: Vec::new() };
    changed.collect(Some(payload), patch)?;
    Ok(changed.fields)
}

/// The search for changed fields.
struct Changed<'a> {
    /// The path of the current object.
    at: FieldPath,
    budget: &'a mut usize,
    fields: Vec<FieldPath>,
}

impl Changed<'_> {
    fn collect(&mut self, before: Option<&Value>, patch: &Map<String, Value>) -> Result<(), PathsTooLarge> {
        let members = before.and_then(Value::as_object);
        for (key, value) in patch {
            let old = members.and_then(|members| members.get(key));
            self.at.push(key);
            match (value, old) {
                (Value::Null, None) => {}
                (Value::Object(patch), Some(Value::Object(_))) => self.collect(old, patch)?,
                (Value::Object(patch), None) => {
                    let found = self.fields.len();
                    self.collect(None, patch)?;
                    // The object itself is new, even if its patch only removes members.
                    if self.fields.len() == found {
                        self.add()?;
                    }
                }
                (value, Some(old)) if value == old => {}
                _ => self.add()?,
            }
            self.at.pop();
        }
        Ok(())
    }

    /// Adds the current path.
    fn add(&mut self) -> Result<(), PathsTooLarge> {
        *self.budget = self.budget.checked_sub(self.at.size()).ok_or(PathsTooLarge)?;
        self.fields.push(self.at.clone());
        Ok(())
    }
}
