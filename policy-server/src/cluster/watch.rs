//! A watch as a row of plain changes. It goes on whatever the API server does; what was seen last stays true meanwhile.

use std::collections::BTreeMap;
use std::fmt::Debug;

use futures_util::TryStreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

/// How long one watch lasts, in seconds; the next one goes on where it ended. One that has not even ended some seconds later leads
/// nowhere: a network that has forgotten a connection tells nobody.
const WATCH_SECONDS: u32 = 25;

/// What happened to the objects of a kind, by their names.
#[derive(Debug)]
pub(super) enum Change<T> {
    /// These are there, and no others.
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

/// Sends every change of these objects as `read` has them. Does not end.
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
                tracing::warn!(kind, %error, "watch interrupted; what is loaded keeps serving");
            }
            Ok(None) => {
                tracing::error!(kind, "watch ended, which kube's do not: what is loaded is all that will be");
                return;
            }
        }
    }
}
