//! The message of ONAP's `PUT /policy`, from policy-handler to deployment-handler: the changed policies of all components, in segments
//! below a limit of the size.

use std::collections::{BTreeMap, BTreeSet};

use super::delta::Items;
use super::segments::{TAG_SIZE, divide, tag};
use super::text::quoted;
use crate::policy_id::PolicyId;

/// The default limit of a message, in bytes: 10 MiB, as `max_msg_length_mb` of policy-handler.
pub const DEFAULT_MESSAGE_LIMIT: usize = 10 * 1024 * 1024;

/// A message of `PUT /policy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyUpdateMessage {
    /// True if the message is the result of a catch-up.
    pub catch_up: bool,
    /// The newest bodies of the changed policies.
    pub latest: Items,
    /// The policies that are gone for good.
    pub removed: BTreeSet<PolicyId>,
    /// For each changed policy, the ids of the filters that select it.
    pub filter_matches: BTreeMap<PolicyId, BTreeSet<String>>,
}

/// The error of a policy that is larger than a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the policy {policy} needs {size} bytes in a message, at most {limit} are allowed: increase the limit of messages, or make the body smaller"
)]
pub struct MessageTooLarge {
    pub policy: PolicyId,
    pub size: usize,
    pub limit: usize,
}

/// The members of one policy in a message, as JSON members without braces. Empty texts are left out.
struct Members<'a> {
    id: &'a PolicyId,
    latest: String,
    removed: String,
    matches: String,
}

impl PolicyUpdateMessage {
    /// Returns the message as segments of at most `limit` bytes, in the order in which they must be sent. All members of a policy are in
    /// one segment. The sender stops at the first segment that fails. Several segments have the member `data_segment`: `1/3`. A message
    /// without policies has no segments.
    ///
    /// # Errors
    /// Returns [`MessageTooLarge`] if a policy needs more than `limit` bytes.
    pub fn segments(&self, limit: usize) -> Result<Vec<String>, MessageTooLarge> {
        let capacity = limit.saturating_sub(self.text("", &[]).len() + TAG_SIZE);
        let mut policies = Vec::new();
        for members in self.members() {
            let size = members.size();
            if size > capacity {
                return Err(MessageTooLarge { policy: members.id.clone(), size, limit });
            }
            policies.push((members, size));
        }
        let segments = divide(policies, capacity);
        let count = segments.len();
        Ok(segments.iter().enumerate().map(|(index, policies)| self.text(&tag(index, count), policies)).collect())
    }

    /// Returns the members of each policy: first the removed policies, then the others, each by id.
    fn members(&self) -> impl Iterator<Item = Members<'_>> {
        let ids: BTreeSet<_> = self.latest.keys().chain(self.filter_matches.keys()).collect();
        let others = ids.into_iter().filter(|id| !self.removed.contains(id));
        self.removed.iter().chain(others).map(|id| {
            let key = quoted(id.as_str());
            let latest =
                self.latest.get(id).map(|item| format!(r#"{key}:{{"policy_body":{},"policy_id":{key}}}"#, item.body()));
            let matches = self.filter_matches.get(id).map(|filters| {
                let filters: Vec<_> = filters.iter().map(|filter| format!("{}:true", quoted(filter))).collect();
                format!("{key}:{{{}}}", filters.join(","))
            });
            Members {
                id,
                latest: latest.unwrap_or_default(),
                removed: if self.removed.contains(id) { format!("{key}:true") } else { String::new() },
                matches: matches.unwrap_or_default(),
            }
        })
    }

    fn text<'a>(&self, tag: &str, policies: &'a [Members<'a>]) -> String {
        let object = |member: fn(&'a Members<'a>) -> &'a String| {
            let members: Vec<_> =
                policies.iter().map(member).map(String::as_str).filter(|text| !text.is_empty()).collect();
            format!("{{{}}}", members.join(","))
        };
        format!(
            r#"{{"catch_up":{},{tag}"latest_policies":{},"policy_filter_matches":{},"removed_policies":{}}}"#,
            self.catch_up,
            object(|policy| &policy.latest),
            object(|policy| &policy.matches),
            object(|policy| &policy.removed),
        )
    }
}

impl Members<'_> {
    /// Returns the size of the members in a message, with a comma for each.
    fn size(&self) -> usize {
        [&self.latest, &self.removed, &self.matches]
            .iter()
            .filter(|text| !text.is_empty())
            .map(|text| text.len() + 1)
            .sum()
    }
}

#[cfg(test)]
mod tests;
