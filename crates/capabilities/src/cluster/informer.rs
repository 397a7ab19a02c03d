//! An informer: lists the objects of one kind, then watches changes. While the API server is unreachable, the informer serves
//! the last known objects.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use kube::Client;
use kube::core::DynamicObject;
use kube::runtime::watcher::DefaultBackoff;
use kube::runtime::{WatchStreamExt as _, watcher};
use proviso_engines::Deadline;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::budget::Budget;
use super::queries::PAGE_SIZE;
use super::resource::{ResolvedKind, to_value};
use super::store::Store;
use crate::error::{HostCallError, KindUnavailable};
use crate::kind::Kind;

/// The duration of one watch, in seconds; the next watch resumes at the same resource version. The client's read timeout is a
/// few seconds longer: it ends a watch whose connection the network dropped without notice.
const WATCH_TIMEOUT_SECONDS: u32 = 25;
/// The time until a kind that exceeded its memory limit is listed again. Such a list is expensive for the API server.
const TOO_LARGE_RETRY_INTERVAL: Duration = Duration::from_mins(5);
/// The HTTP status of a throttled request, which may be repeated later.
const TOO_MANY_REQUESTS: u16 = 429;

/// The objects at one version of the store.
type Snapshot = Arc<Vec<Arc<Value>>>;

/// Lists and watches the objects of one kind until it is dropped.
pub(crate) struct Informer {
    kind: Kind,
    namespace: Option<String>,
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    store: Mutex<Store>,
    phase: watch::Sender<Phase>,
}

#[derive(Clone, Debug)]
enum Phase {
    /// The first list has not ended; with the reason, if it is known.
    Waiting(Option<String>),
    Synced(Arc<ResolvedKind>),
    Failed(KindUnavailable),
}

impl fmt::Debug for Informer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = self.shared.phase.borrow().clone();
        f.debug_struct("Informer").field("kind", &self.kind).field("phase", &phase).finish_non_exhaustive()
    }
}

impl Drop for Informer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Informer {
    pub(super) fn start(client: Client, kind: Kind, namespace: Option<String>, budget: &Budget) -> Self {
        let store = Store::new(budget.reservation(namespace.as_deref()));
        let shared = Arc::new(Shared { store: Mutex::new(store), phase: watch::Sender::new(Phase::Waiting(None)) });
        let task = WatchTask {
            client,
            kind: kind.clone(),
            namespace: namespace.clone(),
            budget: budget.clone(),
            shared: Arc::clone(&shared),
        };
        let task = proviso_tasks::spawn("informer", task.run()).abort_handle();
        Self { kind, namespace, shared, task }
    }

    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Waits until the first list has ended.
    ///
    /// # Errors
    /// Returns [`HostCallError::KindUnavailable`] if the kind cannot be listed and watched, or the list has not ended at the deadline.
    pub(crate) async fn ready(&self, deadline: Deadline) -> Result<Arc<ResolvedKind>, HostCallError> {
        let mut phase = self.shared.phase.subscribe();
        let decided = phase.wait_for(|phase| !matches!(phase, Phase::Waiting(_)));
        let decided = tokio::time::timeout_at(deadline.instant().into(), decided).await;
        let phase = match decided {
            Ok(Ok(phase)) => phase.clone(),
            _ => self.shared.phase.borrow().clone(),
        };
        self.resolved(phase)
    }

    fn resolved(&self, phase: Phase) -> Result<Arc<ResolvedKind>, HostCallError> {
        let cause = match phase {
            Phase::Synced(resolved) => return Ok(resolved),
            Phase::Failed(cause) => cause,
            Phase::Waiting(why) => {
                KindUnavailable::NotReady(why.unwrap_or_else(|| "the API server is still listing them".to_owned()))
            }
        };
        Err(HostCallError::KindUnavailable { kind: self.kind.clone(), cause })
    }

    /// Returns the store if it is in sync. The phase is checked under the lock of the store: `fail` clears the store, and a
    /// reader must not take an empty store for the complete list.
    fn store(&self) -> Result<MutexGuard<'_, Store>, HostCallError> {
        let store = self.shared.store();
        let phase = self.shared.phase.borrow().clone();
        self.resolved(phase).map(|_| store)
    }

    pub(super) fn get(&self, namespace: Option<&str>, name: &str) -> Result<Option<Arc<Value>>, HostCallError> {
        Ok(self.store()?.get(namespace.unwrap_or_default(), name))
    }

    pub(crate) fn list(&self, namespace: Option<&str>) -> Result<Snapshot, HostCallError> {
        match namespace {
            Some(namespace) => Ok(Arc::new(self.store()?.in_namespace(namespace))),
            None => Ok(self.all()?.1),
        }
    }

    /// Returns all objects and their version, which grows with each change.
    pub(crate) fn all(&self) -> Result<(u64, Snapshot), HostCallError> {
        Ok(self.store()?.all())
    }
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The background task of an informer.
struct WatchTask {
    client: Client,
    kind: Kind,
    namespace: Option<String>,
    budget: Budget,
    shared: Arc<Shared>,
}

impl WatchTask {
    async fn run(self) {
        let mut delays = DefaultBackoff::default();
        loop {
            let cause = match ResolvedKind::discover(&self.client, &self.kind).await {
                Ok(resolved) => self.watch(Arc::new(resolved)).await,
                Err(cause) => cause,
            };
            tracing::warn!(
                kind = %self.kind, namespace = self.namespace, reason = %cause.reason(), error = %cause,
                "the objects of a kind cannot be watched; trying again"
            );
            let is_large = matches!(cause, KindUnavailable::TooLarge { .. });
            self.fail(cause);
            let delay =
                if is_large { TOO_LARGE_RETRY_INTERVAL } else { delays.next().unwrap_or(TOO_LARGE_RETRY_INTERVAL) };
            tokio::time::sleep(delay).await;
        }
    }

    /// Records a failure. Clears the store if the failure is permanent: otherwise evaluations would use objects that no longer
    /// change, or that the policy server is no longer allowed to read. [`KindUnavailable::NotReady`] keeps the store.
    fn fail(&self, cause: KindUnavailable) {
        if let KindUnavailable::NotReady(why) = cause {
            self.record_waiting(why);
            return;
        }
        let mut store = self.shared.store();
        self.shared.phase.send_replace(Phase::Failed(cause));
        store.clear();
    }

    /// Records the reason why the first list has not ended, unless it has.
    fn record_waiting(&self, why: String) {
        self.shared.phase.send_if_modified(|phase| {
            let is_waiting = matches!(phase, Phase::Waiting(_));
            if is_waiting {
                *phase = Phase::Waiting(Some(why));
            }
            is_waiting
        });
    }

    /// Lists and watches until an error that a retry of the watch cannot repair.
    async fn watch(&self, resolved: Arc<ResolvedKind>) -> KindUnavailable {
        if let Some(own) = self.namespace.as_ref().filter(|_| !resolved.is_namespaced) {
            return KindUnavailable::ClusterScoped(own.clone());
        }
        let api = resolved.api::<DynamicObject>(&self.client, self.namespace.as_deref());
        let config = watcher::Config::default().timeout(WATCH_TIMEOUT_SECONDS).page_size(PAGE_SIZE);
        let mut events = pin!(watcher(api, config).default_backoff());
        let mut list_permit = None;
        loop {
            match events.try_next().await {
                Ok(Some(event)) => {
                    match event {
                        // The watcher emits `Init` before it sends the list request.
                        watcher::Event::Init => list_permit = self.budget.list_permit().await,
                        watcher::Event::InitDone => list_permit = None,
                        _ => {}
                    }
                    if let Err(cause) = self.apply(&resolved, event) {
                        return cause;
                    }
                }
                Ok(None) => return KindUnavailable::NotReady("the watch ended".to_owned()),
                Err(error) => {
                    drop(list_permit.take());
                    if let Some(cause) = status(&error).and_then(|status| resolved.cause(status)) {
                        return cause;
                    }
                    if needs_new_list(&error) {
                        return KindUnavailable::NotReady(error.to_string());
                    }
                    tracing::warn!(kind = %self.kind, %error, "watch interrupted; serving the last known objects");
                    self.record_waiting(error.to_string());
                }
            }
        }
    }

    fn apply(&self, resolved: &Arc<ResolvedKind>, event: watcher::Event<DynamicObject>) -> Result<(), KindUnavailable> {
        use watcher::Event;
        match event {
            Event::Init => self.shared.store().begin_list(),
            Event::InitApply(object) => {
                let object = to_value(resolved, object);
                self.shared.store().add_listed(object)?;
            }
            Event::InitDone => {
                let mut store = self.shared.store();
                store.end_list();
                self.shared.phase.send_replace(Phase::Synced(Arc::clone(resolved)));
            }
            Event::Apply(object) => {
                let object = to_value(resolved, object);
                self.shared.store().apply(object)?;
            }
            Event::Delete(object) => self.shared.store().remove(&to_value(resolved, object)),
        }
        Ok(())
    }
}

/// Returns the API server's error status; `None` if the API server did not answer.
fn status(error: &watcher::Error) -> Option<&kube::core::response::Status> {
    use watcher::Error;
    match error {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchFailed(kube::Error::Api(status))
        | Error::WatchError(status) => Some(status),
        _ => None,
    }
}

/// Returns true if the API server refuses to resume the watch, for example because the resource version expired. A retry of the
/// watch would fail again; a new list is needed.
fn needs_new_list(error: &watcher::Error) -> bool {
    let watcher::Error::WatchStartFailed(kube::Error::Api(status)) = error else { return false };
    (400..500).contains(&status.code) && status.code != TOO_MANY_REQUESTS
}
