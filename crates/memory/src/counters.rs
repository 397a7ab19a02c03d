//! The allocator's counters of one thread.

use tikv_jemalloc_ctl::thread::{self, ThreadLocal};

/// The bytes that the thread has allocated and freed since its start.
struct Counters {
    allocated: ThreadLocal<u64>,
    deallocated: ThreadLocal<u64>,
}

thread_local! {
    static COUNTERS: Option<Counters> = Counters::read();
}

impl Counters {
    /// Returns the counters; `None` if the allocator was built without them.
    fn read() -> Option<Self> {
        Some(Self { allocated: thread::allocatedp::read().ok()?, deallocated: thread::deallocatedp::read().ok()? })
    }
}

/// Returns the bytes that the thread has allocated and not freed. Negative if it has freed memory of other threads.
#[inline]
pub(crate) fn live_bytes() -> i64 {
    COUNTERS.with(|counters| {
        let Some(counters) = counters else { return 0 };
        counters.allocated.get().wrapping_sub(counters.deallocated.get()).cast_signed()
    })
}
