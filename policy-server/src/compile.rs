//! Compilation of sources and modules with limits: one compilation per CPU at a time, and at least two, each with a time limit.
//! Policies and namespaces take turns. Each module is compiled in a child process with a memory limit. A module that exhausts its
//! compiler ends that process and nothing else.

mod error;
mod memory;
mod process;

use std::time::Duration;

use proviso_core::PolicyId;
use proviso_engines::CompileError;
use proviso_engines::wasm::SnapshotMode;
use proviso_shares::{Account, Limits, Permit, Rank, Shares};

use crate::container::Container;
use memory::MemoryBudget;

pub use error::CompileFailure;
use process::CompileJob;

pub use process::run_compile_job;

/// The purpose of compiling a module, which determines the share of the compilers.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    /// A policy needs the module.
    Policy(&'a PolicyId),
    /// The shared cache lacks the compiled form of a loaded module. All policies come first.
    Cache,
}

impl Purpose<'_> {
    fn account(self, shares: &Shares) -> Account {
        match self {
            Self::Policy(policy) => shares.account(policy.as_str(), policy.namespace(), Rank::Live),
            // No policy id is empty.
            Self::Cache => shares.account("", None, Rank::Background),
        }
    }
}

/// The compilers of sources and modules, shared by all preparations.
#[derive(Debug)]
pub struct Compilers {
    permits: Shares,
    /// The memory limit of one wasm instance, in bytes. The compiled code depends on it.
    memory_limit: usize,
    memory: MemoryBudget,
    timeout: Duration,
}

impl Compilers {
    /// Makes compilers for wasm instances of `memory_limit` bytes. Compiling a module may take `compile_memory` MiB, and
    /// compiling a module or a source may take `timeout`.
    #[must_use]
    pub fn new(memory_limit: usize, compile_memory: u32, timeout: Duration, container: Container) -> Self {
        // At least two, so that one policy cannot keep the others waiting.
        let permits = Shares::new(Limits::of(u64::try_from(container.cpus).unwrap_or(1).max(2)));
        Self { permits, memory_limit, memory: MemoryBudget::new(compile_memory, container.memory), timeout }
    }

    /// Compiles a source in this process, on a blocking thread, within the memory limit of an evaluation. A compilation that does not
    /// end in time keeps its permit until it ends.
    ///
    /// # Errors
    /// Returns an error if the source does not compile, or not within the time limit.
    pub async fn source<T: Send + 'static>(
        &self,
        policy: &PolicyId,
        compile: impl FnOnce() -> Result<T, CompileError> + Send + 'static,
    ) -> Result<T, CompileFailure> {
        let permit = self.acquire_permit(Purpose::Policy(policy)).await;
        let compile = move || {
            let _permit = permit;
            compile()
        };
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
    pub async fn module(
        &self,
        purpose: Purpose<'_>,
        wasm: &[u8],
        snapshot: SnapshotMode,
    ) -> Result<Vec<u8>, CompileFailure> {
        let memory = self.memory.acquire(purpose, wasm.len()).await;
        let _permit = self.acquire_permit(purpose).await;
        let job =
            CompileJob { memory_limit: self.memory_limit, compile_memory: memory.mib, timeout: self.timeout, snapshot };
        job.start(wasm).await.map_err(|error| match error {
            // A larger module would have a higher memory limit.
            CompileFailure::Memory(mib) if mib < self.memory.max_per_module => CompileFailure::Bomb(mib),
            error => error,
        })
    }

    /// Returns the memory limit of one evaluation, in bytes: of a wasm instance and of an interpreted program.
    #[must_use]
    pub fn memory_limit(&self) -> usize {
        self.memory_limit
    }

    async fn acquire_permit(&self, purpose: Purpose<'_>) -> Permit {
        purpose.account(&self.permits).take(1).await
    }
}
