//! Builtins that a caller could end the process with, by the size or depth of what it sends: each gets a
//! guard in front. What a guard refuses is an error, and so a denial, not undefined.

use std::io;

use regorus::unstable::{BUILTINS, Expr, Ref, Source, Span};
use regorus::{Engine, Value};

use crate::CompileError;

/// The most elements that one call may make.
const MAX_ELEMENTS: f64 = 1_000_000.0;
/// The most address bits that one call may expand: as many addresses as [`MAX_ELEMENTS`].
const MAX_ADDRESS_BITS: u8 = 20;
/// The deepest nesting in a glob; its parser is recursive.
const MAX_GLOB_NESTING: usize = 16;

type Guard = fn(&[Value]) -> Result<(), &'static str>;

const GUARDED: &[(&str, Guard)] = &[
    ("glob.match", glob_is_shallow),
    ("net.cidr_expand", network_is_small),
    ("numbers.range", range_is_short),
    ("numbers.range_step", range_is_short),
];

/// Builtins that cannot be guarded: how deep they recurse is not seen from their arguments.
pub(super) const REFUSED: &[&str] = &["graph.reachable_paths"];

/// Puts the guards in front of their builtins.
pub(super) fn guard(engine: &mut Engine) -> Result<(), CompileError> {
    let invalid = |error: String| CompileError::Invalid(error);
    let source = Source::from_contents("builtin".into(), String::new()).map_err(|error| invalid(error.to_string()))?;
    for (name, guard) in GUARDED {
        let Some((builtin, arguments)) = BUILTINS.get(name) else { continue };
        let span = Span { source: source.clone(), line: 1, col: 1, start: 0, end: 0 };
        let null = || Ref::new(Expr::Null { span: span.clone(), value: Value::Null, eidx: 0 });
        let places: Vec<Ref<Expr>> = (0..*arguments).map(|_| null()).collect();
        let guarded = move |values: Vec<Value>| match guard(&values) {
            Err(why) => Err(io::Error::other(format!("{name}: {why}")).into()),
            // As the interpreter does: errors of builtins are undefined, those of limits stay errors.
            Ok(()) => match builtin(&span, &places, &values, false) {
                Err(error) if error.downcast_ref::<regorus::LimitError>().is_none() => Ok(Value::Undefined),
                other => other,
            },
        };
        engine
            .add_extension((*name).to_owned(), *arguments, Box::new(guarded))
            .map_err(|error| invalid(error.to_string()))?;
    }
    Ok(())
}

fn glob_is_shallow(values: &[Value]) -> Result<(), &'static str> {
    let Some(Value::String(pattern)) = values.first() else { return Ok(()) };
    let mut depth = 0_usize;
    for character in pattern.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_GLOB_NESTING {
            return Err("the pattern is nested too deep");
        }
    }
    Ok(())
}

fn network_is_small(values: &[Value]) -> Result<(), &'static str> {
    let Some(Value::String(network)) = values.first() else { return Ok(()) };
    let Some((address, prefix)) = network.split_once('/') else { return Ok(()) };
    let bits: u8 = if address.contains(':') { 128 } else { 32 };
    match prefix.trim().parse::<u8>() {
        Ok(prefix) if bits.saturating_sub(prefix) > MAX_ADDRESS_BITS => Err("the network has too many addresses"),
        _ => Ok(()),
    }
}

fn range_is_short(values: &[Value]) -> Result<(), &'static str> {
    let number = |place: usize| values.get(place).and_then(|value| value.as_f64().ok());
    match (number(0), number(1)) {
        (Some(from), Some(to)) if (to - from).abs() > MAX_ELEMENTS => Err("the range is too long"),
        _ => Ok(()),
    }
}
