//! Where the API server is told to ask the operator: an object that names its Service and who vouches for it, kept as it
//! should be, or kept away.

use futures_util::StreamExt as _;
use kube::api::{DeleteParams, Patch};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::authority;
use crate::objects::{RESYNC, RETRY, apply, ignore_gone, watching};

/// One such object.
pub(crate) struct Registered<K> {
    pub api: Api<K>,
    pub name: &'static str,
    pub authority: authority::Receiver,
}

impl<K> Registered<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    /// Keeps it as this is for the PEM of those who vouch, or away if it is to be none. Does not end.
    pub(crate) async fn keep(&self, wanted: Option<impl Fn(&str) -> Value>) {
        let Some(wanted) = wanted else {
            // An earlier operator may have had one, and nobody answers there any more.
            if let Err(error) = ignore_gone(self.api.delete(self.name, &DeleteParams::default()).await) {
                tracing::warn!(kind = %K::kind(&()), name = self.name, %error, "it cannot be removed: what it covers may be refused until it is");
            }
            return std::future::pending().await;
        };
        let only = watching().fields(&format!("metadata.name={}", self.name));
        let mut changes = Box::pin(watcher(self.api.clone(), only).default_backoff());
        let mut authority = self.authority.clone();
        loop {
            let bundle = authority.borrow_and_update().as_ref().map(|trusted| trusted.bundle.clone());
            let mut pause = RESYNC;
            if let Some(bundle) = bundle
                && let Err(error) = self.api.patch(self.name, &apply(), &Patch::Apply(wanted(&bundle))).await
            {
                tracing::warn!(kind = %K::kind(&()), name = self.name, %error, "the API server cannot be told to ask here; trying again");
                pause = RETRY;
            }
            tokio::select! {
                _ = changes.next() => {}
                Ok(()) = authority.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}
