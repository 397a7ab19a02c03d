//! Compiled Rego (`opa build -t wasm`, ABI 1): the functions that its modules import, and the call of a guest. The host
//! exchanges values with the guest as text. The guest converts the text to and from the structures in its heap.

mod builtins;
mod evaluation;
mod exports;
mod guest;
mod inspect;
mod memory;
mod value;

use std::sync::Arc;

use wasmtime::{Caller, InstancePre, Linker, Store};

use super::outcome::Outcome;
use super::state::State;
use super::{guest_memory, log};
use guest::{Document, Guest};

pub(super) use evaluation::Evaluation;
pub(super) use exports::Exports;
pub(super) use inspect::list_builtins;
pub(super) use memory::{IMPORTS, with_own_memory};

/// The maximum length of the text of `opa_abort`, in bytes.
const ABORT_LIMIT: usize = 4 << 10;

/// Evaluates the first entrypoint over the two documents of the payload. Returns OPA's result set as JSON.
pub(super) async fn call(store: &mut Store<State>, module: &InstancePre<State>, exports: &Arc<Exports>) -> Outcome {
    let mut guest = Guest::new(store, module, exports).await?;
    let data = guest.parse_document(Document::Data).await?;
    let input = guest.parse_document(Document::Input).await?;
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
    // OPA's ABI reserves the second argument of every builtin.
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
    Err(wasmtime::Error::msg(format!("the policy aborted: {}", String::from_utf8_lossy(text))))
}

fn println(mut caller: Caller<'_, State>, address: u32) -> wasmtime::Result<()> {
    let (memory, state) = guest_memory::of(&mut caller, "opa_println")?;
    let text = String::from_utf8_lossy(memory.c_string_prefix(address, log::LINE_LIMIT)?).into_owned();
    if log::is_enabled(state) {
        log::write_line(state, "print", &text);
    }
    Ok(())
}
