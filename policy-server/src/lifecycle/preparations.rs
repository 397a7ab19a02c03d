//! Preparations in the background: off the serving path, and bounded in number.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::desired::Desired;
use super::prepare::{PrepareError, Prepared, Preparer, module_references};

/// The number of revisions with modules that are prepared at the same time, and likewise of revisions without. Most revisions
/// with modules wait for a registry: one that does not answer must not delay the revisions that need none. Fewer compile.
const MAX_CONCURRENT: usize = 16;

/// Starts preparations.
#[derive(Clone, Debug)]
pub struct Preparations {
    preparer: Arc<Preparer>,
    with_modules: Arc<Semaphore>,
    without: Arc<Semaphore>,
}

impl Preparations {
    #[must_use]
    pub fn new(preparer: Arc<Preparer>) -> Self {
        let places = || Arc::new(Semaphore::new(MAX_CONCURRENT));
        Self { preparer, with_modules: places(), without: places() }
    }

    #[must_use]
    pub fn preparer(&self) -> &Preparer {
        &self.preparer
    }

    /// Prepares a revision in the background and calls `done` with the result. See [`Preparer::prepare`].
    pub fn start(&self, desired: &Desired, done: impl FnOnce(Result<Prepared, PrepareError>) + Send + 'static) {
        let is_without = module_references(&desired.spec.program).is_empty();
        let places = if is_without { &self.without } else { &self.with_modules };
        let (preparer, places, desired) = (Arc::clone(&self.preparer), Arc::clone(places), desired.clone());
        tokio::spawn(async move {
            let Ok(_place) = places.acquire_owned().await else { return };
            // In a task of its own, so that a panic fails this revision and nothing else.
            let preparing = tokio::spawn(async move { preparer.prepare(&desired).await });
            done(preparing.await.unwrap_or_else(|panic| Err(PrepareError::Stopped(panic.to_string()))));
        });
    }
}
