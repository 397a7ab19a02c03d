//! Watches one or both kinds of a pair.

use std::pin::Pin;

use futures_util::stream::{self, Stream, StreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};

use super::Cluster;
use super::scope::Scope;
use super::watched::{WatchEvent, Watched};
use crate::access::Access;
use crate::error::Error;
use crate::kinds::Pair;

/// The duration of one watch request in seconds. The next request continues where it ended. Shorter than the read timeout of
/// [`super::connect`], so that a watch without changes does not look like a broken connection.
const WATCH_SECONDS: u32 = 20;

type Events = Pin<Box<dyn Stream<Item = Result<WatchEvent, Error>> + Send>>;

impl Cluster {
    /// Watches the objects of a scope, of the kinds that `watched` names. The first events are the existing objects. Continues
    /// after errors, with a growing delay.
    pub fn watch<T: Pair + 'static>(
        &self,
        scope: &Scope,
        watched: &Watched,
    ) -> impl Stream<Item = Result<WatchEvent, Error>> + Send + use<T> {
        let (namespace, name) = match scope {
            Scope::One(id) => (id.namespace(), Some(id.name())),
            Scope::SameNamespace(id) => (id.namespace(), None),
            Scope::All { of_all_namespaces } => ((!of_all_namespaces).then_some(self.namespace.as_str()), None),
        };
        let events = |is_namespaced: bool| -> Events {
            if !watched.is_watched(is_namespaced) {
                return Box::pin(stream::pending());
            }
            self.watch_kind::<T>(is_namespaced, namespace, name)
        };
        stream::select(events(false), events(true))
    }

    fn watch_kind<T: Pair + 'static>(
        &self,
        is_namespaced: bool,
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> Events {
        let access = T::access_to_many("watch", is_namespaced, namespace);
        let mut config = watcher::Config::default().timeout(WATCH_SECONDS);
        if let Some(name) = name {
            config = config.fields(&format!("metadata.name={name}"));
        }
        let api = self.api::<T>(is_namespaced, namespace);
        let cluster = self.clone();
        let events = watcher(api, config).default_backoff().map(move |event| match event {
            Ok(event) => Ok((is_namespaced, event)),
            Err(error) => Err(cluster.watch_error(error, access.clone())),
        });
        Box::pin(events)
    }

    fn watch_error(&self, error: watcher::Error, access: Access) -> Error {
        use watcher::Error as Watch;
        match error {
            Watch::InitialListFailed(error) | Watch::WatchStartFailed(error) | Watch::WatchFailed(error) => {
                self.error(error, access)
            }
            Watch::WatchError(status) => self.error(kube::Error::Api(status), access),
            error @ Watch::NoResourceVersion => Error::Refused { access, cause: error.to_string() },
        }
    }
}
