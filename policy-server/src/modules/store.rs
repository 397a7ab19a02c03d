//! The compiled modules that the shared cache lacks. Only the leader signs and stores compiled modules. Another replica that finds none
//! in the cache, or a damaged one, compiles the module for its own memory, and the leader stores it later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proviso_artifacts::{CacheError, Digest};
use proviso_engines::wasm::SnapshotMode;

use super::Modules;
use crate::compile::Purpose;

/// The pause after a failed write, so that a full disk does not make the leader compile all the time.
const RETRY_INTERVAL: Duration = Duration::from_mins(10);

impl Modules {
    /// Compiles and stores the loaded modules whose compiled form is missing in the cache, if this replica may sign. Returns at once
    /// while another call runs, and for some minutes after a failure.
    pub async fn store_missing(&self) {
        let Ok(mut paused_until) = self.storing.try_lock() else { return };
        if paused_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        for (digest, snapshot) in self.all_loaded() {
            if let Err(error) = self.store_if_missing(digest, snapshot).await {
                tracing::warn!(module = %digest, error, "cannot store the compiled module");
                *paused_until = Some(Instant::now() + RETRY_INTERVAL);
                return;
            }
        }
        *paused_until = None;
    }

    async fn store_if_missing(&self, digest: Digest, snapshot: SnapshotMode) -> Result<(), String> {
        let Some(cache) = &self.cache else { return Ok(()) };
        let key = self.cache_key(snapshot);
        let missing_key = key.clone();
        let module = cache.run(move |cache| {
            let is_missing = cache.may_sign() && !cache.has_compiled(&digest, &missing_key)?;
            // A module that is not in the cache either, or damaged, is stored when it is fetched again.
            if is_missing { cache.module(&digest).or_else(ignore_damage) } else { Ok(None) }
        });
        let Some(bytes) = module.await.map_err(|error| error.to_string())? else { return Ok(()) };
        let code = self.compilers.module(Purpose::Cache, &bytes, snapshot).await;
        let code = Arc::new(code.map_err(|error| error.to_string())?);
        let stored = cache.run(move |cache| cache.put_compiled(&digest, &key, &code));
        if stored.await.map_err(|error| error.to_string())? {
            tracing::info!(module = %digest, "stored the compiled module that the cache lacked");
        }
        Ok(())
    }

    /// Asks the leader for a compiled module in place of a damaged one.
    pub(super) async fn remove_damaged(&self, digest: Digest, key: String) {
        let Some(cache) = &self.cache else { return };
        if let Err(error) = cache.run(move |cache| cache.remove_compiled(&digest, &key)).await {
            tracing::debug!(module = %digest, %error, "cannot remove the signature of a damaged module");
        }
    }
}

fn ignore_damage<T>(error: CacheError) -> Result<Option<T>, CacheError> {
    match error {
        CacheError::Forged(_) | CacheError::TooLarge { .. } => Ok(None),
        error => Err(error),
    }
}
