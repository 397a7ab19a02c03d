//! Preparations in the background: off the serving path, bounded in number, and tried again less and less often where
//! what stood in their way may pass.

use std::sync::Arc;
use std::time::Duration;

use proviso_core::PolicyId;
use proviso_crds::PolicySpec;
use tokio::sync::Semaphore;

use crate::prepare::{ModuleSource, PrepareError, Prepared, Preparer, Scope, module_references};

/// Preparations at the same time of what names modules, and as many of the rest. Most of the former wait for a registry,
/// and one that says nothing must not hold up what needs none; those that compile are fewer.
const PLACES: usize = 16;

/// How long to wait before something that failed is tried again: at first, and at most. Each failure doubles it.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
}

impl Backoff {
    /// Of versions that failed for a passing reason.
    pub const PREPARE: Self = Self { first: Duration::from_secs(5), longest: Duration::from_mins(5) };

    /// The time until the next attempt, after one and this many more failed.
    #[must_use]
    pub fn delay(self, more: u32) -> Duration {
        self.first.saturating_mul(2_u32.saturating_pow(more)).min(self.longest)
    }
}

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
        let places = || Arc::new(Semaphore::new(PLACES));
        Self { preparer, with_modules: places(), without: places() }
    }

    #[must_use]
    pub fn preparer(&self) -> &Preparer {
        &self.preparer
    }

    /// Prepares in the background; `done` gets the result. See [`Preparer::prepare`].
    pub fn start(
        &self,
        policy: PolicyId,
        spec: PolicySpec,
        scope: Scope,
        source: ModuleSource,
        is_known: bool,
        done: impl FnOnce(Result<Prepared, PrepareError>) + Send + 'static,
    ) {
        let places = if module_references(&spec.program).is_empty() { &self.without } else { &self.with_modules };
        let (preparer, places) = (Arc::clone(&self.preparer), Arc::clone(places));
        tokio::spawn(async move {
            let Ok(_place) = places.acquire_owned().await else { return };
            // In a task of its own, so that a panic is a version that does not work.
            let preparing =
                tokio::spawn(async move { preparer.prepare(&policy, &spec, scope, &source, is_known).await });
            done(preparing.await.unwrap_or_else(|panic| Err(PrepareError::Stopped(panic.to_string()))));
        });
    }
}
