//! The memory limit of interpreted programs. regorus and cel have no limit for one evaluation: the allocator counts the memory of
//! the thread, and the interpreters check it at their steps (docs/adr/0024). A wasm module has its own limit:
//! `wasm::Config::memory_limit`.

use std::sync::Once;

use crate::{CompileError, EvaluationError};

/// The memory limit of an evaluation without a configured limit, in bytes: as for a wasm module.
pub const DEFAULT_MEMORY_LIMIT: usize = 128 << 20;
const PROGRAM_REMEDY: &str = "make the program smaller, or raise evaluation.memoryLimitMiB of the PolicyServer";

/// Runs one evaluation within its memory limit, in bytes.
pub(crate) fn evaluate<T>(
    limit: usize,
    work: impl FnOnce() -> Result<T, EvaluationError>,
) -> Result<T, EvaluationError> {
    within(limit, PROGRAM_REMEDY, work).unwrap_or_else(|why| Err(EvaluationError::Failed(why)))
}

/// Runs a compilation within a memory limit, in bytes. The source and the values of its trial evaluation count.
pub(crate) fn compile<T>(limit: usize, work: impl FnOnce() -> Result<T, CompileError>) -> Result<T, CompileError> {
    within(limit, PROGRAM_REMEDY, work).unwrap_or_else(|why| Err(CompileError::Invalid(format!("compiling it: {why}"))))
}

/// Runs work within a memory limit, in bytes. `remedy` says how the author of the program gets below the limit.
///
/// # Errors
/// The message about the limit.
pub(crate) fn within<T>(limit: usize, remedy: &str, work: impl FnOnce() -> T) -> Result<T, String> {
    have_regorus_check();
    proviso_memory::with_limit(limit, work).map_err(|exceeded| match exceeded {
        proviso_memory::Exceeded::Limit { .. } => format!("{exceeded}: {remedy}"),
        proviso_memory::Exceeded::Process { .. } => {
            format!("{exceeded}: try again, or raise the container's memory limit")
        }
    })
}

/// Has regorus ask for its memory at each step. This limit of regorus is global, and not the limit of an evaluation.
fn have_regorus_check() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| regorus::utils::limits::set_global_memory_limit(Some(regorus_mimalloc::REGORUS_LIMIT)));
}
