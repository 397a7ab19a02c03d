//! The builtins that a policy may call: those of regorus, some of them behind a guard, and those that Proviso implements. A
//! guard checks the arguments of a call. A refused call is an error, and therefore a denial: "undefined" would lose the
//! violation.

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

/// Builtins of regorus that are not available. No guard could check the depth of their recursion from the arguments.
const REFUSED: &[&str] = &["graph.reachable_paths"];

/// Returns the builtins that Proviso implements, with the number of their arguments.
fn own_builtins() -> impl Iterator<Item = &'static (&'static str, u8, functions::Function)> {
    let of_values = FUNCTIONS.iter().chain(numbers::FUNCTIONS).chain(times::FUNCTIONS).chain(cidr::FUNCTIONS);
    let of_texts =
        texts::FUNCTIONS.iter().chain(globs::FUNCTIONS).chain(template::FUNCTIONS).chain(encoding::FUNCTIONS);
    of_values.chain(of_texts).chain(digest::FUNCTIONS).chain(documents::FUNCTIONS).chain(token::FUNCTIONS)
}

/// Returns the guards, by the names of the builtins that they protect.
fn all_guards() -> impl Iterator<Item = &'static (&'static str, Guard)> {
    guards::GUARDED.iter().chain(growth::GUARDED)
}

/// Returns the number of arguments of a builtin; `None` if no builtin has this name.
pub(super) fn arity(name: &str) -> Option<usize> {
    named(name).map(|(arguments, _)| arguments.into())
}

/// Returns the number of arguments of a builtin that regorus does not have; `None` for all other names.
pub(super) fn arity_of_added(name: &str) -> Option<usize> {
    arity(name).filter(|_| !BUILTINS.contains_key(name))
}

pub(crate) type Function = dyn Fn(&[Value]) -> Result<Value, String> + Send + Sync;

/// Returns a builtin with its guard, and the number of its arguments. Proviso's implementation has precedence over regorus'.
/// `None` if no builtin has this name.
pub(crate) fn named(name: &str) -> Option<(u8, Arc<Function>)> {
    if REFUSED.contains(&name) {
        return None;
    }
    let guard = all_guards().find(|(guarded, _)| *guarded == name).map(|(_, guard)| *guard);
    let check = move |values: &[Value]| guard.map_or(Ok(()), |guard| guard(values));
    if let Some((_, arguments, function)) = own_builtins().find(|(own, ..)| *own == name) {
        return Some((*arguments, Arc::new(move |values: &[Value]| check(values).and_then(|()| function(values)))));
    }
    let (name, (_, arguments)) = BUILTINS.get_key_value(name)?;
    Some((*arguments, Arc::new(move |values: &[Value]| check(values).and_then(|()| call(name, values)))))
}

/// Registers Proviso's builtins and the guarded builtins in an engine. They have precedence over regorus' builtins.
pub(super) fn install(engine: &mut Engine) -> Result<(), CompileError> {
    let names: BTreeSet<&str> =
        own_builtins().map(|(name, ..)| *name).chain(all_guards().map(|(name, _)| *name)).collect();
    for name in names {
        let Some((arguments, function)) = named(name) else { continue };
        let extension = move |values: Vec<Value>| {
            let result = function(&values);
            // The result may be large, and the interpreter checks the memory before it copies the result.
            proviso_memory::check().map_err(io::Error::other)?;
            result.map_err(|why| io::Error::other(format!("{name}: {why}")).into())
        };
        engine
            .add_extension(name.to_owned(), arguments, Box::new(extension))
            .map_err(|error| CompileError::Invalid(error.to_string()))?;
    }
    Ok(())
}
