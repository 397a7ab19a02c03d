//! The verdict about a Kubernetes object, from the outcome of the chain that decided about its request.

use std::fmt::Write as _;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation};
use serde_json::Value;

use super::ObjectBinding;
use crate::failure::Failure;
use crate::request::outcome::{Decision, Outcome, TrailEntry};
use crate::request::path::{FieldPath, shorten};
use crate::verdict::{Cause, Verdict};

/// The key of the audit annotation with the policies that decided.
const TRAIL: &str = "request-policies";
/// The maximum length of that annotation, in bytes.
const MAX_TRAIL_BYTES: usize = 4096;
/// The maximum number of fields that the annotation names for each policy and effect.
const MAX_TRAIL_FIELDS: usize = 8;
/// The maximum length of a message of a denial, in characters.
const MAX_MESSAGE: usize = 4096;

impl ObjectBinding {
    /// Returns the verdict about an object whose request had this payload.
    ///
    /// # Errors
    /// Returns an error if a policy could not be evaluated.
    pub fn verdict(&self, payload: &Value, outcome: &Outcome) -> Result<Verdict, Failure> {
        let decision = self.in_object(&outcome.decision);
        let message = decision.message().map(|message| truncate(&message)).unwrap_or_default();
        let (field, reason) = match &decision {
            Decision::Approved | Decision::Modified => {
                let patch = self.patch(payload, &outcome.payload);
                let audit_annotations = [(TRAIL.to_owned(), self.describe(&outcome.trail))].into();
                return Ok(Verdict { audit_annotations, patch, ..Verdict::allow() });
            }
            Decision::Failed { failure, .. } => return Err(Failure::new(failure.reason.clone(), message)),
            Decision::Rejected { field, reason, .. } => (field, reason),
            Decision::Conflict(conflict) => (&conflict.field, &conflict.reason),
        };
        let cause =
            field.as_ref().map(|field| Cause { field: Some(shorten(&field.to_string())), message: truncate(reason) });
        Ok(Verdict {
            // Clients of Kubernetes repeat requests that get the status Conflict, and a conflict of policies stays.
            code: Some(403),
            reason: Some("Forbidden".to_owned()),
            causes: cause.into_iter().collect(),
            audit_annotations: [(TRAIL.to_owned(), self.describe(&outcome.trail))].into(),
            ..Verdict::deny(message)
        })
    }

    /// Returns the decision with the field as a field of the object.
    fn in_object(&self, decision: &Decision) -> Decision {
        let mut decision = decision.clone();
        let field = match &mut decision {
            Decision::Rejected { field, .. } => field,
            Decision::Conflict(conflict) => &mut conflict.field,
            Decision::Approved | Decision::Modified | Decision::Failed { .. } => return decision,
        };
        *field = field.take().map(|field| self.path_of(&field));
        decision
    }

    fn path_of(&self, field: &FieldPath) -> FieldPath {
        field.keys().iter().fold(self.payload.clone(), |path, key| path.child(key))
    }

    /// Returns the patch that replaces the members of the payload that policies changed; `None` if they changed none. The members
    /// are replaced as a whole: a patch for each value within them would repeat the path, and be much larger than the payload.
    fn patch(&self, before: &Value, after: &Value) -> Option<Patch> {
        let (before, after) = (before.as_object()?, after.as_object()?);
        let path = |key: &String| PointerBuf::parse(self.payload.child(key).to_pointer()).ok();
        let mut operations = Vec::new();
        for key in before.keys().filter(|key| !after.contains_key(*key)) {
            operations.push(PatchOperation::Remove(RemoveOperation { path: path(key)? }));
        }
        for (key, value) in after {
            let (path, value) = match before.get(key) {
                Some(old) if old == value => continue,
                Some(_) => {
                    let replace = ReplaceOperation { path: path(key)?, value: value.clone() };
                    operations.push(PatchOperation::Replace(replace));
                    continue;
                }
                None => (path(key)?, value.clone()),
            };
            operations.push(PatchOperation::Add(AddOperation { path, value }));
        }
        (!operations.is_empty()).then_some(Patch(operations))
    }

    /// Describes the effects of the policies for the audit log, without values of the payload.
    fn describe(&self, trail: &[TrailEntry]) -> String {
        let mut text = String::new();
        for (position, entry) in trail.iter().enumerate() {
            let entry = self.describe_entry(entry);
            if text.len() + entry.len() > MAX_TRAIL_BYTES {
                let _ = write!(text, "and {} more policies", trail.len() - position);
                return text;
            }
            text.push_str(&entry);
            if position + 1 < trail.len() {
                text.push_str("; ");
            }
        }
        if text.is_empty() { "no policy covers the request".to_owned() } else { text }
    }

    fn describe_entry(&self, entry: &TrailEntry) -> String {
        let list = |fields: &[&FieldPath]| {
            let names = fields.iter().take(MAX_TRAIL_FIELDS).map(|field| shorten(&self.path_of(field).to_string()));
            let mut list = names.collect::<Vec<_>>().join(", ");
            if fields.len() > MAX_TRAIL_FIELDS {
                let _ = write!(list, " and {} more", fields.len() - MAX_TRAIL_FIELDS);
            }
            list
        };
        let constrained: Vec<_> = entry.constrained.iter().map(|constrained| &constrained.field).collect();
        let mut text = format!("{} ({})", entry.revision.policy, entry.revision.generation);
        for (effect, fields) in [("patched", entry.patched.iter().collect()), ("constrained", constrained)] {
            if !fields.is_empty() {
                let _ = write!(text, " {effect} {}", list(&fields));
            }
        }
        if let Some(provider) = &entry.provider {
            let _ = write!(text, " chose provider {}", shorten(provider));
        }
        text
    }
}

fn truncate(text: &str) -> String {
    match text.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
