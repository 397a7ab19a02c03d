//! Leader election among replicas with a Kubernetes Lease. kubert writes the claims; the module `observer` decides when.
//!
//! kubert compares the time that the holder wrote with the local clock. If the clocks differ, it would take a Lease from a
//! holder that renews it, or wait for a dead holder. So this crate asks kubert for a claim only if the Lease has no holder or
//! this replica holds it, and removes an expired holder before that.
//!
//! A Lease does not exclude two leaders at the same time: a frozen leader can continue after its Lease expired. Writes of a
//! leader must therefore be harmless when two replicas make them.

mod observer;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_client::api::{Patch, PatchParams, PostParams};
use kube_client::{Api, Client};
use kubert::lease::{ClaimParams, Error, LeaseManager};
use serde_json::json;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use observer::{Leader, Observer, Renewal, Step};

/// The time after which a leader that does not renew the Lease loses it.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// The interval at which each replica reads the Lease.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// The leader renews the Lease after this time.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// kubert renews a claim if less than this time remains by the local clock. It is longer than any claim, because
/// the module `observer` decides when to renew, by the monotonic clock.
const RENEW_GRACE_PERIOD: Duration = Duration::from_hours(10_000);
/// The time limit of one request for the Lease, as in kubert.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for the release of the Lease in [`Election::end`].
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// The field manager of the Lease.
const FIELD_MANAGER: &str = "proviso-election";

/// The error of an election that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    #[error("leader election found no usable cluster configuration: {0}")]
    Client(#[from] kube_client::Error),
}

/// The action if the Lease does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingLease {
    /// Creates the Lease.
    Create,
    /// Waits until another program creates the Lease.
    Wait,
}

/// The membership of this replica in an election. [`Election::end`] ends it and releases the Lease.
pub struct Election {
    leadership: Leadership,
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// The leadership of this replica, as far as it is known.
#[derive(Clone)]
pub struct Leadership {
    identity: Arc<str>,
    leader: watch::Receiver<Option<Leader>>,
}

impl Election {
    /// Joins the election for the Lease `name`. A request for the Lease that fails is logged and repeated.
    ///
    /// # Errors
    /// Returns an error if neither a kubeconfig nor a service account is available.
    pub async fn join(
        namespace: &str,
        name: &str,
        missing: MissingLease,
        identity: &str,
    ) -> Result<Self, ElectionError> {
        let client = Client::try_default().await?;
        let (leaders, leader) = watch::channel(None);
        let (end, ended) = oneshot::channel();
        let participant = Participant {
            leases: Api::namespaced(client, namespace),
            name: name.to_owned(),
            missing,
            observer: Observer::new(identity.to_owned()),
            manager: None,
            leaders,
        };
        let task = proviso_tasks::spawn("leader election", participant.run(ended));
        Ok(Self { leadership: Leadership { identity: identity.into(), leader }, end, task })
    }

    /// Returns a handle that reports whether this replica leads.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Leaves the election and releases the Lease, so that another replica can lead at once.
    pub async fn end(self) {
        let Self { end, task, .. } = self;
        drop(end);
        if tokio::time::timeout(RELEASE_TIMEOUT, task).await.is_err() {
            tracing::warn!("the lease was not released in time; it expires by itself");
        }
    }
}

impl Leadership {
    /// Returns true if this replica leads now. Callers check this before each action that is reserved for the leader.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        let leader = self.leader.borrow();
        leader.as_ref().is_some_and(|leader| *leader.holder == *self.identity && Instant::now() < leader.until)
    }

    /// Waits until this replica leads.
    pub async fn won(&mut self) {
        while !self.is_leader() {
            self.changed().await;
        }
    }

    /// Waits until this replica does not lead.
    pub async fn lost(&mut self) {
        while self.is_leader() {
            self.changed().await;
        }
    }

    /// Waits until the result of [`Self::is_leader`] may have changed.
    pub async fn changed(&mut self) {
        // The expiry of a claim sends no notification.
        tokio::select! {
            Ok(()) = self.leader.changed() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
}

struct Participant {
    leases: Api<Lease>,
    name: String,
    missing: MissingLease,
    observer: Observer,
    /// The Lease as this replica last wrote it; `None` before that and after an error.
    manager: Option<LeaseManager>,
    leaders: watch::Sender<Option<Leader>>,
}

impl Participant {
    async fn run(mut self, mut ended: oneshot::Receiver<()>) {
        let mut has_failed = false;
        loop {
            match self.claim().await {
                Ok(leader) => {
                    has_failed = false;
                    self.publish(leader);
                }
                Err(error) => {
                    // The warning is logged once per outage, not at each poll. A claim stays valid until it expires.
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!(lease = self.name, %error, "the lease cannot be read or written; trying again");
                    }
                }
            }
            tokio::select! {
                _ = &mut ended => break,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
        self.leaders.send_replace(None);
        if self.observer.is_holder()
            && let Err(error) = self.resign().await
        {
            tracing::warn!(lease = self.name, %error, "the lease could not be released; it expires by itself");
        }
    }

    /// Claims or renews the Lease if no other replica holds it. Returns the leader.
    async fn claim(&mut self) -> Result<Leader, Error> {
        let manager = match self.manager.take() {
            Some(manager) if self.observer.can_renew_unread(Instant::now()) => manager,
            manager => {
                let lease = self.read().await?;
                match self.observer.step(Renewal::read(&lease), Instant::now()) {
                    Step::Follow(leader) => {
                        self.manager = manager.filter(|_| self.observer.is_holder());
                        return Ok(leader);
                    }
                    Step::TakeOver(leader) => {
                        // The former leader may have renewed the Lease, or another replica was faster.
                        if !self.release(&lease).await? {
                            return Ok(leader);
                        }
                    }
                    Step::Claim => {}
                }
                LeaseManager::init(self.leases.clone(), &self.name).await?.with_field_manager(FIELD_MANAGER)
            }
        };
        let begun = Instant::now();
        let parameters = ClaimParams { lease_duration: LEASE_DURATION, renew_grace_period: RENEW_GRACE_PERIOD };
        let claim = manager.ensure_claimed(self.observer.identity(), &parameters).await?;
        let leader = self.observer.claimed(&claim.holder, begun);
        self.manager = Some(manager).filter(|_| self.observer.is_holder());
        Ok(leader)
    }

    /// Reads the Lease, or creates it if it does not exist and this program may create it.
    async fn read(&self) -> Result<Lease, Error> {
        let read = limited(self.leases.get(&self.name)).await;
        if self.missing == MissingLease::Wait || !has_code(&read, 404) {
            return read;
        }
        let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(LeaseSpec::default()) };
        let created = limited(self.leases.create(&PostParams::default(), &lease)).await;
        // Another replica may have created the Lease first.
        if has_code(&created, 409) { limited(self.leases.get(&self.name)).await } else { created }
    }

    /// Removes the holder from the Lease. Returns false if the Lease has changed since it was read.
    async fn release(&self, lease: &Lease) -> Result<bool, Error> {
        let patch = json!({
            "metadata": {"resourceVersion": lease.metadata.resource_version},
            "spec": {"holderIdentity": null, "acquireTime": null, "renewTime": null, "leaseDurationSeconds": null},
        });
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let released = limited(self.leases.patch(&self.name, &parameters, &Patch::Merge(&patch))).await;
        if has_code(&released, 409) { Ok(false) } else { released.map(|_| true) }
    }

    /// Releases the Lease if this replica holds it.
    async fn resign(&self) -> Result<(), Error> {
        let lease = limited(self.leases.get(&self.name)).await?;
        if Renewal::read(&lease).is_some_and(|renewal| renewal.is_by(self.observer.identity())) {
            self.release(&lease).await?;
        }
        Ok(())
    }

    fn publish(&self, leader: Leader) {
        let is_new = self.leaders.borrow().as_ref().is_none_or(|last| last.holder != leader.holder);
        if is_new {
            let is_this = leader.holder == self.observer.identity();
            tracing::info!(lease = self.name, leader = leader.holder, is_this, "leader elected");
        }
        self.leaders.send_replace(Some(leader));
    }
}

/// Limits the time of a request.
async fn limited<T>(request: impl Future<Output = Result<T, kube_client::Error>>) -> Result<T, Error> {
    Ok(tokio::time::timeout(REQUEST_TIMEOUT, request).await.map_err(|_| Error::Timeout)??)
}

/// Returns true if the API server refused a request with this HTTP status.
fn has_code<T>(answer: &Result<T, Error>, code: u16) -> bool {
    matches!(answer, Err(Error::Api(kube_client::Error::Api(status))) if status.code == code)
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("leadership", &self.leadership).finish_non_exhaustive()
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("identity", &self.identity)
            .field("is_leader", &self.is_leader())
            .finish_non_exhaustive()
    }
}
