//! Background preparations, with a limited number at the same time.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::desired::Desired;
use super::prepare::{PrepareError, Prepared, Preparer, module_references};

/// The maximum number of concurrent preparations of revisions with modules, and the same number of revisions without modules. The
/// two kinds have separate permits, because a registry that does not answer must not delay revisions that need no registry. The
/// number of concurrent compilations is smaller.
const MAX_CONCURRENT: usize = 16;

/// The preparer, with the permits of background preparations.
#[derive(Clone, Debug)]
pub struct Preparations {
    preparer: Arc<Preparer>,
    with_modules: Arc<Semaphore>,
    without: Arc<Semaphore>,
}

impl Preparations {
    #[must_use]
    pub fn new(preparer: Arc<Preparer>) -> Self {
        let permits = || Arc::new(Semaphore::new(MAX_CONCURRENT));
        Self { preparer, with_modules: permits(), without: permits() }
    }

    #[must_use]
    pub fn preparer(&self) -> &Preparer {
        &self.preparer
    }

    /// Prepares a revision in the background and calls `done` with the result. See [`Preparer::prepare`].
    pub fn start(&self, desired: &Desired, done: impl FnOnce(Result<Prepared, PrepareError>) + Send + 'static) {
        let is_without = module_references(&desired.spec.program).is_empty();
        let permits = if is_without { &self.without } else { &self.with_modules };
        let (preparer, permits, desired) = (Arc::clone(&self.preparer), Arc::clone(permits), desired.clone());
        tokio::spawn(async move {
            let Ok(_permit) = permits.acquire_owned().await else { return };
            // A separate task: a panic fails this revision and nothing else.
            let preparing = tokio::spawn(async move { preparer.prepare(&desired).await });
            done(preparing.await.unwrap_or_else(|panic| Err(PrepareError::Stopped(panic.to_string()))));
        });
    }
}
