//! The memory limit of an evaluation. Lists and maps contain copies of their elements, so that a short expression or a chain of
//! variables could take all memory. The module `rewrite` wraps each element into a function that counts its memory. No
//! expression can contain the name of this function.

use std::cell::Cell;

use cel::common::types::{CelBytes, CelList, CelMap, CelMapKey, CelOptional, CelString, DYN_TYPE};
use cel::common::value::Val;
use cel::{DeclarationError, Env, ExecutionError};

use super::argument::{Result, argument};
use super::overload::function;

/// The name of the function that counts the memory of a value, and returns the value.
pub(in crate::cel) const COUNT: &str = "@count";
/// The largest number of units in the lists, maps and variables of an evaluation. A value is one unit.
const MAX_UNITS: usize = 4_000_000;
/// The number of bytes in strings that are another unit.
const BYTES_PER_UNIT: usize = 16;

thread_local! {
    /// The units of the current evaluation, which stays on one thread.
    static USED: Cell<usize> = const { Cell::new(0) };
}

pub(super) fn declare(environment: &mut Env) -> std::result::Result<(), DeclarationError> {
    function(environment, COUNT, vec![DYN_TYPE], |mut arguments| {
        count(argument(&arguments, 0)?)?;
        Ok(arguments.swap_remove(0))
    })
}

/// Begins a new evaluation on this thread.
pub(in crate::cel) fn reset() {
    USED.set(0);
}

/// Counts a value. Returns an error if the evaluation exceeds the limit.
pub(in crate::cel) fn count(value: &dyn Val) -> Result<()> {
    // After the limit is exceeded, the walk through further values would only take time.
    if USED.get() <= MAX_UNITS {
        let Size { values, bytes } = Size::of(value);
        USED.set(USED.get() + values + bytes / BYTES_PER_UNIT);
    }
    proviso_memory::check().map_err(|exceeded| ExecutionError::function_error("memory", exceeded.to_string()))?;
    if USED.get() <= MAX_UNITS {
        return Ok(());
    }
    let why = format!("the values that the expressions create take more than {MAX_UNITS} units of memory");
    Err(ExecutionError::function_error("memory", why))
}

/// The size of a value.
#[derive(Default)]
pub(super) struct Size {
    /// The number of values, including the value itself and the keys of maps.
    pub values: usize,
    /// The number of bytes in strings and bytes values.
    pub bytes: usize,
}

impl Size {
    pub(super) fn of(value: &dyn Val) -> Self {
        let mut size = Self::default();
        size.add(value);
        size
    }

    /// Adds a value. The recursion is bounded: an expression cannot construct deep values.
    fn add(&mut self, value: &dyn Val) {
        self.values += 1;
        if let Some(text) = value.downcast_ref::<CelString>() {
            self.bytes += text.inner().len();
        } else if let Some(bytes) = value.downcast_ref::<CelBytes>() {
            self.bytes += bytes.inner().len();
        } else if let Some(list) = value.downcast_ref::<CelList>() {
            list.inner().iter().for_each(|item| self.add(item.as_ref()));
        } else if let Some(map) = value.downcast_ref::<CelMap>() {
            for (key, value) in map.inner() {
                self.values += 1;
                if let CelMapKey::String(key) = key {
                    self.bytes += key.inner().len();
                }
                self.add(value.as_ref());
            }
        } else if let Some(inner) = value.downcast_ref::<CelOptional>().and_then(CelOptional::inner) {
            self.add(inner);
        }
    }
}
