//! The engine: the limits, imports and evaluation slots that all instances share.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime::Linker;

use super::abi::Abi;
use super::config::{Config, EngineError};
use super::snapshot_mode::SnapshotMode;
use super::state::State;
use super::ticker::Ticker;
use crate::{Deadline, EvaluationError, Shortage};

/// A part of [`Engine::key`]. Raise the number when [`Engine::precompile`] changes its output for the same module.
const CODE_FORMAT: &str = "proviso-wasm-3";

/// Compiles and runs modules under common limits. Clones share all state.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    wasmtime: wasmtime::Engine,
    /// One linker for each calling convention, in the order of [`Abi::ALL`].
    imports: [Linker<State>; Abi::ALL.len()],
    slots: Arc<Semaphore>,
    config: Config,
    key: String,
    ticker: Ticker,
}

impl Engine {
    /// Creates an engine with its own pool of instances and its own ticker thread.
    ///
    /// # Errors
    /// Returns [`EngineError::Configuration`] if a limit is out of range, [`EngineError::Pool`] if the address space for the
    /// pool cannot be reserved, and [`EngineError::Ticker`] if the ticker thread cannot be started.
    pub fn new(config: Config) -> Result<Self, EngineError> {
        let setup = |error: wasmtime::Error| EngineError::Configuration(format!("{error:#}"));
        let wasmtime = wasmtime::Engine::new(&config.wasmtime()?)
            .map_err(|error| EngineError::Pool { concurrency: config.concurrency, cause: format!("{error:#}") })?;
        let mut imports = Abi::ALL.map(|_| Linker::new(&wasmtime));
        for (abi, imports) in Abi::ALL.into_iter().zip(&mut imports) {
            abi.define(imports).map_err(setup)?;
        }
        let slots = Arc::new(Semaphore::new(config.concurrency as usize));
        let ticker = Ticker::start(&wasmtime, Arc::clone(&slots))?;
        let key = key(&wasmtime);
        Ok(Self { shared: Arc::new(Shared { wasmtime, imports, slots, config, key, ticker }) })
    }

    /// Returns the compatibility key of compiled code: 16 hexadecimal digits, a hash of the exact version of the compiler, its
    /// settings, the target and the CPU's features. An engine loads only code that has its own key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.shared.key
    }

    /// Returns the key of the output of [`Self::precompile_with`] in a cache: [`Self::key`], and a suffix for code that never has
    /// a snapshot. The key has letters, digits and `-` only.
    #[must_use]
    pub fn cache_key(&self, snapshot: SnapshotMode) -> String {
        match snapshot {
            SnapshotMode::Automatic => self.key().to_owned(),
            SnapshotMode::Never => format!("{}-without-snapshot", self.key()),
        }
    }

    pub(super) fn wasmtime(&self) -> &wasmtime::Engine {
        &self.shared.wasmtime
    }

    pub(super) fn imports(&self, abi: Abi) -> &Linker<State> {
        let [wapc, opa, wasi] = &self.shared.imports;
        match abi {
            Abi::Wapc => wapc,
            Abi::Opa => opa,
            Abi::Wasi => wasi,
        }
    }

    pub(super) fn memory_limit(&self) -> usize {
        self.shared.config.memory_bytes()
    }

    /// Waits for a free evaluation slot. The number of slots bounds the number of instances. The engine only ticks while a slot is in
    /// use.
    pub(super) async fn acquire_slot(&self, deadline: Deadline) -> Result<OwnedSemaphorePermit, EvaluationError> {
        let slots = &self.shared.slots;
        let free = Arc::clone(slots).try_acquire_owned();
        let slot = if let Ok(slot) = free {
            slot
        } else {
            let next = Arc::clone(slots).acquire_owned();
            let next = tokio::time::timeout_at(deadline.instant().into(), next).await;
            next.ok().and_then(Result::ok).ok_or(EvaluationError::Overloaded(Shortage::Cpu))?
        };
        self.shared.ticker.wake();
        Ok(slot)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { config, key, .. } = &*self.shared;
        formatter.debug_struct("Engine").field("config", config).field("key", key).finish_non_exhaustive()
    }
}

fn key(engine: &wasmtime::Engine) -> String {
    /// Feeds `Hash` into SHA-256, because the result of the standard hasher may change with every release of Rust.
    struct Sha256Hasher(Sha256);

    impl Hasher for Sha256Hasher {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }

        fn finish(&self) -> u64 {
            self.0.clone().finalize().iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte))
        }
    }

    let mut hasher = Sha256Hasher(Sha256::new());
    (CODE_FORMAT, wasmtime_environ::VERSION, std::env::consts::ARCH, std::env::consts::OS).hash(&mut hasher);
    engine.precompile_compatibility_hash().hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
