//! The store of the configuration API over the folder of manifests.

use std::collections::BTreeMap;
use std::sync::Arc;

use proviso_configuration_api::{Body, Changes, ConfigurationStore, Permission};
use proviso_core::configuration::{Catalog, ConfigurationPolicy, StoredParts};
use proviso_crds::{Canary, MAX_CANARIES, PolicySubscription};
use proviso_programs::templates::ComponentFacts;
use proviso_rest_api::{Caller, Code, Error, ExperimentName};
use uuid::Uuid;

use super::actor::Request;
use super::component::blocking;
use super::files::ComponentFolder;
use super::supervisor::check_folder_name;
use super::{DeliveriesHandle, Snapshot, component_facts, scn};
use crate::manifests::{Sourced, SubscriptionId, SubscriptionManifest};

type Result<T> = std::result::Result<T, Error>;

/// The configuration policies and subscriptions of a folder. Every caller of the API may use every method.
#[derive(Clone, Debug)]
pub struct FolderConfiguration {
    deliveries: DeliveriesHandle,
    instance: Uuid,
}

impl FolderConfiguration {
    /// Returns the store. `instance` is the id of this installation.
    #[must_use]
    pub fn new(deliveries: DeliveriesHandle, instance: Uuid) -> Self {
        Self { deliveries, instance }
    }

    /// Returns the canaries of this generation of an experiment, with the answers of their components.
    #[must_use]
    pub fn canaries(&self, experiment: &ExperimentName, generation: i64) -> Vec<Canary> {
        let snapshot = Arc::clone(&self.deliveries.snapshots.borrow());
        let canaries = snapshot.subscriptions.iter().filter_map(|(id, subscription)| {
            let object = self.object(id, subscription);
            Canary::of(&object, &experiment.policy, &experiment.name, generation)
        });
        let mut canaries: Vec<_> = canaries.collect();
        Canary::sort(&mut canaries);
        canaries.truncate(MAX_CANARIES);
        canaries
    }

    fn snapshot(&self) -> Result<Arc<Snapshot>> {
        if self.is_ready() {
            return Ok(Arc::clone(&self.deliveries.snapshots.borrow()));
        }
        Err(Error::new(Code::Unavailable, "LOADING", "the policies are still being loaded"))
    }

    /// Returns the subscription of this object; an error if it is gone.
    fn find(&self, subscription: &PolicySubscription) -> Result<(SubscriptionId, Arc<Sourced<SubscriptionManifest>>)> {
        let id = id(subscription);
        let found = self.snapshot()?.subscriptions.get(&id).cloned();
        let found = found.ok_or_else(|| Error::not_found(&format!("subscriptions/{}/{}", id.namespace, id.name)))?;
        Ok((id, found))
    }

    fn request(&self, id: SubscriptionId, request: Request) -> Result<()> {
        if self.deliveries.shared.deliver_to.is_none() {
            let message = "the server has no folder for the policies of components: start it with --deliver-to";
            return Err(Error::new(Code::FailedPrecondition, "NOT_CONFIGURED", message));
        }
        let shutting_down = |_| Error::new(Code::Unavailable, "SHUTTING_DOWN", "the server is shutting down");
        self.deliveries.requests.send((id, request)).map_err(shutting_down)
    }

    fn object(&self, id: &SubscriptionId, subscription: &Sourced<SubscriptionManifest>) -> PolicySubscription {
        let SubscriptionManifest { spec, labels } = &subscription.spec;
        let mut object = PolicySubscription::new(&id.name, spec.clone());
        object.metadata.namespace = Some(id.namespace.clone());
        object.metadata.labels = Some(labels.clone()).filter(|labels| !labels.is_empty());
        object.metadata.annotations = Some(subscription.annotations.clone()).filter(|it| !it.is_empty());
        object.status = self.deliveries.shared.reports.status(id);
        object
    }
}

fn id(subscription: &PolicySubscription) -> SubscriptionId {
    let metadata = &subscription.metadata;
    SubscriptionId {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

impl ConfigurationStore for FolderConfiguration {
    fn instance(&self) -> Uuid {
        self.instance
    }

    fn is_ready(&self) -> bool {
        self.deliveries.shared.has_begun() || self.deliveries.snapshots.borrow().is_complete
    }

    async fn is_allowed(&self, _: Option<&Caller>, _: Permission<'_>) -> Result<bool> {
        Ok(true)
    }

    async fn catalog(&self) -> Result<Arc<Catalog>> {
        Ok(Arc::clone(&self.snapshot()?.catalog))
    }

    async fn bodies(
        &self,
        policies: &[Arc<ConfigurationPolicy>],
        component: Option<&PolicySubscription>,
    ) -> Result<Vec<Body>> {
        let snapshot = self.snapshot()?;
        let facts = match component {
            Some(component) => {
                let (id, subscription) = self.find(component)?;
                Some(component_facts(&id, &subscription))
            }
            None => None,
        };
        let policies = policies.to_vec();
        let bodies = move || {
            let body = |policy: &Arc<ConfigurationPolicy>| {
                let revision = snapshot.revisions.get(&(policy.id.clone(), policy.version.clone()));
                let Some(content) = revision.and_then(|revision| revision.configuration()) else {
                    return Body::Failed(format!(
                        "the version {} of the policy is not loaded any more",
                        policy.version
                    ));
                };
                if facts.is_none() && content.is_template() {
                    return Body::Template;
                }
                let item = content.item(policy, facts.as_ref().unwrap_or(&ComponentFacts::default()));
                item.map_or_else(|error| Body::Failed(error.to_string()), Body::Item)
            };
            policies.iter().map(body).collect()
        };
        let stopped = |error: tokio::task::JoinError| Error::new(Code::Internal, "TEMPLATES", error.to_string());
        tokio::task::spawn_blocking(bodies).await.map_err(stopped)
    }

    async fn subscriptions(&self) -> Result<Vec<Arc<PolicySubscription>>> {
        let snapshot = self.snapshot()?;
        Ok(snapshot.subscriptions.iter().map(|(id, subscription)| Arc::new(self.object(id, subscription))).collect())
    }

    async fn stored(&self, subscription: &PolicySubscription) -> Result<StoredParts> {
        let (id, subscription) = self.find(subscription)?;
        let name = scn(&id, &subscription);
        let Some(folder) = self.deliveries.shared.deliver_to.as_ref().filter(|_| check_folder_name(&name).is_ok())
        else {
            return Ok(StoredParts::default());
        };
        let folder = ComponentFolder::new(folder.join(&name));
        let stored = blocking(move || folder.read()).await;
        stored.map_err(|error| Error::new(Code::Unavailable, "FILES", error.to_string()))
    }

    async fn application(&self, subscription: &PolicySubscription) -> Result<Option<BTreeMap<String, String>>> {
        let Some(application) = &subscription.spec.application else { return Ok(None) };
        let key = (id(subscription).namespace, application.config_map.clone());
        Ok(self.snapshot()?.config_maps.get(&key).cloned())
    }

    async fn watch(&self, subscription: &PolicySubscription) -> Result<Changes> {
        let (id, _) = self.find(subscription)?;
        Ok(Changes::new(self.deliveries.shared.reports.watch(&id), ()))
    }

    async fn request_catch_up(&self, _: Option<&Caller>, subscriptions: Vec<Arc<PolicySubscription>>) -> Result<()> {
        subscriptions.iter().try_for_each(|subscription| self.request(id(subscription), Request::CatchUp))
    }

    async fn request_resend(&self, _: Option<&Caller>, subscription: &PolicySubscription) -> Result<String> {
        let (id, _) = self.find(subscription)?;
        let value = Uuid::new_v4().to_string();
        self.request(id, Request::Resend(value.clone()))?;
        Ok(value)
    }
}
