//! Compiles modules, loads compiled ones, and holds what all instances share: limits, imports, places.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, SemaphorePermit};
use wasmtime::Linker;

use super::abi::Abi;
use super::config::{Config, EngineError};
use super::facts::Facts;
use super::metadata::Metadata;
use super::module::Module;
use super::state::State;
use super::ticker::Ticker;
use super::{opa, snapshot};
use crate::{CompileError, Deadline, EvaluationError};

/// The largest module that is compiled, in bytes. Go policies have 3 to 20 MiB.
const MODULE_LIMIT: usize = 64 << 20;
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

/// Bytes of [`Engine::precompile`] that nobody else can have changed: loading them runs them as native code.
pub struct VerifiedCode(Vec<u8>);

impl VerifiedCode {
    /// The trust boundary. Whoever calls this vouches that these very bytes (not a file that may change
    /// after the check) came from [`Engine::precompile`]: compiled in this process, or signed by one that is
    /// trusted and the signature checked. Other bytes run with the rights of the server.
    #[must_use]
    pub fn assume_verified(code: Vec<u8>) -> Self {
        Self(code)
    }
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

    /// Compiles a module, with a snapshot of its initialised state where it has one. Takes seconds of all CPUs for a
    /// large one, and runs its initialisation: call it where blocking is allowed.
    ///
    /// # Errors
    /// When the bytes are no module, or one that this engine does not run.
    pub fn precompile(&self, wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
        check_preamble(wasm)?;
        let mut facts = Facts::of(Abi::of(wasm));
        let module = match facts.abi {
            Abi::Wapc => snapshot::take(self, wasm).map_or_else(|| self.compile(wasm), Ok)?,
            Abi::Opa => {
                let module = self.compile(&opa::with_own_memory(wasm)?)?;
                facts.builtins = opa::inspect(self, &module)?;
                module
            }
            Abi::Wasi => self.compile(wasm)?,
        };
        facts.mode = Metadata::read(wasm)?.map(|metadata| metadata.execution_mode);
        Module::link(self, &module, facts.clone())?;
        let mut code = module
            .serialize()
            .map_err(|error| CompileError::Invalid(format!("the compiled module cannot be written: {error:#}")))?;
        facts.append(&mut code)?;
        Ok(code)
    }

    fn compile(&self, wasm: &[u8]) -> Result<wasmtime::Module, CompileError> {
        wasmtime::Module::from_binary(self.wasmtime(), wasm)
            .map_err(|error| CompileError::Invalid(format!("the module does not compile: {error:#}")))
    }

    /// Loads what [`Self::precompile`] made.
    ///
    /// # Errors
    /// When the code comes from an engine with another [`Self::key`], or is damaged in an obvious way.
    pub fn load(&self, code: &VerifiedCode) -> Result<Module, CompileError> {
        let damaged = || CompileError::Invalid("the compiled module cannot be loaded: it is not whole".into());
        let (code, facts) = Facts::split(&code.0).ok_or_else(damaged)?;
        // SAFETY: deserializing trusts the bytes to be the output of a wasmtime compiler. `VerifiedCode` exists
        // only where someone vouched for that (see `VerifiedCode::assume_verified`); it owns the bytes, so that they
        // are the ones that were checked.
        #[allow(unsafe_code)]
        let module = unsafe { wasmtime::Module::deserialize(self.wasmtime(), code) };
        let module = module
            .map_err(|error| CompileError::Invalid(format!("the compiled module cannot be loaded: {error:#}")))?;
        Module::link(self, &module, facts)
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

impl fmt::Debug for VerifiedCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "VerifiedCode({} bytes)", self.0.len())
    }
}

/// Says what is wrong with bytes that cannot be a module, in words for the person who uploaded them.
fn check_preamble(wasm: &[u8]) -> Result<(), CompileError> {
    if wasm.len() > MODULE_LIMIT {
        let (size, limit) = (wasm.len(), MODULE_LIMIT >> 20);
        return Err(CompileError::Invalid(format!("the module has {size} bytes: more than {limit} MiB")));
    }
    match wasm.get(..8) {
        Some([0, b'a', b's', b'm', 1, 0, 0, 0]) => Ok(()),
        Some([0, b'a', b's', b'm', _, _, 1, 0]) => Err(CompileError::Unsupported(
            "this is a WebAssembly component; policies are core modules (for Rust: target wasm32-wasip1)".into(),
        )),
        Some([0, b'a', b's', b'm', ..]) => {
            Err(CompileError::Unsupported("this is WebAssembly of an unknown version, not version 1".into()))
        }
        _ => Err(CompileError::Invalid("these bytes are no WebAssembly module: they do not start with \\0asm".into())),
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
