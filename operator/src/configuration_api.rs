//! The store of the configuration API in the cluster. Every replica has it, not only the leader: it watches the revisions of configuration
//! policies and the subscriptions, and reads the stored policies of a component on demand.

mod catch_ups;
mod permissions;
mod subscription;
#[cfg(test)]
mod tests;
mod watched;

use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use proviso_configuration_api::{Body, Changes, ConfigurationStore, Permission, instance_of};
use proviso_core::configuration::{Catalog, ConfigurationPolicy, Item, Part, Place, StoredParts, part_index};
use proviso_crds::names::{CHANGED_BY, CONFIGURATION, POINT_LABEL, RESEND, SUBSCRIPTION_LABEL};
use proviso_crds::{Component, ComponentKind, PolicySubscription};
use proviso_programs::templates::ComponentFacts;
use proviso_rest_api::{Caller, Code, Error};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::Reviews;
use crate::cache::{Cache, lock};
use crate::malformed::MaybeMalformed;
use crate::objects::watch_config;
use crate::rendering::Renderings;
use crate::revisions::Revision;
use crate::subscriptions::{Snapshot, is_owned};
use catch_ups::CatchUps;
use subscription::Subscription;
use watched::Watched;

/// The time that a call waits for the first lists after a start.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason why a template has no body for a component without a workload.
const NO_WORKLOAD: &str = "its template needs the labels of the workload, which does not exist";

/// The policies at one time, as the caches have them.
#[derive(Clone)]
struct Current {
    /// The number of changes of revisions before.
    changes: u64,
    snapshot: Arc<Snapshot>,
    catalog: Arc<Catalog>,
}

/// The store of this replica.
pub(crate) struct ClusterStore {
    client: Client,
    /// The namespace of the operator, which has the revisions.
    namespace: String,
    reviews: Reviews,
    revisions: Cache<MaybeMalformed<Revision>>,
    subscriptions: Cache<Subscription>,
    /// The number of changes of revisions.
    changes: Arc<AtomicU64>,
    current: Mutex<Option<Current>>,
    is_listed: AtomicBool,
    watched: Arc<Watched>,
    catch_ups: CatchUps,
    renderings: Arc<Renderings>,
}

impl fmt::Debug for ClusterStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterStore").finish_non_exhaustive()
    }
}

/// Fills the caches of a store, and writes the requested catch-ups, until the future is dropped. `None` waits for ever.
pub(crate) async fn follow(store: Option<&ClusterStore>) {
    let Some(store) = store else { return pending().await };
    let client = &store.client;
    let revisions = Api::namespaced(client.clone(), &store.namespace);
    let of_configuration = watch_config().labels(&format!("{POINT_LABEL}={CONFIGURATION}"));
    let listing = async {
        tokio::join!(store.revisions.listed(), store.subscriptions.listed());
        store.is_listed.store(true, Ordering::Release);
    };
    tokio::join!(
        store.revisions.follow(revisions, of_configuration),
        store.subscriptions.follow(Api::all(client.clone()), watch_config()),
        store.catch_ups.write(client),
        listing,
    );
}

impl ClusterStore {
    /// Returns the store. `namespace` is that of the operator. The controller of subscriptions shares the bodies.
    pub fn new(client: Client, namespace: &str, renderings: Arc<Renderings>) -> Self {
        let store = Self {
            reviews: Reviews::new(client.clone()),
            client,
            namespace: namespace.to_owned(),
            revisions: Cache::default(),
            subscriptions: Cache::default(),
            changes: Arc::default(),
            current: Mutex::default(),
            is_listed: AtomicBool::default(),
            watched: Arc::default(),
            catch_ups: CatchUps::default(),
            renderings,
        };
        let changes = Arc::clone(&store.changes);
        store.revisions.listen(move |_| _ = changes.fetch_add(1, Ordering::AcqRel));
        let watched = Arc::clone(&store.watched);
        store.subscriptions.listen(move |changed| watched.report(&crate::cache::name(changed)));
        store
    }

    /// Waits for the first lists.
    async fn listed(&self) -> Result<(), Error> {
        let listing = async { tokio::join!(self.revisions.listed(), self.subscriptions.listed()) };
        match tokio::time::timeout(LIST_TIMEOUT, listing).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::new(Code::Unavailable, "NOT_LISTED", "the policies are not read yet: try again")),
        }
    }

    /// Returns the policies as the cache has them now.
    async fn current(&self) -> Result<Current, Error> {
        self.listed().await?;
        let changes = self.changes.load(Ordering::Acquire);
        let before = lock(&self.current).clone();
        if let Some(current) = before.as_ref().filter(|current| current.changes == changes) {
            return Ok(current.clone());
        }
        let before = before.map(|current| current.snapshot).unwrap_or_default();
        // A change during the computation has a higher number, and the next call computes again.
        let revisions = self.revisions.reader().store().state();
        let snapshot = Arc::new(Snapshot::new(revisions.iter().map(|it| &**it), &before));
        let catalog = Arc::new(snapshot.catalog.clone());
        let current = Current { changes, snapshot, catalog };
        *lock(&self.current) = Some(current.clone());
        Ok(current)
    }

    /// Returns the facts of a component for templates; `None` if its workload does not exist.
    async fn facts(&self, subscription: &PolicySubscription) -> Result<Option<ComponentFacts>, Error> {
        let namespace = subscription.namespace().unwrap_or_default();
        let labels = match &subscription.spec.component {
            None => Some(subscription.labels().clone()),
            Some(Component { kind: ComponentKind::Deployment, name }) => {
                self.labels::<Deployment>(&namespace, name).await?
            }
            Some(Component { kind: ComponentKind::StatefulSet, name }) => {
                self.labels::<StatefulSet>(&namespace, name).await?
            }
            Some(Component { kind: ComponentKind::DaemonSet, name }) => {
                self.labels::<DaemonSet>(&namespace, name).await?
            }
        };
        let id = (&*namespace, &*subscription.name_any());
        Ok(labels.map(|labels| ComponentFacts::new(&subscription.spec, id, labels)))
    }

    /// Returns the labels of a workload; `None` if it does not exist.
    async fn labels<K>(&self, namespace: &str, name: &str) -> Result<Option<BTreeMap<String, String>>, Error>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
        K: Clone + fmt::Debug + serde::de::DeserializeOwned,
    {
        let found = Api::<K>::namespaced(self.client.clone(), namespace).get_metadata_opt(name).await;
        Ok(found.map_err(unavailable)?.map(|found| found.labels().clone()))
    }

    /// Returns the objects of a kind that store policies of this subscription.
    async fn parts_of<K>(&self, subscription: &PolicySubscription) -> Result<Vec<(usize, K)>, Error>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
        K: Clone + fmt::Debug + serde::de::DeserializeOwned,
    {
        let (namespace, uid) = (subscription.namespace().unwrap_or_default(), subscription.uid().unwrap_or_default());
        let labelled = ListParams::default().labels(&format!("{SUBSCRIPTION_LABEL}={uid}"));
        let found = Api::<K>::namespaced(self.client.clone(), &namespace).list(&labelled).await.map_err(unavailable)?;
        let config_map = &subscription.spec.delivery.config_map;
        let parts = found.items.into_iter().filter(|object| is_owned(object, &uid));
        Ok(parts.filter_map(|object| Some((part_index(config_map, &object.name_any())?, object))).collect())
    }
}

impl ConfigurationStore for ClusterStore {
    fn instance(&self) -> Uuid {
        instance_of(&self.namespace)
    }

    fn is_ready(&self) -> bool {
        self.is_listed.load(Ordering::Acquire)
    }

    async fn is_allowed(&self, caller: Option<&Caller>, permission: Permission<'_>) -> Result<bool, Error> {
        self.reviews.has_permission(caller, permissions::attributes(permission)).await
    }

    async fn catalog(&self) -> Result<Arc<Catalog>, Error> {
        Ok(self.current().await?.catalog)
    }

    async fn bodies(
        &self,
        policies: &[Arc<ConfigurationPolicy>],
        component: Option<&PolicySubscription>,
    ) -> Result<Vec<Body>, Error> {
        let current = self.current().await?;
        let contents = policies.iter().map(|policy| {
            let content = current.snapshot.content(policy).cloned();
            content.map(|content| (Arc::clone(policy), content)).ok_or_else(|| {
                let message = format!("the policy {} has just changed: try again", policy.id);
                Error::new(Code::Unavailable, "CHANGED", message)
            })
        });
        let wanted = contents.collect::<Result<Vec<_>, _>>()?;
        let facts = match component {
            Some(component) => self.facts(component).await?,
            None => None,
        };
        if let Some(facts) = facts {
            let items = self.renderings.items(&wanted, &facts).await;
            return Ok(items.into_iter().map(|item| item.map_or_else(failed, Body::Item)).collect());
        }
        // The controller evaluates no template either while the workload does not exist.
        let bodies = wanted.iter().map(|(policy, content)| match &content.configuration.content {
            Some(content) => Item::new(policy, &Value::Object(content.clone())).map_or_else(failed, Body::Item),
            None if component.is_some() => Body::Failed(NO_WORKLOAD.to_owned()),
            None => Body::Template,
        });
        Ok(bodies.collect())
    }

    async fn subscriptions(&self) -> Result<Vec<Arc<PolicySubscription>>, Error> {
        self.listed().await?;
        let subscriptions = self.subscriptions.reader().store().state();
        Ok(subscriptions.iter().filter_map(|it| it.object().cloned()).collect())
    }

    async fn stored(&self, subscription: &PolicySubscription) -> Result<StoredParts, Error> {
        let (config_maps, secrets) =
            tokio::try_join!(self.parts_of::<ConfigMap>(subscription), self.parts_of::<Secret>(subscription))?;
        let config_maps = config_maps.into_iter().map(|(index, object)| {
            let data = object.data.into_iter().flatten().map(|(key, value)| (key, Arc::from(value)));
            Part { place: Place::ConfigMap, index, data: data.collect() }
        });
        let secrets = secrets.into_iter().map(|(index, object)| {
            let text = |(key, value): (String, k8s_openapi::ByteString)| {
                Some((key, Arc::from(String::from_utf8(value.0).ok()?)))
            };
            Part { place: Place::Secret, index, data: object.data.into_iter().flatten().filter_map(text).collect() }
        });
        Ok(StoredParts::read(config_maps.chain(secrets)))
    }

    async fn application(&self, subscription: &PolicySubscription) -> Result<Option<BTreeMap<String, String>>, Error> {
        let Some(application) = &subscription.spec.application else { return Ok(None) };
        let namespace = subscription.namespace().unwrap_or_default();
        let config_maps = Api::<ConfigMap>::namespaced(self.client.clone(), &namespace);
        let found = config_maps.get_opt(&application.config_map).await.map_err(unavailable)?;
        Ok(found.map(|found| found.data.unwrap_or_default()))
    }

    /// The record of the deliveries in the status changes before and after the stored policies are written, so that only the
    /// application records need a watch of their own.
    async fn watch(&self, subscription: &PolicySubscription) -> Result<Changes, Error> {
        Ok(self.watched.begin(&self.client, subscription))
    }

    async fn request_catch_up(
        &self,
        caller: Option<&Caller>,
        subscriptions: Vec<Arc<PolicySubscription>>,
    ) -> Result<(), Error> {
        let user = caller.map(|caller| caller.user.clone()).unwrap_or_default();
        self.catch_ups.request(&user, &subscriptions);
        Ok(())
    }

    async fn request_resend(
        &self,
        caller: Option<&Caller>,
        subscription: &PolicySubscription,
    ) -> Result<String, Error> {
        let value = Uuid::new_v4().to_string();
        let user = caller.map(|caller| caller.user.as_str()).unwrap_or_default();
        annotate(&self.client, &crate::cache::name(subscription), &json!({RESEND: value, CHANGED_BY: user}))
            .await
            .map_err(unavailable)?;
        Ok(value)
    }
}

/// Writes annotations of a subscription.
async fn annotate(client: &Client, (namespace, name): &crate::cache::Name, annotations: &Value) -> kube::Result<()> {
    let subscriptions = Api::<PolicySubscription>::namespaced(client.clone(), namespace.as_deref().unwrap_or_default());
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    // The answer is read without the object, because another version of the CRD may have admitted it.
    subscriptions.patch_metadata(name, &PatchParams::default(), &patch).await.map(drop)
}

#[allow(clippy::needless_pass_by_value, reason = "map_or_else passes the error by value")]
fn failed(error: impl fmt::Display) -> Body {
    Body::Failed(error.to_string())
}

#[allow(clippy::needless_pass_by_value, reason = "map_err passes the error by value")]
fn unavailable(error: kube::Error) -> Error {
    match &error {
        kube::Error::Api(status) if status.code == 404 => Error::not_found("the object"),
        _ => Error::new(Code::Unavailable, "API_SERVER", format!("the API server failed: {error}")),
    }
}
