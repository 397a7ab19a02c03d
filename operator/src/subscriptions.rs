//! The controller of subscriptions: delivers configuration policies to components in the cluster (docs/adr/0031, docs/adr/0037).
//!
//! Each subscription has a task of its own ([`actor`]), because a notification may take minutes. This module starts and stops the tasks,
//! and wakes those that a change concerns.

mod actor;
mod catalog;
mod claims;
mod component;
mod limits;
mod notify;
mod stores;
mod wake;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::core::PartialObjectMeta;
use kube::{Client, Resource as _, ResourceExt as _};
use proviso_core::configuration::{CompiledSubscription, part_index};
use proviso_crds::names::SUBSCRIPTION_LABEL;
use proviso_crds::{ComponentKind, PolicySubscription};
use tokio::sync::{RwLock, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::cache::{self, Cache, Cached, Name, Reader, lock};
use crate::context::Context;
use crate::malformed::MaybeMalformed;
use crate::rendering::Renderings;
use crate::revisions::Revision;
use actor::{Actor, Subject};
use claims::{Claim, Claims};
use limits::Limits;
use stores::{Stores, Workload};
use wake::Wake;

pub(crate) use catalog::Snapshot;
pub(crate) use component::is_owned;

/// The time to wait for more changes of policies before the catalog is built again.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// The settings of the controller, and its state that survives a loss of the leadership.
pub(crate) struct Settings {
    /// The client for commands in pods: its connections may be silent for minutes.
    pub commands: Client,
    /// The interval at which the stored policies are compared again.
    pub catch_up_interval: Duration,
    /// Each task holds this lock for reading. The next leadership of this process begins when no task of an earlier one runs any more.
    pub running: Arc<RwLock<()>>,
    /// The bodies of policies, which the configuration API shares.
    pub renderings: Arc<Renderings>,
}

/// The state that the tasks of all subscriptions share.
pub(crate) struct Shared {
    context: Arc<Context>,
    commands: Client,
    catch_up_interval: Duration,
    stores: Stores,
    catalog: watch::Sender<Arc<Snapshot>>,
    renderings: Arc<Renderings>,
    claims: Mutex<Claims>,
    notifications: Limits,
    record_writes: Limits,
    part_writes: Limits,
}

/// A change that the controller reacts to.
#[derive(Debug)]
enum Change {
    Subscription(Name),
    /// A revision of a configuration policy.
    Revision,
    /// A ConfigMap or Secret with this name, of the subscription with this uid.
    Part(String, Name),
    Workload(ComponentKind, Name),
}

/// The task of a subscription. The task is stopped when the value is dropped.
struct Running {
    uid: Option<String>,
    subject: watch::Sender<Subject>,
    wake: Arc<Wake>,
    task: JoinHandle<()>,
    workload: Option<(ComponentKind, Name)>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Delivers the policies of all subscriptions until the future is dropped.
pub(crate) async fn run(context: Arc<Context>, settings: &Settings) {
    drop(settings.running.write().await);
    let shared = Arc::new(Shared {
        commands: settings.commands.clone(),
        catch_up_interval: settings.catch_up_interval,
        stores: Stores::default(),
        catalog: watch::channel(Arc::default()).0,
        renderings: Arc::clone(&settings.renderings),
        claims: Mutex::default(),
        notifications: Limits::of_notifications(),
        record_writes: Limits::of_writes(),
        part_writes: Limits::of_writes(),
        context,
    });
    let (sender, changes) = mpsc::unbounded_channel();
    listen(&shared, &sender);
    let controller = Controller::new(Arc::clone(&shared), Arc::clone(&settings.running));
    tokio::join!(controller.run(changes), shared.stores.follow(&shared.context.client));
}

/// Sends each change that the watches deliver.
fn listen(shared: &Shared, changes: &mpsc::UnboundedSender<Change>) {
    // The receiver is dropped only when the controller stops.
    let send = changes.clone();
    shared.context.caches.subscriptions.listen(move |it| _ = send.send(Change::Subscription(cache::name(it))));
    let send = changes.clone();
    shared.context.caches.revisions.listen(move |revision: &MaybeMalformed<Revision>| {
        if catalog::is_of_configuration(revision) {
            let _ = send.send(Change::Revision);
        }
    });
    listen_to_parts::<PartialObjectMeta<ConfigMap>>(&shared.stores.config_maps, changes);
    listen_to_parts::<PartialObjectMeta<Secret>>(&shared.stores.secrets, changes);
    listen_to_workloads::<Deployment>(&shared.stores.deployments, ComponentKind::Deployment, changes);
    listen_to_workloads::<StatefulSet>(&shared.stores.stateful_sets, ComponentKind::StatefulSet, changes);
    listen_to_workloads::<DaemonSet>(&shared.stores.daemon_sets, ComponentKind::DaemonSet, changes);
}

fn listen_to_parts<K: Cached>(cache: &Cache<K>, changes: &mpsc::UnboundedSender<Change>) {
    let send = changes.clone();
    cache.listen(move |part| {
        if let Some(uid) = part.labels().get(SUBSCRIPTION_LABEL) {
            let _ = send.send(Change::Part(uid.clone(), cache::name(part)));
        }
    });
}

fn listen_to_workloads<K>(cache: &Cache<Workload<K>>, kind: ComponentKind, changes: &mpsc::UnboundedSender<Change>)
where
    Workload<K>: Cached,
{
    let send = changes.clone();
    cache.listen(move |workload| _ = send.send(Change::Workload(kind, cache::name(workload))));
}

/// The tasks of all subscriptions.
struct Controller {
    shared: Arc<Shared>,
    subscriptions: Reader<MaybeMalformed<PolicySubscription>>,
    revisions: Reader<MaybeMalformed<Revision>>,
    running: Arc<RwLock<()>>,
    tasks: HashMap<Name, Running>,
    /// The subscriptions by their uids.
    names: HashMap<String, Name>,
    workloads: HashMap<(ComponentKind, Name), BTreeSet<Name>>,
}

impl Controller {
    fn new(shared: Arc<Shared>, running: Arc<RwLock<()>>) -> Self {
        Self {
            subscriptions: shared.context.caches.subscriptions.reader(),
            revisions: shared.context.caches.revisions.reader(),
            running,
            tasks: HashMap::new(),
            names: HashMap::new(),
            workloads: HashMap::new(),
            shared,
        }
    }

    async fn run(mut self, mut changes: mpsc::UnboundedReceiver<Change>) {
        // A subscription that is resolved with half of the policies would lose the others.
        tokio::join!(self.shared.context.caches.listed(), self.shared.stores.listed());
        self.update_catalog();
        // All claims, before the first task writes.
        for subscription in self.subscriptions.store().state() {
            if let Ok(known) = &subscription.0 {
                lock(&self.shared.claims).set(&cache::name(known), Some(&Claim::of(known)));
            }
        }
        for subscription in self.subscriptions.store().state() {
            self.reconcile(cache::name(&*subscription)).await;
        }
        let mut catalog_at: Option<Instant> = None;
        loop {
            let due = catalog_at.unwrap_or_else(Instant::now);
            tokio::select! {
                change = changes.recv() => match change {
                    Some(Change::Subscription(name)) => self.reconcile(name).await,
                    Some(Change::Revision) => _ = catalog_at.get_or_insert_with(|| Instant::now() + DEBOUNCE),
                    Some(Change::Part(uid, part)) => self.wake(self.of_part(&uid, &part)),
                    Some(Change::Workload(kind, name)) => {
                        self.wake(self.workloads.get(&(kind, name)).into_iter().flatten());
                    }
                    // The senders are in the caches, which outlive this loop.
                    None => return,
                },
                () = sleep_until(due), if catalog_at.is_some() => {
                    catalog_at = None;
                    self.update_catalog();
                }
            }
        }
    }

    /// Builds the catalog again, and wakes the subscriptions that its changes concern.
    fn update_catalog(&self) {
        let revisions = self.revisions.store().state();
        let before = self.shared.catalog.borrow().clone();
        let newer = Arc::new(Snapshot::new(revisions.iter().map(|revision| &**revision), &before));
        let changes = before.changes(&newer);
        self.shared.catalog.send_replace(newer);
        if changes.is_empty() {
            return;
        }
        for running in self.tasks.values() {
            let is_concerned = match &*running.subject.borrow().compiled {
                Ok(compiled) => changes.concern(compiled),
                Err(_) => false,
            };
            if is_concerned {
                running.wake.policies();
            }
        }
    }

    /// Returns the subscriptions that a part of the subscription with this uid concerns. The part of a deleted subscription may be in the way
    /// of a new one that has the name of its ConfigMap.
    fn of_part(&self, uid: &str, (namespace, part): &Name) -> Vec<&Name> {
        if let Some(name) = self.names.get(uid) {
            return vec![name];
        }
        let has_name = |running: &Running| {
            let subscription = &running.subject.borrow().subscription;
            subscription.metadata.namespace == *namespace
                && part_index(&subscription.spec.delivery.config_map, part).is_some()
        };
        self.tasks.iter().filter(|(_, running)| has_name(running)).map(|(name, _)| name).collect()
    }

    /// Wakes the tasks of these subscriptions, because an object of them has changed.
    fn wake<'a>(&self, names: impl IntoIterator<Item = &'a Name>) {
        for name in names {
            if let Some(running) = self.tasks.get(name) {
                running.wake.objects();
            }
        }
    }

    /// Starts, updates or stops the task of a subscription.
    async fn reconcile(&mut self, name: Name) {
        let found = self.subscriptions.get(&name.1, name.0.as_deref());
        let Some(found) = found.filter(|found| found.meta().deletion_timestamp.is_none()) else {
            // Kubernetes deletes the ConfigMaps and Secrets, by the reference to their owner.
            self.stop(&name).await;
            return;
        };
        self.shared.context.reports.report(&*found).await;
        if self.tasks.get(&name).is_some_and(|running| running.uid != found.meta().uid) {
            self.stop(&name).await;
        }
        // The task of a subscription that cannot be read any more continues with its last readable version.
        let Ok(subscription) = &found.0 else { return };
        let affected = lock(&self.shared.claims).set(&name, Some(&Claim::of(subscription)));
        self.wake(&affected);
        let subscription = Arc::new(subscription.clone());
        let workload = workload(&subscription);
        match self.tasks.get_mut(&name) {
            Some(running) => {
                let old = std::mem::replace(&mut running.workload, workload.clone());
                let subject = running.subject.borrow().updated(subscription);
                running.subject.send_if_modified(|known| {
                    let differs = known.differs(&subject);
                    *known = subject;
                    differs
                });
                if old != workload {
                    self.index_workload(&name, old, workload);
                }
            }
            None => self.start(name, subscription, workload),
        }
        self.count();
    }

    fn start(&mut self, name: Name, subscription: Arc<PolicySubscription>, workload: Option<(ComponentKind, Name)>) {
        let uid = subscription.uid();
        let (subject, receiver) = watch::channel(Subject::new(subscription));
        let wake = Arc::<Wake>::default();
        let actor = Actor::new(Arc::clone(&self.shared), name.clone(), receiver, Arc::clone(&wake));
        let running = Arc::clone(&self.running);
        let task = proviso_tasks::spawn("subscription", async move {
            let _running = running.read().await;
            actor.run().await;
        });
        if let Some(uid) = &uid {
            self.names.insert(uid.clone(), name.clone());
        }
        self.index_workload(&name, None, workload.clone());
        self.tasks.insert(name, Running { uid, subject, wake, task, workload });
    }

    /// Stops the task of a subscription, and waits until it has stopped: the task of another subscription with the name must not meet it.
    async fn stop(&mut self, name: &Name) {
        let affected = lock(&self.shared.claims).set(name, None);
        self.wake(&affected);
        if let Some(mut running) = self.tasks.remove(name) {
            running.task.abort();
            // The result is the error of a stopped task.
            let _ = (&mut running.task).await;
            if let Some(uid) = &running.uid {
                self.names.remove(uid);
            }
            let workload = running.workload.take();
            self.index_workload(name, workload, None);
        }
        self.count();
    }

    fn index_workload(&mut self, name: &Name, old: Option<(ComponentKind, Name)>, new: Option<(ComponentKind, Name)>) {
        if let Some(old) = old
            && let Some(names) = self.workloads.get_mut(&old)
        {
            names.remove(name);
            if names.is_empty() {
                self.workloads.remove(&old);
            }
        }
        if let Some(new) = new {
            self.workloads.entry(new).or_default().insert(name.clone());
        }
    }

    fn count(&self) {
        let count = i64::try_from(self.tasks.len()).unwrap_or(i64::MAX);
        self.shared.context.metrics.subscriptions.set(count);
    }
}

impl Subject {
    fn new(subscription: Arc<PolicySubscription>) -> Self {
        let namespace = subscription.namespace().unwrap_or_default();
        let compiled = subscription.spec.subscription(&namespace).map(|it| CompiledSubscription::new(&it));
        Self { subscription, compiled: Arc::new(compiled) }
    }

    /// Returns the subject after a change of its subscription. The selectors are compiled again only for another generation.
    fn updated(&self, subscription: Arc<PolicySubscription>) -> Self {
        if subscription.metadata.generation == self.subscription.metadata.generation {
            Self { subscription, compiled: Arc::clone(&self.compiled) }
        } else {
            Self::new(subscription)
        }
    }
}

/// Returns the workload of a component in the cluster.
fn workload(subscription: &PolicySubscription) -> Option<(ComponentKind, Name)> {
    let component = subscription.spec.component.as_ref()?;
    Some((component.kind, (subscription.namespace(), component.name.clone())))
}

#[cfg(test)]
impl Shared {
    /// Returns the state for tests with a mock API server.
    fn with_context(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            commands: context.client.clone(),
            catch_up_interval: Duration::from_mins(20),
            stores: Stores::default(),
            catalog: watch::channel(Arc::default()).0,
            renderings: Arc::default(),
            claims: Mutex::default(),
            notifications: Limits::of_notifications(),
            record_writes: Limits::of_writes(),
            part_writes: Limits::of_writes(),
            context,
        })
    }
}

#[cfg(test)]
mod tests;
