//! Request policies: their order, and the requests that they cover.

use std::cmp::Ordering;
use std::fmt;

use kube::core::{Selector, SelectorExt};
use serde::Serialize;

use super::payload::Request;
use crate::policy_id::PolicyId;

/// The level of a request policy. Policies of an earlier level are evaluated first, and bind those of later levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Level {
    Global,
    Tenant,
    User,
}

impl Level {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Global => "Global",
            Self::Tenant => "Tenant",
            Self::User => "User",
        }
    }
}

/// A revision of a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct RevisionId {
    pub policy: PolicyId,
    pub generation: i64,
}

impl fmt::Display for RevisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policy {} (generation {})", self.policy, self.generation)
    }
}

/// A revision of a request policy: its place in the chain, and the requests that it covers.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestPolicy {
    pub revision: RevisionId,
    pub level: Level,
    /// The priority within the level. The lowest number is evaluated first.
    pub priority: u32,
    pub criteria: Criteria,
}

/// The requests that a policy covers. A request must meet each criterion; the default covers all requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Criteria {
    /// The service types; empty for all.
    pub service_types: Vec<String>,
    /// The selector over the labels of the payload, with the semantics of Kubernetes.
    pub selector: Selector,
    /// The tenant; `None` for all tenants.
    pub tenant: Option<String>,
    /// The user; `None` for all users.
    pub user: Option<String>,
}

impl RequestPolicy {
    /// Compares the places of two policies in the chain: by level, then by priority, then by policy id and generation, so that the
    /// order never depends on the order in which policies were read.
    #[must_use]
    pub fn cmp_place(&self, other: &Self) -> Ordering {
        (self.level, self.priority, &self.revision).cmp(&(other.level, other.priority, &other.revision))
    }
}

impl Criteria {
    /// Returns true if a policy with these criteria covers the request.
    #[must_use]
    pub fn cover(&self, request: &Request) -> bool {
        let is = |wanted: &Option<String>, actual: &Option<String>| wanted.is_none() || wanted == actual;
        let has_service_type = self.service_types.is_empty()
            || request.service_type.as_ref().is_some_and(|service_type| self.service_types.contains(service_type));
        is(&self.tenant, &request.tenant)
            && is(&self.user, &request.user)
            && has_service_type
            && self.selector.matches(&request.labels)
    }
}
