//! The components that clients watch.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use proviso_configuration_api::Changes;
use proviso_crds::PolicySubscription;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::cache::{Name, lock, name};
use crate::objects::watch_config;

/// The number of changes of each watched subscription.
#[derive(Debug, Default)]
pub(super) struct Watched(Mutex<HashMap<Name, watch::Sender<u64>>>);

/// One watch. Its drop ends it.
struct Watch {
    watched: Arc<Watched>,
    name: Name,
    /// The watch of the application records.
    application: Option<AbortHandle>,
}

impl Watched {
    /// Reports a change of a subscription.
    pub fn report(&self, name: &Name) {
        if let Some(sender) = lock(&self.0).get(name) {
            sender.send_modify(|changes| *changes += 1);
        }
    }

    /// Begins a watch. After another ConfigMap is named for the application records, its changes are seen by the next watch.
    pub fn begin(self: &Arc<Self>, client: &Client, subscription: &PolicySubscription) -> Changes {
        let name = name(subscription);
        let receiver = lock(&self.0).entry(name.clone()).or_insert_with(|| watch::Sender::new(0)).subscribe();
        let application = subscription.spec.application.as_ref().map(|application| {
            let namespace = subscription.namespace().unwrap_or_default();
            let config_maps = Api::<PartialObjectMeta<ConfigMap>>::namespaced(client.clone(), &namespace);
            let (watched, name) = (Arc::clone(self), name.clone());
            let config = watch_config().fields(&format!("metadata.name={}", application.config_map));
            let following = async move {
                let events = watcher(config_maps, config).default_backoff();
                let mut events = std::pin::pin!(events);
                while let Some(event) = events.next().await {
                    if event.is_ok() {
                        watched.report(&name);
                    }
                }
            };
            tokio::spawn(following).abort_handle()
        });
        Changes::new(receiver, Watch { watched: Arc::clone(self), name, application })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(application) = &self.application {
            application.abort();
        }
        // The receiver of this watch is dropped already.
        if let Entry::Occupied(entry) = lock(&self.watched.0).entry(self.name.clone())
            && entry.get().receiver_count() == 0
        {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mock_api::MockApi;

    #[tokio::test]
    async fn a_watch_sees_the_changes_of_its_subscription_and_is_forgotten_at_its_end() {
        let spec = json!({"scn": "a", "policies": [{"id": "cluster.a"}], "delivery": {"configMap": "a"}});
        let metadata = json!({"name": "a", "namespace": "team"});
        let subscription: PolicySubscription =
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        let (watched, client) = (Arc::<Watched>::default(), MockApi::default().client());
        let mut first = watched.begin(&client, &subscription);
        let second = watched.begin(&client, &subscription);
        watched.report(&(Some("team".to_owned()), "other".to_owned()));
        watched.report(&name(&subscription));
        assert!(first.changed().await);
        drop(first);
        assert_eq!(lock(&watched.0).len(), 1, "the other watch goes on");
        drop(second);
        assert!(lock(&watched.0).is_empty());
    }
}
