//! The loaded wasm modules. A module that several policies use in the same way is compiled and loaded once.

mod store;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use proviso_artifacts::{CacheError, Digest, Module, Volume};
use proviso_core::PolicyId;
use proviso_engines::CompileError;
use proviso_engines::wasm::{self, Snapshot, SnapshotMode, VerifiedCode};
use tokio::sync::OnceCell;

use crate::compile::{CompileFailure, Compilers, Purpose};

/// Modules that are loaded or being loaded.
type LoadedModules = HashMap<(Digest, SnapshotMode), Arc<OnceCell<wasm::Module>>>;

/// The loaded modules, by the digest of their source and the use of snapshots.
#[derive(Debug)]
pub struct Modules {
    engine: wasm::Engine,
    cache: Option<Volume>,
    compilers: Arc<Compilers>,
    loaded: Mutex<LoadedModules>,
    /// Held while compiled modules are stored. The time before which no other attempt begins, after a failure.
    storing: tokio::sync::Mutex<Option<Instant>>,
}

impl Modules {
    #[must_use]
    pub fn new(engine: wasm::Engine, cache: Option<Volume>, compilers: Arc<Compilers>) -> Self {
        Self { engine, cache, compilers, loaded: Mutex::default(), storing: tokio::sync::Mutex::default() }
    }

    /// Returns the module with this digest, if it is loaded.
    pub fn loaded(&self, digest: Digest, snapshot: SnapshotMode) -> Option<wasm::Module> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.get(&(digest, snapshot))?.get().cloned()
    }

    /// Returns the loaded module: from memory, from the cache, or newly compiled within the share of this policy. Concurrent calls
    /// for the same module wait for one compilation.
    ///
    /// # Errors
    /// Returns an error if the module does not compile, or not within the limits.
    pub async fn get(
        &self,
        policy: &PolicyId,
        module: &Module,
        snapshot: SnapshotMode,
    ) -> Result<wasm::Module, CompileFailure> {
        let cell = {
            let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(loaded.entry((module.digest, snapshot)).or_default())
        };
        cell.get_or_try_init(|| self.load(policy, module, snapshot)).await.cloned()
    }

    /// Unloads the modules that are not in `used`.
    pub fn retain(&self, used: &HashSet<Digest>) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        // A module that is being loaded now has a second owner besides this map.
        loaded.retain(|(digest, _), cell| used.contains(digest) || Arc::strong_count(cell) > 1);
    }

    /// Returns the digests of the loaded modules, and their use of snapshots.
    fn all_loaded(&self) -> Vec<(Digest, SnapshotMode)> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.iter().filter(|(_, cell)| cell.initialized()).map(|(key, _)| *key).collect()
    }

    /// Returns the key of the compiled form in the cache. The number is the version of its signature: replicas of different versions
    /// share a cache during an update.
    fn cache_key(&self, snapshot: SnapshotMode) -> String {
        format!("2-{}", self.engine.cache_key(snapshot))
    }

    async fn load(
        &self,
        policy: &PolicyId,
        module: &Module,
        snapshot: SnapshotMode,
    ) -> Result<wasm::Module, CompileFailure> {
        let key = self.cache_key(snapshot);
        if let Some(loaded) = self.cached(module.digest, key.clone()).await {
            return Ok(loaded);
        }
        let code = Arc::new(self.compilers.module(Purpose::Policy(policy), &module.bytes, snapshot).await?);
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
        let read_key = key.clone();
        let read = self.cache.as_ref()?.run(move |cache| cache.compiled(&digest, &read_key)).await;
        if let Err(CacheError::Forged(_) | CacheError::TooLarge { .. }) = read {
            self.remove_damaged(digest, key).await;
        }
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

    /// Writes a module to the cache and, on the leader, its compiled code. If that fails, the module is served all the same.
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
