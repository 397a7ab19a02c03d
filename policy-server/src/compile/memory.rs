//! The memory limits of the processes that compile modules. The limit of each process follows from the size of its module. All
//! processes together leave half of the container's memory to the server, because the kernel kills everything in a container that
//! runs out of memory.

use proviso_shares::{Limits, Permit, Shares};

use super::Purpose;

/// The memory of a compiler for an empty module, in MiB.
const BASE_MIB: u32 = 128;
/// The memory for each byte of a module, in bytes. Measured: 40 for a Go module; 180 for a module of a single function, but
/// compilers write such modules only where they are small; 100,000 for a module that was written to exhaust the compiler.
const BYTES_PER_MODULE_BYTE: u32 = 128;
/// The minimum of the memory of all compilers together, in MiB. With less, no module compiles.
const MIN_TOTAL_MIB: u32 = 128;

/// The memory of all compilers, in MiB.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    shares: Shares,
    /// The maximum for one module.
    pub max_per_module: u32,
}

/// The memory of one compiler. Dropping the permit returns the memory to the budget.
#[derive(Debug)]
pub(super) struct MemoryPermit {
    pub mib: u32,
    _permit: Permit,
}

impl MemoryBudget {
    /// Makes a budget within the memory limit of a container, in bytes (`None` means no limit), in which one module may take at
    /// most `max_per_module` MiB.
    pub(super) fn new(max_per_module: u32, limit: Option<u64>) -> Self {
        // The other half is for the server.
        let half = limit.map_or(u32::MAX, |bytes| u32::try_from(bytes >> 21).unwrap_or(u32::MAX));
        let total = max_per_module.saturating_mul(2).min(half).max(MIN_TOTAL_MIB);
        Self { shares: Shares::new(Limits::of(total.into())), max_per_module: max_per_module.min(total) }
    }

    /// Waits for the memory to compile a module of this size in bytes. The namespaces take turns.
    pub(super) async fn acquire(&self, purpose: Purpose<'_>, module: usize) -> MemoryPermit {
        let mib = self.limit_for(module);
        MemoryPermit { mib, _permit: purpose.account(&self.shares).take(mib.into()).await }
    }

    fn limit_for(&self, module: usize) -> u32 {
        let size = u32::try_from(module.div_ceil(1 << 20)).unwrap_or(u32::MAX);
        size.saturating_mul(BYTES_PER_MODULE_BYTE).saturating_add(BASE_MIB).min(self.max_per_module)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn compilers_get_at_most_half_of_the_memory_of_the_container() {
        let memory = MemoryBudget::new(1024, None);
        assert_eq!([0, 150_000, 3 * MIB, 64 * MIB].map(|module| memory.limit_for(module)), [128, 256, 512, 1024]);
        assert_eq!(memory.shares.limits().total, 2048);
        let small = MemoryBudget::new(1024, Some(512 << 20));
        assert_eq!([150_000, 3 * MIB, 64 * MIB].map(|module| small.limit_for(module)), [256, 256, 256]);
        assert_eq!(small.shares.limits().total, 256);
        assert_eq!(MemoryBudget::new(1024, Some(64 << 20)).shares.limits().total, 128);
        assert_eq!(MemoryBudget::new(u32::MAX, Some(u64::MAX)).max_per_module, u32::MAX);
    }
}
