//! The loaded wasm modules. A module that several policies use in the same way is compiled and loaded once.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use proviso_artifacts::{Digest, Module, Volume};
use proviso_engines::CompileError;
use proviso_engines::wasm::{self, Snapshot, SnapshotMode, VerifiedCode};
use tokio::sync::OnceCell;

use crate::compile::{CompileFailure, Compilers};

/// Modules that are loaded or being loaded.
type LoadedModules = HashMap<(Digest, SnapshotMode), Arc<OnceCell<wasm::Module>>>;

/// The loaded modules, by the digest of their source and the use of snapshots.
#[derive(Debug)]
pub struct Modules {
    engine: wasm::Engine,
    cache: Option<Volume>,
    compilers: Arc<Compilers>,
    loaded: Mutex<LoadedModules>,
}

impl Modules {
    #[must_use]
    pub fn new(engine: wasm::Engine, cache: Option<Volume>, compilers: Arc<Compilers>) -> Self {
        Self { engine, cache, compilers, loaded: Mutex::default() }
    }

    /// Returns the module with this digest, if it is loaded.
    pub fn loaded(&self, digest: Digest, snapshot: SnapshotMode) -> Option<wasm::Module> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.get(&(digest, snapshot))?.get().cloned()
    }

    /// Returns the loaded module: from memory, from the cache, or newly compiled. Concurrent calls for the same module wait for
    /// one compilation.
    ///
    /// # Errors
    /// Returns an error if the module does not compile, or not within the limits.
    pub async fn get(&self, module: &Module, snapshot: SnapshotMode) -> Result<wasm::Module, CompileFailure> {
        let cell = {
            let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(loaded.entry((module.digest, snapshot)).or_default())
        };
        cell.get_or_try_init(|| self.load(module, snapshot)).await.cloned()
    }

    /// Unloads the modules that are not in `used`.
    pub fn retain(&self, used: &HashSet<Digest>) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        // A module that is being loaded now has a second owner besides this map.
        loaded.retain(|(digest, _), cell| used.contains(digest) || Arc::strong_count(cell) > 1);
    }

    async fn load(&self, module: &Module, snapshot: SnapshotMode) -> Result<wasm::Module, CompileFailure> {
        let key = self.engine.cache_key(snapshot);
        if let Some(loaded) = self.cached(module.digest, key.clone()).await {
            return Ok(loaded);
        }
        let code = Arc::new(self.compilers.module(&module.bytes, snapshot).await?);
        // Code from the child process of this server needs no signature.
        let loaded = self.load_code(code.to_vec()).await?;
        if let Snapshot::Refused(cause) = loaded.snapshot() {
            tracing::info!(module = %module.digest, cause, "the module has no snapshot: each evaluation initialises it");
        }
        self.write_to_cache(module.clone(), key, code).await;
        Ok(loaded)
    }

    /// Loads the module from the cache. Returns `None` if that fails: then the module is compiled again.
    async fn cached(&self, digest: Digest, key: String) -> Option<wasm::Module> {
        let read = self.cache.as_ref()?.run(move |cache| cache.compiled(&digest, &key)).await;
        let code = read
            .inspect_err(
                |error| tracing::warn!(module = %digest, reason = error.reason().as_str(), %error, "cached module refused"),
            )
            .ok()??;
        // The cache verified these bytes after it read them.
        self.load_code(code.into())
            .await
            .inspect_err(
                |error| tracing::warn!(module = %digest, reason = error.reason().as_str(), %error, "cached module refused"),
            )
            .ok()
    }

    /// Loads compiled code, which must be verified or come from the compiler itself.
    async fn load_code(&self, code: Vec<u8>) -> Result<wasm::Module, CompileFailure> {
        let engine = self.engine.clone();
        let loading = tokio::task::spawn_blocking(move || engine.load(&VerifiedCode::assume_verified(code)));
        let loaded: Result<_, CompileError> =
            loading.await.map_err(|stopped| CompileFailure::Stopped(stopped.to_string()))?;
        Ok(loaded?)
    }

    /// Writes a module and its compiled code to the cache. If that fails, the module is served all the same.
    async fn write_to_cache(&self, module: Module, key: String, code: Arc<Vec<u8>>) {
        let Some(cache) = &self.cache else { return };
        let digest = module.digest;
        let written = cache.run(move |cache| {
            cache.put_module(&module.digest, &module.bytes)?;
            cache.put_compiled(&module.digest, &key, &code)
        });
        if let Err(error) = written.await {
            tracing::warn!(module = %digest, reason = error.reason().as_str(), %error, "cannot cache the compiled module");
        }
    }
}
