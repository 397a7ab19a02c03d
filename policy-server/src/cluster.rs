//! The lifecycle of revisions in a cluster: the leader prepares what is new and says so, and every replica loads what is
//! prepared beside what serves, and reports on it, each revision by itself. Without the API server, and without a
//! leader, what is loaded keeps serving.

mod collect;
mod object;
mod publish;
mod report;
mod reported;
mod revision;
mod status;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::watcher;
use kube::{Api, Client, Config};
use proviso_capabilities::{Cluster, Limits};
use proviso_core::matching::Labels;
use proviso_crds::PolicyRevision;
use proviso_crds::names::SERVER_LABEL;
use proviso_election::{Election, Leadership, Missing};
use tokio::sync::mpsc;

use crate::config::Replica;
use crate::lifecycle::prepare::Preparer;
use crate::lifecycle::{Lifecycle, Publisher, Slot};
use crate::metrics::Metrics;
use crate::preview;
use crate::table::{Experiment, SharedTable};
use object::Object;
use report::Reporter;
use reported::Reported;
use revision::Seen;
use watch::Change;

/// How often what no revision needs any more is removed from the cache.
const COLLECT_EVERY: Duration = Duration::from_mins(1);
/// How often to look for what is to be tried again.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long the API server may say nothing on a connection. A watch says at least that it ends.
const SILENCE: Duration = Duration::from_secs(30);

/// A client of the cluster that this program runs in, or that `KUBECONFIG` names. It closes connections on which nothing
/// arrives: without that, who asks on one that the network has forgotten waits for as long as the kernel sends again.
///
/// # Errors
/// When there is neither a kubeconfig nor a service account.
async fn client() -> kube::Result<Client> {
    let mut config = Config::infer().await.map_err(kube::Error::InferConfig)?;
    config.read_timeout = Some(SILENCE);
    Client::try_from(config)
}

/// Joins the replicas of a policy server: their election, which somebody wins who prepares revisions for all of them, and
/// what follows the revisions. The operator makes the Lease. `prepare` makes a preparer over the objects of the cluster, of
/// which policies may keep `context_memory` bytes.
///
/// # Errors
/// When there is neither a kubeconfig nor a service account.
pub async fn join(
    replica: Replica,
    context_memory: usize,
    prepare: impl FnOnce(Cluster) -> Arc<Preparer>,
    table: Arc<SharedTable>,
    metrics: Arc<Metrics>,
) -> anyhow::Result<(Election, BoxFuture<'static, ()>)> {
    // The error tells its sources itself.
    let client = client().await.map_err(|error| {
        anyhow!("--policy-server needs a cluster: run in a pod, or name a kubeconfig file in KUBECONFIG: {error}")
    })?;
    let preparer = prepare(Cluster::new(client.clone(), Limits::of(context_memory)));
    let lease = format!("policy-server-{}", replica.policy_server);
    let election = Election::stand(&replica.namespace, &lease, Missing::Wait, &replica.identity()).await?;
    let follower = Follower::new(&client, replica, election.leadership(), preparer, table, metrics);
    Ok((election, Box::pin(follower.run(client))))
}

/// Makes the table follow the revisions.
#[derive(Debug)]
pub struct Follower {
    replica: Replica,
    lifecycle: Lifecycle<String>,
    publisher: Publisher,
    metrics: Arc<Metrics>,
    reporter: Reporter,
    /// Whether this replica prepares for all.
    leadership: Leadership,
    /// The revisions by their names, which are their keys in the lifecycle too.
    objects: BTreeMap<String, Object>,
    /// Their labels; none before they were listed first.
    namespaces: Option<Arc<BTreeMap<String, Labels>>>,
    has_listed: bool,
    /// Whether the table is older than what stands here.
    is_changed: bool,
    sender: mpsc::UnboundedSender<Event>,
    receiver: mpsc::UnboundedReceiver<Event>,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "they are taken as they come: few exist at a time")]
enum Event {
    Revisions(Change<Seen>),
    Namespaces(Change<Labels>),
    Reported { name: String, uid: String, result: Result<Reported, kube::Error> },
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
            has_listed: false,
            // The first table says that the policies come from a cluster.
            is_changed: true,
            sender,
            receiver,
        };
        follower.publish();
        follower
    }

    /// Follows the cluster until the task is dropped.
    pub async fn run(mut self, client: Client) {
        let watches = self.watch(client);
        tokio::pin!(watches);
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut collect = tokio::time::interval(COLLECT_EVERY);
        collect.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = &mut watches => return,
                Some(event) = self.receiver.recv() => {
                    self.take(event);
                    // One table for many is what makes a start fast.
                    while let Ok(event) = self.receiver.try_recv() {
                        self.take(event);
                    }
                }
                settled = self.lifecycle.settled() => settled.iter().for_each(|name| self.take_settled(name)),
                () = self.leadership.changed() => {}
                _ = look.tick() => {}
                _ = collect.tick() => self.collect(),
            }
            self.is_changed |= self.lifecycle.start(self.leadership.is_leader());
            self.publish();
            self.report();
        }
    }

    /// Sends every change of revisions and namespaces. Does not end.
    fn watch(&self, client: Client) -> impl Future<Output = ()> + use<> {
        let kind = ApiResource::erase::<PolicyRevision>(&());
        let revisions = Api::namespaced_with(client.clone(), &self.replica.namespace, &kind);
        let ours = watcher::Config::default().labels(&format!("{SERVER_LABEL}={}", self.replica.policy_server));
        let namespaces = Api::<PartialObjectMeta<Namespace>>::all(client);
        let (replica, sender) = (self.replica.clone(), self.sender.clone());
        let send = move |event| {
            // Nobody listens only when the server ends.
            let _ = sender.send(event);
        };
        let send_namespace = send.clone();
        let revisions = watch::follow(
            "revisions",
            revisions,
            ours,
            move |object: DynamicObject| Seen::read(&object, &replica),
            move |change| send(Event::Revisions(change)),
        );
        let namespaces = watch::follow(
            "namespaces",
            namespaces,
            watcher::Config::default(),
            |namespace| namespace.metadata.labels.unwrap_or_default(),
            move |change| send_namespace(Event::Namespaces(change)),
        );
        async {
            tokio::join!(revisions, namespaces);
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Revisions(change) => self.take_revisions(change),
            Event::Namespaces(change) => {
                change.apply(Arc::make_mut(self.namespaces.get_or_insert_default()));
                self.is_changed = true;
            }
            Event::Reported { name, uid, result } => {
                if let Some(object) = self.objects.get_mut(&name).filter(|object| object.seen.uid == uid) {
                    self.is_changed |= object.take_reported(&name, result, Instant::now());
                    self.desire(name);
                }
            }
        }
    }

    fn take_revisions(&mut self, change: Change<Seen>) {
        match change {
            Change::All(all) => {
                self.has_listed = true;
                self.is_changed = true;
                let gone: Vec<String> = self.objects.keys().filter(|name| !all.contains_key(*name)).cloned().collect();
                for name in gone {
                    self.remove(&name);
                }
                for (name, seen) in all {
                    self.see(name, seen);
                }
            }
            Change::Applied(name, seen) => self.see(name, seen),
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

    fn see(&mut self, name: String, seen: Seen) {
        match self.objects.get_mut(&name) {
            Some(object) if object.seen.uid == seen.uid => self.is_changed |= object.see(seen),
            _ => {
                // Another object of this name is another revision.
                self.remove(&name);
                self.objects.insert(name.clone(), Object::new(seen));
            }
        }
        self.desire(name);
    }

    /// Desires the revision of an object, unless it is disabled.
    fn desire(&mut self, name: String) {
        self.is_changed |= match self.objects.get(&name).and_then(Object::desired) {
            Some(desired) => self.lifecycle.desire(name, desired),
            None => self.lifecycle.release(&name),
        };
    }

    /// A revision was loaded, or has failed.
    fn take_settled(&mut self, name: &String) {
        self.is_changed = true;
        let (Some(object), Some(loaded)) =
            (self.objects.get_mut(name), self.lifecycle.get(name).and_then(Slot::loaded))
        else {
            return;
        };
        let experiment = object.seen.wanted.as_ref().ok().and_then(|wanted| wanted.experiment.clone());
        if let Some(id) = experiment {
            let (metrics, revision) = (self.metrics.experiment(&id), Arc::clone(&loaded.revision));
            let make = |tally| Experiment { id, revision, metrics, tally: Some(tally), failure: None };
            object.preview(preview::now(), make);
        }
    }

    /// Writes what the API server does not know yet.
    fn report(&mut self) {
        let (now, time, is_leader) = (Instant::now(), Timestamp::now(), self.leadership.is_leader());
        for (name, object) in &mut self.objects {
            let slot = self.lifecycle.get(name);
            let Some(update) = object.begin_report(slot, &self.replica, is_leader, now, time) else { continue };
            let (sender, name, uid) = (self.sender.clone(), name.clone(), object.seen.uid.clone());
            self.reporter.start(name.clone(), uid.clone(), update, move |result| {
                // Nobody listens only when the server ends.
                let _ = sender.send(Event::Reported { name, uid, result });
            });
        }
    }
}
