//! The configuration policies and the subscriptions of the folder, as the deliveries read them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use proviso_core::PolicyId;
use proviso_core::configuration::{Candidate, Catalog, Version};
use serde_json::Value;
use tokio::sync::watch;

use super::FolderSource;
use super::object::Object;
use super::scan::Scan;
use super::store::ObservedObject;
use crate::configuration::Snapshot;
use crate::manifests::{ObjectId, Sourced, SubscriptionId, SubscriptionManifest};
use crate::table::Revision;

impl FolderSource {
    /// Takes the subscriptions of a scan. A subscription of an unreadable document stays as it was.
    pub(super) fn take_subscriptions(
        &mut self,
        found: BTreeMap<SubscriptionId, Sourced<SubscriptionManifest>>,
        scan: &Scan,
    ) {
        let mut before = std::mem::take(&mut self.subscriptions);
        for (id, new) in found {
            let subscription = match before.remove(&id) {
                Some(old) if is_same(&old, &new) => old,
                old => {
                    let change = if old.is_some() { "subscription changed" } else { "subscription found" };
                    tracing::info!(subscription = %id, place = %new.place, "{change}");
                    Arc::new(new)
                }
            };
            self.subscriptions.insert(id, subscription);
        }
        for (id, old) in before {
            if scan.may_still_hold(&ObjectId::Subscription(id.clone()), &old.place.file) {
                self.subscriptions.insert(id, old);
            } else {
                tracing::info!(subscription = %id, "subscription removed");
            }
        }
    }

    /// Follows the configuration policies and the subscriptions.
    pub fn configuration(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.configuration.subscribe()
    }

    /// Publishes the configuration policies and the subscriptions.
    pub(super) fn publish_configuration(&self) {
        self.configuration.send_replace(Arc::new(self.snapshot()));
    }

    fn snapshot(&self) -> Snapshot {
        let obstacles = self.obstacles();
        let (mut versions, mut unreadable, mut revisions) = (Vec::new(), Vec::new(), HashMap::new());
        let mut add = |id: &PolicyId, version: Version, revision: &Arc<Revision>| {
            if let Some(content) = revision.configuration().filter(|_| revision.enabled) {
                versions.push(content.facts(id, version.clone()));
                revisions.insert((id.clone(), version), Arc::clone(revision));
            }
        };
        for (id, object) in &self.objects {
            match id {
                ObjectId::Policy(policy) => match self.live(object) {
                    Some(revision) => add(policy, Version::of(signed(revision.generation)), revision),
                    // The components keep the policy until its document can be read, and its content works.
                    None => unreadable.extend(is_configuration(object).then(|| policy.clone())),
                },
                ObjectId::Experiment(experiment) => {
                    let is_active = self.candidate(experiment, object, None, obstacles.get(id)).is_ok();
                    let candidate = self.live(object).filter(|_| is_active);
                    let Some((policy, revision)) = object.policy().zip(candidate) else { continue };
                    let parent = self.objects.get(&ObjectId::Policy(policy.clone()));
                    let Some(live) = parent.and_then(|parent| self.live(parent)) else { continue };
                    let candidate =
                        Candidate { experiment: experiment.name.clone(), generation: signed(revision.generation) };
                    let version = Version { generation: signed(live.generation), candidate: Some(candidate) };
                    add(policy, version, revision);
                }
                ObjectId::Subscription(_) | ObjectId::Namespace(_) => {}
            }
        }
        let refused = self.problems.iter().filter_map(|problem| match &problem.object {
            Some(object @ ObjectId::Policy(policy)) if !self.objects.contains_key(object) => Some(policy.clone()),
            _ => None,
        });
        unreadable.extend(refused);
        Snapshot {
            is_complete: self.has_listed && self.objects.values().all(|object| self.is_tried(object)),
            is_settled: self.objects.values().all(|object| !is_configuration(object) || self.is_settled(object)),
            catalog: Arc::new(Catalog::new(versions, unreadable)),
            revisions,
            known: self.objects.keys().filter_map(policy_id).chain(&self.removed).cloned().collect(),
            subscriptions: self.subscriptions.clone(),
            config_maps: self.context.iter().filter_map(|object| config_map(&object.spec)).collect(),
            problems: self.problems.clone(),
        }
    }
}

/// Returns the namespace, the name and the data of a ConfigMap; `None` for another object.
fn config_map(object: &Value) -> Option<((String, String), BTreeMap<String, String>)> {
    if object["apiVersion"] != "v1" || object["kind"] != "ConfigMap" {
        return None;
    }
    let metadata = &object["metadata"];
    // A missing namespace means `default`, as in kubectl.
    let namespace = metadata["namespace"].as_str().unwrap_or("default");
    let data = object["data"].as_object().into_iter().flatten();
    let data = data.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    Some(((namespace.to_owned(), metadata["name"].as_str()?.to_owned()), data.collect()))
}

/// Returns true if the newest readable version of the policy configures components.
fn is_configuration(object: &Object) -> bool {
    ObservedObject::new(object).is_some_and(|observed| observed.spec.configuration.is_some())
}

fn policy_id(id: &ObjectId) -> Option<&PolicyId> {
    if let ObjectId::Policy(policy) = id { Some(policy) } else { None }
}

fn is_same(old: &Sourced<SubscriptionManifest>, new: &Sourced<SubscriptionManifest>) -> bool {
    (&old.spec, &old.annotations, &old.place) == (&new.spec, &new.annotations, &new.place)
}

fn signed(generation: u64) -> i64 {
    i64::try_from(generation).unwrap_or(i64::MAX)
}
