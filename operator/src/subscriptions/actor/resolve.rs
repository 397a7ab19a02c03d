//! The resolution of a subscription: the policies that its component should have, with their bodies.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt as _;
use proviso_core::configuration::{
    ConfigurationPolicy, Desired, Entries, Items, Keep, MAX_POLICIES, Resolution, resolve,
};
use proviso_core::{Failure, PolicyId, Reason};
use proviso_crds::reasons;
use proviso_delivery::Deliveries;
use proviso_delivery::status::canary_warnings;
use proviso_programs::templates::ComponentFacts;

use super::{Actor, Subject};
use crate::rendering::TRANSIENT_ERROR_TIME;
use crate::revisions::RevisedConfiguration;
use crate::subscriptions::catalog::Snapshot;
use crate::subscriptions::component::ClusterComponent;

/// The maximum number of policies of a component while a failure keeps policies that no selector selects any more. The status of a
/// subscription has room for them, and for the new ones of an update.
const MAX_WITH_KEPT: usize = 2 * MAX_POLICIES;

/// The bodies of the selected policies, or the failures to compute them.
type Bodies = HashMap<PolicyId, Result<proviso_core::configuration::Item, Failure>>;

impl Actor {
    /// Finds the policies of the component, computes their bodies, and makes them the desired state. `is_missing` is true if the workload
    /// of the component does not exist: its labels are not known then, so that no template is evaluated. Returns the time until the next
    /// attempt; `None` if a change of the policies or of the component is needed.
    pub(super) async fn resolve(
        &self,
        deliveries: &mut Deliveries<ClusterComponent>,
        subject: &Subject,
        facts: &ComponentFacts,
        is_missing: bool,
    ) -> Option<Duration> {
        let compiled = match &*subject.compiled {
            Ok(compiled) => compiled,
            Err(error) => {
                let failure = Failure::new(Reason::INVALID, error.to_string());
                let kept = Desired { items: Items::new(), keep: Keep::All };
                // Without a desired state, a repair after a restart would remove every policy.
                deliveries.want(kept.clone());
                deliveries.component().with_view(|view| {
                    view.desired = Some(kept);
                    (view.failures, view.warnings) = (vec![failure], Vec::new());
                });
                return None;
            }
        };
        let snapshot = self.shared.catalog.borrow().clone();
        let resolution = resolve(compiled, &snapshot.catalog);
        let (mut bodies, is_transient) = self.bodies(&snapshot, &resolution, facts, is_missing).await;
        let unknown =
            |id: &PolicyId| Failure::new(reasons::POLICY_UNREADABLE, format!("the policy {id} has no content"));
        let (desired, errors) =
            resolution.desired(|policy| bodies.remove(&policy.id).unwrap_or_else(|| Err(unknown(&policy.id))));
        let mut failures: Vec<_> =
            resolution.failures().chain(errors.into_iter().map(|(_, failure)| failure)).collect();
        let desired = match within_limit(desired, &deliveries.record().acknowledged) {
            Ok(desired) => desired,
            Err(failure) => {
                failures.push(failure);
                Desired { items: Items::new(), keep: Keep::All }
            }
        };
        deliveries.want(desired.clone());
        let warnings = resolution.warnings().chain(canary_warnings(&resolution)).collect();
        deliveries.component().with_view(|view| {
            view.desired = Some(desired);
            (view.failures, view.warnings) = (failures, warnings);
        });
        // Until then the cache has the error.
        is_transient.then_some(TRANSIENT_ERROR_TIME)
    }

    /// Returns the facts of the component for templates, and a failure if its workload does not exist.
    pub(super) fn facts(&self, subject: &Subject) -> (ComponentFacts, Option<Failure>) {
        let subscription = &subject.subscription;
        let namespace = subscription.namespace().unwrap_or_default();
        let id = (&*namespace, &*subscription.name_any());
        let Some(component) = &subscription.spec.component else {
            return (ComponentFacts::new(&subscription.spec, id, subscription.labels().clone()), None);
        };
        let found = self.shared.stores.workload(component.kind, &namespace, &component.name);
        let missing = found.is_none().then(|| {
            let message = format!(
                "there is no {} {} in this namespace: create it, or correct spec.component. Its pods read the stored policies when they \
                 start",
                component.kind.as_str(),
                component.name
            );
            Failure::new(reasons::WORKLOAD_NOT_FOUND, message)
        });
        let labels = found.map(|found| found.labels).unwrap_or_default();
        (ComponentFacts::new(&subscription.spec, id, labels), missing)
    }

    /// Computes the bodies of the selected policies. The second value is true if a later attempt may have another result.
    async fn bodies(
        &self,
        snapshot: &Snapshot,
        resolution: &Resolution,
        facts: &ComponentFacts,
        is_missing: bool,
    ) -> (Bodies, bool) {
        let mut bodies = Bodies::new();
        let mut wanted: Vec<(Arc<ConfigurationPolicy>, Arc<RevisedConfiguration>)> = Vec::new();
        for policy in resolution.selected.values() {
            let Some(content) = snapshot.content(policy) else { continue };
            if is_missing && content.configuration.template.is_some() {
                let message = format!(
                    "the policy {}: its template needs the labels of the workload, which does not exist",
                    policy.id
                );
                bodies.insert(policy.id.clone(), Err(Failure::new(reasons::WORKLOAD_NOT_FOUND, message)));
            } else {
                wanted.push((Arc::clone(policy), Arc::clone(content)));
            }
        }
        let items = self.shared.renderings.items(&wanted, facts).await;
        let mut is_transient = false;
        for ((policy, _), item) in wanted.iter().zip(items) {
            let body = item.map_err(|error| {
                is_transient |= error.is_transient();
                Failure::new(error.reason(), format!("the policy {}: {error}", policy.id))
            });
            bodies.insert(policy.id.clone(), body);
        }
        (bodies, is_transient)
    }
}

/// Returns the desired state, or a failure if the component would have more than [`MAX_WITH_KEPT`] policies, with those that it keeps although
/// they are not desired.
fn within_limit(desired: Desired, acknowledged: &Entries) -> Result<Desired, Failure> {
    let is_kept = |id: &&PolicyId| !desired.items.contains_key(*id) && desired.keep.contains(id);
    let total = desired.items.len() + acknowledged.keys().filter(is_kept).count();
    if total <= MAX_WITH_KEPT {
        return Ok(desired);
    }
    let message = format!(
        "the component would have {total} policies, with those that it keeps because of other failures, at most {MAX_WITH_KEPT} are allowed: \
         correct the other failures first"
    );
    Err(Failure::new(reasons::TOO_MANY_POLICIES, message))
}

#[cfg(test)]
mod tests {
    use kube::Api;
    use proviso_core::configuration::{Audience, Digest, Entry, Item, Version};
    use proviso_crds::PolicySubscription;
    use proviso_delivery::Next;
    use serde_json::json;
    use tokio::sync::watch;

    use super::*;
    use crate::mock_api::MockApi;
    use crate::subscriptions::Shared;

    fn item(name: &str) -> (PolicyId, Item) {
        let policy = ConfigurationPolicy {
            id: format!("cluster.{name}").parse().unwrap(),
            version: Version::of(1),
            config_name: "memory".to_owned(),
            owner: None,
            attributes: std::collections::BTreeMap::new(),
            is_confidential: false,
            audience: Audience::All,
        };
        let item = Item::new(&policy, &json!({"name": name})).unwrap();
        (policy.id, item)
    }

    async fn settle(deliveries: &mut Deliveries<ClusterComponent>) {
        while deliveries.advance().await.unwrap() == Next::Again {}
    }

    #[tokio::test]
    async fn an_invalid_subscription_keeps_its_policies_after_a_restart_and_an_edit() {
        let api = MockApi::default();
        let shared = Shared::with_context(api.context());
        let object = json!({
            "metadata": {"name": "collector", "namespace": "team", "uid": "sub"},
            "spec": {"scn": "collector", "policies": [{"id": "no policy id"}], "delivery": {"configMap": "policies"}},
        });
        let stored = Arc::new(api.put(&shared.context.caches.subscriptions, object).0.clone().unwrap());
        let component = |read| ClusterComponent::new(Arc::clone(&shared), read, Arc::default()).unwrap();
        let mut deliveries = Deliveries::restore(component(Arc::clone(&stored)), None).await.unwrap();
        // An older operator has accepted the subscription.
        deliveries.want(Desired { items: [item("a")].into(), ..Desired::default() });
        settle(&mut deliveries).await;

        let subscriptions = Api::<PolicySubscription>::namespaced(shared.context.client.clone(), "team");
        let read = Arc::new(subscriptions.get("collector").await.unwrap());
        let mut deliveries = Deliveries::restore(component(read), None).await.unwrap();
        let subject = Subject::new(stored);
        let (_sender, receiver) = watch::channel(subject.clone());
        let name = (Some("team".to_owned()), "collector".to_owned());
        let actor = Actor::new(Arc::clone(&shared), name, receiver, Arc::default());
        let (facts, _) = actor.facts(&subject);
        assert_eq!(actor.resolve(&mut deliveries, &subject, &facts, false).await, None);
        settle(&mut deliveries).await;
        let added = item("b").1.body().to_string();
        let edit = json!({
            "metadata": {"name": "policies", "namespace": "team"}, "data": {"items.cluster.b": added},
        });
        api.put(&shared.stores.config_maps, edit);
        settle(&mut deliveries).await;
        assert_eq!(deliveries.record().acknowledged.keys().collect::<Vec<_>>(), [&item("a").0]);
    }

    #[test]
    fn policies_that_failures_keep_do_not_accumulate_without_a_limit() {
        let entry = |number: usize| {
            let id: PolicyId = format!("cluster.p{number}").parse().unwrap();
            (id, Entry { version: Version::of(1), digest: Digest::of("") })
        };
        let acknowledged = |count: usize| (0..count).map(entry).collect::<Entries>();
        let keep_all = || Desired { items: Items::new(), keep: Keep::All };
        assert!(within_limit(keep_all(), &acknowledged(MAX_WITH_KEPT)).is_ok());
        let failure = within_limit(keep_all(), &acknowledged(MAX_WITH_KEPT + 1)).unwrap_err();
        assert!(failure.message.contains("4001 policies"), "{}", failure.message);
        // Without a failure, the policies are removed.
        assert!(within_limit(Desired::default(), &acknowledged(MAX_WITH_KEPT + 1)).is_ok());
    }
}
