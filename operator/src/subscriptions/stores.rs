//! The caches of the objects that subscriptions write and read: the ConfigMaps and Secrets with policies, and the workloads of components.
//!
//! They have metadata only. 2,000 components with 100 policies each have some hundred megabytes of policies, which the operator need not
//! keep: a ConfigMap is read again when its `resourceVersion` is not the one that the operator has written.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, Resource, ResourceExt as _};
use proviso_crds::ComponentKind;
use proviso_crds::names::SUBSCRIPTION_LABEL;
use serde::de::DeserializeOwned;

use crate::cache::{Cache, Cached, label_values};
use crate::objects::watch_config;

/// The metadata of a workload without its annotations, which may be large.
#[derive(Clone, Debug)]
pub(super) struct Workload<K>(PartialObjectMeta<K>);

/// The labels and the uid of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WorkloadFacts {
    pub uid: String,
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
pub(super) struct Stores {
    pub config_maps: Cache<PartialObjectMeta<ConfigMap>>,
    pub secrets: Cache<PartialObjectMeta<Secret>>,
    pub deployments: Cache<Workload<Deployment>>,
    pub stateful_sets: Cache<Workload<StatefulSet>>,
    pub daemon_sets: Cache<Workload<DaemonSet>>,
}

impl Stores {
    /// Watches the objects until the future is dropped.
    pub async fn follow(&self, client: &Client) {
        let of_subscriptions = || watch_config().labels(SUBSCRIPTION_LABEL);
        tokio::join!(
            self.config_maps.follow(Api::all(client.clone()), of_subscriptions()),
            self.secrets.follow(Api::all(client.clone()), of_subscriptions()),
            follow_workloads(&self.deployments, client),
            follow_workloads(&self.stateful_sets, client),
            follow_workloads(&self.daemon_sets, client),
        );
    }

    /// Waits until all kinds have been listed.
    pub async fn listed(&self) {
        tokio::join!(
            self.config_maps.listed(),
            self.secrets.listed(),
            self.deployments.listed(),
            self.stateful_sets.listed(),
            self.daemon_sets.listed(),
        );
    }

    /// Returns the facts of a workload; `None` if it does not exist.
    pub fn workload(&self, kind: ComponentKind, namespace: &str, name: &str) -> Option<WorkloadFacts> {
        match kind {
            ComponentKind::Deployment => facts(&self.deployments, namespace, name),
            ComponentKind::StatefulSet => facts(&self.stateful_sets, namespace, name),
            ComponentKind::DaemonSet => facts(&self.daemon_sets, namespace, name),
        }
    }
}

fn facts<K>(cache: &Cache<Workload<K>>, namespace: &str, name: &str) -> Option<WorkloadFacts>
where
    Workload<K>: Cached,
{
    let found = cache.reader().get(name, Some(namespace))?;
    Some(WorkloadFacts { uid: found.uid()?, labels: found.labels().clone() })
}

async fn follow_workloads<K>(cache: &Cache<Workload<K>>, client: &Client)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    cache.follow(Api::all(client.clone()), watch_config()).await;
}

impl<K> Cached for Workload<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    type Sent = PartialObjectMeta<K>;

    fn from_sent(mut sent: Self::Sent) -> Self {
        sent.metadata.managed_fields = None;
        sent.metadata.annotations = None;
        Self(sent)
    }

    fn keys(&self) -> Vec<String> {
        Vec::new()
    }
}

impl<K: Resource<DynamicType = ()>> Resource for Workload<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}

macro_rules! metadata_of_parts {
    ($($kind:ty),*) => {$(
        impl Cached for PartialObjectMeta<$kind> {
            type Sent = Self;

            fn from_sent(mut sent: Self) -> Self {
                // `managedFields` would repeat each key of the policies.
                sent.metadata.managed_fields = None;
                // An empty map says that the object has annotations, which may be large.
                if let Some(annotations) = &mut sent.metadata.annotations {
                    annotations.clear();
                }
                sent
            }

            fn keys(&self) -> Vec<String> {
                label_values(self, &[SUBSCRIPTION_LABEL])
            }
        }
    )*};
}

metadata_of_parts!(ConfigMap, Secret);
