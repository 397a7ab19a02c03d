//! The builtins that compiled Rego calls in its host: the builtins of this crate's Rego engine, with the same guards. An error
//! of a builtin is undefined, as in OPA. A refusal by a guard ends the evaluation.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use regorus::Value;
use wasmtime::{Caller, Extern, ModuleExport, WasmParams, WasmResults};

use super::exports::{Builtin, Exports};
use super::value;
use crate::rego::builtins::Function;
use crate::wasm::outcome::DeadlinePassed;
use crate::wasm::state::State;
use crate::wasm::{guest_memory, log};
use crate::{EvaluationError, isolation};

/// The builtins that return the same value throughout an evaluation.
const CONSTANT_IN_EVALUATION: &[&str] = &["rand.intn", "time.now_ns", "uuid.rfc4122"];
/// The prefixes of builtins that are fast with short arguments. The other builtins run off the async workers.
const FAST_PREFIXES: &[&str] =
    &["base64url.", "hex.", "object.", "semver.", "sprintf", "strings.", "time.", "trace", "urlquery.", "uuid."];
/// The maximum total length of short arguments, in bytes.
const SHORT_ARGUMENTS: usize = 4 << 10;
/// The maximum length of an argument, in bytes.
const ARGUMENT_LIMIT: usize = 16 << 20;

/// Calls a builtin for a guest. Returns the address of the result in the guest's memory; zero is undefined.
pub(super) async fn call<const N: usize>(
    mut caller: Caller<'_, State>,
    id: i32,
    arguments: [u32; N],
) -> wasmtime::Result<u32> {
    // Each nested call would take another stack. OPA's compiler never emits code that calls a builtin while the host converts
    // the values of another builtin.
    if std::mem::replace(&mut caller.data_mut().evaluation.is_in_builtin, true) {
        return Err(wasmtime::Error::msg("the policy called a builtin from within a call of another builtin"));
    }
    let Some(exports) = caller.data().evaluation.exports.clone() else {
        return Err(wasmtime::Error::msg("the policy is not compiled Rego"));
    };
    let Some(builtin) = exports.host_builtins.get(&id) else {
        let why = format!("the policy called the builtin {id}, which its export `builtins` does not list");
        return Err(wasmtime::Error::msg(why));
    };
    if usize::from(builtin.arity) != N {
        let (name, arity) = (&builtin.name, builtin.arity);
        return Err(wasmtime::Error::msg(format!("the policy called {name} with {N} arguments, not {arity}")));
    }
    let (mut values, mut length) = (Vec::with_capacity(N), 0);
    for argument in arguments {
        let text: u32 = call_guest(&mut caller, exports.value_dump, argument).await?;
        let (memory, _) = guest_memory::of(&mut caller, "opa_value_dump")?;
        let text = memory.c_string(text, ARGUMENT_LIMIT)?;
        length += text.len();
        let value = value::read(text);
        values.push(value.map_err(|error| builtin.error(&format!("an argument is not valid: {error}")))?);
    }
    let result = evaluate(&mut caller, (id, builtin), values, length).await?;
    let address =
        if result == Value::Undefined { 0 } else { write_to_guest(&mut caller, &exports, builtin, &result).await? };
    caller.data_mut().evaluation.is_in_builtin = false;
    Ok(address)
}

/// Evaluates a builtin. `length` is the total length of the arguments, in bytes.
async fn evaluate(
    caller: &mut Caller<'_, State>,
    (id, builtin): (i32, &Builtin),
    values: Vec<Value>,
    length: usize,
) -> wasmtime::Result<Value> {
    let state = caller.data_mut();
    if builtin.name == "trace" {
        if let (Some(Value::String(text)), true) = (values.first(), log::is_enabled(state)) {
            log::write_line(state, "trace", &text.chars().take(log::LINE_LIMIT).collect::<String>());
        }
        return Ok(Value::Bool(true));
    }
    let key = CONSTANT_IN_EVALUATION.contains(&builtin.name.as_str()).then(|| (id, values.clone()));
    if let Some(result) = key.as_ref().and_then(|key| state.evaluation.constants.get(key)) {
        return Ok(result.clone());
    }
    let is_fast = length <= SHORT_ARGUMENTS && FAST_PREFIXES.iter().any(|prefix| builtin.name.starts_with(prefix));
    let result = if is_fast {
        call_inline(&*builtin.function, &values).map_err(|why| builtin.error(&why))?
    } else {
        let function = Arc::clone(&builtin.function);
        let call = isolation::run(state.deadline, move || function(&values).map_err(EvaluationError::Failed));
        match call.await {
            Ok(result) => result,
            Err(EvaluationError::DeadlineExceeded | EvaluationError::Overloaded(_)) => {
                return Err(DeadlinePassed.into());
            }
            Err(EvaluationError::Failed(why) | EvaluationError::InvalidAnswer(why)) => {
                return Err(builtin.error(&why));
            }
        }
    };
    if let Some(key) = key {
        caller.data_mut().evaluation.constants.insert(key, result.clone());
    }
    Ok(result)
}

/// Calls a builtin on the current thread. A panic is an error, as in an isolated evaluation.
fn call_inline(function: &Function, values: &[Value]) -> Result<Value, String> {
    let call = AssertUnwindSafe(|| function(values));
    catch_unwind(call).unwrap_or_else(|_| Err("the builtin panicked".into()))
}

/// Writes the result of a builtin to the guest's memory. Returns the address of the value that the guest makes of the text.
async fn write_to_guest(
    caller: &mut Caller<'_, State>,
    exports: &Exports,
    builtin: &Builtin,
    result: &Value,
) -> wasmtime::Result<u32> {
    let text = value::write(result).map_err(|why| builtin.error(&why))?;
    let length = u32::try_from(text.len())?;
    let address: u32 = call_guest(caller, exports.malloc, length).await?;
    let (mut memory, _) = guest_memory::of(caller, "opa_value_parse")?;
    memory.write(address, text.as_bytes())?;
    match call_guest(caller, exports.value_parse, (address, length)).await? {
        0 => Err(builtin.error("the policy cannot parse the result")),
        value => Ok(value),
    }
}

/// Calls an exported function of the guest during the guest's call of a builtin.
async fn call_guest<P, R>(caller: &mut Caller<'_, State>, export: ModuleExport, parameters: P) -> wasmtime::Result<R>
where
    P: WasmParams + Sync,
    R: WasmResults + Sync,
{
    let function = caller.get_module_export(&export).and_then(Extern::into_func);
    let function = function.ok_or_else(|| wasmtime::Error::msg("an export is not a function"))?;
    function.typed::<P, R>(&*caller)?.call_async(&mut *caller, parameters).await
}

impl Builtin {
    fn error(&self, why: &str) -> wasmtime::Error {
        wasmtime::Error::msg(format!("{}: {why}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_builtin_that_panics_is_an_error() {
        let returns = |_: &[Value]| Ok(Value::Null);
        assert_eq!(call_inline(&returns, &[]), Ok(Value::Null));
        let panics = |_: &[Value]| -> Result<Value, String> { panic!("boom") };
        assert_eq!(call_inline(&panics, &[]), Err("the builtin panicked".into()));
    }
}
