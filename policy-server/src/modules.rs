//! Wasm modules, each compiled and loaded once however many policies use it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use proviso_artifacts::{Digest, Module, Volume};
use proviso_engines::CompileError;
use proviso_engines::wasm::{self, VerifiedCode};
use tokio::sync::OnceCell;

use crate::compile::{Compilers, Uncompiled};

/// The loaded modules, by the digest of their source.
#[derive(Debug)]
pub struct Modules {
    engine: wasm::Engine,
    cache: Option<Volume>,
    compilers: Arc<Compilers>,
    loaded: Mutex<HashMap<Digest, Arc<OnceCell<wasm::Module>>>>,
}

impl Modules {
    #[must_use]
    pub fn new(engine: wasm::Engine, cache: Option<Volume>, compilers: Arc<Compilers>) -> Self {
        Self { engine, cache, compilers, loaded: Mutex::default() }
    }

    /// The module of this digest, if it is loaded.
    pub fn loaded(&self, digest: &Digest) -> Option<wasm::Module> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.get(digest)?.get().cloned()
    }

    /// The module, loaded: from memory, from the cache, or compiled now. Callers that ask for the same one wait for
    /// one compilation.
    ///
    /// # Errors
    /// When the module does not compile, or not within its bounds.
    pub async fn get(&self, module: &Module) -> Result<wasm::Module, Uncompiled> {
        let cell = {
            let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(loaded.entry(module.digest).or_default())
        };
        cell.get_or_try_init(|| self.load(module)).await.cloned()
    }

    /// Forgets the modules that no policy uses any more.
    pub fn retain(&self, used: &HashSet<Digest>) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is being loaded has another owner beside this map.
        loaded.retain(|digest, cell| used.contains(digest) || Arc::strong_count(cell) > 1);
    }

    async fn load(&self, module: &Module) -> Result<wasm::Module, Uncompiled> {
        if let Some(loaded) = self.cached(module.digest).await {
            return Ok(loaded);
        }
        let code = Arc::new(self.compilers.module(&module.bytes).await?);
        // What comes out of a process of our own needs no signature.
        let loaded = self.load_code(code.to_vec()).await?;
        self.keep(module.clone(), code).await;
        Ok(loaded)
    }

    /// The module as the cache holds it. Whatever is wrong with that, compiling again mends it.
    async fn cached(&self, digest: Digest) -> Option<wasm::Module> {
        let engine = self.engine.key().to_owned();
        let read = self.cache.as_ref()?.run(move |cache| cache.compiled(&digest, &engine)).await;
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

    /// Loads code that is known to be the compiler's.
    async fn load_code(&self, code: Vec<u8>) -> Result<wasm::Module, Uncompiled> {
        let engine = self.engine.clone();
        let loading = tokio::task::spawn_blocking(move || engine.load(&VerifiedCode::assume_verified(code)));
        let loaded: Result<_, CompileError> =
            loading.await.map_err(|stopped| Uncompiled::Stopped(stopped.to_string()))?;
        Ok(loaded?)
    }

    /// Puts a module and what was compiled of it into the cache. It serves without, too.
    async fn keep(&self, module: Module, code: Arc<Vec<u8>>) {
        let Some(cache) = &self.cache else { return };
        let (digest, engine) = (module.digest, self.engine.key().to_owned());
        let kept = cache.run(move |cache| {
            cache.put_module(&module.digest, &module.bytes)?;
            cache.put_compiled(&module.digest, &engine, &code)
        });
        if let Err(error) = kept.await {
            tracing::warn!(module = %digest, reason = error.reason().as_str(), %error, "compiled module not kept");
        }
    }
}
