//! Watches one or both kinds of a pair.

use std::pin::Pin;

use futures_util::stream::{self, Stream, StreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};

use super::Cluster;
use super::scope::Scope;
use super::watched::{News, Watched};
use crate::access::Access;
use crate::error::Error;
use crate::kinds::Pair;

/// The duration of one watch in seconds; the next watch follows where it ended. Shorter than [`super::connect`] lets a cluster be
/// silent, so that a quiet watch is told from a connection that leads nowhere.
const LASTS: u32 = 20;

type Changes = Pin<Box<dyn Stream<Item = Result<News, Error>> + Send>>;

impl Cluster {
    /// Changes of what is in a scope, beginning with all that is there, of the kinds that are watched. Goes on after
    /// errors, more and more slowly.
    pub fn watch<T: Pair + 'static>(
        &self,
        scope: &Scope,
        watched: &Watched,
    ) -> impl Stream<Item = Result<News, Error>> + Send + use<T> {
        let (namespace, name) = match scope {
            Scope::One(id) => (id.namespace(), Some(id.name())),
            Scope::Beside(id) => (id.namespace(), None),
            Scope::All { of_all_namespaces } => ((!of_all_namespaces).then_some(self.namespace.as_str()), None),
        };
        let changes = |is_namespaced: bool| -> Changes {
            if !watched.is_watched(is_namespaced) {
                return Box::pin(stream::pending());
            }
            self.changes::<T>(is_namespaced, namespace, name)
        };
        stream::select(changes(false), changes(true))
    }

    fn changes<T: Pair + 'static>(&self, is_namespaced: bool, namespace: Option<&str>, name: Option<&str>) -> Changes {
        let access = T::access_to_many("watch", is_namespaced, namespace);
        let mut config = watcher::Config::default().timeout(LASTS);
        if let Some(name) = name {
            config = config.fields(&format!("metadata.name={name}"));
        }
        let api = self.api::<T>(is_namespaced, namespace);
        let cluster = self.clone();
        let changes = watcher(api, config).default_backoff().map(move |event| match event {
            Ok(event) => Ok((is_namespaced, event)),
            Err(error) => Err(cluster.watch_error(error, access.clone())),
        });
        Box::pin(changes)
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
