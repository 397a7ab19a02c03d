//! Async access to the cache: runs outside the async workers, and does not wait for a stalled disk. A read from an NFS server
//! that is gone can block for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::cache::{Cache, CacheError};

/// The time limit for an access to the disk. An access that takes longer continues without its caller.
const DISK_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of threads that a stalled disk may block. Further accesses fail at once.
const MAX_STALLED_THREADS: usize = 4;

/// A cache on a disk that may stall. Clones share it.
#[derive(Clone, Debug)]
pub struct Volume {
    cache: Arc<Cache>,
    stalled_threads: Arc<AtomicUsize>,
    timeout: Duration,
}

impl Volume {
    #[must_use]
    pub fn new(cache: Cache) -> Self {
        Self { cache: Arc::new(cache), stalled_threads: Arc::default(), timeout: DISK_TIMEOUT }
    }

    /// Runs `work` with the cache on a blocking thread.
    ///
    /// # Errors
    /// Returns the error of `work`, or [`CacheError::Stalled`] if `work` takes longer than 10 s, or at once while 4 threads are
    /// stalled.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Cache) -> Result<T, CacheError> + Send + 'static,
    ) -> Result<T, CacheError> {
        let stalled = || CacheError::Stalled(self.cache.folder().to_owned());
        if self.stalled_threads.load(Ordering::Relaxed) >= MAX_STALLED_THREADS {
            return Err(stalled());
        }
        let cache = Arc::clone(&self.cache);
        let mut working = tokio::task::spawn_blocking(move || work(&cache));
        match tokio::time::timeout(self.timeout, &mut working).await {
            Ok(Ok(result)) => result,
            Ok(Err(stopped)) => Err(CacheError::Stopped(stopped.to_string())),
            Err(_) => {
                let stalled_threads = Arc::clone(&self.stalled_threads);
                stalled_threads.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    let _ = working.await;
                    stalled_threads.fetch_sub(1, Ordering::Relaxed);
                });
                Err(stalled())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn a_stalled_disk_blocks_no_caller_and_is_used_again_when_it_recovers() {
        let folder = tempfile::tempdir().unwrap();
        let volume = Volume::new(Cache::open(folder.path()).unwrap());
        assert_eq!(volume.run(|_| Ok(1)).await.unwrap(), 1);
        let volume = Volume { timeout: Duration::from_millis(20), ..volume };
        let mut releases = Vec::new();
        for _ in 0..MAX_STALLED_THREADS {
            let (release, wait) = mpsc::channel::<()>();
            let stuck = volume.run(move |_| {
                let _ = wait.recv();
                Ok(())
            });
            assert!(matches!(stuck.await, Err(CacheError::Stalled(_))));
            releases.push(release);
        }
        let untried =
            volume.run(|_| -> Result<(), _> { panic!("an access ran while the maximum number of threads is stalled") });
        assert!(matches!(untried.await, Err(CacheError::Stalled(_))));
        drop(releases);
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while volume.run(|_| Ok(())).await.is_err() {
            assert!(std::time::Instant::now() < deadline, "the disk recovered and is not used");
            tokio::task::yield_now().await;
        }
    }
}
