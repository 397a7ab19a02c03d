//! The comparison of the policies that a component has with those that it should have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proviso_core::PolicyId;
use proviso_core::configuration::{Change, Entry, Item, Keep, StoredParts};
use proviso_crds::PolicySubscriptionStatus;
use serde_json::{Map, Value, json};
use similar::TextDiff;

use crate::api::{MAX_BODIES, Shown};

/// The time for the differences of one answer. After it, a difference is coarser.
const MAX_DIFF_TIME: Duration = Duration::from_millis(500);

/// The policies of one component.
pub(super) struct Comparison<'a> {
    pub status: &'a PolicySubscriptionStatus,
    /// The stored bodies.
    pub stored: &'a StoredParts,
    /// The stored bodies as the caller may see them.
    pub items: &'a BTreeMap<PolicyId, Arc<str>>,
    /// The desired bodies as the caller may see them.
    pub should: &'a BTreeMap<PolicyId, Shown>,
    pub keep: &'a Keep,
}

/// The result of a comparison.
pub(super) struct Compared {
    /// The policies by id, each with its state.
    pub policies: Vec<Value>,
    /// The stored bodies by policy; null for a body that is left out.
    pub has: Map<String, Value>,
    /// The desired bodies by policy; null for a body that is left out or cannot be computed.
    pub should: Map<String, Value>,
}

/// The state of one policy of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The component has acknowledged the version that it should have.
    Current,
    /// The component gets, or loses, the policy with the next update.
    Pending,
    /// An update was sent, and its result is not known.
    Unconfirmed,
    /// The component has rejected the change.
    Rejected,
    /// The component keeps the policy as it is, because a selector fails or the policy cannot be read.
    Kept,
    /// The body cannot be computed. The component keeps the body that it has.
    Failed,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Pending => "pending",
            Self::Unconfirmed => "unconfirmed",
            Self::Rejected => "rejected",
            Self::Kept => "kept",
            Self::Failed => "failed",
        }
    }
}

impl Comparison<'_> {
    /// Compares the policies.
    pub(super) fn compared(&self) -> Compared {
        let record = self.status.record();
        let ids: BTreeSet<_> =
            record.acknowledged.keys().chain(self.should.keys()).chain(self.stored.items.keys()).collect();
        let mut compared = Compared { policies: Vec::new(), has: Map::new(), should: Map::new() };
        let mut budget = MAX_BODIES;
        let end = std::time::Instant::now() + MAX_DIFF_TIME;
        for id in ids {
            let has = record.acknowledged.get(id);
            let (should, error) = match self.should.get(id) {
                Some(Shown::Item(item)) => (Some(item), None),
                Some(Shown::Failed(error)) => (None, Some(error)),
                None => (None, None),
            };
            let rejections = record.rejected.get(id).map(Vec::as_slice).unwrap_or_default();
            let rejection = rejections.iter().find(|rejection| match (&rejection.change, should) {
                (Change::To(entry), Some(item)) => is_same(entry, item),
                (Change::Removal, None) => error.is_none(),
                _ => false,
            });
            let is_kept = should.is_none() && self.keep.contains(id);
            let state = if error.is_some() {
                State::Failed
            } else if rejection.is_some() {
                State::Rejected
            } else if record.unconfirmed.contains(id) {
                State::Unconfirmed
            } else if is_kept {
                State::Kept
            } else if has.zip(should).is_some_and(|(entry, item)| is_same(entry, item)) {
                State::Current
            } else {
                State::Pending
            };
            let mut policy =
                Map::from_iter([("id".to_owned(), json!(id)), ("state".to_owned(), json!(state.as_str()))]);
            let message = error.map(String::as_str).or(rejection.map(|rejection| rejection.message.as_str()));
            if let Some(message) = message {
                policy.insert("message".to_owned(), json!(message));
            }
            let (has_body, should_body) = (self.items.get(id), should.map(Item::body));
            let size = has_body.map_or(0, |body| body.len()) + should_body.map_or(0, |body| body.len());
            let bodies = budget.checked_sub(size);
            budget = bodies.unwrap_or(budget);
            let body = |text: Option<&Arc<str>>| {
                let text = text.filter(|_| bodies.is_some());
                text.and_then(|text| serde_json::from_str::<Value>(text).ok())
            };
            let (has_body, should_body) = (body(has_body), body(should_body));
            let diff = diff(has_body.as_ref(), should_body.as_ref(), end);
            if let Some(Entry { version, digest }) = has {
                policy.insert("has".to_owned(), json!({"version": version.to_string(), "digest": digest.to_string()}));
            }
            if self.items.contains_key(id) {
                compared.has.insert(id.to_string(), has_body.unwrap_or_default());
            }
            if let Some(item) = should {
                // A reference has no digest of a body.
                let digest = (!is_reference(item)).then(|| item.entry().digest.to_string());
                policy.insert("should".to_owned(), json!({"version": item.version().to_string(), "digest": digest}));
            }
            if self.should.contains_key(id) {
                compared.should.insert(id.to_string(), should_body.unwrap_or_default());
            }
            if let Some(diff) = diff {
                policy.insert("diff".to_owned(), json!(diff));
            }
            compared.policies.push(Value::Object(policy));
        }
        compared
    }
}

/// Returns true if an entry is that of this body. The digest of a body that is not shown is not known, so the version counts.
fn is_same(entry: &Entry, item: &Item) -> bool {
    if is_reference(item) { entry.version == *item.version() } else { *entry == item.entry() }
}

fn is_reference(item: &Item) -> bool {
    item.body().starts_with(r#"{"configOmitted":true,"#)
}

/// Returns the unified difference from one body to the other as indented JSON; `None` if they are equal.
fn diff(has: Option<&Value>, should: Option<&Value>, end: std::time::Instant) -> Option<String> {
    if has == should {
        return None;
    }
    let text = |body: Option<&Value>| {
        body.and_then(|body| serde_json::to_string_pretty(body).ok()).map(|text| text + "\n").unwrap_or_default()
    };
    let (has, should) = (text(has), text(should));
    let left = end.saturating_duration_since(std::time::Instant::now());
    let diff = TextDiff::configure().timeout(left).diff_lines(has.as_str(), should.as_str());
    Some(diff.unified_diff().header("has", "should").to_string())
}
