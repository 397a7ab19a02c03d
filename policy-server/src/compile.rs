//! Compilation of sources and modules with limits: one compilation per CPU at a time, each with a time limit. Each module is
//! compiled in a child process with a memory limit. A module that exhausts its compiler ends that process and nothing else.

mod error;
mod memory;
mod process;

use std::time::Duration;

use proviso_engines::CompileError;
use proviso_engines::wasm::SnapshotMode;
use tokio::sync::{Semaphore, SemaphorePermit};

use memory::MemoryBudget;

pub use error::CompileFailure;
pub use process::{CompileJob, run_compile_job};

/// The compilers of sources and modules, shared by all preparations.
#[derive(Debug)]
pub struct Compilers {
    permits: Semaphore,
    /// The memory limit of one wasm instance, in bytes. The compiled code depends on it.
    memory_limit: usize,
    memory: MemoryBudget,
    timeout: Duration,
}

impl Compilers {
    /// Makes compilers for wasm instances of `memory_limit` bytes. Compiling a module may take `compile_memory` MiB, and
    /// compiling a module or a source may take `timeout`.
    #[must_use]
    pub fn new(memory_limit: usize, compile_memory: u32, timeout: Duration) -> Self {
        let permits = std::thread::available_parallelism().map_or(2, usize::from);
        Self { permits: Semaphore::new(permits), memory_limit, memory: MemoryBudget::new(compile_memory), timeout }
    }

    /// Compiles a source in this process, on a blocking thread.
    ///
    /// # Errors
    /// Returns an error if the source does not compile, or not within the time limit.
    pub async fn source<T: Send + 'static>(
        &self,
        compile: impl FnOnce() -> Result<T, CompileError> + Send + 'static,
    ) -> Result<T, CompileFailure> {
        let _permit = self.acquire_permit().await?;
        match tokio::time::timeout(self.timeout, tokio::task::spawn_blocking(compile)).await {
            Ok(Ok(result)) => Ok(result?),
            Ok(Err(stopped)) => Err(CompileFailure::Stopped(stopped.to_string())),
            Err(_) => Err(CompileFailure::Timeout(self.timeout)),
        }
    }

    /// Compiles a module in a child process.
    ///
    /// # Errors
    /// Returns an error if the module does not compile, or not within the time and memory limits.
    pub async fn module(&self, wasm: &[u8], snapshot: SnapshotMode) -> Result<Vec<u8>, CompileFailure> {
        let memory = self.memory.acquire(wasm.len()).await;
        let memory = memory.map_err(|closed| CompileFailure::Stopped(closed.to_string()))?;
        let _permit = self.acquire_permit().await?;
        let job =
            CompileJob { memory_limit: self.memory_limit, compile_memory: memory.mib, timeout: self.timeout, snapshot };
        let timeout = Err(CompileFailure::Timeout(self.timeout));
        let result = tokio::time::timeout(self.timeout, job.start(wasm)).await.unwrap_or(timeout);
        result.map_err(|error| match error {
            // A larger module would have a higher memory limit.
            CompileFailure::Memory(mib) if mib < self.memory.max_per_module => CompileFailure::Bomb(mib),
            error => error,
        })
    }

    async fn acquire_permit(&self) -> Result<SemaphorePermit<'_>, CompileFailure> {
        // The semaphore is never closed.
        self.permits.acquire().await.map_err(|closed| CompileFailure::Stopped(closed.to_string()))
    }
}
