//! The builtins that a policy may call: regorus' own, some of them behind a guard, and ours. What a guard
//! refuses is an error, and so a denial, not undefined: undefined would lose the violation.

mod call;
mod cidr;
mod digest;
mod documents;
mod encoding;
mod functions;
mod globs;
mod growth;
pub(super) mod guards;
mod limits;
mod numbers;
mod patching;
mod pattern;
mod replacing;
mod size;
mod sprintf;
mod template;
mod texts;
mod times;
mod token;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use regorus::unstable::BUILTINS;
use regorus::{Engine, Value};

use crate::CompileError;
use call::call;
use functions::FUNCTIONS;
use guards::Guard;

/// Builtins that cannot be guarded: how deep they recurse is not seen from their arguments.
const REFUSED: &[&str] = &["graph.reachable_paths"];

/// All builtins of our own.
fn own() -> impl Iterator<Item = &'static (&'static str, u8, functions::Function)> {
    let of_values = FUNCTIONS.iter().chain(numbers::FUNCTIONS).chain(times::FUNCTIONS).chain(cidr::FUNCTIONS);
    let of_texts =
        texts::FUNCTIONS.iter().chain(globs::FUNCTIONS).chain(template::FUNCTIONS).chain(encoding::FUNCTIONS);
    of_values.chain(of_texts).chain(digest::FUNCTIONS).chain(documents::FUNCTIONS).chain(token::FUNCTIONS)
}

/// The builtins that are called behind a guard: regorus' and ours.
fn guarded() -> impl Iterator<Item = &'static (&'static str, Guard)> {
    guards::GUARDED.iter().chain(growth::GUARDED)
}

/// How many arguments a builtin takes. None when there is none of this name.
pub(super) fn arity(name: &str) -> Option<usize> {
    named(name).map(|(arguments, _)| arguments.into())
}

/// How many arguments a builtin takes that regorus does not know at all.
pub(super) fn addition(name: &str) -> Option<usize> {
    arity(name).filter(|_| !BUILTINS.contains_key(name))
}

pub(crate) type Function = dyn Fn(&[Value]) -> Result<Value, String> + Send + Sync;

/// A builtin behind its guard, and how many arguments it takes: ours, or else regorus' own.
pub(crate) fn named(name: &str) -> Option<(u8, Arc<Function>)> {
    if REFUSED.contains(&name) {
        return None;
    }
    let guard = guarded().find(|(guarded, _)| *guarded == name).map(|(_, guard)| *guard);
    let check = move |values: &[Value]| guard.map_or(Ok(()), |guard| guard(values));
    if let Some((_, arguments, function)) = own().find(|(own, ..)| *own == name) {
        return Some((*arguments, Arc::new(move |values: &[Value]| check(values).and_then(|()| function(values)))));
    }
    let (name, (_, arguments)) = BUILTINS.get_key_value(name)?;
    Some((*arguments, Arc::new(move |values: &[Value]| check(values).and_then(|()| call(name, values)))))
}

/// Puts our functions, and the guards with what they guard, in front of regorus' builtins.
pub(super) fn install(engine: &mut Engine) -> Result<(), CompileError> {
    let names: BTreeSet<&str> = own().map(|(name, ..)| *name).chain(guarded().map(|(name, _)| *name)).collect();
    for name in names {
        let Some((arguments, function)) = named(name) else { continue };
        let extension = move |values: Vec<Value>| {
            function(&values).map_err(|why| io::Error::other(format!("{name}: {why}")).into())
        };
        engine
            .add_extension(name.to_owned(), arguments, Box::new(extension))
            .map_err(|error| CompileError::Invalid(error.to_string()))?;
    }
    Ok(())
}
