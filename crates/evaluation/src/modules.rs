//! The wasm modules of policies: fetches, compiles and caches them.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use proviso_artifacts::{Digest, FetchError, FetchOptions, Fetcher, ModuleReference};
use proviso_crds::Wasm;
use proviso_engines::wasm::{Config, Engine, Module, SnapshotMode, VerifiedCode};
use proviso_programs::snapshot_mode;
use tokio::sync::Mutex;

use crate::blocking;
use crate::error::PrepareError;

/// Compiled modules by their digest and their use of snapshots, and the engine that runs them.
#[derive(Debug)]
pub(crate) struct Modules {
    fetcher: Arc<Fetcher>,
    /// The engine; `None` until the first module, because the engine reserves memory that Rego and CEL do not need.
    engine: OnceLock<Engine>,
    loaded: Mutex<BTreeMap<(Digest, SnapshotMode), Module>>,
}

impl Modules {
    pub(crate) fn new(fetcher: Arc<Fetcher>) -> Self {
        Self { fetcher, engine: OnceLock::new(), loaded: Mutex::default() }
    }

    /// Returns the compiled module of a program. `field` is the field of the program. Relative references start from `folder`.
    ///
    /// # Errors
    /// Returns an error if the module cannot be fetched or compiled.
    pub(crate) async fn load(&self, field: &str, spec: &Wasm, folder: &Path) -> Result<Module, PrepareError> {
        let reference = ModuleReference::parse(&spec.module, folder)
            .map_err(|error| PrepareError::Reference { field: format!("{field}.module"), error })?;
        let digest =
            spec.digest.as_deref().map(str::parse).transpose().map_err(|error| PrepareError::Invalid {
                field: format!("{field}.digest"),
                message: format!("{error}"),
            })?;
        let names: Vec<String> = spec.image_pull_secrets.iter().map(|secret| secret.name.clone()).collect();
        let wanted = FetchOptions { digest, pin: None, pull_secrets: &names, tenant: None };
        let module = self.fetcher.fetch(&reference, wanted).await.map_err(|error| {
            let name = if matches!(error, FetchError::PullSecret(_)) { "imagePullSecrets" } else { "module" };
            PrepareError::Fetch { field: format!("{field}.{name}"), error: Box::new(error) }
        })?;
        let at = format!("{field}.module");
        let failed = move |error| PrepareError::Compile { field: at.clone(), error };
        // The lock is held during the compilation: two tests with the same module compile it once.
        let mut loaded = self.loaded.lock().await;
        let (snapshot, bytes) = (snapshot_mode(spec), module.bytes);
        let key = (module.digest, snapshot);
        if let Some(loaded) = loaded.get(&key) {
            return Ok(loaded.clone());
        }
        let engine = self.engine()?.clone();
        let compiled = blocking::run(move || {
            let code = engine.precompile_with(&bytes, snapshot).map_err(&failed)?;
            // This process has just compiled the code.
            engine.load(&VerifiedCode::assume_verified(code)).map_err(&failed)
        })
        .await?;
        loaded.insert(key, compiled.clone());
        Ok(compiled)
    }

    fn engine(&self) -> Result<&Engine, PrepareError> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let concurrency = u32::try_from(2 * processors).unwrap_or(64).clamp(2, 64);
        let engine = Engine::new(Config { concurrency, ..Config::default() })?;
        Ok(self.engine.get_or_init(|| engine))
    }
}
