//! The memory of the whole process, compared with the limit of its container: the last resort if many evaluations grow at once.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

/// The limit of the process, in bytes; `u64::MAX` means no limit.
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

/// Sets the memory limit of the process in bytes, usually that of its container. Work whose memory grows while the process takes
/// more than 80 % of this limit fails. `None` means no limit.
pub fn set_process_limit(limit: Option<u64>) {
    LIMIT.store(limit.unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Returns the limit if the process takes more than 80 % of it.
pub(crate) fn exceeded_limit() -> Option<u64> {
    let limit = LIMIT.load(Ordering::Relaxed);
    if limit == u64::MAX {
        return None;
    }
    (resident()? > limit / 5 * 4).then_some(limit)
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> Option<u64> {
    let pages: u64 = fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(rustix::param::page_size() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_memory_is_known() {
        assert!((1 << 20..1 << 40).contains(&resident().unwrap()));
    }
}
