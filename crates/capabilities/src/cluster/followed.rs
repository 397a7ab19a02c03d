//! One kind of objects, followed: listed once, then every change. What was seen last stays true while the API server is away.

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
use super::direct::PAGE;
use super::resource::{Described, to_value};
use super::store::Store;
use crate::error::{AskError, Trouble};
use crate::kind::Kind;

/// How long one watch lasts, in seconds; the next one goes on where it ended. One that has not even ended some seconds later
/// leads nowhere: a network that has forgotten a connection tells nobody.
const WATCH_SECONDS: u32 = 25;
/// How long to wait before objects that were too large are listed again: the list is a burden for the API server.
const RETRY_LARGE: Duration = Duration::from_mins(5);
/// The answer that says that the same may be asked again later.
const TOO_MANY_REQUESTS: u16 = 429;

/// Objects at one moment.
type List = Arc<Vec<Arc<Value>>>;

/// A kind that is followed for as long as this lives.
pub(crate) struct Followed {
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
    /// Nothing was listed yet, for this reason if it is known.
    Waiting(Option<String>),
    Synced(Arc<Described>),
    Failed(Trouble),
}

impl fmt::Debug for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = self.shared.phase.borrow().clone();
        f.debug_struct("Followed").field("kind", &self.kind).field("phase", &phase).finish_non_exhaustive()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Followed {
    pub(super) fn start(client: Client, kind: Kind, namespace: Option<String>, budget: &Budget) -> Self {
        let store = Store::new(budget.share(namespace.as_deref()));
        let shared = Arc::new(Shared { store: Mutex::new(store), phase: watch::Sender::new(Phase::Waiting(None)) });
        let follower = Follower {
            client,
            kind: kind.clone(),
            namespace: namespace.clone(),
            budget: budget.clone(),
            shared: Arc::clone(&shared),
        };
        let task = tokio::spawn(follower.run()).abort_handle();
        Self { kind, namespace, shared, task }
    }

    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Waits until its objects are known.
    pub(crate) async fn ready(&self, deadline: Deadline) -> Result<Arc<Described>, AskError> {
        let mut phase = self.shared.phase.subscribe();
        let known = phase.wait_for(|phase| !matches!(phase, Phase::Waiting(_)));
        let known = tokio::time::timeout_at(deadline.instant().into(), known).await;
        let phase = match known {
            Ok(Ok(phase)) => phase.clone(),
            _ => self.shared.phase.borrow().clone(),
        };
        self.described(phase)
    }

    fn described(&self, phase: Phase) -> Result<Arc<Described>, AskError> {
        let trouble = match phase {
            Phase::Synced(described) => return Ok(described),
            Phase::Failed(trouble) => trouble,
            Phase::Waiting(why) => {
                Trouble::NotYet(why.unwrap_or_else(|| "the API server is still listing them".to_owned()))
            }
        };
        Err(AskError::Trouble { kind: self.kind.clone(), trouble })
    }

    /// The objects, if they are what there is: whether they are is looked at under their lock, or somebody would read nothing
    /// where nothing may be read any more, and take it for all that there is.
    fn store(&self) -> Result<MutexGuard<'_, Store>, AskError> {
        let store = self.shared.store();
        let phase = self.shared.phase.borrow().clone();
        self.described(phase).map(|_| store)
    }

    pub(super) fn get(&self, namespace: Option<&str>, name: &str) -> Result<Option<Arc<Value>>, AskError> {
        Ok(self.store()?.get(namespace.unwrap_or_default(), name))
    }

    pub(crate) fn list(&self, namespace: Option<&str>) -> Result<List, AskError> {
        match namespace {
            Some(namespace) => Ok(Arc::new(self.store()?.in_namespace(namespace))),
            None => Ok(self.all()?.1),
        }
    }

    /// All objects, and a number that is another one after each change.
    pub(crate) fn all(&self) -> Result<(u64, List), AskError> {
        Ok(self.store()?.all())
    }
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Follower {
    client: Client,
    kind: Kind,
    namespace: Option<String>,
    budget: Budget,
    shared: Arc<Shared>,
}

impl Follower {
    async fn run(self) {
        let mut delays = DefaultBackoff::default();
        loop {
            let trouble = match Described::find(&self.client, &self.kind).await {
                Ok(described) => self.follow(Arc::new(described)).await,
                Err(trouble) => trouble,
            };
            tracing::warn!(
                kind = %self.kind, namespace = self.namespace, reason = trouble.reason(), error = %trouble,
                "the objects of a kind cannot be followed; trying again"
            );
            let is_large = matches!(trouble, Trouble::TooLarge { .. });
            self.fail(trouble);
            let delay = if is_large { RETRY_LARGE } else { delays.next().unwrap_or(RETRY_LARGE) };
            tokio::time::sleep(delay).await;
        }
    }

    /// What does not work is not read either: its objects would be old for ever, or are nothing that may be read any more.
    fn fail(&self, trouble: Trouble) {
        if let Trouble::NotYet(why) = trouble {
            self.say_waiting(why);
            return;
        }
        let mut store = self.shared.store();
        self.shared.phase.send_replace(Phase::Failed(trouble));
        store.clear();
    }

    /// Takes note why nothing has come yet, if nothing has.
    fn say_waiting(&self, why: String) {
        self.shared.phase.send_if_modified(|phase| {
            let is_waiting = matches!(phase, Phase::Waiting(_));
            if is_waiting {
                *phase = Phase::Waiting(Some(why));
            }
            is_waiting
        });
    }

    /// Follows until that leads nowhere.
    async fn follow(&self, described: Arc<Described>) -> Trouble {
        if let Some(own) = self.namespace.as_ref().filter(|_| !described.is_namespaced) {
            return Trouble::ClusterScoped(own.clone());
        }
        let api = described.api::<DynamicObject>(&self.client, self.namespace.as_deref());
        let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE);
        let mut events = pin!(watcher(api, config).default_backoff());
        let mut place = None;
        loop {
            match events.try_next().await {
                Ok(Some(event)) => {
                    match event {
                        // Nothing was asked for yet.
                        watcher::Event::Init => place = self.budget.listing().await,
                        watcher::Event::InitDone => place = None,
                        _ => {}
                    }
                    if let Err(trouble) = self.take(&described, event) {
                        return trouble;
                    }
                }
                Ok(None) => return Trouble::NotYet("the watch ended".to_owned()),
                Err(error) => {
                    drop(place.take());
                    if let Some(trouble) = status(&error).and_then(|status| described.trouble(status)) {
                        return trouble;
                    }
                    if is_refused(&error) {
                        return Trouble::NotYet(error.to_string());
                    }
                    tracing::warn!(kind = %self.kind, %error, "watch interrupted; what was seen last stays true");
                    self.say_waiting(error.to_string());
                }
            }
        }
    }

    fn take(&self, described: &Arc<Described>, event: watcher::Event<DynamicObject>) -> Result<(), Trouble> {
        use watcher::Event;
        match event {
            Event::Init => self.shared.store().begin(),
            Event::InitApply(object) => {
                let object = to_value(described, object);
                self.shared.store().add(object)?;
            }
            Event::InitDone => {
                let mut store = self.shared.store();
                store.end();
                self.shared.phase.send_replace(Phase::Synced(Arc::clone(described)));
            }
            Event::Apply(object) => {
                let object = to_value(described, object);
                self.shared.store().apply(object)?;
            }
            Event::Delete(object) => self.shared.store().remove(&to_value(described, object)),
        }
        Ok(())
    }
}

/// What the API server answered, if it did.
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

/// Whether the API server takes no watch from the place where the last one ended, or has forgotten that place: asked again for the
/// same, it says the same. A list leads on.
fn is_refused(error: &watcher::Error) -> bool {
    let watcher::Error::WatchStartFailed(kube::Error::Api(status)) = error else { return false };
    (400..500).contains(&status.code) && status.code != TOO_MANY_REQUESTS
}
