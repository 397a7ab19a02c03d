//! The engine: everything that instances share, which is limits, imports and places.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, SemaphorePermit};
use wasmtime::Linker;

use super::abi::Abi;
use super::config::{Config, EngineError};
use super::state::State;
use super::ticker::Ticker;
use crate::{Deadline, EvaluationError};

/// Part of [`Engine::key`]: raise it when [`Engine::precompile`] makes something else of the same module.
const FORMAT: &str = "proviso-wasm-2";

/// Compiles and runs modules under common limits. Clones share everything.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    wasmtime: wasmtime::Engine,
    /// In the order of [`Abi::ALL`].
    imports: [Linker<State>; Abi::ALL.len()],
    places: Semaphore,
    config: Config,
    key: String,
    _ticker: Ticker,
}

impl Engine {
    /// An engine with its own pool of instances, and a thread that counts time.
    ///
    /// # Errors
    /// When a limit is out of its range, or the address space for the pool cannot be reserved.
    pub fn new(config: Config) -> Result<Self, EngineError> {
        let setup = |error: wasmtime::Error| EngineError::Configuration(format!("{error:#}"));
        let wasmtime = wasmtime::Engine::new(&config.wasmtime()?)
            .map_err(|error| EngineError::Pool { concurrency: config.concurrency, cause: format!("{error:#}") })?;
        let mut imports = Abi::ALL.map(|_| Linker::new(&wasmtime));
        for (abi, imports) in Abi::ALL.into_iter().zip(&mut imports) {
            abi.define(imports).map_err(setup)?;
        }
        let ticker = Ticker::start(&wasmtime)?;
        let key = key(&wasmtime);
        let places = Semaphore::new(config.concurrency as usize);
        Ok(Self { shared: Arc::new(Shared { wasmtime, imports, places, config, key, _ticker: ticker }) })
    }

    /// What compiled code depends on besides the module: 16 hexadecimal digits over the exact version of the
    /// compiler, its settings, the target and the CPU's features. Code is loaded only by an engine of the same key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.shared.key
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

    /// Waits for a place among the instances that may exist at once.
    pub(super) async fn place(&self, deadline: Deadline) -> Result<SemaphorePermit<'_>, EvaluationError> {
        if let Ok(place) = self.shared.places.try_acquire() {
            return Ok(place);
        }
        match tokio::time::timeout_at(deadline.instant().into(), self.shared.places.acquire()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) | Err(_) => Err(EvaluationError::Overloaded),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { config, key, .. } = &*self.shared;
        formatter.debug_struct("Engine").field("config", config).field("key", key).finish_non_exhaustive()
    }
}

fn key(engine: &wasmtime::Engine) -> String {
    /// Feeds `Hash` into SHA-256: the standard hasher's result may change with every release of Rust.
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
    (FORMAT, wasmtime_environ::VERSION, std::env::consts::ARCH, std::env::consts::OS).hash(&mut hasher);
    engine.precompile_compatibility_hash().hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
