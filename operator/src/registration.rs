//! Registration of the operator with the API server: reconciles the webhook configuration or `APIService` that names
//! the operator's Service and CA bundle.

use futures_util::StreamExt as _;
use kube::api::{DeleteParams, Patch};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ca::{self, CurrentCa};
use crate::objects::{RESYNC, RETRY, apply_params, ignore_not_found, watch_config};

/// A webhook configuration or `APIService` that makes the API server call the operator.
pub(crate) struct RegisteredObject<K> {
    pub api: Api<K>,
    pub name: &'static str,
    pub ca: ca::Receiver,
}

impl<K> RegisteredObject<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    /// Keeps the object equal to `desired`, a function of the CA. Deletes the object if `desired` is
    /// `None`. Never returns.
    pub(crate) async fn reconcile(&self, desired: Option<impl Fn(&CurrentCa) -> Value>) {
        let Some(desired) = desired else {
            // An earlier release or configuration may have created the object, and the API server would go on calling it.
            if let Err(error) = ignore_not_found(self.api.delete(self.name, &DeleteParams::default()).await) {
                tracing::warn!(
                    kind = %K::kind(&()),
                    name = self.name,
                    %error,
                    "cannot delete the registration: requests that it covers may be refused until it is deleted"
                );
            }
            return std::future::pending().await;
        };
        let only = watch_config().fields(&format!("metadata.name={}", self.name));
        let mut changes = Box::pin(watcher(self.api.clone(), only).default_backoff());
        let mut ca = self.ca.clone();
        loop {
            let current = ca.borrow_and_update().clone();
            let mut pause = RESYNC;
            if let Some(current) = current
                && let Err(error) = self.api.patch(self.name, &apply_params(), &Patch::Apply(desired(&current))).await
            {
                tracing::warn!(
                    kind = %K::kind(&()),
                    name = self.name,
                    %error,
                    "cannot apply the registration with the API server; trying again"
                );
                pause = RETRY;
            }
            tokio::select! {
                _ = changes.next() => {}
                Ok(()) = ca.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}
