//! A Kubernetes watch as a sequence of changes. While the API server fails, the watch retries, and the last observed objects stay
//! valid.

use std::collections::BTreeMap;
use std::fmt::Debug;

use futures_util::TryStreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

/// The duration of one watch request, in seconds. The next request continues where the last one ended. The API server ends the
/// request after this time. If the end does not arrive, the network has dropped the connection silently: then the read timeout of
/// the client closes it.
const WATCH_SECONDS: u32 = 25;

/// A change of the objects of a kind, by name.
#[derive(Debug)]
pub(super) enum Change<T> {
    /// The complete list of the objects.
    All(BTreeMap<String, T>),
    Applied(String, T),
    Deleted(String),
}

impl<T> Change<T> {
    pub(super) fn apply(self, objects: &mut BTreeMap<String, T>) {
        match self {
            Self::All(all) => *objects = all,
            Self::Applied(name, object) => {
                objects.insert(name, object);
            }
            Self::Deleted(name) => {
                objects.remove(&name);
            }
        }
    }
}

/// Calls `send` with every change of the objects, which `read` converts. Never ends.
pub(super) async fn follow<K, T>(
    kind: &'static str,
    api: Api<K>,
    config: watcher::Config,
    read: impl Fn(K) -> T,
    send: impl Fn(Change<T>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut list = BTreeMap::new();
    let mut events = std::pin::pin!(watcher(api, config.timeout(WATCH_SECONDS)).default_backoff());
    loop {
        match events.try_next().await {
            Ok(Some(watcher::Event::Init)) => list.clear(),
            Ok(Some(watcher::Event::InitApply(object))) => {
                list.insert(object.name_any(), read(object));
            }
            Ok(Some(watcher::Event::InitDone)) => send(Change::All(std::mem::take(&mut list))),
            Ok(Some(watcher::Event::Apply(object))) => send(Change::Applied(object.name_any(), read(object))),
            Ok(Some(watcher::Event::Delete(object))) => send(Change::Deleted(object.name_any())),
            Err(error) => {
                tracing::warn!(kind, %error, "watch interrupted; loaded revisions keep serving");
            }
            Ok(None) => {
                tracing::error!(kind, "watch ended unexpectedly: restart this replica, it sees no further changes");
                return;
            }
        }
    }
}
