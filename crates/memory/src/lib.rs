//! The allocator of Proviso's programs, and the memory limit of one piece of work: an evaluation or a compilation, which stays on
//! one thread. The allocator counts the bytes of each thread. The work calls [`check`] at its steps, and ends when a check fails. Some of
//! these steps are the pauses of [`with_pauses`].
//! See docs/adr/0024.

mod counters;
mod pauses;
mod process;

use std::cell::Cell;

pub use pauses::with_pauses;
pub use process::set_process_limit;

/// A program that links this crate has this allocator. A second allocator in the same program is a compile error.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The number of bytes by which a thread grows between two checks of the memory of the whole process.
const PROCESS_CHECK_INTERVAL: u64 = 4 << 20;

/// The error of work that takes more memory than its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    /// The work itself takes more than its limit.
    #[error("it takes more memory than its limit of {} MiB", .limit >> 20)]
    Limit {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The work grows while the process has hardly any memory left. Without this error, the kernel would kill the process.
    #[error("the process has no memory left for it: of its limit of {} MiB, 80 % are in use", .limit >> 20)]
    Process {
        /// The memory limit of the container, in bytes.
        limit: u64,
    },
}

/// The limit of the work that runs on this thread.
#[derive(Clone, Copy)]
struct Scope {
    /// The live bytes of the thread when the work began.
    baseline: i64,
    limit: u64,
    /// The limit that an error names: of the outermost work whose limit is not larger.
    named: u64,
    /// The usage at which the memory of the process is checked again.
    next_process_check: u64,
    exceeded: Option<Exceeded>,
}

thread_local! {
    static SCOPE: Cell<Option<Scope>> = const { Cell::new(None) };
}

/// Restores the limit of the enclosing work, also after a panic.
struct Restore(Option<Scope>);

impl Drop for Restore {
    fn drop(&mut self) {
        SCOPE.set(self.0);
    }
}

/// Runs work that may take at most `limit` bytes of memory on this thread. If the thread has a limit already, the lower of the two
/// applies.
///
/// # Errors
/// [`Exceeded`] if a check of the work has failed, whatever the work returns: its result may be incomplete.
pub fn with_limit<T>(limit: usize, work: impl FnOnce() -> T) -> Result<T, Exceeded> {
    let outer = SCOPE.get();
    let baseline = counters::live_bytes();
    let left = outer.map_or(u64::MAX, |outer| outer.limit.saturating_sub(used(&outer, baseline)));
    let own = u64::try_from(limit).unwrap_or(u64::MAX);
    let (limit, named) = match outer {
        Some(outer) if left < own => (left, outer.named),
        _ => (own, own),
    };
    let restore = Restore(outer);
    SCOPE.set(Some(Scope { baseline, limit, named, next_process_check: PROCESS_CHECK_INTERVAL, exceeded: None }));
    let result = work();
    // The work may have grown since its last check.
    let checked = check();
    drop(restore);
    checked.map(|()| result)
}

/// Checks the memory of the work that runs on this thread. After the first failure every check fails, so that work which ignores
/// one failure ends at the next check. Takes a few nanoseconds.
///
/// # Errors
/// [`Exceeded`] if the work takes more memory than its limit, or the process has no memory left.
#[inline]
pub fn check() -> Result<(), Exceeded> {
    let Some(scope) = SCOPE.get() else { return Ok(()) };
    pauses::count_step();
    if let Some(exceeded) = scope.exceeded {
        return Err(exceeded);
    }
    let used = used(&scope, counters::live_bytes());
    if used <= scope.limit && used < scope.next_process_check {
        return Ok(());
    }
    check_slowly(scope, used)
}

#[cold]
fn check_slowly(scope: Scope, used: u64) -> Result<(), Exceeded> {
    let exceeded = if used > scope.limit {
        Some(Exceeded::Limit { limit: scope.named })
    } else {
        process::exceeded_limit().map(|limit| Exceeded::Process { limit })
    };
    let next_process_check = used.saturating_add(PROCESS_CHECK_INTERVAL);
    SCOPE.set(Some(Scope { next_process_check, exceeded, ..scope }));
    exceeded.map_or(Ok(()), Err)
}

/// Returns the bytes that the work takes; zero if it has freed more than it has allocated.
fn used(scope: &Scope, live: i64) -> u64 {
    u64::try_from(live.saturating_sub(scope.baseline)).unwrap_or(0)
}

/// Returns freed memory to the kernel in the background. Without this, a thread returns memory only when it allocates again, so
/// an idle server would keep the memory of its largest evaluation.
pub fn return_freed_memory() {
    // The allocator works without its background threads too.
    let _ = tikv_jemalloc_ctl::background_thread::write(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn work_within_its_limit_has_a_result() {
        let lengths = with_limit(8 * MIB, || (0..100).map(|_| vec![0_u8; 4 * MIB].len()).sum::<usize>());
        assert_eq!(lengths, Ok(400 * MIB), "freed memory does not count");
    }

    #[test]
    fn work_fails_at_the_first_check_beyond_its_limit() {
        let mut blocks = Vec::new();
        let result = with_limit(8 * MIB, || {
            while check().is_ok() {
                blocks.push(vec![0_u8; MIB]);
            }
            blocks.len()
        });
        assert_eq!(result, Err(Exceeded::Limit { limit: 8 << 20 }));
        assert!((8..10).contains(&blocks.len()), "{} MiB", blocks.len());
        assert_eq!(check(), Ok(()), "the thread has no limit after the work");
    }

    #[test]
    fn ignoring_a_failed_check_is_of_no_use() {
        let result = with_limit(MIB, || {
            let large = vec![0_u8; 2 * MIB];
            let failed = check().is_err();
            drop(large);
            (failed, check().is_err())
        });
        assert_eq!(result, Err(Exceeded::Limit { limit: 1 << 20 }));
    }

    #[test]
    fn memory_from_before_the_work_does_not_count() {
        let before = vec![0_u8; 64 * MIB];
        let result = with_limit(MIB, || {
            drop(before);
            vec![0_u8; MIB / 2].len()
        });
        assert_eq!(result, Ok(MIB / 2));
    }

    /// Takes 4 MiB until after a check.
    fn exceed() {
        let large = vec![0_u8; 4 * MIB];
        let _ = check();
        drop(large);
    }

    #[test]
    fn nested_work_has_what_is_left_of_the_outer_limit() {
        let result = with_limit(8 * MIB, || {
            let outer = vec![0_u8; 6 * MIB];
            (outer.len(), with_limit(100 * MIB, || vec![0_u8; 1].len()), with_limit(100 * MIB, exceed))
        });
        let exceeded = Err(Exceeded::Limit { limit: 8 << 20 });
        assert_eq!(result, Ok((6 * MIB, Ok(1), exceeded)));
    }

    #[test]
    fn a_panic_restores_the_limit_of_the_thread() {
        let result = std::panic::catch_unwind(|| with_limit(MIB, || panic!("boom")));
        assert!(result.is_err());
        let _large = vec![0_u8; 2 * MIB];
        assert_eq!(check(), Ok(()));
    }

    #[test]
    fn another_threads_memory_does_not_count() {
        let result = with_limit(MIB, || {
            let other = std::thread::scope(|scope| scope.spawn(|| vec![0_u8; 16 * MIB].len()).join());
            (other.ok(), check())
        });
        assert_eq!(result, Ok((Some(16 * MIB), Ok(()))));
    }

    #[test]
    fn an_error_names_the_limit() {
        let text = Exceeded::Limit { limit: 128 << 20 }.to_string();
        assert_eq!(text, "it takes more memory than its limit of 128 MiB");
    }
}
