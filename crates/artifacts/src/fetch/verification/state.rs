//! The state of the verification: the paths of its settings, the verified modules, and a concurrency limit.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use crate::cache::VerificationRecord;
use crate::digest::Digest;
use crate::fetch::blocking::blocking;
use crate::fetch::error::FetchError;

/// The maximum number of concurrent verifications. A verification continues when the future of its caller is dropped.
const MAX_CONCURRENT_VERIFICATIONS: usize = 4;

/// The paths of the settings, and the verification records of this process.
#[derive(Debug)]
pub(in crate::fetch) struct VerificationState {
    /// The file with the required signatures; `None` if modules need no signatures.
    pub(super) settings: Option<PathBuf>,
    /// The file with the trusted root.
    pub(super) trusted_root: Option<PathBuf>,
    /// The verification records of the modules that this process has verified.
    known: Mutex<HashMap<Digest, VerificationRecord>>,
    permits: Arc<Semaphore>,
}

impl Default for VerificationState {
    fn default() -> Self {
        Self::new(None, None)
    }
}

impl VerificationState {
    pub(super) fn new(settings: Option<PathBuf>, trusted_root: Option<PathBuf>) -> Self {
        let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_VERIFICATIONS));
        Self { settings, trusted_root, known: Mutex::default(), permits }
    }

    /// Returns the verification record of `module`; `None` if this process has not verified it.
    pub(super) fn known(&self, module: &Digest) -> Option<VerificationRecord> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(module).copied()
    }

    /// Records that `module` was verified.
    pub(super) fn remember(&self, module: Digest, verified: VerificationRecord) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(module, verified);
    }

    /// Runs `work` on a blocking thread, after a wait while the maximum number of verifications runs.
    pub(super) async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, FetchError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|closed| FetchError::Stopped(closed.to_string()))?;
        let computing = move || {
            let _permit = permit;
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

    /// The runtime has one thread only: a verification on this thread would block the test.
    #[tokio::test]
    async fn verifications_run_on_blocking_threads_up_to_a_limit() {
        let verification = Arc::new(VerificationState::default());
        let (started, starts) = mpsc::channel();
        let verify = |release: mpsc::Receiver<()>| {
            let (verification, started) = (Arc::clone(&verification), started.clone());
            let computing = move || {
                started.send(()).unwrap();
                release.recv().is_err()
            };
            tokio::spawn(async move { verification.compute(computing).await.unwrap() })
        };
        let (releases, running): (Vec<_>, Vec<_>) = (0..MAX_CONCURRENT_VERIFICATIONS)
            .map(|_| {
                let (release, released) = mpsc::channel::<()>();
                (release, verify(released))
            })
            .unzip();
        while verification.permits.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        for _ in 0..MAX_CONCURRENT_VERIFICATIONS {
            starts.recv_timeout(Duration::from_mins(1)).unwrap();
        }
        let last = {
            let (_, at_once) = mpsc::channel::<()>();
            verify(at_once)
        };
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(starts.try_recv().is_err(), "one more verification started above the limit");
        // A verification continues after its caller is dropped, and holds its permit until its end.
        let mut running = running.into_iter();
        running.next().unwrap().abort();
        tokio::task::yield_now().await;
        assert_eq!(verification.permits.available_permits(), 0);
        drop(releases);
        assert!(last.await.unwrap());
        for verification in running {
            assert!(verification.await.unwrap());
        }
    }
}
