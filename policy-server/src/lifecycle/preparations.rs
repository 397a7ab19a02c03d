//! Background preparations, with a limited number at the same time. Policies and namespaces take turns.

use std::sync::Arc;

use proviso_core::PolicyId;
use proviso_shares::{Account, Limits, Rank, Shares};

use super::desired::Desired;
use super::prepare::{PrepareError, Prepared, Preparer, module_references};

/// The maximum number of concurrent preparations of revisions with modules, of revisions without modules, and of fetches. The
/// number of concurrent compilations is smaller.
const MAX_CONCURRENT: u64 = 16;

/// The preparer, with the permits of background preparations.
#[derive(Clone, Debug)]
pub struct Preparations {
    preparer: Arc<Preparer>,
    with_modules: Shares,
    without: Shares,
    fetches: Shares,
}

/// The permit of one preparation. The preparation returns it while it waits for a server: a registry that does not answer must not
/// delay revisions whose modules are in the cache.
#[derive(Debug)]
pub struct Permit {
    preparations: Account,
    fetches: Account,
    held: Option<proviso_shares::Permit>,
}

impl Permit {
    async fn acquire(preparations: Account, fetches: Account) -> Self {
        let held = preparations.take(1).await;
        Self { preparations, fetches, held: Some(held) }
    }

    /// Runs a fetch with a permit of fetches instead of this one.
    pub async fn fetch<T>(&mut self, fetching: impl Future<Output = T>) -> T {
        drop(self.held.take());
        let permit = self.fetches.take(1).await;
        let fetched = fetching.await;
        drop(permit);
        self.held = Some(self.preparations.take(1).await);
        fetched
    }
}

impl Preparations {
    #[must_use]
    pub fn new(preparer: Arc<Preparer>) -> Self {
        let permits = || Shares::new(Limits::of(MAX_CONCURRENT));
        Self { preparer, with_modules: permits(), without: permits(), fetches: permits() }
    }

    #[must_use]
    pub fn preparer(&self) -> &Arc<Preparer> {
        &self.preparer
    }

    /// Prepares a revision in the background and calls `done` with the result. See [`Preparer::prepare`].
    pub fn start(&self, desired: &Desired, done: impl FnOnce(Result<Prepared, PrepareError>) + Send + 'static) {
        let is_without = module_references(&desired.spec.program).is_empty();
        let permits = if is_without { &self.without } else { &self.with_modules };
        let permit = Permit::acquire(account(permits, &desired.policy), account(&self.fetches, &desired.policy));
        let (preparer, desired) = (Arc::clone(&self.preparer), desired.clone());
        tokio::spawn(async move {
            let permit = permit.await;
            // A separate task: a panic fails this revision and nothing else.
            let preparing = tokio::spawn(async move { preparer.prepare(&desired, permit).await });
            done(preparing.await.unwrap_or_else(|panic| Err(PrepareError::Stopped(panic.to_string()))));
        });
    }
}

fn account(shares: &Shares, policy: &PolicyId) -> Account {
    shares.account(policy.as_str(), policy.namespace(), Rank::Live)
}
