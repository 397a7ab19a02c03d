//! Caches of the objects that the controllers of policies and experiments read: one watch for each kind, however many controllers
//! and objects there are. A reconcile reads the caches and asks the API server nothing.

mod index;

use std::collections::HashSet;
use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::{ObjectRef, Store, store::Writer};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use prometheus_client::metrics::gauge::Gauge;
use proviso_crds::names::{EXPERIMENT_LABEL, POLICY_LABEL, SERVER_LABEL};
use proviso_crds::{ClusterPolicy, ClusterPolicyExperiment, Policy, PolicyExperiment, PolicyRevision, PolicyServer};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::experiments::ExperimentObject;
use crate::guarded::Guarded;
use crate::objects;
use crate::revisions::Revision;
use index::{Index, Name};

/// An object as its cache keeps it.
pub(crate) trait Cached: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static {
    /// The object as the API server sends it.
    type Sent: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static;

    fn from_sent(sent: Self::Sent) -> Self;

    /// The keys by which [`Reader::by_key`] finds the object.
    fn keys(&self) -> Vec<String>;
}

/// The objects of one kind, to read.
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
    /// The objects, for an applier.
    pub fn store(&self) -> Store<K> {
        self.store.clone()
    }

    pub fn get(&self, name: &str, namespace: Option<&str>) -> Option<Arc<K>> {
        self.store.get(&reference(name, namespace))
    }

    /// The objects that have this key, in the order of their namespaces and names.
    pub fn by_key(&self, key: &str) -> Vec<Arc<K>> {
        let names = lock(&self.index).get(key);
        names.iter().filter_map(|(namespace, name)| self.get(name, namespace.as_deref())).collect()
    }

    /// References to [`Self::by_key`], for a queue.
    pub fn references(&self, key: &str) -> Vec<ObjectRef<K>> {
        let names = lock(&self.index).get(key);
        names.iter().map(|(namespace, name)| reference(name, namespace.as_deref())).collect()
    }
}

/// All objects of one kind, as the watch or a write of this operator has shown each last.
#[derive(Debug)]
pub(crate) struct Cache<K: Cached> {
    watched: Mutex<Watched<K>>,
    reader: Reader<K>,
    listeners: Mutex<Listeners<K>>,
}

/// The objects, and how far the watch has come.
#[derive(Debug)]
struct Watched<K: Cached> {
    writer: Writer<K>,
    /// The largest version that the watch has brought: it has brought every older change too.
    version: u64,
    /// The number of lists.
    lists: u64,
}

/// A function that is called for each object that the watch brings, also for one that was deleted.
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

/// Locks; what is in it is whole even if a thread has panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `metadata.resourceVersion`: of two versions of objects of one kind the larger one is newer.
fn version(object: &impl Resource) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

fn name(object: &impl Resource) -> Name {
    (object.namespace(), object.name_any())
}

impl<K: Cached> Cache<K> {
    pub fn reader(&self) -> Reader<K> {
        self.reader.clone()
    }

    /// Writes an object and takes over the answer, which is ahead of the watch. An answer that comes after the watch has brought a
    /// newer change, such as a deletion, is not taken over: it would bring back what is gone.
    ///
    /// # Errors
    /// Those of the write.
    pub async fn write<E>(&self, write: impl Future<Output = Result<K::Sent, E>>) -> Result<(), E> {
        let lists = lock(&self.watched).lists;
        let object = K::from_sent(write.await?);
        let mut watched = lock(&self.watched);
        if watched.lists == lists && version(&object) > watched.version {
            self.take(&mut watched, object);
        }
        Ok(())
    }

    /// Calls `listener` for each object that the watch brings from now on.
    fn listen(&self, listener: impl Fn(&K) + Send + 'static) {
        lock(&self.listeners).0.push(Box::new(listener));
    }

    /// Waits until all objects were listed.
    async fn listed(&self) {
        // The writer lives as long as this value.
        let _ = self.reader.store.wait_until_ready().await;
    }

    /// Follows the objects until it is dropped.
    async fn follow(&self, api: Api<K::Sent>, config: watcher::Config) {
        let kind = K::kind(&());
        let mut events = std::pin::pin!(watcher(api, config).default_backoff());
        loop {
            match events.try_next().await {
                Ok(Some(event)) => self.take_event(event),
                Err(error) => tracing::warn!(%kind, %error, "watch interrupted; trying again"),
                // kube's watches do not end.
                Ok(None) => return,
            }
        }
    }

    fn take_event(&self, event: watcher::Event<K::Sent>) {
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
                let is_gone = |object: &&Arc<K>| self.reader.store.get(&ObjectRef::from_obj(&***object)).is_none();
                before.iter().filter(is_gone).chain(&now).for_each(|object| self.tell(object));
            }
            watcher::Event::Apply(sent) => {
                let object = K::from_sent(sent);
                watched.version = watched.version.max(version(&object));
                self.take(&mut watched, object.clone());
                drop(watched);
                self.tell(&object);
            }
            watcher::Event::Delete(sent) => {
                let object = K::from_sent(sent);
                watched.version = watched.version.max(version(&object));
                let known = self.reader.store.get(&ObjectRef::from_obj(&object));
                // An object of the same name that this operator has made meanwhile stays.
                if known.is_none_or(|known| version(&*known) <= version(&object)) {
                    watched.writer.apply_watcher_event(&watcher::Event::Delete(object.clone()));
                    lock(&self.reader.index).remove(&name(&object));
                }
                drop(watched);
                self.tell(&object);
            }
        }
    }

    fn take(&self, watched: &mut Watched<K>, object: K) {
        let known = self.reader.store.get(&ObjectRef::from_obj(&object));
        if known.is_some_and(|known| version(&*known) > version(&object)) {
            return;
        }
        lock(&self.reader.index).insert(name(&object), object.keys());
        watched.writer.apply_watcher_event(&watcher::Event::Apply(object));
    }

    fn tell(&self, object: &K) {
        lock(&self.listeners).0.iter().for_each(|listener| listener(object));
    }
}

/// A reference to the object with this name.
pub(crate) fn reference<K: Resource<DynamicType = ()>>(name: &str, namespace: Option<&str>) -> ObjectRef<K> {
    let reference = ObjectRef::new(name);
    match namespace {
        Some(namespace) => reference.within(namespace),
        None => reference,
    }
}

/// The caches of all kinds.
#[derive(Debug, Default)]
pub(crate) struct Caches {
    pub policies: Cache<Guarded<Policy>>,
    pub cluster_policies: Cache<Guarded<ClusterPolicy>>,
    pub experiments: Cache<Guarded<PolicyExperiment>>,
    pub cluster_experiments: Cache<Guarded<ClusterPolicyExperiment>>,
    pub revisions: Cache<Guarded<Revision>>,
    pub servers: Cache<Guarded<PolicyServer>>,
    /// The pods of all policy servers.
    pub pods: Cache<Pod>,
    pub validating: Cache<ValidatingWebhookConfiguration>,
    pub mutating: Cache<MutatingWebhookConfiguration>,
}

impl Caches {
    /// Follows the objects of all kinds until it is dropped. `namespace`: that of the operator.
    pub async fn follow(&self, client: &Client, namespace: &str) {
        let all = objects::watching();
        let of_servers = all.clone().labels(SERVER_LABEL);
        tokio::join!(
            self.policies.follow(Api::all(client.clone()), all.clone()),
            self.cluster_policies.follow(Api::all(client.clone()), all.clone()),
            self.experiments.follow(Api::all(client.clone()), all.clone()),
            self.cluster_experiments.follow(Api::all(client.clone()), all.clone()),
            self.revisions.follow(Api::namespaced(client.clone(), namespace), all.clone()),
            self.servers.follow(Api::all(client.clone()), all.clone()),
            self.pods.follow(Api::namespaced(client.clone(), namespace), of_servers),
            // Also those that lost their label: the operator finds its own by their names.
            self.validating.follow(Api::all(client.clone()), all.clone()),
            self.mutating.follow(Api::all(client.clone()), all),
        );
    }

    /// Waits until the objects of all kinds were listed: a reconcile before that would miss some.
    pub async fn listed(&self) {
        tokio::join!(
            self.policies.listed(),
            self.cluster_policies.listed(),
            self.experiments.listed(),
            self.cluster_experiments.listed(),
            self.revisions.listed(),
            self.servers.listed(),
            self.pods.listed(),
            self.validating.listed(),
            self.mutating.listed(),
        );
    }
}

/// The objects of a kind that are to be reconciled.
#[derive(Debug)]
pub(crate) struct Queue<K: Cached> {
    sender: mpsc::UnboundedSender<ObjectRef<K>>,
    receiver: mpsc::UnboundedReceiver<ObjectRef<K>>,
    waiting: Waiting<K>,
}

/// The objects of a queue whose reconcile has not begun, and their number as a gauge.
#[derive(Debug)]
pub(crate) struct Waiting<K: Cached> {
    objects: Arc<Mutex<HashSet<ObjectRef<K>>>>,
    depth: Gauge,
}

impl<K: Cached> Clone for Waiting<K> {
    fn clone(&self) -> Self {
        Self { objects: Arc::clone(&self.objects), depth: self.depth.clone() }
    }
}

impl<K: Cached> Waiting<K> {
    fn add(&self, reference: &ObjectRef<K>) {
        self.change(|objects| objects.insert(reference.clone()));
    }

    /// The reconcile of this object begins.
    pub fn begin(&self, object: &K) {
        self.change(|objects| objects.remove(&ObjectRef::from_obj(object)));
    }

    fn change(&self, change: impl FnOnce(&mut HashSet<ObjectRef<K>>) -> bool) {
        let mut objects = lock(&self.objects);
        change(&mut objects);
        self.depth.set(objects.len().try_into().unwrap_or(i64::MAX));
    }
}

impl<K: Cached> Queue<K> {
    /// `depth`: the gauge of the objects that wait.
    pub fn new(depth: Gauge) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let waiting = Waiting { objects: Arc::default(), depth };
        waiting.depth.set(0);
        Self { sender, receiver, waiting }
    }

    pub fn waiting(&self) -> Waiting<K> {
        self.waiting.clone()
    }

    /// Adds the objects that `concerned` names for each object that the watch brings.
    pub fn add_on<W: Cached>(
        &self,
        cache: &Cache<W>,
        concerned: impl Fn(&W) -> Vec<ObjectRef<K>> + Send + 'static,
    ) -> &Self {
        let (sender, waiting) = (self.sender.clone(), self.waiting());
        cache.listen(move |object| {
            for reference in concerned(object) {
                waiting.add(&reference);
                // Nobody receives only when the controllers stop.
                let _ = sender.send(reference);
            }
        });
        self
    }

    /// The queue as a stream; `all` adds all objects of the store each time that it brings something.
    pub fn stream(
        self,
        store: Store<K>,
        all: impl Stream<Item = ()>,
    ) -> impl Stream<Item = Result<ObjectRef<K>, Infallible>> {
        let Self { mut receiver, waiting, .. } = self;
        let queued = stream::poll_fn(move |context| receiver.poll_recv(context));
        let every = all.flat_map(move |()| {
            let references: Vec<_> = store.state().iter().map(|object| ObjectRef::from_obj(&**object)).collect();
            for reference in &references {
                waiting.add(reference);
            }
            stream::iter(references)
        });
        stream::select(queued, every).map(Ok)
    }
}

/// A kind of Proviso's that is read with care: see [`Guarded`].
pub(crate) trait Keyed: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static {
    type Sent: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static;

    fn from_sent(sent: Self::Sent) -> Self;

    /// The keys of an object; also of one that cannot be read.
    fn keys(object: &Guarded<Self>) -> Vec<String>;
}

impl<K: Keyed> Cached for Guarded<K> {
    type Sent = Guarded<K::Sent>;

    fn from_sent(sent: Self::Sent) -> Self {
        Self(sent.0.map(K::from_sent))
    }

    fn keys(&self) -> Vec<String> {
        K::keys(self)
    }
}

impl Keyed for Revision {
    type Sent = PolicyRevision;

    fn from_sent(sent: PolicyRevision) -> Self {
        sent.into()
    }

    fn keys(object: &Guarded<Self>) -> Vec<String> {
        labelled(object, &[POLICY_LABEL, EXPERIMENT_LABEL])
    }
}

/// The values of these labels: the uids of the objects that an object was made for, or the name of a policy server.
fn labelled(object: &impl Resource, labels: &[&str]) -> Vec<String> {
    labels.iter().filter_map(|label| object.labels().get(*label).cloned()).collect()
}

/// The key of the experiments of the policy with this name.
pub(crate) fn experiments_of(policy: &str, namespace: Option<&str>) -> String {
    format!("{}/{policy}", namespace.unwrap_or_default())
}

macro_rules! keyed_as_sent {
    ($($kind:ty: $keys:expr;)*) => {$(
        impl Keyed for $kind {
            type Sent = Self;

            fn from_sent(sent: Self) -> Self {
                sent
            }

            fn keys(object: &Guarded<Self>) -> Vec<String> {
                $keys(object)
            }
        }
    )*};
}

keyed_as_sent! {
    Policy: by_uid;
    ClusterPolicy: by_uid;
    PolicyServer: by_uid;
    PolicyExperiment: by_uid_and_policy;
    ClusterPolicyExperiment: by_uid_and_policy;
}

fn by_uid<K: Resource>(object: &Guarded<K>) -> Vec<String> {
    object.uid().into_iter().collect()
}

fn by_uid_and_policy<K: ExperimentObject>(object: &Guarded<K>) -> Vec<String> {
    let policy = object.0.as_ref().ok().map(|known| &known.spec().policy_ref.name);
    let policy = policy.map(|policy| experiments_of(policy, object.namespace().as_deref()));
    by_uid(object).into_iter().chain(policy).collect()
}

macro_rules! cached_as_sent {
    ($($kind:ty: $labels:expr;)*) => {$(
        impl Cached for $kind {
            type Sent = Self;

            fn from_sent(mut sent: Self) -> Self {
                // The fields' managers take half of the memory.
                sent.meta_mut().managed_fields = None;
                sent
            }

            fn keys(&self) -> Vec<String> {
                labelled(self, &$labels)
            }
        }
    )*};
}

cached_as_sent! {
    Pod: [SERVER_LABEL];
    ValidatingWebhookConfiguration: [POLICY_LABEL, EXPERIMENT_LABEL];
    MutatingWebhookConfiguration: [POLICY_LABEL, EXPERIMENT_LABEL];
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use serde_json::json;
    use watcher::Event;

    fn pod(name: &str, version: &str, server: &str) -> Pod {
        let metadata = json!({
            "name": name, "namespace": "proviso", "resourceVersion": version, "labels": {SERVER_LABEL: server},
        });
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    /// The names and the versions of the pods of a policy server.
    fn pods(cache: &Cache<Pod>, server: &str) -> Vec<String> {
        let pods = cache.reader().by_key(server);
        pods.iter().map(|pod| format!("{} {}", pod.name_any(), version(&**pod))).collect()
    }

    /// Lets this be the answer to a write that begins and ends now.
    fn write(cache: &Cache<Pod>, pod: Pod) {
        cache.write(async { Ok::<_, Infallible>(pod) }).now_or_never().unwrap().unwrap();
    }

    /// The pods that a listener is told, as it is told.
    fn told(cache: &Cache<Pod>) -> mpsc::UnboundedReceiver<String> {
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
    fn a_write_of_this_operator_is_ahead_of_the_watch() {
        let cache = Cache::default();
        cache.take_event(Event::Apply(pod("a", "5", "s")));
        write(&cache, pod("a", "9", "t"));
        assert_eq!((pods(&cache, "s"), pods(&cache, "t")), (vec![], vec!["a 9".to_owned()]));
        let mut told = told(&cache);
        cache.take_event(Event::Apply(pod("a", "7", "s")));
        cache.take_event(Event::Delete(pod("a", "8", "s")));
        assert_eq!(
            (pods(&cache, "s"), pods(&cache, "t")),
            (vec![], vec!["a 9".to_owned()]),
            "older events change nothing"
        );
        assert_eq!(all(&mut told), ["a", "a"], "and are told all the same");
        cache.take_event(Event::Apply(pod("a", "10", "s")));
        assert_eq!(pods(&cache, "s"), ["a 10"]);
        cache.take_event(Event::Delete(pod("a", "11", "s")));
        assert!(pods(&cache, "s").is_empty() && cache.reader().get("a", Some("proviso")).is_none());
    }

    #[tokio::test]
    async fn an_answer_that_is_older_than_the_watch_brings_nothing_back() {
        let cache = Cache::default();
        cache.take_event(Event::Apply(pod("a", "5", "s")));
        let answer = async {
            // Somebody deletes the pod before the answer is taken.
            cache.take_event(Event::Delete(pod("a", "7", "s")));
            Ok::<_, Infallible>(pod("a", "6", "s"))
        };
        cache.write(answer).await.unwrap();
        assert!(pods(&cache, "s").is_empty());
        // A list does not say how new it is.
        let answer = async {
            cache.take_event(Event::Init);
            cache.take_event(Event::InitDone);
            Ok::<_, Infallible>(pod("a", "8", "s"))
        };
        cache.write(answer).await.unwrap();
        assert!(pods(&cache, "s").is_empty());
        write(&cache, pod("a", "9", "s"));
        assert_eq!(pods(&cache, "s"), ["a 9"]);
    }

    #[test]
    fn a_list_replaces_everything_and_tells_also_about_what_is_gone() {
        let cache = Cache::default();
        let mut told = told(&cache);
        let list = |pods: &[Pod]| {
            cache.take_event(Event::Init);
            for pod in pods {
                cache.take_event(Event::InitApply(pod.clone()));
            }
            cache.take_event(Event::InitDone);
        };
        list(&[pod("a", "1", "s"), pod("b", "2", "s")]);
        assert_eq!(
            (all(&mut told), pods(&cache, "s")),
            (vec!["a".into(), "b".into()], vec!["a 1".into(), "b 2".into()])
        );
        list(&[pod("b", "2", "s"), pod("c", "4", "t")]);
        assert_eq!(all(&mut told), ["a", "b", "c"]);
        assert_eq!((pods(&cache, "s"), pods(&cache, "t")), (vec!["b 2".to_owned()], vec!["c 4".to_owned()]));
    }

    #[tokio::test]
    async fn a_queue_has_what_concerns_its_objects_and_everything_when_everything_is_concerned() {
        let (pods, others) = (Cache::<Pod>::default(), Cache::<Pod>::default());
        let depth = Gauge::default();
        let queue = Queue::<Pod>::new(depth.clone());
        let waiting = queue.waiting();
        queue.add_on(&others, |other| vec![reference(&format!("of-{}", other.name_any()), None)]);
        write(&pods, pod("a", "1", "s"));
        others.take_event(Event::Apply(pod("x", "1", "s")));
        drop(others);
        let stream = queue.stream(pods.reader().store(), stream::iter([()]));
        let names: Vec<_> = stream.map(|item| item.unwrap().name).collect().await;
        assert_eq!(names.len(), 2);
        assert!(names.contains(&"of-x".to_owned()) && names.contains(&"a".to_owned()), "{names:?}");
        assert_eq!(depth.get(), 2);
        waiting.begin(&pod("a", "2", "s"));
        assert_eq!(depth.get(), 1);
    }
}
