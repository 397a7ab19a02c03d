//! Resolves a subscription: finds the policies that its selectors select, each in its newest version.

mod outcome;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::body::Item;
use super::delta::{Desired, Items, Keep};
use super::policy::ConfigurationPolicy;
use super::subscription::{CompiledFilter, CompiledSelector, CompiledSubscription, Criterion};
use crate::policy_id::PolicyId;

pub use outcome::{CanaryOutcome, NotSelected, SelectionError, SelectorOutcome};

/// The maximum number of policies of one subscription.
pub const MAX_POLICIES: usize = 2_000;

/// The policies that may be delivered, each in its newest version, and the candidates of active experiments.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    newest: BTreeMap<PolicyId, Arc<ConfigurationPolicy>>,
    /// The candidates by policy and by the name of the experiment.
    candidates: BTreeMap<(PolicyId, String), Arc<ConfigurationPolicy>>,
    unreadable: BTreeSet<PolicyId>,
}

/// The result of the resolution of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The selected policies.
    pub selected: BTreeMap<PolicyId, Arc<ConfigurationPolicy>>,
    /// The policies that the component keeps if it has them, because a selector has failed or a policy cannot be read.
    pub keep: Keep,
    /// The result of each selector, in the order of the subscription.
    pub selectors: Vec<SelectorOutcome>,
    /// The result of each `canaryFor`, in the order of the subscription.
    pub canaries: Vec<CanaryOutcome>,
}

impl Catalog {
    /// Returns the catalog of these versions. Each of them may be delivered: its policy is enabled and not deleted, and its content is
    /// valid. A version with a candidate belongs to an active experiment. For each policy and each experiment, the highest generation
    /// counts, in any order of the versions. `unreadable` are the ids of the policies that exist, but cannot be read.
    #[must_use]
    pub fn new(
        versions: impl IntoIterator<Item = ConfigurationPolicy>,
        unreadable: impl IntoIterator<Item = PolicyId>,
    ) -> Self {
        let mut catalog = Self { unreadable: unreadable.into_iter().collect(), ..Self::default() };
        for version in versions {
            let version = Arc::new(version);
            match &version.version.candidate {
                None => insert_newest(&mut catalog.newest, version.id.clone(), version),
                Some(candidate) => {
                    let key = (version.id.clone(), candidate.experiment.clone());
                    insert_newest(&mut catalog.candidates, key, version);
                }
            }
        }
        catalog
    }

    /// Returns the newest version of a policy; `None` if no version of it may be delivered.
    #[must_use]
    pub fn get(&self, id: &PolicyId) -> Option<&Arc<ConfigurationPolicy>> {
        self.newest.get(id)
    }

    /// Returns the newest version of each policy, by id.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<ConfigurationPolicy>> {
        self.newest.values()
    }
}

impl Resolution {
    /// Returns the desired state of the component, with the bodies that `body` computes. A policy whose body fails stays as it is on the
    /// component, and its error is returned.
    pub fn desired<E>(
        &self,
        mut body: impl FnMut(&ConfigurationPolicy) -> Result<Item, E>,
    ) -> (Desired, Vec<(PolicyId, E)>) {
        let mut desired = Desired { items: Items::new(), keep: self.keep.clone() };
        let mut errors = Vec::new();
        for (id, policy) in &self.selected {
            match body(policy) {
                Ok(item) => _ = desired.items.insert(id.clone(), item),
                Err(error) => {
                    if let Keep::Only(ids) = &mut desired.keep {
                        ids.insert(id.clone());
                    }
                    errors.push((id.clone(), error));
                }
            }
        }
        (desired, errors)
    }
}

fn insert_newest<K: Ord>(
    newest: &mut BTreeMap<K, Arc<ConfigurationPolicy>>,
    key: K,
    version: Arc<ConfigurationPolicy>,
) {
    // Versions are ordered by generation and experiment generation; the other fields only make the result independent of the order.
    let rank = |policy: &ConfigurationPolicy| {
        let candidate = policy.version.candidate.as_ref().map(|candidate| candidate.generation);
        (candidate, policy.version.generation)
    };
    match newest.get(&key) {
        Some(other) if (rank(other), &**other) >= (rank(&version), &*version) => {}
        _ => _ = newest.insert(key, version),
    }
}

/// Finds the policies that a subscription selects. The result depends only on the subscription and the catalog.
///
/// A candidate that the subscription is a canary for takes the place of its policy before the selectors are applied, as if the
/// experiment were committed.
#[must_use]
pub fn resolve(subscription: &CompiledSubscription, catalog: &Catalog) -> Resolution {
    let (policies, mut canaries) = policies_in_scope(subscription, catalog);
    let mut selected = BTreeMap::new();
    let mut has_failed = false;
    let mut selectors = Vec::with_capacity(subscription.selectors.len());
    for selector in &subscription.selectors {
        let outcome = match selector {
            CompiledSelector::Id(id) => select_by_id(subscription, catalog, &policies, id),
            CompiledSelector::Filter(filter) => select_by_filter(filter, &policies),
            CompiledSelector::Invalid(error) => SelectorOutcome::Failed(SelectionError::Filter(error.clone())),
        };
        let outcome = within_limit(outcome, &selected);
        match &outcome {
            SelectorOutcome::Selected(ids) => {
                selected.extend(ids.iter().filter_map(|id| Some((id.clone(), Arc::clone(*policies.get(id)?)))));
            }
            // An unreadable policy concerns no other policy.
            SelectorOutcome::Failed(SelectionError::Unreadable { .. }) | SelectorOutcome::Nothing(_) => {}
            SelectorOutcome::Failed(_) => has_failed = true,
        }
        selectors.push(outcome);
    }
    for (canary, outcome) in subscription.canary_for.iter().zip(&mut canaries) {
        if *outcome == CanaryOutcome::Delivered && !selected.contains_key(&canary.policy) {
            *outcome = CanaryOutcome::NotSelected;
        }
    }
    let unreadable = catalog.unreadable.iter().filter(|id| subscription.is_in_scope(id));
    let keep = if has_failed { Keep::All } else { Keep::Only(unreadable.cloned().collect()) };
    Resolution { selected, keep, selectors, canaries }
}

/// The policies that a subscription may select.
type Policies<'a> = BTreeMap<&'a PolicyId, &'a Arc<ConfigurationPolicy>>;

/// Returns the policies that the subscription may select: the newest versions, and the candidates that take their places.
fn policies_in_scope<'a>(
    subscription: &CompiledSubscription,
    catalog: &'a Catalog,
) -> (Policies<'a>, Vec<CanaryOutcome>) {
    let namespace = &subscription.namespace;
    let is_selectable =
        |policy: &ConfigurationPolicy| policy.is_for(namespace) && !catalog.unreadable.contains(&policy.id);
    let mut policies: Policies<'a> = catalog.newest.iter().filter(|(_, policy)| is_selectable(policy)).collect();
    let candidate = |policy: &PolicyId, experiment: &str| {
        let found = catalog.candidates.get(&(policy.clone(), experiment.to_owned()));
        found.filter(|candidate| candidate.is_for(namespace))
    };
    // The canaries by policy: two active experiments of one policy exclude each other.
    let mut active: BTreeMap<&PolicyId, BTreeSet<&str>> = BTreeMap::new();
    for canary in &subscription.canary_for {
        if candidate(&canary.policy, &canary.experiment).is_some() {
            active.entry(&canary.policy).or_default().insert(&canary.experiment);
        }
    }
    let outcomes = subscription.canary_for.iter().map(|canary| {
        if !subscription.is_in_scope(&canary.policy) {
            return CanaryOutcome::OtherNamespace;
        }
        let Some(place) = policies.get_mut(&canary.policy) else {
            return CanaryOutcome::PolicyNotFound;
        };
        let Some(candidate) = candidate(&canary.policy, &canary.experiment) else {
            return CanaryOutcome::NotActive;
        };
        if active.get(&canary.policy).is_some_and(|experiments| experiments.len() > 1) {
            return CanaryOutcome::Conflict;
        }
        *place = candidate;
        CanaryOutcome::Delivered
    });
    let outcomes = outcomes.collect();
    (policies, outcomes)
}

fn select_by_id(
    subscription: &CompiledSubscription,
    catalog: &Catalog,
    policies: &Policies<'_>,
    id: &PolicyId,
) -> SelectorOutcome {
    if !subscription.is_in_scope(id) {
        return SelectorOutcome::Nothing(NotSelected::OtherNamespace(id.clone()));
    }
    if catalog.unreadable.contains(id) {
        return SelectorOutcome::Failed(SelectionError::Unreadable { policy: id.clone() });
    }
    if policies.contains_key(id) {
        SelectorOutcome::Selected(vec![id.clone()])
    } else {
        SelectorOutcome::Nothing(NotSelected::NotFound(id.clone()))
    }
}

fn select_by_filter(filter: &CompiledFilter, policies: &Policies<'_>) -> SelectorOutcome {
    let selected: Vec<_> =
        policies.values().filter(|policy| filter.selects(policy)).map(|policy| policy.id.clone()).collect();
    if selected.is_empty() {
        let count = |criterion: &Criterion| policies.values().filter(|policy| filter.is_met(criterion, policy)).count();
        let alone = filter.criteria().map(|criterion| (criterion.clone(), count(&criterion))).collect();
        return SelectorOutcome::Nothing(NotSelected::NoMatch { policies: policies.len(), alone });
    }
    if filter.is_unique() && selected.len() > 1 {
        return SelectorOutcome::Failed(SelectionError::NotUnique { policies: selected });
    }
    SelectorOutcome::Selected(selected)
}

/// Returns the outcome, or a failure if the subscription would select more than [`MAX_POLICIES`] policies with it.
fn within_limit(outcome: SelectorOutcome, selected: &BTreeMap<PolicyId, Arc<ConfigurationPolicy>>) -> SelectorOutcome {
    let SelectorOutcome::Selected(ids) = &outcome else {
        return outcome;
    };
    let total = selected.len() + ids.iter().filter(|id| !selected.contains_key(id)).count();
    if total <= MAX_POLICIES {
        return outcome;
    }
    SelectorOutcome::Failed(SelectionError::TooMany { selected: ids.len(), total })
}

#[cfg(test)]
mod tests;
