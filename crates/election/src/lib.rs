//! Which of several replicas leads, by a Lease (Kubernetes' own mechanism, spoken by kubert). A lease is advice: clocks
//! may differ and a frozen leader wakes up late, so what a leader writes must be harmless when two of them write it.

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

/// How long a leader that says nothing stays the leader.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How often everybody looks at the lease.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A claim that ends sooner than this is renewed.
const RENEW_BEFORE: Duration = Duration::from_secs(10);
/// How long the lease may take to be given back at the end.
const RELEASE: Duration = Duration::from_secs(2);
/// Who writes the lease.
const MANAGER: &str = "proviso-election";

/// An election that cannot take place.
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    #[error("no cluster to elect a leader in: {0}")]
    Client(#[from] kube_client::Error),
}

/// What to do when the Lease is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    Make,
    /// Somebody else makes it.
    Wait,
}

/// A candidate. Ends, and gives the lease back, by [`Election::end`].
pub struct Election {
    leadership: Leadership,
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// What is known about who leads.
#[derive(Clone)]
pub struct Leadership {
    identity: Arc<str>,
    claim: watch::Receiver<Option<Arc<Claim>>>,
}

impl Election {
    /// Stands for election at the Lease with this name. Whatever goes wrong with it is logged and tried again; nobody
    /// leads meanwhile.
    ///
    /// # Errors
    /// When there is neither a kubeconfig nor a service account.
    pub async fn stand(namespace: &str, name: &str, missing: Missing, identity: &str) -> Result<Self, ElectionError> {
        let client = Client::try_default().await?;
        let (claims, claim) = watch::channel(None);
        let (end, ended) = oneshot::channel();
        let candidate = Candidate {
            leases: Api::namespaced(client, namespace),
            name: name.to_owned(),
            missing,
            identity: identity.to_owned(),
            lease: None,
            claims,
        };
        let task = tokio::spawn(candidate.run(ended));
        Ok(Self { leadership: Leadership { identity: identity.into(), claim }, end, task })
    }

    /// For those who do what only a leader does.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Withdraws, so that another one can lead at once.
    pub async fn end(self) {
        let Self { end, task, .. } = self;
        drop(end);
        if tokio::time::timeout(RELEASE, task).await.is_err() {
            tracing::warn!("the lease could not be given back in time; it ends by itself");
        }
    }
}

impl Leadership {
    /// Whether this one leads now: to be asked before each thing that only a leader does.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.claim.borrow().as_ref().is_some_and(|claim| claim.is_current_for(&self.identity))
    }

    /// Waits until this one leads.
    pub async fn won(&mut self) {
        while !self.is_leader() {
            self.changed().await;
        }
    }

    /// Waits until this one does not lead.
    pub async fn lost(&mut self) {
        while self.is_leader() {
            self.changed().await;
        }
    }

    /// Waits until the answer of [`Self::is_leader`] may be another one.
    pub async fn changed(&mut self) {
        // A claim runs out without a word.
        tokio::select! {
            Ok(()) = self.claim.changed() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

struct Candidate {
    leases: Api<Lease>,
    name: String,
    missing: Missing,
    identity: String,
    /// None while it could not be read.
    lease: Option<LeaseManager>,
    claims: watch::Sender<Option<Arc<Claim>>>,
}

impl Candidate {
    async fn run(mut self, mut ended: oneshot::Receiver<()>) {
        let mut has_failed = false;
        loop {
            match self.claim().await {
                Ok(claim) => {
                    has_failed = false;
                    self.publish(Some(claim));
                }
                Err(error) => {
                    // Once for each time of trouble, not every two seconds. A claim that was won goes on until its end.
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!(lease = self.name, %error, "the lease cannot be read or written; trying again");
                    }
                    self.lease = None;
                }
            }
            tokio::select! {
                _ = &mut ended => break,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
        self.claims.send_replace(None);
        if let Some(lease) = &self.lease
            && let Err(error) = lease.vacate(&self.identity).await
        {
            tracing::warn!(lease = self.name, %error, "the lease could not be given back; it ends by itself");
        }
    }

    /// The claim of whoever leads now: of this one, if nobody else does.
    async fn claim(&mut self) -> Result<Arc<Claim>, kubert::lease::Error> {
        let lease = match self.lease.take() {
            // Others may have renewed, or lost it.
            Some(lease) => lease.sync().await.map(|_| lease)?,
            None => self.read().await?.with_field_manager(MANAGER),
        };
        let parameters = ClaimParams { lease_duration: LEASE_DURATION, renew_grace_period: RENEW_BEFORE };
        let claim = lease.ensure_claimed(&self.identity, &parameters).await;
        self.lease = Some(lease);
        claim
    }

    async fn read(&self) -> Result<LeaseManager, kubert::lease::Error> {
        let read = LeaseManager::init(self.leases.clone(), &self.name).await;
        let is_missing = matches!(&read, Err(kubert::lease::Error::Api(kube_client::Error::Api(it))) if it.code == 404);
        if !is_missing || self.missing == Missing::Wait {
            return read;
        }
        let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(LeaseSpec::default()) };
        match self.leases.create(&PostParams::default(), &lease).await {
            // Another candidate was faster.
            Err(kube_client::Error::Api(error)) if error.code == 409 => {}
            made => drop(made?),
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
