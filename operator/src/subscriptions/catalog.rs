//! The configuration policies that may be delivered, from the cache of revisions: the live generations and the candidates of active
//! experiments.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt as _;
use proviso_core::PolicyId;
use proviso_core::configuration::{Candidate, Catalog, CompiledSubscription, ConfigurationPolicy, Version};
use proviso_crds::names::{CONFIGURATION, POINT_LABEL};
use proviso_crds::{ConditionType, Conditions as _, RevisionRole};

use crate::malformed::{Malformed, MaybeMalformed};
use crate::revisions::{RevisedConfiguration, Revision};

/// The number of changed policies above which every subscription is resolved again, without a look at the policies.
const MAX_COMPARED: usize = 500;

/// A policy, and the experiment of a candidate of it.
type Key = (PolicyId, Option<String>);

/// The policies at one time.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub catalog: Catalog,
    versions: BTreeMap<Key, Deliverable>,
    unreadable: BTreeSet<PolicyId>,
}

/// A version of a policy that may be delivered.
#[derive(Clone, Debug)]
struct Deliverable {
    policy: ConfigurationPolicy,
    content: Arc<RevisedConfiguration>,
}

impl Deliverable {
    fn has_content_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.content, &other.content) || self.content == other.content
    }
}

/// The difference between two snapshots.
#[derive(Debug)]
pub(crate) enum Changes {
    /// Each subscription may be concerned.
    All,
    /// The changed policies, each before and after its change.
    Of(Vec<ConfigurationPolicy>),
}

impl Changes {
    pub fn concern(&self, subscription: &CompiledSubscription) -> bool {
        match self {
            Self::All => true,
            Self::Of(policies) => policies.iter().any(|policy| subscription.is_concerned_by(policy)),
        }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Of(policies) if policies.is_empty())
    }
}

/// Returns true if a revision may be a part of the catalog: a revision of a configuration policy, also one whose label somebody removed.
pub(super) fn is_of_configuration(revision: &MaybeMalformed<Revision>) -> bool {
    revision.labels().get(POINT_LABEL).is_some_and(|point| point == CONFIGURATION)
        || revision.0.as_ref().is_ok_and(|known| known.configuration.is_some())
}

impl Snapshot {
    /// Returns the snapshot of these revisions. Content that has not changed since `before` is the same value: the cache of rendered bodies
    /// compares addresses, and each change of the status of a revision makes a new value.
    pub fn new<'a>(revisions: impl Iterator<Item = &'a MaybeMalformed<Revision>>, before: &Self) -> Self {
        let (mut versions, mut unreadable) = (BTreeMap::<Key, Deliverable>::new(), BTreeSet::new());
        let mut candidates = Vec::new();
        for revision in revisions.filter(|revision| is_of_configuration(revision)) {
            match &revision.0 {
                Ok(revision) => match (deliverable(revision), revision.role) {
                    (Some(Ok(found)), RevisionRole::Live) => {
                        insert_newest(&mut versions, (found.policy.id.clone(), None), found);
                    }
                    (Some(Ok(found)), RevisionRole::Candidate) => candidates.push(found),
                    (Some(Err(without_content)), _) => _ = unreadable.insert(without_content),
                    (None, _) => {}
                },
                Err(revision) => unreadable.extend(unreadable_policy(revision)),
            }
        }
        for mut found in candidates {
            let Some(live) = versions.get(&(found.policy.id.clone(), None)) else { continue };
            // A candidate has the generation of the live policy: the component gets the candidate again after a change of the policy.
            found.policy.version.generation = live.policy.version.generation;
            let experiment = found.policy.version.candidate.as_ref().map(|candidate| candidate.experiment.clone());
            insert_newest(&mut versions, (found.policy.id.clone(), experiment), found);
        }
        for (key, found) in &mut versions {
            if let Some(known) = before.versions.get(key).filter(|known| known.has_content_of(found)) {
                found.content = Arc::clone(&known.content);
            }
        }
        let policies = versions.values().map(|version| version.policy.clone());
        Self { catalog: Catalog::new(policies, unreadable.iter().cloned()), versions, unreadable }
    }

    /// Returns the content of a version; `None` if the version is not in this snapshot.
    pub fn content(&self, policy: &ConfigurationPolicy) -> Option<&Arc<RevisedConfiguration>> {
        let experiment = policy.version.candidate.as_ref().map(|candidate| candidate.experiment.clone());
        let found = self.versions.get(&(policy.id.clone(), experiment))?;
        (found.policy.version == policy.version).then_some(&found.content)
    }

    /// Returns the policies that differ in `newer`.
    pub fn changes(&self, newer: &Self) -> Changes {
        if self.unreadable != newer.unreadable {
            return Changes::All;
        }
        let is_same = |one: &Deliverable, other: &Deliverable| one.policy == other.policy && one.has_content_of(other);
        let mut changed = Vec::new();
        for (key, before) in &self.versions {
            match newer.versions.get(key) {
                Some(after) if is_same(before, after) => {}
                after => changed.extend([Some(before), after].into_iter().flatten().map(|it| it.policy.clone())),
            }
        }
        let added = newer.versions.iter().filter(|(key, _)| !self.versions.contains_key(key));
        changed.extend(added.map(|(_, after)| after.policy.clone()));
        if changed.len() > MAX_COMPARED { Changes::All } else { Changes::Of(changed) }
    }
}

fn insert_newest(versions: &mut BTreeMap<Key, Deliverable>, key: Key, found: Deliverable) {
    let rank = |it: &Deliverable| {
        let candidate = it.policy.version.candidate.as_ref().map(|candidate| candidate.generation);
        (candidate, it.policy.version.generation)
    };
    if versions.get(&key).is_none_or(|known| rank(known) < rank(&found)) {
        versions.insert(key, found);
    }
}

/// Returns the version of a revision, if components may get it: the live generation of an enabled policy, or an active candidate. `Err` is
/// the policy of such a revision without content, which an older CRD has removed. Components keep the policy.
fn deliverable(revision: &Revision) -> Option<Result<Deliverable, PolicyId>> {
    if !revision.enabled {
        return None;
    }
    let reference = &revision.policy_ref;
    let candidate = match revision.role {
        RevisionRole::Live => {
            if !revision.is_marked_live() {
                return None;
            }
            None
        }
        RevisionRole::Candidate => {
            if !revision.status.conditions.is_true(ConditionType::Initialized) {
                return None;
            }
            let experiment = revision.experiment_ref.as_ref()?;
            Some(Candidate { experiment: experiment.name.clone(), generation: experiment.generation })
        }
    };
    // The policy has revisions, so that its name is the name of a policy id.
    let id = PolicyId::new(reference.namespace.as_deref(), &reference.name).ok()?;
    let Some(content) = &revision.configuration else { return Some(Err(id)) };
    let version = Version { generation: reference.generation, candidate };
    let policy = content.configuration.facts(id, version);
    Some(Ok(Deliverable { policy, content: Arc::clone(content) }))
}

/// Returns the policy of a revision that cannot be read, if components may have it: the revision is marked live, or is a candidate.
fn unreadable_policy(revision: &Malformed) -> Option<PolicyId> {
    let name = revision.metadata.name.as_deref()?;
    let (owner, _) = name.rsplit_once('-')?;
    if let Some(experiment) = owner.strip_prefix("experiment.") {
        let experiment: PolicyId = experiment.parse().ok()?;
        return PolicyId::new(experiment.namespace(), revision.policy_ref.as_deref()?).ok();
    }
    let conditions = revision.status["conditions"].as_array()?;
    let is_live = conditions.iter().any(|it| it["type"] == ConditionType::Live.as_str() && it["status"] == "True");
    is_live.then(|| owner.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proviso_core::configuration::{Selector, Subscription, resolve};
    use serde_json::{Value, json};

    use super::*;

    fn id(text: &str) -> PolicyId {
        text.parse().unwrap()
    }

    fn revision(name: &str, generation: i64, content: &Value, live: &str) -> Value {
        json!({
            "metadata": {"name": format!("cluster.{name}-{generation}"), "labels": {POINT_LABEL: CONFIGURATION}},
            "spec": {
                "policyServer": "default", "enabled": true,
                "policyRef": {"kind": "ClusterPolicy", "name": name, "uid": "u", "generation": generation},
                "data": {"configuration": {"configName": name, "content": content}},
            },
            "status": {"conditions": [condition("Live", live), condition("Initialized", "True")]},
        })
    }

    fn condition(type_: &str, status: &str) -> Value {
        json!({
            "type": type_, "status": status, "reason": "Live", "message": "", "lastTransitionTime": "2026-11-28T00:00:00Z",
        })
    }

    fn candidate(policy: &str, experiment: &str, generation: i64) -> Value {
        let mut revision = revision(policy, 1, &json!({"candidate": generation}), "Unknown");
        revision["metadata"]["name"] = format!("experiment.cluster.{experiment}-{generation}").into();
        revision["spec"]["role"] = "Candidate".into();
        revision["spec"]["experimentRef"] = json!({"name": experiment, "uid": "e", "generation": generation});
        revision
    }

    fn snapshot(revisions: &[Value]) -> Snapshot {
        let revisions: Vec<MaybeMalformed<Revision>> = revisions
            .iter()
            .map(|it| {
                let sent: MaybeMalformed<proviso_crds::PolicyRevision> = serde_json::from_value(it.clone()).unwrap();
                MaybeMalformed(sent.0.map(Revision::from))
            })
            .collect();
        Snapshot::new(revisions.iter(), &Snapshot::default())
    }

    fn versions(snapshot: &Snapshot) -> Vec<String> {
        snapshot.versions.values().map(|it| format!("{} {}", it.policy.id, it.policy.version)).collect()
    }

    #[test]
    fn the_catalog_has_live_generations_and_active_candidates() {
        let mut disabled = revision("c", 1, &json!({}), "True");
        disabled["spec"]["enabled"] = false.into();
        let mut prepared = candidate("a", "slow", 1);
        prepared["status"]["conditions"] = json!([]);
        let mut admission = revision("d", 1, &json!({}), "True");
        admission["metadata"]["labels"] = json!({});
        admission["spec"]["data"] = json!({"program": {"cel": {"validations": []}}, "admission": {"rules": []}});
        let snapshot = snapshot(&[
            revision("a", 1, &json!({"a": 1}), "False"),
            revision("a", 2, &json!({"a": 2}), "True"),
            revision("a", 3, &json!({"a": 3}), "Unknown"),
            revision("b", 4, &json!({}), "True"),
            disabled,
            admission,
            candidate("a", "more", 7),
            candidate("a", "more", 8),
            prepared,
            // Its policy has no live generation.
            candidate("c", "orphan", 1),
        ]);
        assert_eq!(versions(&snapshot), ["cluster.a 2", "cluster.a 2/more/8", "cluster.b 4"]);
        let live = snapshot.catalog.get(&id("cluster.a")).unwrap();
        let content = snapshot.content(live).unwrap().configuration.content.clone().unwrap();
        assert_eq!(Value::from(content), json!({"a": 2}));
        let other = ConfigurationPolicy { version: Version::of(3), ..(**live).clone() };
        assert!(snapshot.content(&other).is_none());
    }

    #[test]
    fn a_live_generation_that_cannot_be_read_is_kept() {
        let mut malformed = revision("a", 2, &json!({}), "True");
        malformed["spec"]["enabled"] = "yes".into();
        let mut replaced = revision("b", 1, &json!({}), "False");
        replaced["spec"]["enabled"] = "yes".into();
        // An older CRD has removed the content.
        let mut pruned = revision("c", 1, &json!({}), "True");
        pruned["spec"]["data"] = json!({});
        let mut disabled = revision("d", 1, &json!({}), "True");
        disabled["spec"]["data"] = json!({});
        disabled["spec"]["enabled"] = false.into();
        let mut retired = revision("e", 1, &json!({}), "False");
        retired["spec"]["data"] = json!({});
        let snapshot = snapshot(&[malformed, replaced, pruned, disabled, retired]);
        assert_eq!(snapshot.unreadable, [id("cluster.a"), id("cluster.c")].into());
        let subscription = Subscription {
            namespace: "team".to_owned(),
            selectors: vec![Selector::Id(id("cluster.a")), Selector::Id(id("cluster.c"))],
            canary_for: Vec::new(),
        };
        let resolution = resolve(&CompiledSubscription::new(&subscription), &snapshot.catalog);
        assert!(resolution.keep.contains(&id("cluster.a")) && resolution.keep.contains(&id("cluster.c")));
    }

    #[test]
    fn a_change_concerns_the_subscriptions_that_select_the_policy_before_or_after_it() {
        let of = |name: &str| {
            let selectors = vec![Selector::Id(id(&format!("cluster.{name}")))];
            let subscription = Subscription { namespace: "team".to_owned(), selectors, canary_for: Vec::new() };
            CompiledSubscription::new(&subscription)
        };
        let before = snapshot(&[revision("a", 1, &json!({}), "True"), revision("b", 1, &json!({}), "True")]);
        let after = snapshot(&[revision("b", 2, &json!({}), "True"), revision("c", 1, &json!({}), "True")]);
        let changes = before.changes(&after);
        for (name, is_concerned) in [("a", true), ("b", true), ("c", true), ("d", false)] {
            assert_eq!(changes.concern(&of(name)), is_concerned, "{name}");
        }
        assert!(before.changes(&before).is_empty());
        // A policy that was deleted and created again has the same generation, and other content.
        let created_again =
            snapshot(&[revision("a", 1, &json!({"x": 1}), "True"), revision("b", 1, &json!({}), "True")]);
        let changes = before.changes(&created_again);
        assert!(changes.concern(&of("a")) && !changes.concern(&of("b")));
    }
}
