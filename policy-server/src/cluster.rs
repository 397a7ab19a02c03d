//! The lifecycle of revisions in a cluster: the leader prepares what is new and says so, and every replica loads what is
//! prepared beside what serves, and reports on it, each revision by itself. Without the API server, and without a
//! leader, what is loaded keeps serving.

mod collect;
mod publish;
mod report;
mod revision;
mod slot;
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
use proviso_core::matching::Labels;
use proviso_crds::PolicyRevision;
use proviso_crds::names::SERVER_LABEL;
use proviso_election::{Election, Leadership, Missing};
use proviso_host::{Cluster, Limits};
use tokio::sync::mpsc;

use crate::config::Replica;
use crate::metrics::Metrics;
use crate::preparations::Preparations;
use crate::prepare::{ModuleSource, PrepareError, Prepared, Preparer, Scope};
use crate::preview;
use crate::table::{Experiment, SharedTable};
use report::Reporter;
use revision::Seen;
use slot::Slot;
use status::Reported;
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
    preparations: Preparations,
    table: Arc<SharedTable>,
    metrics: Arc<Metrics>,
    reporter: Reporter,
    /// Whether this replica prepares for all.
    leadership: Leadership,
    /// By the names of their objects.
    slots: BTreeMap<String, Slot>,
    /// Their labels; none before they were listed first.
    namespaces: Option<Arc<BTreeMap<String, Labels>>>,
    has_listed: bool,
    /// Whether every enabled revision was tried at least once.
    is_complete: bool,
    /// Whether the table is older than what stands here.
    is_changed: bool,
    /// Preparations so far: a result that comes too late is told by its number.
    tickets: u64,
    sender: mpsc::UnboundedSender<Event>,
    receiver: mpsc::UnboundedReceiver<Event>,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "they are taken as they come: few exist at a time")]
enum Event {
    Revisions(Change<Seen>),
    Namespaces(Change<Labels>),
    Prepared { name: String, ticket: u64, result: Result<Prepared, PrepareError> },
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
        let follower = Self {
            reporter: Reporter::new(client, &replica),
            replica,
            preparations: Preparations::new(preparer),
            table,
            metrics,
            leadership,
            slots: BTreeMap::new(),
            namespaces: None,
            has_listed: false,
            is_complete: false,
            is_changed: false,
            tickets: 0,
            sender,
            receiver,
        };
        follower.table.store(follower.to_table());
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
                () = self.leadership.changed() => {}
                _ = look.tick() => {}
                _ = collect.tick() => self.collect(),
            }
            self.prepare();
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
            Event::Prepared { name, ticket, result } => self.take_prepared(&name, ticket, result),
            Event::Reported { name, uid, result } => {
                if let Some(slot) = self.slots.get_mut(&name).filter(|slot| slot.seen.uid == uid) {
                    self.is_changed |= slot.take_reported(&name, result, Instant::now());
                }
            }
        }
    }

    fn take_revisions(&mut self, change: Change<Seen>) {
        match change {
            Change::All(all) => {
                self.has_listed = true;
                self.is_changed = true;
                self.slots.retain(|name, _| all.contains_key(name));
                for (name, seen) in all {
                    self.see(name, seen);
                }
            }
            Change::Applied(name, seen) => self.see(name, seen),
            Change::Deleted(name) => {
                tracing::info!(revision = name, "removed");
                self.slots.remove(&name);
                self.is_changed = true;
            }
        }
    }

    fn see(&mut self, name: String, seen: Seen) {
        if let Some(slot) = self.slots.get_mut(&name) {
            self.is_changed |= slot.see(seen);
        } else {
            self.slots.insert(name, Slot::new(seen));
            self.is_changed = true;
        }
    }

    /// Starts what is to be prepared now, be it for the first time or again.
    fn prepare(&mut self) {
        let (now, is_leader) = (Instant::now(), self.leadership.is_leader());
        for (name, slot) in &mut self.slots {
            let begun = slot.begin(self.tickets, is_leader, now);
            let Some((policy, spec)) = begun.map(|wanted| (wanted.policy.clone(), wanted.spec.clone())) else {
                continue;
            };
            let (sender, name, ticket) = (self.sender.clone(), name.clone(), self.tickets);
            self.tickets += 1;
            self.is_changed = true;
            let source = ModuleSource::Network(slot.seen.reported.modules.clone());
            let is_known = slot.seen.reported.is_initialized();
            self.preparations.start(policy, spec, Scope::POLICY, source, is_known, move |result| {
                // Nobody listens only when the server ends.
                let _ = sender.send(Event::Prepared { name, ticket, result });
            });
        }
    }

    fn take_prepared(&mut self, name: &str, ticket: u64, result: Result<Prepared, PrepareError>) {
        // It may have been removed, disabled or made anew meanwhile.
        let Some(slot) = self.slots.get_mut(name) else { return };
        let Some(wanted) = slot.end(ticket) else { return };
        let preparer = self.preparations.preparer();
        let result = result.and_then(|Prepared { program, modules }| {
            let revision = preparer.revision(wanted.revision_of(), &wanted.spec, program, &self.metrics)?;
            Ok((revision, modules))
        });
        self.metrics.rollout(result.is_ok());
        match &result {
            Ok((revision, _)) => tracing::info!(revision = name, engine = revision.program.engine(), "loaded"),
            Err(error) => tracing::warn!(revision = name, reason = error.reason(), %error, "revision does not work"),
        }
        slot.settle(result, Instant::now());
        if let Some(id) = wanted.experiment {
            let metrics = self.metrics.experiment(&id);
            slot.preview(preview::now(), |revision, tally| Experiment {
                id,
                revision,
                metrics,
                tally: Some(tally),
                failure: None,
            });
        }
        self.is_changed = true;
    }

    /// Writes what the API server does not know yet.
    fn report(&mut self) {
        let (now, time, is_leader) = (Instant::now(), Timestamp::now(), self.leadership.is_leader());
        for (name, slot) in &mut self.slots {
            let Some(update) = slot.begin_report(&self.replica, is_leader, now, time) else { continue };
            let (sender, name, uid) = (self.sender.clone(), name.clone(), slot.seen.uid.clone());
            self.reporter.start(name.clone(), uid.clone(), update, move |result| {
                // Nobody listens only when the server ends.
                let _ = sender.send(Event::Reported { name, uid, result });
            });
        }
    }
}
