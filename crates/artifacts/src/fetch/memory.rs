//! The memory budget of modules from servers. A module holds a part of the budget from its download until it is compiled,
//! so that concurrent downloads do not exhaust the memory.

use std::sync::Arc;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// The number of modules of the maximum size that the budget covers.
const MAX_LARGE_MODULES: u64 = 2;
const MIB: u64 = 1 << 20;

/// The memory budget of all modules.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    /// The maximum size of a module, in bytes.
    max_module: u64,
    /// The free memory: one permit for each MiB.
    free: Arc<Semaphore>,
}

/// The part of the budget that one module holds. Clones share it; the last drop returns it.
#[derive(Clone, Debug)]
pub(crate) struct MemoryPermit(#[allow(dead_code, reason = "the drop returns the permit")] Arc<OwnedSemaphorePermit>);

impl MemoryBudget {
    /// Creates a budget for modules of at most `max_module` bytes.
    pub(super) fn new(max_module: u64) -> Self {
        let permits = usize::try_from(MAX_LARGE_MODULES * max_module / MIB).unwrap_or(usize::MAX);
        Self { max_module, free: Arc::new(Semaphore::new(permits)) }
    }

    /// Waits for memory for a module of `bytes` bytes.
    pub(super) async fn acquire(&self, bytes: u64) -> Result<MemoryPermit, AcquireError> {
        let mib = u32::try_from(bytes.min(self.max_module).div_ceil(MIB)).unwrap_or(u32::MAX);
        Arc::clone(&self.free).acquire_many_owned(mib).await.map(|permit| MemoryPermit(Arc::new(permit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MAX_MODULE: u64 = 64 * MIB;

    #[tokio::test]
    async fn large_modules_wait_for_memory_and_small_modules_do_not() {
        let budget = MemoryBudget::new(MAX_MODULE);
        let first = budget.acquire(MAX_MODULE).await.unwrap();
        let small = budget.acquire(3 * MIB).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(20), budget.acquire(MAX_MODULE)).await.is_err());
        let clone = small.clone();
        drop((first, small));
        let second = budget.acquire(u64::MAX).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(20), budget.acquire(MAX_MODULE)).await.is_err());
        drop(clone);
        budget.acquire(MAX_MODULE).await.unwrap();
        drop(second);
    }
}
