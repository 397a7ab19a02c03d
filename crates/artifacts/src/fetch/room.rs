//! Room in memory for modules that come from servers, from when one begins to arrive until it is compiled: a few that
//! are as large as they may be, or many of the usual size, and never all of the memory.

use std::sync::Arc;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// The modules of the largest size that may be here at once.
const LARGEST: u64 = 2;
const MIB: u64 = 1 << 20;

/// The memory for all modules.
#[derive(Debug)]
pub(super) struct Rooms {
    /// The size of the largest module, in bytes.
    largest: u64,
    /// A permit for each MiB.
    free: Arc<Semaphore>,
}

/// The room of one module. Its clones are of the same bytes.
#[derive(Clone, Debug)]
pub(crate) struct Room(#[allow(dead_code, reason = "it is given back when it is dropped")] Arc<OwnedSemaphorePermit>);

impl Rooms {
    /// Creates the memory for modules of at most `largest` bytes.
    pub(super) fn new(largest: u64) -> Self {
        let permits = usize::try_from(LARGEST * largest / MIB).unwrap_or(usize::MAX);
        Self { largest, free: Arc::new(Semaphore::new(permits)) }
    }

    /// Waits for room for a module of so many bytes.
    pub(super) async fn take(&self, bytes: u64) -> Result<Room, AcquireError> {
        let mib = u32::try_from(bytes.min(self.largest).div_ceil(MIB)).unwrap_or(u32::MAX);
        Arc::clone(&self.free).acquire_many_owned(mib).await.map(|permit| Room(Arc::new(permit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MAX_MODULE: u64 = 64 * MIB;

    #[tokio::test]
    async fn large_modules_wait_for_each_other_and_small_ones_for_nobody() {
        let rooms = Rooms::new(MAX_MODULE);
        let first = rooms.take(MAX_MODULE).await.unwrap();
        let small = rooms.take(3 * MIB).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(20), rooms.take(MAX_MODULE)).await.is_err());
        let clone = small.clone();
        drop((first, small));
        let second = rooms.take(u64::MAX).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(20), rooms.take(MAX_MODULE)).await.is_err());
        drop(clone);
        rooms.take(MAX_MODULE).await.unwrap();
        drop(second);
    }
}
