//! A cache of the objects of one kind, filled by one watch for all controllers. A reconcile reads caches instead of
//! the API server.

mod index;

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::TryStreamExt as _;
use kube::runtime::reflector::{ObjectRef, Store, store::Writer};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

pub(crate) use index::{Index, Name};

/// An object in the form in which its cache stores it.
pub(crate) trait Cached: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static {
    /// The object as the API server sends it.
    type Sent: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static;

    fn from_sent(sent: Self::Sent) -> Self;

    /// Returns the keys by which [`Reader::by_key`] finds the object.
    fn keys(&self) -> Vec<String>;
}

/// Read access to a [`Cache`].
#[derive(Debug)]
pub(crate) struct Reader<K: Cached> {
    store: Store<K>,
    index: Arc<Mutex<Index>>,
}

impl<K: Cached> Clone for Reader<K> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), index: Arc::clone(&self.index) }
    }
}

impl<K: Cached> Reader<K> {
    /// Returns the store of the objects, for kube's `applier`.
    pub fn store(&self) -> Store<K> {
        self.store.clone()
    }

    pub fn get(&self, name: &str, namespace: Option<&str>) -> Option<Arc<K>> {
        self.store.get(&reference(name, namespace))
    }

    /// Returns the objects with this key, ordered by namespace and name.
    pub fn by_key(&self, key: &str) -> Vec<Arc<K>> {
        let names = lock(&self.index).get(key);
        names.iter().filter_map(|(namespace, name)| self.get(name, namespace.as_deref())).collect()
    }

    /// Returns the names of the objects with this key.
    pub fn names(&self, key: &str) -> Vec<Name> {
        lock(&self.index).get(key)
    }

    /// Returns references to the objects with this key, for a queue.
    pub fn references(&self, key: &str) -> Vec<ObjectRef<K>> {
        let names = lock(&self.index).get(key);
        names.iter().map(|(namespace, name)| reference(name, namespace.as_deref())).collect()
    }
}

/// The objects of one kind, each in its latest version from the watch or from a write of this operator.
#[derive(Debug)]
pub(crate) struct Cache<K: Cached> {
    watched: Mutex<Watched<K>>,
    reader: Reader<K>,
    listeners: Mutex<Listeners<K>>,
}

/// The stored objects and the progress of the watch.
#[derive(Debug)]
struct Watched<K: Cached> {
    writer: Writer<K>,
    /// The largest `resourceVersion` that the watch has delivered. All older changes have been delivered too.
    version: u64,
    /// The number of completed lists.
    lists: u64,
}

/// A callback for each object that the watch delivers, including deleted objects.
type Listener<K> = Box<dyn Fn(&K) + Send>;

struct Listeners<K>(Vec<Listener<K>>);

impl<K> Debug for Listeners<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Listeners").field(&self.0.len()).finish()
    }
}

impl<K: Cached> Default for Cache<K> {
    fn default() -> Self {
        let writer = Writer::default();
        let reader = Reader { store: writer.as_reader(), index: Arc::default() };
        let watched = Mutex::new(Watched { writer, version: 0, lists: 0 });
        Self { watched, reader, listeners: Mutex::new(Listeners(Vec::new())) }
    }
}

/// Locks the mutex. Ignores poisoning: the values here are consistent even if a thread panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns `metadata.resourceVersion` as a number. Among the objects of one kind, a larger version is newer.
fn version(object: &impl Resource) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// Returns the namespace and the name of an object.
pub(crate) fn name(object: &impl Resource) -> Name {
    (object.namespace(), object.name_any())
}

impl<K: Cached> Cache<K> {
    pub fn reader(&self) -> Reader<K> {
        self.reader.clone()
    }

    /// Performs a write and stores the response, which is ahead of the watch. Drops the response if the watch has
    /// already delivered a newer change, such as a deletion: the response would restore a deleted object.
    ///
    /// # Errors
    /// The errors of the write.
    pub async fn write<E>(&self, write: impl Future<Output = Result<K::Sent, E>>) -> Result<(), E> {
        let lists = lock(&self.watched).lists;
        let object = K::from_sent(write.await?);
        let mut watched = lock(&self.watched);
        if watched.lists == lists && version(&object) > watched.version {
            self.insert(&mut watched, object);
        }
        Ok(())
    }

    /// Calls `listener` for each object that the watch delivers from now on.
    pub fn listen(&self, listener: impl Fn(&K) + Send + 'static) {
        lock(&self.listeners).0.push(Box::new(listener));
    }

    /// Waits until the first list is complete.
    pub async fn listed(&self) {
        // Cannot fail: the writer lives as long as this cache.
        let _ = self.reader.store.wait_until_ready().await;
    }

    /// Watches the objects until the future is dropped.
    pub async fn follow(&self, api: Api<K::Sent>, config: watcher::Config) {
        let kind = K::kind(&());
        let mut events = std::pin::pin!(watcher(api, config).default_backoff());
        loop {
            match events.try_next().await {
                Ok(Some(event)) => self.apply_event(event),
                Err(error) => tracing::warn!(%kind, %error, "watch interrupted; trying again"),
                // kube's watches do not end.
                Ok(None) => return,
            }
        }
    }

    pub fn apply_event(&self, event: watcher::Event<K::Sent>) {
        let mut watched = lock(&self.watched);
        match event {
            watcher::Event::Init => watched.writer.apply_watcher_event(&watcher::Event::Init),
            watcher::Event::InitApply(sent) => {
                let object = K::from_sent(sent);
                watched.version = watched.version.max(version(&object));
                watched.writer.apply_watcher_event(&watcher::Event::InitApply(object));
            }
            watcher::Event::InitDone => {
                let before = self.reader.store.state();
                watched.writer.apply_watcher_event(&watcher::Event::InitDone);
                watched.lists += 1;
                let now = self.reader.store.state();
                lock(&self.reader.index).replace(now.iter().map(|object| (name(&**object), object.keys())));
                drop(watched);
                let is_cleaned_up =
                    |object: &&Arc<K>| self.reader.store.get(&ObjectRef::from_obj(&***object)).is_none();
                before.iter().filter(is_cleaned_up).chain(&now).for_each(|object| self.notify(object));
            }
            watcher::Event::Apply(sent) => {
                let object = K::from_sent(sent);
                watched.version = watched.version.max(version(&object));
                self.insert(&mut watched, object.clone());
                drop(watched);
                self.notify(&object);
            }
            watcher::Event::Delete(sent) => {
                let object = K::from_sent(sent);
                watched.version = watched.version.max(version(&object));
                let known = self.reader.store.get(&ObjectRef::from_obj(&object));
                // Keeps an object of the same name that this operator has created since.
                if known.is_none_or(|known| version(&*known) <= version(&object)) {
                    watched.writer.apply_watcher_event(&watcher::Event::Delete(object.clone()));
                    lock(&self.reader.index).remove(&name(&object));
                }
                drop(watched);
                self.notify(&object);
            }
        }
    }

    fn insert(&self, watched: &mut Watched<K>, object: K) {
        let known = self.reader.store.get(&ObjectRef::from_obj(&object));
        if known.is_some_and(|known| version(&*known) > version(&object)) {
            return;
        }
        lock(&self.reader.index).insert(name(&object), object.keys());
        watched.writer.apply_watcher_event(&watcher::Event::Apply(object));
    }

    fn notify(&self, object: &K) {
        lock(&self.listeners).0.iter().for_each(|listener| listener(object));
    }
}

/// Returns a reference to the object with this name.
pub(crate) fn reference<K: Resource<DynamicType = ()>>(name: &str, namespace: Option<&str>) -> ObjectRef<K> {
    let reference = ObjectRef::new(name);
    match namespace {
        Some(namespace) => reference.within(namespace),
        None => reference,
    }
}

/// Returns the values of these labels: the uids of the owning objects, or the name of a policy server.
pub(crate) fn label_values(object: &impl Resource, labels: &[&str]) -> Vec<String> {
    labels.iter().filter_map(|label| object.labels().get(*label).cloned()).collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::FutureExt as _;
    use k8s_openapi::api::core::v1::Pod;
    use proviso_crds::names::SERVER_LABEL;
    use serde_json::json;
    use tokio::sync::mpsc;
    use watcher::Event;

    use super::*;

    fn pod(name: &str, version: &str, server: &str) -> Pod {
        let metadata = json!({
            "name": name, "namespace": "proviso", "resourceVersion": version, "labels": {SERVER_LABEL: server},
        });
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    /// Returns name and version of each pod of a policy server.
    fn pods(cache: &Cache<Pod>, server: &str) -> Vec<String> {
        let pods = cache.reader().by_key(server);
        pods.iter().map(|pod| format!("{} {}", pod.name_any(), version(&**pod))).collect()
    }

    /// Performs a write whose response is `pod`.
    fn write(cache: &Cache<Pod>, pod: Pod) {
        cache.write(async { Ok::<_, Infallible>(pod) }).now_or_never().unwrap().unwrap();
    }

    /// Returns a channel that gets the name of each pod that listeners are notified about.
    fn notified(cache: &Cache<Pod>) -> mpsc::UnboundedReceiver<String> {
        let (sender, receiver) = mpsc::unbounded_channel();
        cache.listen(move |pod| sender.send(pod.name_any()).unwrap());
        receiver
    }

    fn all(receiver: &mut mpsc::UnboundedReceiver<String>) -> Vec<String> {
        let mut all: Vec<_> = std::iter::from_fn(|| receiver.try_recv().ok()).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn a_write_is_visible_before_the_watch_event() {
        let cache = Cache::default();
        cache.apply_event(Event::Apply(pod("a", "5", "s")));
        write(&cache, pod("a", "9", "t"));
        assert_eq!((pods(&cache, "s"), pods(&cache, "t")), (vec![], vec!["a 9".to_owned()]));
        let mut notified = notified(&cache);
        cache.apply_event(Event::Apply(pod("a", "7", "s")));
        cache.apply_event(Event::Delete(pod("a", "8", "s")));
        assert_eq!(
            (pods(&cache, "s"), pods(&cache, "t")),
            (vec![], vec!["a 9".to_owned()]),
            "older events change nothing"
        );
        assert_eq!(all(&mut notified), ["a", "a"], "but listeners are notified");
        cache.apply_event(Event::Apply(pod("a", "10", "s")));
        assert_eq!(pods(&cache, "s"), ["a 10"]);
        cache.apply_event(Event::Delete(pod("a", "11", "s")));
        assert!(pods(&cache, "s").is_empty() && cache.reader().get("a", Some("proviso")).is_none());
    }

    #[tokio::test]
    async fn a_stale_write_response_does_not_restore_a_deleted_object() {
        let cache = Cache::default();
        cache.apply_event(Event::Apply(pod("a", "5", "s")));
        let answer = async {
            // Another client deletes the pod before the response is stored.
            cache.apply_event(Event::Delete(pod("a", "7", "s")));
            Ok::<_, Infallible>(pod("a", "6", "s"))
        };
        cache.write(answer).await.unwrap();
        assert!(pods(&cache, "s").is_empty());
        // A response is ignored if a list has ended since the request: the list may be newer than the response.
        let answer = async {
            cache.apply_event(Event::Init);
            cache.apply_event(Event::InitDone);
            Ok::<_, Infallible>(pod("a", "8", "s"))
        };
        cache.write(answer).await.unwrap();
        assert!(pods(&cache, "s").is_empty());
        write(&cache, pod("a", "9", "s"));
        assert_eq!(pods(&cache, "s"), ["a 9"]);
    }

    #[test]
    fn a_list_replaces_the_cache_and_notifies_about_missing_objects() {
        let cache = Cache::default();
        let mut notified = notified(&cache);
        let list = |pods: &[Pod]| {
            cache.apply_event(Event::Init);
            for pod in pods {
                cache.apply_event(Event::InitApply(pod.clone()));
            }
            cache.apply_event(Event::InitDone);
        };
        list(&[pod("a", "1", "s"), pod("b", "2", "s")]);
        assert_eq!(
            (all(&mut notified), pods(&cache, "s")),
            (vec!["a".into(), "b".into()], vec!["a 1".into(), "b 2".into()])
        );
        list(&[pod("b", "2", "s"), pod("c", "4", "t")]);
        assert_eq!(all(&mut notified), ["a", "b", "c"]);
        assert_eq!((pods(&cache, "s"), pods(&cache, "t")), (vec!["b 2".to_owned()], vec!["c 4".to_owned()]));
    }
}
