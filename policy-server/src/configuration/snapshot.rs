//! The configuration policies and the subscriptions of the folder, after each change of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use proviso_core::PolicyId;
use proviso_core::configuration::{Catalog, Version};

use crate::manifests::{Problem, Sourced, SubscriptionId, SubscriptionManifest};
use crate::table::Revision;

/// The state of the folder that the deliveries need.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// True if each policy was prepared once. Nothing is delivered before: a policy that is still being prepared would look removed.
    pub is_complete: bool,
    /// True if no version of a configuration policy or of its experiments is being prepared.
    pub is_settled: bool,
    pub catalog: Arc<Catalog>,
    /// The revisions of the versions in the catalog.
    pub revisions: HashMap<(PolicyId, Version), Arc<Revision>>,
    /// All policies that the folder has, or had since the start of the server: also those that are disabled or decide about requests.
    pub known: BTreeSet<PolicyId>,
    pub subscriptions: BTreeMap<SubscriptionId, Arc<Sourced<SubscriptionManifest>>>,
    /// The data of the ConfigMaps of the folder, by namespace and name.
    pub config_maps: BTreeMap<(String, String), BTreeMap<String, String>>,
    /// The problems of documents that cannot be read.
    pub problems: Vec<Problem>,
}

impl Snapshot {
    /// Returns true if a policy that a component has may be in a document that could never be read since the start of the server.
    #[must_use]
    pub fn may_hide(&self, policy: &PolicyId) -> bool {
        !self.known.contains(policy) && self.problems.iter().any(|problem| problem.object.is_none())
    }
}
