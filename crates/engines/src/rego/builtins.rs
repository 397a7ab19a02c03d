//! The builtins that a policy may call: regorus' own, some of them behind a guard, and ours. What a guard
//! refuses is an error, and so a denial, not undefined: undefined would lose the violation.

mod cidr;
mod digest;
mod documents;
mod encoding;
mod functions;
mod globs;
mod growth;
pub(super) mod guards;
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

use std::io;
use std::sync::LazyLock;

use regorus::unstable::{BUILTINS, Expr, Ref, Source, Span};
use regorus::{Engine, Value};

use crate::CompileError;
use functions::FUNCTIONS;
use guards::Guard;

/// The longest text that one call may make, in bytes: ten times the largest request.
const MAX_TEXT: usize = 16 * 1024 * 1024;
/// The most values that one call may make, or be given by what would make as many.
const MAX_ELEMENTS: usize = 1_000_000;

/// Builtins that cannot be guarded: how deep they recurse is not seen from their arguments.
const REFUSED: &[&str] = &["graph.reachable_paths"];

/// Where regorus' builtins are told that they are called from, for their messages.
static NOWHERE: LazyLock<Option<Span>> = LazyLock::new(|| {
    let source = Source::from_contents("builtin".into(), String::new()).ok()?;
    Some(Span { source, line: 1, col: 1, start: 0, end: 0 })
});

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

fn guard_of(name: &str) -> Option<Guard> {
    guarded().find(|(guarded, _)| *guarded == name).map(|(_, guard)| *guard)
}

/// How many arguments a builtin takes. None when there is none of this name.
pub(super) fn arity(name: &str) -> Option<usize> {
    if REFUSED.contains(&name) {
        return None;
    }
    let own = own().find(|(own, ..)| *own == name).map(|(_, arguments, _)| *arguments);
    own.or_else(|| BUILTINS.get(name).map(|(_, arguments)| *arguments)).map(usize::from)
}

/// How many arguments a builtin takes that regorus does not know at all.
pub(super) fn addition(name: &str) -> Option<usize> {
    arity(name).filter(|_| !BUILTINS.contains_key(name))
}

/// Puts our functions, and the guards with what they guard, in front of regorus' builtins.
pub(super) fn install(engine: &mut Engine) -> Result<(), CompileError> {
    let is_own = |name: &str| own().any(|(own, ..)| *own == name);
    let guarded = guarded().filter(|(name, _)| !is_own(name)).filter_map(|(name, guard)| {
        let (_, arguments) = BUILTINS.get(name)?;
        let function = move |values: &[Value]| {
            guard(values)?;
            call(name, values)
        };
        Some((*name, *arguments, Box::new(function) as Box<Function>))
    });
    let own = own().map(|(name, arguments, function)| {
        let guard = guard_of(name);
        let function = move |values: &[Value]| {
            guard.map_or(Ok(()), |guard| guard(values))?;
            function(values)
        };
        (*name, *arguments, Box::new(function) as Box<Function>)
    });
    for (name, arguments, function) in guarded.chain(own) {
        let function: std::sync::Arc<Function> = function.into();
        let extension = move |values: Vec<Value>| {
            function(&values).map_err(|why| io::Error::other(format!("{name}: {why}")).into())
        };
        engine
            .add_extension(name.to_owned(), arguments, Box::new(extension))
            .map_err(|error| CompileError::Invalid(error.to_string()))?;
    }
    Ok(())
}

pub(crate) type Function = dyn Fn(&[Value]) -> Result<Value, String> + Send + Sync;

/// One builtin with its guard and the number of its arguments, for modules that leave it to their host.
#[cfg(feature = "wasm")]
pub(crate) fn named(name: &str) -> Option<(usize, std::sync::Arc<Function>)> {
    let arity = arity(name)?;
    let guard = guard_of(name);
    if let Some((.., own)) = own().find(|(own, ..)| *own == name) {
        let function = move |values: &[Value]| {
            guard.map_or(Ok(()), |guard| guard(values))?;
            own(values)
        };
        return Some((arity, std::sync::Arc::new(function)));
    }
    let name = name.to_owned();
    let function = move |values: &[Value]| {
        if let Some(guard) = guard {
            guard(values)?;
        }
        call(&name, values)
    };
    Some((arity, std::sync::Arc::new(function)))
}

/// Calls one of regorus' builtins as its interpreter does: errors are undefined, but those of limits stay.
pub(super) fn call(name: &str, values: &[Value]) -> Result<Value, String> {
    let (Some((builtin, _)), Some(span)) = (BUILTINS.get(name), NOWHERE.as_ref()) else {
        return Err("it is missing".into());
    };
    let place = || Ref::new(Expr::Null { span: span.clone(), value: Value::Null, eidx: 0 });
    let places: Vec<Ref<Expr>> = values.iter().map(|_| place()).collect();
    match builtin(span, &places, values, false) {
        Err(error) if error.downcast_ref::<regorus::LimitError>().is_some() => Err(error.to_string()),
        Err(_) => Ok(Value::Undefined),
        Ok(value) => Ok(value),
    }
}
