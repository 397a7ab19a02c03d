//! A cache of compiled constraints. Policies return the same constraints for most requests, and compiling one takes much longer than
//! validating a value.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::fragment::{Fragment, FragmentError};
use super::limits::json_bytes;

/// The number of constraints in each generation of the cache.
const MAX_ENTRIES: usize = 2048;
/// The maximum size of a cached constraint as JSON, in bytes.
const MAX_ENTRY_BYTES: usize = 4 << 10;
/// The maximum memory of the compiled patterns of a cached constraint, in bytes.
const MAX_ENTRY_PATTERN_BYTES: usize = 16 << 10;

/// Compiled constraints that requests share. The content of the cache has no effect on decisions.
#[derive(Debug, Default)]
pub struct ConstraintCache(Mutex<Generations>);

/// The constraints that were used since the last change of generations, and those of the generation before.
#[derive(Debug, Default)]
struct Generations {
    current: HashMap<Value, Arc<Fragment>>,
    previous: HashMap<Value, Arc<Fragment>>,
}

impl ConstraintCache {
    /// Returns the compiled constraint, from the cache if possible.
    pub(super) fn compile(&self, schema: Value) -> Result<Arc<Fragment>, FragmentError> {
        if let Some(fragment) = self.find(&schema) {
            return Ok(fragment);
        }
        // Compiled without the lock, so that one slow constraint does not delay other requests.
        let fragment = Arc::new(Fragment::compile(schema)?);
        let is_small =
            fragment.pattern_bytes <= MAX_ENTRY_PATTERN_BYTES && json_bytes(&fragment.schema) <= MAX_ENTRY_BYTES;
        if is_small {
            self.lock().insert(fragment.clone());
        }
        Ok(fragment)
    }

    fn find(&self, schema: &Value) -> Option<Arc<Fragment>> {
        let mut generations = self.lock();
        if let Some(fragment) = generations.current.get(schema) {
            return Some(fragment.clone());
        }
        let fragment = generations.previous.remove(schema)?;
        generations.insert(fragment.clone());
        Some(fragment)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn insert(&mut self, fragment: Arc<Fragment>) {
        if self.current.len() >= MAX_ENTRIES {
            self.previous = std::mem::take(&mut self.current);
        }
        self.current.insert(fragment.schema.clone(), fragment);
    }
}
