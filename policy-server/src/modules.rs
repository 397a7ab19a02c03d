//! Wasm modules, each compiled and loaded once however many policies use it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proviso_artifacts::{Cache, Digest, Module};
use proviso_engines::CompileError;
use proviso_engines::wasm::{self, VerifiedCode};
use tokio::sync::OnceCell;

/// How long compiling one module or source may take.
pub const COMPILE_TIMEOUT: Duration = Duration::from_mins(1);

/// Why a module cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error("compiling the module took longer than {} s", COMPILE_TIMEOUT.as_secs())]
    Timeout,
    #[error("the compiler stopped: {0}")]
    Stopped(String),
}

impl ModuleError {
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Compile(error) => error.reason(),
            Self::Timeout => "CompileTimeout",
            Self::Stopped(_) => "CompileError",
        }
    }
}

/// The loaded modules, by the digest of their source.
#[derive(Debug)]
pub struct Modules {
    engine: wasm::Engine,
    cache: Option<Arc<Cache>>,
    loaded: Mutex<HashMap<Digest, Arc<OnceCell<wasm::Module>>>>,
}

impl Modules {
    #[must_use]
    pub fn new(engine: wasm::Engine, cache: Option<Arc<Cache>>) -> Self {
        Self { engine, cache, loaded: Mutex::default() }
    }

    /// The module, loaded: from memory, from the cache, or compiled now. Callers that ask for the same one wait for
    /// one compilation.
    ///
    /// # Errors
    /// When the module does not compile, or not within a minute.
    pub async fn get(&self, module: &Module) -> Result<wasm::Module, ModuleError> {
        let cell = {
            let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(loaded.entry(module.digest).or_default())
        };
        cell.get_or_try_init(|| self.load(module.clone())).await.cloned()
    }

    /// Forgets the modules that no policy uses any more.
    pub fn retain(&self, used: &HashSet<Digest>) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is being loaded has another owner beside this map.
        loaded.retain(|digest, cell| used.contains(digest) || Arc::strong_count(cell) > 1);
    }

    async fn load(&self, module: Module) -> Result<wasm::Module, ModuleError> {
        let (engine, cache) = (self.engine.clone(), self.cache.clone());
        let loading = tokio::task::spawn_blocking(move || load(&engine, cache.as_deref(), &module));
        match tokio::time::timeout(COMPILE_TIMEOUT, loading).await {
            Ok(Ok(loaded)) => Ok(loaded?),
            Ok(Err(stopped)) => Err(ModuleError::Stopped(stopped.to_string())),
            Err(_) => Err(ModuleError::Timeout),
        }
    }
}

fn load(engine: &wasm::Engine, cache: Option<&Cache>, module: &Module) -> Result<wasm::Module, CompileError> {
    if let Some(loaded) = cache.and_then(|cache| cached(engine, cache, &module.digest)) {
        return Ok(loaded);
    }
    let code = engine.precompile(&module.bytes)?;
    if let Some(cache) = cache {
        let kept = cache
            .put_module(&module.digest, &module.bytes)
            .and_then(|()| cache.put_compiled(&module.digest, engine.key(), &code));
        if let Err(error) = kept {
            tracing::warn!(reason = error.reason(), %error, "compiled module not kept");
        }
    }
    engine.load(&VerifiedCode::assume_verified(code))
}

/// The module as the cache holds it. Whatever is wrong with that, compiling again mends it.
fn cached(engine: &wasm::Engine, cache: &Cache, digest: &Digest) -> Option<wasm::Module> {
    let code = cache
        .compiled(digest, engine.key())
        .inspect_err(|error| tracing::warn!(module = %digest, reason = error.reason(), %error, "cached module refused"))
        .ok()??;
    // The cache verified these bytes after it read them.
    engine
        .load(&VerifiedCode::assume_verified(code.into()))
        .inspect_err(|error| tracing::warn!(module = %digest, reason = error.reason(), %error, "cached module refused"))
        .ok()
}
