//! The cache as async code uses it: off its workers, and without waiting for a disk that stalls. An NFS server that is
//! gone holds whoever reads from it for as long as it pleases.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::cache::{Cache, CacheError};

/// How long to wait for the disk. What takes longer goes on, and nobody waits for it.
const PATIENCE: Duration = Duration::from_secs(10);
/// While this many threads are held by the disk, no more are sent there.
const MOST_HELD: usize = 4;

/// A cache on a disk that may stall. Clones share it.
#[derive(Clone, Debug)]
pub struct Volume {
    cache: Arc<Cache>,
    held: Arc<AtomicUsize>,
    patience: Duration,
}

impl Volume {
    #[must_use]
    pub fn new(cache: Cache) -> Self {
        Self { cache: Arc::new(cache), held: Arc::default(), patience: PATIENCE }
    }

    /// Does something with the cache.
    ///
    /// # Errors
    /// What the cache says; [`CacheError::Stalled`] if it says nothing for 10 s, or at once while several others wait.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Cache) -> Result<T, CacheError> + Send + 'static,
    ) -> Result<T, CacheError> {
        let stalled = || CacheError::Stalled(self.cache.folder().to_owned());
        if self.held.load(Ordering::Relaxed) >= MOST_HELD {
            return Err(stalled());
        }
        let cache = Arc::clone(&self.cache);
        let mut working = tokio::task::spawn_blocking(move || work(&cache));
        match tokio::time::timeout(self.patience, &mut working).await {
            Ok(Ok(result)) => result,
            Ok(Err(stopped)) => Err(CacheError::Stopped(stopped.to_string())),
            Err(_) => {
                let held = Arc::clone(&self.held);
                held.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    let _ = working.await;
                    held.fetch_sub(1, Ordering::Relaxed);
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
    async fn a_disk_that_stalls_holds_nobody_and_is_used_again_when_it_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let volume = Volume::new(Cache::open(folder.path()).unwrap());
        assert_eq!(volume.run(|_| Ok(1)).await.unwrap(), 1);
        let volume = Volume { patience: Duration::from_millis(20), ..volume };
        let mut releases = Vec::new();
        for _ in 0..MOST_HELD {
            let (release, wait) = mpsc::channel::<()>();
            let stuck = volume.run(move |_| {
                let _ = wait.recv();
                Ok(())
            });
            assert!(matches!(stuck.await, Err(CacheError::Stalled(_))));
            releases.push(release);
        }
        let untried = volume.run(|_| -> Result<(), _> { panic!("nobody is sent after those who wait") });
        assert!(matches!(untried.await, Err(CacheError::Stalled(_))));
        drop(releases);
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while volume.run(|_| Ok(())).await.is_err() {
            assert!(std::time::Instant::now() < deadline, "the disk goes on, and is not used");
            tokio::task::yield_now().await;
        }
    }
}
