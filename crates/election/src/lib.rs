//! Leader election among replicas with a Kubernetes Lease, implemented by kubert.
//!
//! A Lease does not exclude two leaders at the same time: clocks differ, and a frozen leader can continue after its Lease
//! expired. Writes of a leader must therefore be harmless when two replicas make them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_client::api::PostParams;
use kube_client::{Api, Client};
use kubert::lease::{Claim, ClaimParams, LeaseManager};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// The time after which a leader that does not renew the Lease loses it.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// The interval at which each replica reads the Lease.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// The leader renews the Lease when less than this time remains.
const RENEW_GRACE_PERIOD: Duration = Duration::from_secs(10);
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
    claim: watch::Receiver<Option<Arc<Claim>>>,
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
        let (claims, claim) = watch::channel(None);
        let (end, ended) = oneshot::channel();
        let participant = Participant {
            leases: Api::namespaced(client, namespace),
            name: name.to_owned(),
            missing,
            identity: identity.to_owned(),
            lease: None,
            claims,
        };
        let task = tokio::spawn(participant.run(ended));
        Ok(Self { leadership: Leadership { identity: identity.into(), claim }, end, task })
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
        self.claim.borrow().as_ref().is_some_and(|claim| claim.is_current_for(&self.identity))
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
            Ok(()) = self.claim.changed() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
}

struct Participant {
    leases: Api<Lease>,
    name: String,
    missing: MissingLease,
    identity: String,
    /// The Lease as it was last read; `None` after an error.
    lease: Option<LeaseManager>,
    claims: watch::Sender<Option<Arc<Claim>>>,
}

impl Participant {
    async fn run(mut self, mut ended: oneshot::Receiver<()>) {
        let mut has_failed = false;
        loop {
            match self.claim().await {
                Ok(claim) => {
                    has_failed = false;
                    self.publish(Some(claim));
                }
                Err(error) => {
                    // The warning is logged once per outage, not at each poll. A claim stays valid until it expires.
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!(lease = self.name, %error, "the lease cannot be read or written; trying again");
                    }
                    self.lease = None;
                }
            }
            tokio::select! {
                _ = &mut ended => break,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
        self.claims.send_replace(None);
        if let Some(lease) = &self.lease
            && let Err(error) = lease.vacate(&self.identity).await
        {
            tracing::warn!(lease = self.name, %error, "the lease could not be released; it expires by itself");
        }
    }

    /// Claims the Lease if no other replica holds it. Returns the current claim.
    async fn claim(&mut self) -> Result<Arc<Claim>, kubert::lease::Error> {
        let lease = match self.lease.take() {
            // Another replica may have renewed or lost the Lease since the last read.
            Some(lease) => lease.sync().await.map(|_| lease)?,
            None => self.read().await?.with_field_manager(FIELD_MANAGER),
        };
        let parameters = ClaimParams { lease_duration: LEASE_DURATION, renew_grace_period: RENEW_GRACE_PERIOD };
        let claim = lease.ensure_claimed(&self.identity, &parameters).await;
        self.lease = Some(lease);
        claim
    }

    async fn read(&self) -> Result<LeaseManager, kubert::lease::Error> {
        let read = LeaseManager::init(self.leases.clone(), &self.name).await;
        let is_missing = matches!(&read, Err(kubert::lease::Error::Api(kube_client::Error::Api(it))) if it.code == 404);
        if !is_missing || self.missing == MissingLease::Wait {
            return read;
        }
        let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(LeaseSpec::default()) };
        match self.leases.create(&PostParams::default(), &lease).await {
            // Another replica created the Lease first.
            Err(kube_client::Error::Api(error)) if error.code == 409 => {}
            created => drop(created?),
        }
        LeaseManager::init(self.leases.clone(), &self.name).await
    }

    fn publish(&self, claim: Option<Arc<Claim>>) {
        let holder = |claim: &Option<Arc<Claim>>| claim.as_ref().map(|claim| claim.holder.clone());
        let (old, new) = (holder(&self.claims.borrow()), holder(&claim));
        if old != new {
            let leader = new.unwrap_or_default();
            tracing::info!(lease = self.name, leader, is_this = leader == self.identity, "leader elected");
        }
        self.claims.send_replace(claim);
    }
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
