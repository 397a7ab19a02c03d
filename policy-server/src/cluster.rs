//! The lifecycle of revisions in a cluster. The leader prepares new revisions and reports in their status that it did. Then every
//! replica loads them while the loaded revisions serve, and reports that in the status too. Loaded revisions keep serving without
//! the API server and without a leader.

mod collect;
mod identity;
mod object;
mod openapi;
mod pod;
mod publish;
mod readiness;
mod report;
mod reported;
mod revision;
mod schema;
mod status;
mod unserved;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::watcher;
use kube::{Api, Client, Config};
use proviso_capabilities::{Cluster, Limits};
use proviso_core::matching::Labels;
use proviso_crds::PolicyRevision;
use proviso_crds::names::{POINT_LABEL, SERVER_LABEL};
use proviso_election::{Election, Leadership, MissingLease};
use tokio::sync::mpsc;

use crate::config::Replica;
use crate::lifecycle::prepare::Preparer;
use crate::lifecycle::{Lifecycle, Publisher, Slot};
use crate::metrics::Metrics;
use crate::preview;
use crate::table::SharedTable;
use object::Object;
use openapi::{SchemaCache, SchemaError};
use pod::ObservedPod;
use report::{Reporter, Written};
use revision::ObservedRevision;
use schema::Schema;
use watch::Change;

/// The interval at which the leader removes unused files from the cache.
const COLLECT_INTERVAL: Duration = Duration::from_mins(1);
/// The interval at which the leader looks for compiled modules that the cache lacks.
const STORE_INTERVAL: Duration = Duration::from_secs(10);
/// The interval of the checks for preparations and reports to retry.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The longest time without data from the API server on a connection. A watch receives at least its end within this time: see
/// [`watch::follow`].
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns a client of the cluster that this program runs in, or that `KUBECONFIG` names. Its read timeout closes connections
/// that the network has dropped silently. Otherwise, a request on such a connection would wait until the kernel stops
/// retransmitting.
///
/// # Errors
/// Returns an error if there is neither a kubeconfig nor a service account.
pub async fn client() -> kube::Result<Client> {
    let mut config = Config::infer().await.map_err(kube::Error::InferConfig)?;
    config.read_timeout = Some(READ_TIMEOUT);
    Client::try_from(config)
}

/// Joins the replicas of a policy server. Returns the election of the leader, and the task that follows the revisions. The
/// operator creates the Lease of the election. `prepare` makes a preparer over the objects of the cluster, which may take
/// `context_memory` bytes.
///
/// # Errors
/// Returns an error if there is neither a kubeconfig nor a service account.
pub async fn join(
    replica: Replica,
    context_memory: usize,
    prepare: impl FnOnce(Cluster) -> Arc<Preparer>,
    table: Arc<SharedTable>,
    metrics: Arc<Metrics>,
) -> anyhow::Result<(Election, BoxFuture<'static, ()>)> {
    // The text of the error contains its sources already.
    let client = client().await.map_err(|error| {
        anyhow!("--policy-server needs a cluster: run in a pod, or name a kubeconfig file in KUBECONFIG: {error}")
    })?;
    let preparer = prepare(Cluster::new(client.clone(), Limits::of(context_memory)));
    let lease = format!("policy-server-{}", replica.policy_server);
    let election = Election::join(&replica.namespace, &lease, MissingLease::Wait, &replica.identity()).await?;
    let follower = Follower::new(&client, replica, election.leadership(), preparer, table, metrics);
    Ok((election, Box::pin(follower.run(client))))
}

/// The task that follows the revisions of the cluster and updates the table.
#[derive(Debug)]
pub struct Follower {
    replica: Replica,
    lifecycle: Lifecycle<String>,
    publisher: Publisher,
    metrics: Arc<Metrics>,
    reporter: Reporter,
    /// The leadership of the replica that prepares new revisions.
    leadership: Leadership,
    /// The revisions by name. The names are their keys in the lifecycle too.
    objects: BTreeMap<String, Object>,
    /// The labels of the namespaces; `None` before the first list.
    namespaces: Option<Arc<BTreeMap<String, Labels>>>,
    /// The pods of the policy server, by name. Empty before the first list.
    pods: BTreeMap<String, ObservedPod>,
    /// The schema of the revisions, which has the defaults of fields that this version does not know.
    schema: SchemaCache,
    has_listed: bool,
    /// True if the table must be published again.
    is_changed: bool,
    sender: mpsc::UnboundedSender<Event>,
    receiver: mpsc::UnboundedReceiver<Event>,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "few events exist at a time")]
enum Event {
    Revisions(Change<ObservedRevision>),
    Namespaces(Change<Labels>),
    Pods(Change<ObservedPod>),
    Schema(Result<Schema, SchemaError>),
    Reported { name: String, uid: String, result: Result<Written, kube::Error> },
}

impl Follower {
    #[must_use]
    pub fn new(
        client: &Client,
        replica: Replica,
        leadership: Leadership,
        preparer: Arc<Preparer>,
        table: Arc<SharedTable>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut follower = Self {
            reporter: Reporter::new(client, &replica),
            replica,
            lifecycle: Lifecycle::new(preparer, Arc::clone(&metrics)),
            publisher: Publisher::new(table, Arc::clone(&metrics)),
            metrics,
            leadership,
            objects: BTreeMap::new(),
            namespaces: None,
            pods: BTreeMap::new(),
            schema: SchemaCache::new(client.clone()),
            has_listed: false,
            // The first table has the origin `Cluster`, so requests without a generation are refused from the start.
            is_changed: true,
            sender,
            receiver,
        };
        follower.publish();
        follower
    }

    /// Follows the cluster until the future is dropped.
    pub async fn run(mut self, client: Client) {
        let watches = self.watch(client);
        tokio::pin!(watches);
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut collect = tokio::time::interval(COLLECT_INTERVAL);
        collect.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut store = tokio::time::interval(STORE_INTERVAL);
        store.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = &mut watches => return,
                Some(event) = self.receiver.recv() => {
                    self.take(event);
                    // One table for many events: a start with many revisions is fast.
                    while let Ok(event) = self.receiver.try_recv() {
                        self.take(event);
                    }
                }
                settled = self.lifecycle.settled() => settled.iter().for_each(|name| self.take_settled(name)),
                () = self.leadership.changed() => {}
                _ = poll.tick() => {}
                _ = collect.tick() => self.collect(),
                _ = store.tick() => self.store_missing(),
            }
            self.is_changed |= self.lifecycle.start(self.leadership.is_leader());
            self.fetch_schema();
            self.publish();
            self.report();
        }
    }

    /// Sends every change of revisions, namespaces and pods as an event. Never ends.
    fn watch(&self, client: Client) -> impl Future<Output = ()> + use<> {
        let kind = ApiResource::erase::<PolicyRevision>(&());
        let revisions = Api::namespaced_with(client.clone(), &self.replica.namespace, &kind);
        let of_server = format!("{SERVER_LABEL}={}", self.replica.policy_server);
        // Components get the other revisions, without a policy server.
        let served = watcher::Config::default().labels(&format!("{of_server},!{POINT_LABEL}"));
        let own = watcher::Config::default().labels(&of_server);
        let pods = Api::<Pod>::namespaced(client.clone(), &self.replica.namespace);
        let namespaces = Api::<PartialObjectMeta<Namespace>>::all(client);
        let (replica, sender) = (self.replica.clone(), self.sender.clone());
        let send = move |event| {
            // The receiver is dropped only at shutdown.
            let _ = sender.send(event);
        };
        let (send_namespace, send_pod) = (send.clone(), send.clone());
        let revisions = watch::follow(
            "revisions",
            revisions,
            served,
            move |object: DynamicObject| ObservedRevision::read(&object, &replica),
            move |change| send(Event::Revisions(change)),
        );
        let namespaces = watch::follow(
            "namespaces",
            namespaces,
            watcher::Config::default(),
            |namespace| namespace.metadata.labels.unwrap_or_default(),
            move |change| send_namespace(Event::Namespaces(change)),
        );
        let pods = watch::follow(
            "pods",
            pods,
            own,
            |pod| ObservedPod::read(&pod),
            move |change| send_pod(Event::Pods(change)),
        );
        async {
            tokio::join!(revisions, namespaces, pods);
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Revisions(change) => self.take_revisions(change),
            Event::Namespaces(change) => {
                change.apply(Arc::make_mut(self.namespaces.get_or_insert_default()));
                self.is_changed = true;
            }
            Event::Pods(change) => {
                let mut pods = self.pods.clone();
                change.apply(&mut pods);
                self.is_changed |= pods != self.pods;
                self.pods = pods;
            }
            Event::Schema(result) => self.take_schema(result),
            Event::Reported { name, uid, result } => {
                if let Some(object) = self.objects.get_mut(&name).filter(|object| object.observed.uid == uid) {
                    self.is_changed |= object.take_reported(&name, result, Instant::now());
                    self.desire(&name);
                }
            }
        }
    }

    /// Fetches the schema while a revision has fields that this version does not know and that the schema does not explain.
    fn fetch_schema(&mut self) {
        if !self.objects.values().any(Object::has_unexplained_fields) {
            self.schema.reset_delay();
            return;
        }
        let sender = self.sender.clone();
        self.schema.fetch(Instant::now(), move |result| {
            // The receiver is dropped only at shutdown.
            let _ = sender.send(Event::Schema(result));
        });
    }

    /// Takes the fetched schema, and reads the revisions with unknown fields again.
    fn take_schema(&mut self, result: Result<Schema, SchemaError>) {
        self.schema.take(result, Instant::now());
        // The readiness waits for the first fetch, even if it failed.
        self.is_changed = true;
        let mut read = Vec::new();
        for (name, object) in &mut self.objects {
            if object.observed.has_unknown_fields() {
                object.interpret(name, self.schema.schema());
                read.push(name.clone());
            }
        }
        for name in read {
            self.desire(&name);
        }
    }

    fn take_revisions(&mut self, change: Change<ObservedRevision>) {
        match change {
            Change::All(all) => {
                self.has_listed = true;
                self.is_changed = true;
                let gone: Vec<String> = self.objects.keys().filter(|name| !all.contains_key(*name)).cloned().collect();
                for name in gone {
                    self.remove(&name);
                }
                for (name, observed) in all {
                    self.observe(&name, observed);
                }
            }
            Change::Applied(name, observed) => self.observe(&name, observed),
            Change::Deleted(name) => {
                tracing::info!(revision = name, "removed");
                self.remove(&name);
            }
        }
    }

    fn remove(&mut self, name: &String) {
        self.objects.remove(name);
        self.lifecycle.release(name);
        self.is_changed = true;
    }

    fn observe(&mut self, name: &String, observed: ObservedRevision) {
        let schema = self.schema.schema();
        match self.objects.get_mut(name) {
            Some(object) if object.observed.uid == observed.uid => {
                self.is_changed |= object.observe(name, observed, schema);
            }
            _ => {
                let object = Object::new(observed, schema);
                // An object with the same name and another uid is another revision.
                self.remove(name);
                self.objects.insert(name.clone(), object);
            }
        }
        self.desire(name);
        self.follow_preview(name);
    }

    /// Desires the revision of an object, or releases the revision if it is disabled. A disabled candidate stays desired.
    fn desire(&mut self, name: &String) {
        self.is_changed |= match self.objects.get(name).and_then(Object::desired) {
            Some(desired) => self.lifecycle.desire(name.clone(), desired),
            None => self.lifecycle.release(name),
        };
    }

    /// Handles a revision that was loaded or has failed.
    fn take_settled(&mut self, name: &String) {
        self.is_changed = true;
        self.follow_preview(name);
    }

    /// Starts the preview of a loaded candidate, or stops that of a disabled one.
    fn follow_preview(&mut self, name: &String) {
        let Some(object) = self.objects.get_mut(name) else { return };
        let loaded = self.lifecycle.get(name).and_then(Slot::loaded).map(|loaded| &loaded.revision);
        self.is_changed |= object.follow_preview(loaded, &self.metrics, preview::now());
    }

    /// Starts the status updates that the API server does not have yet.
    fn report(&mut self) {
        let (now, time, is_leader) = (Instant::now(), Timestamp::now(), self.leadership.is_leader());
        for (name, object) in &mut self.objects {
            if self.schema.is_fetching() && object.has_unexplained_fields() {
                // The schema may explain the fields: do not report an error for a moment.
                continue;
            }
            let slot = self.lifecycle.get(name);
            let Some(update) = object.begin_report(slot, &self.replica, is_leader, now, time) else { continue };
            let (sender, name, uid) = (self.sender.clone(), name.clone(), object.observed.uid.clone());
            self.reporter.start(name.clone(), uid.clone(), update, move |result| {
                // The receiver is dropped only at shutdown.
                let _ = sender.send(Event::Reported { name, uid, result });
            });
        }
    }
}
