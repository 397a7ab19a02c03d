//! Background preparations, with a limited number at the same time.

use std::sync::Arc;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use super::desired::Desired;
use super::prepare::{PrepareError, Prepared, Preparer, module_references};

/// The maximum number of concurrent preparations of revisions with modules, of revisions without modules, and of fetches. The
/// number of concurrent compilations is smaller.
const MAX_CONCURRENT: usize = 16;

/// The preparer, with the permits of background preparations.
#[derive(Clone, Debug)]
pub struct Preparations {
    preparer: Arc<Preparer>,
    with_modules: Arc<Semaphore>,
    without: Arc<Semaphore>,
    fetches: Arc<Semaphore>,
}

/// The permit of one preparation. The preparation returns it while it waits for a server: a registry that does not answer must not
/// delay revisions whose modules are in the cache.
#[derive(Debug)]
pub struct Permit {
    preparations: Arc<Semaphore>,
    fetches: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

impl Permit {
    async fn acquire(preparations: Arc<Semaphore>, fetches: Arc<Semaphore>) -> Result<Self, AcquireError> {
        let held = Arc::clone(&preparations).acquire_owned().await?;
        Ok(Self { preparations, fetches, held: Some(held) })
    }

    /// Runs a fetch with a permit of fetches instead of this one.
    ///
    /// # Errors
    /// Never, because the semaphores are not closed.
    pub async fn fetch<T>(&mut self, fetching: impl Future<Output = T>) -> Result<T, AcquireError> {
        drop(self.held.take());
        let permit = self.fetches.acquire().await?;
        let fetched = fetching.await;
        drop(permit);
        self.held = Some(Arc::clone(&self.preparations).acquire_owned().await?);
        Ok(fetched)
    }
}

impl Preparations {
    #[must_use]
    pub fn new(preparer: Arc<Preparer>) -> Self {
        let permits = || Arc::new(Semaphore::new(MAX_CONCURRENT));
        Self { preparer, with_modules: permits(), without: permits(), fetches: permits() }
    }

    #[must_use]
    pub fn preparer(&self) -> &Preparer {
        &self.preparer
    }

    /// Prepares a revision in the background and calls `done` with the result. See [`Preparer::prepare`].
    pub fn start(&self, desired: &Desired, done: impl FnOnce(Result<Prepared, PrepareError>) + Send + 'static) {
        let is_without = module_references(&desired.spec.program).is_empty();
        let permits = if is_without { &self.without } else { &self.with_modules };
        let permit = Permit::acquire(Arc::clone(permits), Arc::clone(&self.fetches));
        let (preparer, desired) = (Arc::clone(&self.preparer), desired.clone());
        tokio::spawn(async move {
            let Ok(permit) = permit.await else { return };
            // A separate task: a panic fails this revision and nothing else.
            let preparing = tokio::spawn(async move { preparer.prepare(&desired, permit).await });
            done(preparing.await.unwrap_or_else(|panic| Err(PrepareError::Stopped(panic.to_string()))));
        });
    }
}
