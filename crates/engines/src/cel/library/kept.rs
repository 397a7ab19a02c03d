//! What an evaluation keeps: lists and maps hold copies, so that an expression of a few words, or a chain of variables, could
//! take all memory. Whatever is put into one is counted first, by a function that cannot be written: see `rewrite`.

use std::cell::Cell;

use cel::common::types::{CelBytes, CelList, CelMap, CelMapKey, CelOptional, CelString, DYN_TYPE};
use cel::common::value::Val;
use cel::{DeclarationError, Env, ExecutionError};

use super::argument::{Result, argument};
use super::overload::function;

pub(in crate::cel) const KEPT: &str = "@kept";
/// The most that the lists, maps and variables of an evaluation hold, all together.
const MAX_KEPT: usize = 4_000_000;
/// Bytes of text that take as much as another value.
const TEXT: usize = 16;

thread_local! {
    /// An evaluation is on one thread from its beginning to its end.
    static COUNTED: Cell<usize> = const { Cell::new(0) };
}

pub(super) fn declare(environment: &mut Env) -> std::result::Result<(), DeclarationError> {
    function(environment, KEPT, vec![DYN_TYPE], |mut arguments| {
        keep(argument(&arguments, 0)?)?;
        Ok(arguments.swap_remove(0))
    })
}

/// Forgets what the evaluation before has counted.
pub(in crate::cel) fn begin() {
    COUNTED.set(0);
}

/// Counts a value.
pub(in crate::cel) fn keep(value: &dyn Val) -> Result<()> {
    // What is over the limit is not looked at any more.
    if COUNTED.get() <= MAX_KEPT {
        let Size { values, bytes } = Size::of(value);
        COUNTED.set(COUNTED.get() + values + bytes / TEXT);
    }
    if COUNTED.get() <= MAX_KEPT {
        return Ok(());
    }
    let why = format!("the values that the expressions make take more than {MAX_KEPT}");
    Err(ExecutionError::function_error("memory", why))
}

/// How much a value is.
#[derive(Default)]
pub(super) struct Size {
    pub values: usize,
    /// Of texts.
    pub bytes: usize,
}

impl Size {
    pub(super) fn of(value: &dyn Val) -> Self {
        let mut size = Self::default();
        size.add(value);
        size
    }

    /// Recursive: expressions make no deep values.
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
