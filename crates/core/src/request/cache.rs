//! A cache of compiled constraints. Policies return the same constraints for most requests, and compiling one takes much longer than
//! validating a value.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::fragment::{Fragment, FragmentError};
use super::limits::json_bytes;

/// The estimated memory of each of the two generations of the cache, in bytes.
const MAX_BYTES: usize = 16 << 20;
/// The estimated memory of the largest constraint that is cached, in bytes.
const MAX_ENTRY_BYTES: usize = 256 << 10;

/// Compiled constraints that requests share. The content of the cache has no effect on decisions.
#[derive(Debug, Default)]
pub struct ConstraintCache(Mutex<Generations>);

/// The constraints that were used since the last change of generations, and those of the generation before.
#[derive(Debug, Default)]
struct Generations {
    current: HashMap<Value, Arc<Fragment>>,
    previous: HashMap<Value, Arc<Fragment>>,
    /// The estimated memory of `current`, in bytes.
    bytes: usize,
}

impl ConstraintCache {
    /// Returns the compiled constraint, from the cache if possible.
    pub(super) fn compile(&self, schema: Value) -> Result<Arc<Fragment>, FragmentError> {
        if let Some(fragment) = self.find(&schema) {
            return Ok(fragment);
        }
        // Compiled without the lock, so that one slow constraint does not delay other requests.
        let fragment = Arc::new(Fragment::compile(schema)?);
        if estimated_bytes(&fragment) <= MAX_ENTRY_BYTES {
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
        let bytes = estimated_bytes(&fragment);
        if self.bytes + bytes > MAX_BYTES {
            self.previous = std::mem::take(&mut self.current);
            self.bytes = 0;
        }
        if self.current.insert(fragment.schema.clone(), fragment).is_none() {
            self.bytes += bytes;
        }
    }
}

/// Returns the estimated memory of a compiled constraint: its patterns, the schema as key and as value, and the validator.
fn estimated_bytes(fragment: &Fragment) -> usize {
    /// The memory of values for each byte of JSON.
    const BYTES_PER_JSON_BYTE: usize = 32;
    1024 + fragment.pattern_bytes + BYTES_PER_JSON_BYTE * json_bytes(&fragment.schema)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_cache_keeps_the_constraints_in_use_and_drops_others() {
        let cache = ConstraintCache::default();
        let used = cache.compile(json!({"minimum": 1})).unwrap();
        let compiled = Fragment::compile(json!(true)).unwrap();
        for number in 0..30_000 {
            cache.lock().insert(Arc::new(compiled.with_schema(json!({"const": number}))));
            assert!(Arc::ptr_eq(&used, &cache.compile(json!({"minimum": 1})).unwrap()));
        }
        let generations = cache.lock();
        assert!(
            generations.bytes <= MAX_BYTES && generations.current.len() < 30_000 && !generations.previous.is_empty()
        );
    }
}
