//! Compiled Rego (`opa build -t wasm`, ABI 1): what its modules import, and how one is asked. Values are texts to the host
//! and structures in the guest's heap; the guest reads and writes them itself.

mod builtins;
mod guest;
mod inspect;
mod memory;
mod value;

use std::collections::BTreeMap;

use wasmtime::{Caller, Linker, ModuleExport, Store};

use super::abi::Outcome;
use super::module::{export, is_function};
use super::state::State;
use super::{guest_memory, log};
use crate::CompileError;
use crate::isolation::Isolation;
use builtins::Builtin;
use guest::{Document, Guest};

pub(super) use builtins::Evaluation;
pub(super) use inspect::inspect;
pub(super) use memory::with_own_memory;

/// The module of all imports.
pub(super) const IMPORTS: &str = "env";
/// Bytes of a text by which a guest gives up.
const ABORT_LIMIT: usize = 4 << 10;

/// The functions of a module, and the builtins that it asks for.
pub(super) struct Exports {
    malloc: ModuleExport,
    json_parse: ModuleExport,
    json_dump: ModuleExport,
    value_parse: ModuleExport,
    value_dump: ModuleExport,
    context_new: ModuleExport,
    set_input: ModuleExport,
    set_data: ModuleExport,
    set_entrypoint: ModuleExport,
    eval: ModuleExport,
    result: ModuleExport,
    builtins: ModuleExport,
    provided: BTreeMap<i32, Builtin>,
    isolation: Isolation,
}

impl Exports {
    pub(super) fn of(module: &wasmtime::Module, builtins: &BTreeMap<i32, String>) -> Result<Self, CompileError> {
        let function = |name, parameters, results| export(module, name, |kind| is_function(kind, parameters, results));
        Ok(Self {
            malloc: function("opa_malloc", 1, 1)?,
            json_parse: function("opa_json_parse", 2, 1)?,
            json_dump: function("opa_json_dump", 1, 1)?,
            value_parse: function("opa_value_parse", 2, 1)?,
            value_dump: function("opa_value_dump", 1, 1)?,
            context_new: function("opa_eval_ctx_new", 0, 1)?,
            set_input: function("opa_eval_ctx_set_input", 2, 0)?,
            set_data: function("opa_eval_ctx_set_data", 2, 0)?,
            set_entrypoint: function("opa_eval_ctx_set_entrypoint", 2, 0)?,
            eval: function("eval", 1, 1)?,
            result: function("opa_eval_ctx_get_result", 1, 1)?,
            builtins: function("builtins", 0, 1)?,
            provided: builtins::provided(builtins)?,
            isolation: Isolation::new(),
        })
    }
}

/// Evaluates the first entrypoint over the two documents of the payload; the answer is OPA's result set, as JSON.
pub(super) async fn call(store: &mut Store<State>, exports: &Exports) -> Outcome {
    let mut guest = Guest::new(store, exports).await?;
    let data = guest.read_document(Document::Data).await?;
    let input = guest.read_document(Document::Input).await?;
    let context: u32 = guest.call(exports.context_new, ()).await?;
    guest.call::<_, ()>(exports.set_data, (context, data)).await?;
    guest.call::<_, ()>(exports.set_input, (context, input)).await?;
    guest.call::<_, ()>(exports.set_entrypoint, (context, 0_u32)).await?;
    let error: i32 = guest.call(exports.eval, context).await?;
    if error != 0 {
        return Ok(Err(format!("the evaluation ended with the error {error}")));
    }
    let result: u32 = guest.call(exports.result, context).await?;
    guest.dump(result).await.map(Ok)
}

pub(super) fn define(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.func_wrap(IMPORTS, "opa_abort", abort)?;
    linker.func_wrap(IMPORTS, "opa_println", println)?;
    // The second argument of all is reserved.
    linker.func_wrap_async(IMPORTS, "opa_builtin0", |caller, (id, _): (i32, u32)| {
        Box::new(builtins::call(caller, id, []))
    })?;
    linker.func_wrap_async(IMPORTS, "opa_builtin1", |caller, (id, _, a): (i32, u32, u32)| {
        Box::new(builtins::call(caller, id, [a]))
    })?;
    linker.func_wrap_async(IMPORTS, "opa_builtin2", |caller, (id, _, a, b): (i32, u32, u32, u32)| {
        Box::new(builtins::call(caller, id, [a, b]))
    })?;
    linker.func_wrap_async(IMPORTS, "opa_builtin3", |caller, (id, _, a, b, c): (i32, u32, u32, u32, u32)| {
        Box::new(builtins::call(caller, id, [a, b, c]))
    })?;
    linker.func_wrap_async(
        IMPORTS,
        "opa_builtin4",
        |caller, (id, _, a, b, c, d): (i32, u32, u32, u32, u32, u32)| {
            Box::new(builtins::call(caller, id, [a, b, c, d]))
        },
    )?;
    Ok(())
}

fn abort(mut caller: Caller<'_, State>, address: u32) -> wasmtime::Result<()> {
    let (memory, _) = guest_memory::of(&mut caller, "opa_abort")?;
    let text = memory.c_string(address, ABORT_LIMIT)?;
    Err(wasmtime::Error::msg(format!("the policy gave up: {}", String::from_utf8_lossy(text))))
}

fn println(mut caller: Caller<'_, State>, address: u32) -> wasmtime::Result<()> {
    let (memory, state) = guest_memory::of(&mut caller, "opa_println")?;
    let text = String::from_utf8_lossy(memory.beginning(address, log::LINE)?).into_owned();
    if log::is_wanted(state) {
        log::line(state, "print", &text);
    }
    Ok(())
}
