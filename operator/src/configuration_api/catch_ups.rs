//! Requested catch-ups. They are written to the annotations of the subscriptions, because another replica may be the leader. Requests for a
//! subscription that waits already are merged, so that a flood of requests does not become a flood of writes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures_util::{StreamExt as _, stream};
use kube::Client;
use proviso_crds::PolicySubscription;
use proviso_crds::names::{CATCH_UP, CHANGED_BY};
use serde_json::json;
use tokio::sync::Notify;
use uuid::Uuid;

use super::annotate;
use crate::cache::{Name, lock, name};

/// The number of subscriptions that are written at the same time.
const MAX_CONCURRENT: usize = 8;

/// The subscriptions whose catch-up is requested, each with the user who has requested it last.
#[derive(Debug, Default)]
pub(super) struct CatchUps {
    requested: Mutex<BTreeMap<Name, String>>,
    has_requests: Notify,
}

impl CatchUps {
    pub fn request(&self, user: &str, subscriptions: &[Arc<PolicySubscription>]) {
        lock(&self.requested).extend(subscriptions.iter().map(|it| (name(&**it), user.to_owned())));
        self.has_requests.notify_one();
    }

    fn take(&self) -> BTreeMap<Name, String> {
        std::mem::take(&mut lock(&self.requested))
    }

    /// Writes the requests until the future is dropped. A request that cannot be written is logged: the next periodic catch-up replaces it.
    pub async fn write(&self, client: &Client) {
        loop {
            self.has_requests.notified().await;
            let requests = stream::iter(self.take());
            let writing = requests.for_each_concurrent(MAX_CONCURRENT, |(name, user)| async move {
                let annotations = json!({CATCH_UP: Uuid::new_v4().to_string(), CHANGED_BY: user});
                if let Err(error) = annotate(client, &name, &annotations).await {
                    let (namespace, name) = name;
                    tracing::warn!(namespace, name, %error, "a catch-up of a subscription could not be requested");
                }
            });
            writing.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscription(name: &str) -> Arc<PolicySubscription> {
        let spec = json!({"scn": name, "policies": [{"id": "cluster.a"}], "delivery": {"configMap": name}});
        let metadata = json!({"name": name, "namespace": "team"});
        Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
    }

    #[test]
    fn requests_for_one_subscription_are_merged() {
        let catch_ups = CatchUps::default();
        catch_ups.request("mara", &[subscription("a"), subscription("b")]);
        catch_ups.request("ivan", &[subscription("b")]);
        let requested: Vec<_> =
            catch_ups.take().into_iter().map(|((_, name), user)| format!("{name} {user}")).collect();
        assert_eq!(requested, ["a mara", "b ivan"]);
        assert!(catch_ups.take().is_empty());
    }
}
