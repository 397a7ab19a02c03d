//! The notification of a component about changes of its policies, and the event that is stored with the policies. Source: "On
//! policy-update: pass policies delta and state to the component" of ONAP DCAE's policy flow.

use std::sync::Arc;

use serde::Serialize;

use super::body::{Item, reference};
use super::delivery::{LastKnown, Update};
use super::segments::{TAG_SIZE, divide, tag};
use super::text::{list, quoted};
use crate::policy_id::PolicyId;

/// The smallest limit of a message, in bytes. A message with one reference to a policy is smaller.
pub const MIN_MESSAGE: usize = 1024;
/// The members of a message without their elements, in bytes.
const EMPTY_MESSAGE: usize = r#"{"policies":[],"removed_policies":[],"updated_policies":[]}"#.len();

/// The description of the last change of a component's policies, stored beside them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    pub action: Action,
    /// The time of the change: RFC 3339 in UTC with milliseconds.
    pub timestamp: String,
    /// The UUID of the change.
    pub update_id: String,
    /// The number of policies that the component has after the change.
    pub policies_count: usize,
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The policies are written for the first time.
    Gathered,
    Updated,
}

/// A notification: three lists of policy bodies, each sorted by policy id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    updated: Vec<Element>,
    removed: Vec<Element>,
    policies: Vec<Element>,
}

/// An element of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Element {
    body: Arc<str>,
    /// The JSON that stands for a body that is larger than a message.
    reference: Arc<str>,
}

impl Element {
    fn reference(reference: Arc<str>) -> Self {
        Self { body: Arc::clone(&reference), reference }
    }
}

/// Returns the JSON that stands for a removed policy of which no version is known.
fn unknown(id: &PolicyId) -> Arc<str> {
    format!(r#"{{"configOmitted":true,"policyName":{}}}"#, quoted(id.as_str())).into()
}

/// The lists of a notification.
#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    Removed,
    Updated,
    Policies,
}

impl Notification {
    /// Returns the notification about an update. Bodies that are confidential are replaced by references: the arguments of a command
    /// are in the audit log of the API server.
    #[must_use]
    pub fn new(update: &Update) -> Self {
        let element = |(id, item): (&PolicyId, &Item)| {
            let reference = reference(id, item.version());
            let body = if item.is_confidential() { Arc::clone(&reference) } else { Arc::clone(item.body()) };
            Element { body, reference }
        };
        let removed = update.removed.iter().map(|(id, last)| match last {
            LastKnown::Body(item) => element((id, item)),
            LastKnown::Version(version) => Element::reference(reference(id, version)),
            LastKnown::Unknown => Element::reference(unknown(id)),
        });
        Self {
            updated: update.updated.iter().map(element).collect(),
            removed: removed.collect(),
            policies: update.target.iter().map(element).collect(),
        }
    }

    /// Returns the notification as JSON: `{"policies": […], "removed_policies": […], "updated_policies": […]}`.
    #[must_use]
    pub fn to_json(&self) -> String {
        let bodies = |list: &[Element]| self::list(list.iter().map(|element| &*element.body));
        message("", &bodies(&self.policies), &bodies(&self.removed), &bodies(&self.updated))
    }

    /// Returns the notification as messages of at most `limit` bytes, or [`MIN_MESSAGE`] if that is more. A notification that fits is
    /// one message. Otherwise, each message has the member `data_segment` (`1/3`), and the lists are divided over the messages: first
    /// the removed policies, then the updated ones, then all policies. A body that is larger than a message is replaced by a reference
    /// (`configOmitted`).
    #[must_use]
    pub fn messages(&self, limit: usize) -> Vec<String> {
        let limit = limit.max(MIN_MESSAGE);
        let whole = self.to_json();
        if whole.len() <= limit {
            return vec![whole];
        }
        let capacity = limit - EMPTY_MESSAGE - TAG_SIZE;
        let lists = [(List::Removed, &self.removed), (List::Updated, &self.updated), (List::Policies, &self.policies)];
        let entries = lists.into_iter().flat_map(|(list, elements)| {
            elements.iter().map(move |element| {
                // One byte more for the comma.
                let fits = element.body.len() < capacity;
                let text = if fits { &element.body } else { &element.reference };
                ((list, &**text), text.len() + 1)
            })
        });
        let segments = divide(entries, capacity);
        let count = segments.len();
        let segment = |(index, entries): (usize, Vec<(List, &str)>)| {
            let of = |wanted| self::list(entries.iter().filter(|(list, _)| *list == wanted).map(|(_, text)| *text));
            message(&tag(index, count), &of(List::Policies), &of(List::Removed), &of(List::Updated))
        };
        segments.into_iter().enumerate().map(segment).collect()
    }
}

fn message(tag: &str, policies: &str, removed: &str, updated: &str) -> String {
    format!(r#"{{{tag}"policies":{policies},"removed_policies":{removed},"updated_policies":{updated}}}"#)
}

#[cfg(test)]
mod tests;
