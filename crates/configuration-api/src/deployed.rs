//! The policies and filters of all components, as deployment-handler finds them, and the changes that components wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt as _;
use proviso_core::PolicyId;
use proviso_core::configuration::{
    Catalog, CompiledSubscription, Filter, Items, Keep, PolicyUpdateMessage, Selector, SelectorOutcome, Subscription,
    Version, resolve,
};
use proviso_crds::PolicySubscription;

/// The policies and filters of components.
pub(crate) struct Deployed {
    pub components: Vec<Component>,
}

/// The policies and filters of one component.
pub(crate) struct Component {
    /// `<namespace>/<name of the subscription>`.
    pub id: String,
    pub namespace: String,
    /// The policies that the component has acknowledged.
    pub policies: BTreeMap<PolicyId, Version>,
    subscription: Subscription,
    /// True if an update is in flight or waits.
    pub is_pending: bool,
}

/// The policies that components have or should have.
#[derive(Debug, Default)]
pub(crate) struct Matched {
    pub policies: BTreeSet<PolicyId>,
    /// For each policy, the ids of the filters that select it.
    filters: BTreeMap<PolicyId, BTreeSet<String>>,
    /// The policies that must not be removed, because a failure hides if components should have them.
    keep: BTreeSet<PolicyId>,
}

/// A policy that components have, as deployment-handler lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeployedPolicy {
    /// The generations that components have.
    pub versions: BTreeSet<i64>,
    pub is_pending: bool,
}

impl Component {
    /// Returns the component of a subscription; `None` if its selectors cannot be read.
    pub(crate) fn new(object: &PolicySubscription) -> Option<Self> {
        let namespace = object.namespace().unwrap_or_default();
        let subscription = object.spec.subscription(&namespace).ok()?;
        let status = object.status.clone().unwrap_or_default();
        let policies = status.record().acknowledged.into_iter().map(|(id, entry)| (id, entry.version)).collect();
        let is_in_flight = status.last_update.as_ref().is_some_and(|update| update.result.is_none());
        let rejected: BTreeSet<_> = status.rejected.iter().map(|rejected| &rejected.id).collect();
        let waits = status.pending.iter().any(|pending| !rejected.contains(&pending.id));
        let is_pending = is_in_flight || waits || !status.unconfirmed.is_empty();
        let id = format!("{namespace}/{}", object.name_any());
        Some(Self { id, namespace, policies, subscription, is_pending })
    }

    /// Returns the filters of the component with their ids: `<namespace>/<name of the subscription>/<index of the selector>`.
    pub(crate) fn filters(&self) -> impl Iterator<Item = (String, &Filter)> {
        self.subscription.selectors.iter().enumerate().filter_map(|(index, selector)| match selector {
            Selector::Filter(filter) => Some((format!("{}/{index}", self.id), filter)),
            Selector::Id(_) => None,
        })
    }

    /// Returns the ids of the policies that the component selects by id.
    pub(crate) fn selected_ids(&self) -> impl Iterator<Item = &PolicyId> {
        self.subscription.selectors.iter().filter_map(|selector| match selector {
            Selector::Id(id) => Some(id),
            Selector::Filter(_) => None,
        })
    }

    /// Returns the compiled subscription.
    pub(crate) fn compiled(&self) -> CompiledSubscription {
        CompiledSubscription::new(&self.subscription)
    }
}

impl Deployed {
    pub(crate) fn new(subscriptions: &[Arc<PolicySubscription>]) -> Self {
        Self { components: subscriptions.iter().filter_map(|it| Component::new(it)).collect() }
    }

    /// Returns true if no component has policies or selectors.
    pub(crate) fn is_empty(&self) -> bool {
        self.components.is_empty()
    }

    /// Returns the policies of the components, and those that a component selects by id and does not have yet.
    pub(crate) fn policies(&self) -> BTreeMap<PolicyId, DeployedPolicy> {
        let mut policies: BTreeMap<PolicyId, DeployedPolicy> = BTreeMap::new();
        for component in &self.components {
            for (id, version) in &component.policies {
                let policy = policies.entry(id.clone()).or_default();
                policy.versions.insert(version.generation);
                policy.is_pending |= component.is_pending;
            }
            for id in component.selected_ids() {
                policies.entry(id.clone()).or_default().is_pending |= component.is_pending;
            }
        }
        policies
    }

    /// Matches the components with the catalog. This takes time with many filters.
    pub(crate) fn matched(&self, catalog: &Catalog) -> Matched {
        let mut matched = Matched::default();
        for component in &self.components {
            let resolution = resolve(&component.compiled(), catalog);
            matched.policies.extend(resolution.selected.into_keys());
            matched.policies.extend(component.policies.keys().filter(|id| catalog.get(id).is_some()).cloned());
            match resolution.keep {
                Keep::All => matched.keep.extend(component.policies.keys().cloned()),
                Keep::Only(ids) => matched.keep.extend(ids),
            }
            let selectors = component.subscription.selectors.iter().zip(resolution.selectors).enumerate();
            for (index, (selector, outcome)) in selectors {
                let (Selector::Filter(_), SelectorOutcome::Selected(ids)) = (selector, outcome) else { continue };
                for id in ids {
                    matched.filters.entry(id).or_default().insert(format!("{}/{index}", component.id));
                }
            }
        }
        matched
    }

    /// Returns the changes that components wait for. A policy is changed if some component has another version of it, or waits for an
    /// update.
    pub(crate) fn update(&self, catalog: &Catalog, matched: &Matched, latest: &Items) -> PolicyUpdateMessage {
        let deployed = self.policies();
        let mut message = PolicyUpdateMessage { catch_up: true, ..PolicyUpdateMessage::default() };
        for (id, item) in latest {
            let is_current = deployed
                .get(id)
                .is_some_and(|policy| !policy.is_pending && policy.versions.iter().eq([&item.version().generation]));
            if is_current {
                continue;
            }
            message.latest.insert(id.clone(), item.clone());
            message.filter_matches.insert(id.clone(), matched.filters.get(id).cloned().unwrap_or_default());
        }
        let is_removed = |id: &PolicyId, policy: &DeployedPolicy| {
            !policy.versions.is_empty() && catalog.get(id).is_none() && !matched.keep.contains(id)
        };
        message.removed =
            deployed.iter().filter(|(id, policy)| is_removed(id, policy)).map(|(id, _)| id.clone()).collect();
        message
    }
}
