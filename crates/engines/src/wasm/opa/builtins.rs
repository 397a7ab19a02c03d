//! The builtins that compiled Rego leaves to its host: those of our Rego engine, with the same guards. What a builtin calls
//! an error is undefined, as in OPA; what a guard refuses ends the evaluation.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use regorus::Value;
use wasmtime::{Caller, Extern, ModuleExport, WasmParams, WasmResults};

use super::exports::{Builtin, Exports};
use super::value;
use crate::EvaluationError;
use crate::rego::builtins::Function;
use crate::wasm::outcome::DeadlinePassed;
use crate::wasm::state::State;
use crate::wasm::{guest_memory, log};

/// Those whose answer stays the same throughout one evaluation.
const REMEMBERED: &[&str] = &["rand.intn", "time.now_ns", "uuid.rfc4122"];
/// Beginnings of the names of those that take no time over short arguments; others run off the async workers.
const QUICK: &[&str] =
    &["base64url.", "hex.", "object.", "semver.", "sprintf", "strings.", "time.", "trace", "urlquery.", "uuid."];
/// What are short arguments, in bytes.
const SHORT: usize = 4 << 10;
/// The longest argument, in bytes.
const ARGUMENT_LIMIT: usize = 16 << 20;

/// Answers a guest with the address of a value; zero is undefined.
pub(super) async fn call<const N: usize>(
    mut caller: Caller<'_, State>,
    id: i32,
    arguments: [u32; N],
) -> wasmtime::Result<u32> {
    // Each nesting would take another stack. No compiler makes a guest that asks from within an answer.
    if std::mem::replace(&mut caller.data_mut().evaluation.is_busy, true) {
        return Err(wasmtime::Error::msg("the policy called a builtin while it was being answered by another one"));
    }
    let Some(exports) = caller.data().evaluation.exports.clone() else {
        return Err(wasmtime::Error::msg("the policy is no compiled Rego"));
    };
    let Some(builtin) = exports.provided.get(&id) else {
        return Err(wasmtime::Error::msg(format!("the policy called the builtin {id}, which it does not name")));
    };
    if usize::from(builtin.arity) != N {
        let (name, arity) = (&builtin.name, builtin.arity);
        return Err(wasmtime::Error::msg(format!("the policy called {name} with {N} arguments, not {arity}")));
    }
    let (mut values, mut length) = (Vec::with_capacity(N), 0);
    for argument in arguments {
        let text: u32 = call_back(&mut caller, exports.value_dump, argument).await?;
        let (memory, _) = guest_memory::of(&mut caller, "opa_value_dump")?;
        let text = memory.c_string(text, ARGUMENT_LIMIT)?;
        length += text.len();
        let value = value::read(text);
        values.push(value.map_err(|error| builtin.failed(&format!("an argument is not valid: {error}")))?);
    }
    let answer = ask(&mut caller, &exports, (id, builtin), values, length).await?;
    let address = if answer == Value::Undefined { 0 } else { give(&mut caller, &exports, builtin, &answer).await? };
    caller.data_mut().evaluation.is_busy = false;
    Ok(address)
}

async fn ask(
    caller: &mut Caller<'_, State>,
    exports: &Exports,
    (id, builtin): (i32, &Builtin),
    values: Vec<Value>,
    length: usize,
) -> wasmtime::Result<Value> {
    let state = caller.data_mut();
    if builtin.name == "trace" {
        if let (Some(Value::String(text)), true) = (values.first(), log::is_wanted(state)) {
            log::line(state, "trace", &text.chars().take(log::LINE).collect::<String>());
        }
        return Ok(Value::Bool(true));
    }
    let key = REMEMBERED.contains(&builtin.name.as_str()).then(|| (id, values.clone()));
    if let Some(answer) = key.as_ref().and_then(|key| state.evaluation.remembered.get(key)) {
        return Ok(answer.clone());
    }
    let is_quick = length <= SHORT && QUICK.iter().any(|beginning| builtin.name.starts_with(beginning));
    let answer = if is_quick {
        at_once(&*builtin.function, &values).map_err(|why| builtin.failed(&why))?
    } else {
        let function = Arc::clone(&builtin.function);
        let calling = exports.isolation.run(state.deadline, move || function(&values).map_err(EvaluationError::Failed));
        match calling.await {
            Ok(answer) => answer,
            Err(EvaluationError::DeadlineExceeded | EvaluationError::Overloaded) => return Err(DeadlinePassed.into()),
            Err(EvaluationError::Failed(why) | EvaluationError::InvalidAnswer(why)) => {
                return Err(builtin.failed(&why));
            }
        }
    };
    if let Some(key) = key {
        caller.data_mut().evaluation.remembered.insert(key, answer.clone());
    }
    Ok(answer)
}

/// Calls it here and now. A panic inside is an error, as it is where evaluations are isolated.
fn at_once(function: &Function, values: &[Value]) -> Result<Value, String> {
    let calling = AssertUnwindSafe(|| function(values));
    catch_unwind(calling).unwrap_or_else(|_| Err("it panicked".into()))
}

/// Has the guest make the answer a value of its own.
async fn give(
    caller: &mut Caller<'_, State>,
    exports: &Exports,
    builtin: &Builtin,
    answer: &Value,
) -> wasmtime::Result<u32> {
    let text = value::write(answer).map_err(|why| builtin.failed(&why))?;
    let length = u32::try_from(text.len())?;
    let address: u32 = call_back(caller, exports.malloc, length).await?;
    let (mut memory, _) = guest_memory::of(caller, "opa_value_parse")?;
    memory.write(address, text.as_bytes())?;
    match call_back(caller, exports.value_parse, (address, length)).await? {
        0 => Err(builtin.failed("the policy cannot read the answer")),
        value => Ok(value),
    }
}

/// Calls a function of the guest that is calling us.
async fn call_back<P, R>(caller: &mut Caller<'_, State>, export: ModuleExport, parameters: P) -> wasmtime::Result<R>
where
    P: WasmParams + Sync,
    R: WasmResults + Sync,
{
    let function = caller.get_module_export(&export).and_then(Extern::into_func);
    let function = function.ok_or_else(|| wasmtime::Error::msg("an export is no function"))?;
    function.typed::<P, R>(&*caller)?.call_async(&mut *caller, parameters).await
}

impl Builtin {
    fn failed(&self, why: &str) -> wasmtime::Error {
        wasmtime::Error::msg(format!("{}: {why}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_builtin_that_panics_is_an_error() {
        let answers = |_: &[Value]| Ok(Value::Null);
        assert_eq!(at_once(&answers, &[]), Ok(Value::Null));
        let panics = |_: &[Value]| -> Result<Value, String> { panic!("boom") };
        assert_eq!(at_once(&panics, &[]), Err("it panicked".into()));
    }
}
