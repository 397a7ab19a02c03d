//! The functions that waPC hosts give to their guests (module `wapc`).

use wasmtime::{Caller, Linker};

use super::state::State;
use super::{guest_memory, log};

/// The longest answer of a guest, in bytes. A mutated object is at most as large as etcd stores, 1.5 MiB by default.
const RESPONSE_LIMIT: usize = 16 << 20;
/// Bytes of a guest's error text that are kept.
const ERROR_LIMIT: usize = 4 << 10;
/// Bytes of the name of a host function that are kept.
const NAME_LIMIT: usize = 128;

pub(super) fn define(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    const WAPC: &str = "wapc";
    linker.func_wrap(WAPC, "__guest_request", guest_request)?;
    linker.func_wrap(WAPC, "__guest_response", guest_response)?;
    linker.func_wrap(WAPC, "__guest_error", guest_error)?;
    linker.func_wrap(WAPC, "__host_call", host_call)?;
    // No host call has an answer yet: `tracing/log` succeeds with an empty one.
    linker.func_wrap(WAPC, "__host_response", |_: u32| {})?;
    linker.func_wrap(WAPC, "__host_response_len", || 0_u32)?;
    linker.func_wrap(WAPC, "__host_error", host_error)?;
    linker
        .func_wrap(WAPC, "__host_error_len", |caller: Caller<'_, State>| as_length(caller.data().host_error.len()))?;
    linker.func_wrap(WAPC, "__console_log", console_log)?;
    Ok(())
}

fn guest_request(mut caller: Caller<'_, State>, operation: u32, message: u32) -> wasmtime::Result<()> {
    let (mut memory, state) = guest_memory::of(&mut caller, "__guest_request")?;
    memory.write(operation, state.payload.operation())?;
    memory.write_pieces(message, &state.payload.pieces())
}

fn guest_response(mut caller: Caller<'_, State>, address: u32, length: u32) -> wasmtime::Result<()> {
    let (memory, state) = guest_memory::of(&mut caller, "__guest_response")?;
    state.response = Some(memory.read(address, length, RESPONSE_LIMIT)?.to_vec());
    Ok(())
}

fn guest_error(mut caller: Caller<'_, State>, address: u32, length: u32) -> wasmtime::Result<()> {
    let (memory, state) = guest_memory::of(&mut caller, "__guest_error")?;
    state.error = Some(memory.text(address, length, ERROR_LIMIT)?);
    Ok(())
}

/// The host capabilities. All but the log are refused, in words that tell the policy's author why.
#[allow(clippy::too_many_arguments, reason = "waPC defines them")]
fn host_call(
    mut caller: Caller<'_, State>,
    binding: u32,
    binding_len: u32,
    namespace: u32,
    namespace_len: u32,
    operation: u32,
    operation_len: u32,
    message: u32,
    message_len: u32,
) -> wasmtime::Result<u32> {
    let (memory, state) = guest_memory::of(&mut caller, "__host_call")?;
    let binding = memory.text(binding, binding_len, NAME_LIMIT)?;
    let namespace = memory.text(namespace, namespace_len, NAME_LIMIT)?;
    let operation = memory.text(operation, operation_len, NAME_LIMIT)?;
    let message = memory.read(message, message_len, RESPONSE_LIMIT)?;
    state.called_host = true;
    state.host_error.clear();
    if binding == "kubewarden" && namespace == "tracing" && operation == "log" {
        if log::is_wanted(state) {
            log::event(state, &String::from_utf8_lossy(&message[..message.len().min(log::LINE)]));
        }
        return Ok(1);
    }
    state.host_error =
        format!("{binding}/{namespace}/{operation} is not available: host capabilities are not supported yet");
    Ok(0)
}

fn host_error(mut caller: Caller<'_, State>, address: u32) -> wasmtime::Result<()> {
    let (mut memory, state) = guest_memory::of(&mut caller, "__host_error")?;
    memory.write(address, state.host_error.as_bytes())
}

fn console_log(mut caller: Caller<'_, State>, address: u32, length: u32) -> wasmtime::Result<()> {
    let (memory, state) = guest_memory::of(&mut caller, "__console_log")?;
    let text = memory.text(address, length, log::LINE)?;
    if log::is_wanted(state) {
        log::line(state, "console", &text);
    }
    Ok(())
}

/// The host's own texts are short.
fn as_length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
