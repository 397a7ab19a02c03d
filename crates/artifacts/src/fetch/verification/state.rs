//! The state of the verification: the files of its settings, the modules that were verified, and a limit of concurrency.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use crate::cache::Verified;
use crate::digest::Digest;
use crate::fetch::blocking::blocking;
use crate::fetch::error::FetchError;

/// The number of verifications at the same time. A verification computes, and goes on when its caller is dropped.
const VERIFICATIONS: usize = 4;

/// The settings and the results of the verification.
#[derive(Debug)]
pub(in crate::fetch) struct Verifying {
    /// The file with the signatures that modules need; `None` if they need none.
    pub(super) verification: Option<PathBuf>,
    /// The file with the trusted root.
    pub(super) root: Option<PathBuf>,
    /// The modules that this process has verified.
    known: Mutex<HashMap<Digest, Verified>>,
    places: Arc<Semaphore>,
}

impl Default for Verifying {
    fn default() -> Self {
        Self::new(None, None)
    }
}

impl Verifying {
    pub(super) fn new(verification: Option<PathBuf>, root: Option<PathBuf>) -> Self {
        let places = Arc::new(Semaphore::new(VERIFICATIONS));
        Self { verification, root, known: Mutex::default(), places }
    }

    /// Returns what this process verified `module` against.
    pub(super) fn known(&self, module: &Digest) -> Option<Verified> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(module).copied()
    }

    /// Remembers that `module` was verified.
    pub(super) fn remember(&self, module: Digest, verified: Verified) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(module, verified);
    }

    /// Runs `work` on a blocking thread, as soon as fewer than the maximum of verifications run.
    pub(super) async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, FetchError> {
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.map_err(|closed| FetchError::Stopped(closed.to_string()))?;
        let computing = move || {
            let _place = place;
            Ok(work())
        };
        blocking(computing).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// The runtime has this thread only: what computed on it would keep the test from going on.
    #[tokio::test]
    async fn verifications_hold_up_nobody_and_only_so_many_run_at_once() {
        let verifying = Arc::new(Verifying::default());
        let (begun, beginnings) = mpsc::channel();
        let verify = |release: mpsc::Receiver<()>| {
            let (verifying, begun) = (Arc::clone(&verifying), begun.clone());
            let computing = move || {
                begun.send(()).unwrap();
                release.recv().is_err()
            };
            tokio::spawn(async move { verifying.compute(computing).await.unwrap() })
        };
        let (releases, running): (Vec<_>, Vec<_>) = (0..VERIFICATIONS)
            .map(|_| {
                let (release, released) = mpsc::channel::<()>();
                (release, verify(released))
            })
            .unzip();
        while verifying.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        for _ in 0..VERIFICATIONS {
            beginnings.recv_timeout(Duration::from_mins(1)).unwrap();
        }
        let last = {
            let (_, at_once) = mpsc::channel::<()>();
            verify(at_once)
        };
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(beginnings.try_recv().is_err(), "there is no place for one more");
        // Nobody waits for one that goes on all the same, and keeps its place.
        let mut running = running.into_iter();
        running.next().unwrap().abort();
        tokio::task::yield_now().await;
        assert_eq!(verifying.places.available_permits(), 0);
        drop(releases);
        assert!(last.await.unwrap());
        for verification in running {
            assert!(verification.await.unwrap());
        }
    }
}
