//! Compiling, bounded: as many at a time as there are CPUs, each within its time, and modules in a process of their own
//! whose memory is bounded, too. A module that is made to exhaust its compiler ends that process and nothing else.

mod error;
mod memory;
mod process;

use std::time::Duration;

use proviso_engines::CompileError;
use tokio::sync::{Semaphore, SemaphorePermit};

use memory::Memory;

pub use error::Uncompiled;
pub use process::{Order, carry_out};

/// Compiles sources and modules. Shared by all rollouts.
#[derive(Debug)]
pub struct Compilers {
    places: Semaphore,
    /// In bytes, of one instance: what is compiled depends on it.
    memory_limit: usize,
    memory: Memory,
    timeout: Duration,
}

impl Compilers {
    /// For instances with so many bytes of memory; compiling a module may take so many MiB, and compiling anything so long.
    #[must_use]
    pub fn new(memory_limit: usize, compile_memory: u32, timeout: Duration) -> Self {
        let places = std::thread::available_parallelism().map_or(2, usize::from);
        Self { places: Semaphore::new(places), memory_limit, memory: Memory::new(compile_memory), timeout }
    }

    /// Compiles a source in this process, off its async workers.
    ///
    /// # Errors
    /// When it does not compile, or not within its time.
    pub async fn source<T: Send + 'static>(
        &self,
        compile: impl FnOnce() -> Result<T, CompileError> + Send + 'static,
    ) -> Result<T, Uncompiled> {
        let _place = self.place().await?;
        match tokio::time::timeout(self.timeout, tokio::task::spawn_blocking(compile)).await {
            Ok(Ok(result)) => Ok(result?),
            Ok(Err(stopped)) => Err(Uncompiled::Stopped(stopped.to_string())),
            Err(_) => Err(Uncompiled::Timeout(self.timeout)),
        }
    }

    /// Compiles a module in a process of its own.
    ///
    /// # Errors
    /// When it does not compile, or not within its time and its memory.
    pub async fn module(&self, wasm: &[u8]) -> Result<Vec<u8>, Uncompiled> {
        let share = self.memory.share(wasm.len()).await.map_err(|closed| Uncompiled::Stopped(closed.to_string()))?;
        let _place = self.place().await?;
        let order = Order { memory_limit: self.memory_limit, compile_memory: share.mib, timeout: self.timeout };
        let timeout = Err(Uncompiled::Timeout(self.timeout));
        let result = tokio::time::timeout(self.timeout, order.give(wasm)).await.unwrap_or(timeout);
        result.map_err(|error| match error {
            // More is to be had for larger modules only.
            Uncompiled::Memory(mib) if mib < self.memory.most => Uncompiled::Bomb(mib),
            error => error,
        })
    }

    async fn place(&self) -> Result<SemaphorePermit<'_>, Uncompiled> {
        // Nobody closes it.
        self.places.acquire().await.map_err(|closed| Uncompiled::Stopped(closed.to_string()))
    }
}
