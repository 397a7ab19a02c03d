//! Connects the memory checks of regorus with the limits of [`proviso_memory`]. regorus checks its memory at each step of its
//! interpreter, lexer and parser, and in builtins with many results, but knows only a limit for the whole process: one policy
//! would make the evaluations of others fail. This crate replaces the crate `regorus-mimalloc`, which counts for regorus, and
//! reports the memory of the evaluation on this thread instead. See docs/adr/0024.
//!
//! The names and the signatures are those of the replaced crate. regorus' virtual machine, whose functions are here too, is
//! not used.

/// The limit that regorus needs to have (`regorus::set_global_memory_limit`), so that it asks for the memory in use at all. The
/// memory in use that this crate reports is above this limit if the evaluation exceeds its own.
pub const REGORUS_LIMIT: u64 = 0;

/// regorus declares its allocator with this macro. [`proviso_memory`] declares the allocator of the program.
#[macro_export]
macro_rules! assign_global {
    () => {};
}

/// The memory in use, as regorus reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalAllocationStats {
    pub allocated: u64,
    pub peak: u64,
}

/// The memory of a thread. regorus does not read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadAllocationStats {
    pub allocated: i64,
    pub peak: i64,
}

/// Returns memory in use above [`REGORUS_LIMIT`] if the work on this thread exceeds its limit.
#[must_use]
pub fn allocation_stats_snapshot() -> (GlobalAllocationStats, ThreadAllocationStats) {
    let allocated = if proviso_memory::check().is_ok() { REGORUS_LIMIT } else { u64::MAX };
    (GlobalAllocationStats { allocated, peak: allocated }, ThreadAllocationStats::default())
}

/// Returns the live bytes of this thread. Only regorus' virtual machine calls this function.
#[must_use]
pub fn current_thread_live_bytes() -> i64 {
    0
}

pub mod limits {
    //! The functions that regorus calls at its steps.

    /// The memory of an execution in regorus' virtual machine.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MemoryBudgetUsage;

    impl MemoryBudgetUsage {
        #[must_use]
        pub const fn requested_bytes(self) -> u64 {
            0
        }

        #[must_use]
        pub const fn exceeds_limit(self, _limit: u64) -> bool {
            false
        }
    }

    #[must_use]
    pub fn current_memory_budget_usage() -> Option<MemoryBudgetUsage> {
        None
    }

    pub fn with_memory_budget_usage_scope<R>(
        _initial: Option<MemoryBudgetUsage>,
        _updated: &mut Option<MemoryBudgetUsage>,
        operation: impl FnOnce() -> R,
    ) -> R {
        operation()
    }

    pub fn with_unowned_memory_budget_scope<R>(operation: impl FnOnce() -> R) -> R {
        operation()
    }

    pub fn flush_thread_counters() {}

    pub fn set_thread_flush_threshold(_bytes: Option<u64>) {}

    #[must_use]
    pub fn thread_flush_threshold() -> Option<u64> {
        None
    }

    #[must_use]
    pub fn thread_allocation_pending_delta() -> i64 {
        0
    }

    /// Returns true if regorus has to compare its memory with the limit at this step, and not only at every sixteenth.
    #[must_use]
    pub fn take_thread_flushed_since_check_flag() -> bool {
        proviso_memory::check().is_err()
    }
}
