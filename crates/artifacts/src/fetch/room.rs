//! Room in memory for modules that come from servers, from when one begins to arrive until it is compiled: a few that
//! are as large as they may be, or many of the usual size, and never all of the memory.

use std::sync::Arc;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use crate::module::MAX_MODULE;

/// The modules of the largest size that may be here at once.
const LARGEST: u64 = 2;
const MIB: u64 = 1 << 20;

/// The room for all modules.
#[derive(Debug)]
pub(super) struct Rooms(Arc<Semaphore>);

/// The room of one module. Its clones are of the same bytes.
#[derive(Clone, Debug)]
pub(crate) struct Room(#[allow(dead_code, reason = "it is given back when it is dropped")] Arc<OwnedSemaphorePermit>);

impl Rooms {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(usize::try_from(LARGEST * MAX_MODULE / MIB).unwrap_or(usize::MAX))))
    }

    /// Waits for room for so many bytes, at most [`MAX_MODULE`].
    pub(super) async fn take(&self, bytes: u64) -> Result<Room, AcquireError> {
        let mib = u32::try_from(bytes.min(MAX_MODULE).div_ceil(MIB)).unwrap_or(u32::MAX);
        Arc::clone(&self.0).acquire_many_owned(mib).await.map(|permit| Room(Arc::new(permit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn large_modules_wait_for_each_other_and_small_ones_for_nobody() {
        let rooms = Rooms::new();
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
