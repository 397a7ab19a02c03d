//! How much memory the processes that compile modules may have: each as much as its module makes plausible, and all
//! together no more than leaves the server alive. Where a container runs out of memory, everything in it is killed.

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

/// The memory of a compiler beside what its module costs, in MiB.
const BASE: u32 = 128;
/// What compiling may cost for each byte of a module. Measured: 40 for a Go module; 180 for one that is a single
/// function, which no compiler writes at a size where that matters; a hundred thousand for one that is made for it.
const FACTOR: u32 = 128;
/// The least that all get together, in MiB: with less nothing compiles.
const LEAST: u32 = 128;
/// Where the kernel says what this container may have: of cgroups version 2 and 1.
const LIMITS: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

#[derive(Debug)]
pub(super) struct Memory {
    /// In MiB, as all numbers here.
    free: Semaphore,
    total: u32,
    /// For one module.
    pub most: u32,
}

/// The memory of one compiler, until it is dropped.
#[derive(Debug)]
pub(super) struct Share<'a> {
    pub mib: u32,
    _permit: SemaphorePermit<'a>,
}

impl Memory {
    /// Lets one module have at most this many MiB.
    pub(super) fn new(most: u32) -> Self {
        let limit = LIMITS.iter().find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok());
        Self::within(most, limit)
    }

    /// Within a container of this many bytes.
    fn within(most: u32, limit: Option<u64>) -> Self {
        // The other half is for those who serve.
        let half = limit.map_or(u32::MAX, |bytes| u32::try_from(bytes >> 21).unwrap_or(u32::MAX));
        let total = most.saturating_mul(2).min(half).max(LEAST);
        Self { free: Semaphore::new(total as usize), total, most: most.min(total) }
    }

    /// Waits for the memory that compiling a module of this size may take.
    pub(super) async fn share(&self, module: usize) -> Result<Share<'_>, AcquireError> {
        let mib = self.of(module);
        Ok(Share { mib, _permit: self.free.acquire_many(mib.min(self.total)).await? })
    }

    fn of(&self, module: usize) -> u32 {
        let size = u32::try_from(module.div_ceil(1 << 20)).unwrap_or(u32::MAX);
        size.saturating_mul(FACTOR).saturating_add(BASE).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn a_module_gets_what_its_size_makes_plausible_and_all_leave_half_to_the_server() {
        let memory = Memory::within(1024, None);
        assert_eq!([0, 150_000, 3 * MIB, 64 * MIB].map(|module| memory.of(module)), [128, 256, 512, 1024]);
        assert_eq!(memory.total, 2048);
        let small = Memory::within(1024, Some(512 << 20));
        assert_eq!([150_000, 3 * MIB, 64 * MIB].map(|module| small.of(module)), [256, 256, 256]);
        assert_eq!(small.total, 256);
        assert_eq!(Memory::within(1024, Some(64 << 20)).total, 128);
        assert_eq!(Memory::within(u32::MAX, Some(u64::MAX)).most, u32::MAX);
    }
}
