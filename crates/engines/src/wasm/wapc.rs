//! waPC: the functions that a host provides to its guests (module `wapc`), and the call of a guest.

use wasmtime::{Caller, Instance, InstancePre, Linker, ModuleExport, Store};

use super::export::{export, function, is_function};
use super::host_call::{self, Ranges};
use super::outcome::{Outcome, accept_exit_zero};
use super::state::State;
use super::{guest_memory, log};
use crate::CompileError;

pub(super) const GUEST_CALL: &str = "__guest_call";
/// The functions that initialise a module, in the order of the calls: for WASI reactors, for WASI commands and for waPC.
pub(super) const INITIALISERS: [&str; 3] = ["_initialize", "_start", "wapc_init"];
/// The maximum length of a guest's answer, in bytes. A mutated object cannot be larger than etcd's limit, 1.5 MiB by default.
const RESPONSE_LIMIT: usize = 16 << 20;
/// The maximum length of a guest's error message, in bytes. The rest is truncated.
const ERROR_LIMIT: usize = 4 << 10;

pub(super) struct Exports {
    guest_call: ModuleExport,
    initialisers: Vec<ModuleExport>,
}

impl Exports {
    pub(super) fn of(module: &wasmtime::Module) -> Result<Self, CompileError> {
        let guest_call = export(module, GUEST_CALL, |kind| is_function(kind, 2, 1))?;
        let mut initialisers = Vec::new();
        for name in INITIALISERS {
            if module.get_export_index(name).is_some() {
                initialisers.push(export(module, name, |kind| is_function(kind, 0, 0))?);
            }
        }
        Ok(Self { guest_call, initialisers })
    }
}

/// Creates an instance and calls its initialisers.
pub(super) async fn instantiate(
    store: &mut Store<State>,
    module: &InstancePre<State>,
    exports: &Exports,
) -> wasmtime::Result<Instance> {
    let instance = module.instantiate_async(&mut *store).await?;
    for initialiser in &exports.initialisers {
        let function = function::<(), ()>(&mut *store, instance, *initialiser)?;
        accept_exit_zero(function.call_async(&mut *store, ()).await)?;
    }
    Ok(instance)
}

pub(super) async fn call(store: &mut Store<State>, module: &InstancePre<State>, exports: &Exports) -> Outcome {
    let instance = instantiate(store, module, exports).await?;
    call_instance(store, instance, exports).await
}

/// Returns the answer of an initialised instance to the payload of the store.
pub(super) async fn call_instance(store: &mut Store<State>, instance: Instance, exports: &Exports) -> Outcome {
    let payload = &store.data().payload;
    let lengths = (i32::try_from(payload.operation().len())?, i32::try_from(payload.message_len())?);
    let guest_call = function::<(i32, i32), i32>(&mut *store, instance, exports.guest_call)?;
    let succeeded = guest_call.call_async(&mut *store, lengths).await? != 0;
    let state = store.data_mut();
    Ok(match (succeeded, state.response.take(), state.error.take()) {
        (true, Some(response), _) => Ok(response),
        (_, _, Some(error)) => Err(error),
        (true, None, None) => Err("the policy gave no answer".into()),
        (false, _, None) => Err("the policy failed and gave no reason".into()),
    })
}

pub(super) fn define(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    const WAPC: &str = "wapc";
    linker.func_wrap(WAPC, "__guest_request", guest_request)?;
    linker.func_wrap(WAPC, "__guest_response", guest_response)?;
    linker.func_wrap(WAPC, "__guest_error", guest_error)?;
    linker.func_wrap_async(WAPC, "__host_call", |caller, ranges: Ranges| Box::new(host_call(caller, ranges)))?;
    linker.func_wrap(WAPC, "__host_response", host_response)?;
    linker.func_wrap(WAPC, "__host_response_len", |caller: Caller<'_, State>| {
        saturating_length(caller.data().host_response.len())
    })?;
    linker.func_wrap(WAPC, "__host_error", host_error)?;
    linker.func_wrap(WAPC, "__host_error_len", |caller: Caller<'_, State>| {
        saturating_length(caller.data().host_error.len())
    })?;
    linker.func_wrap(WAPC, "__console_log", console_log)?;
    Ok(())
}

fn guest_request(mut caller: Caller<'_, State>, operation: u32, message: u32) -> wasmtime::Result<()> {
    let (mut memory, state) = guest_memory::of(&mut caller, "__guest_request")?;
    state.has_called_host = true;
    memory.write(operation, state.payload.operation())?;
    memory.write_pieces(message, &state.payload.pieces())
}

fn guest_response(mut caller: Caller<'_, State>, address: u32, length: u32) -> wasmtime::Result<()> {
    let (memory, state) = guest_memory::of(&mut caller, "__guest_response")?;
    state.has_called_host = true;
    state.response = Some(memory.read(address, length, RESPONSE_LIMIT)?.to_vec());
    Ok(())
}

fn guest_error(mut caller: Caller<'_, State>, address: u32, length: u32) -> wasmtime::Result<()> {
    let (memory, state) = guest_memory::of(&mut caller, "__guest_error")?;
    state.has_called_host = true;
    state.error = Some(memory.text(address, length, ERROR_LIMIT)?);
    Ok(())
}

/// Returns 1 for an answer and 0 for an error. The guest then fetches the answer or the error.
async fn host_call(mut caller: Caller<'_, State>, ranges: Ranges) -> wasmtime::Result<u32> {
    let answer = host_call::call_host(&mut caller, "__host_call", ranges).await?;
    let state = caller.data_mut();
    let succeeded = answer.is_ok();
    (state.host_response, state.host_error) = match answer {
        Ok(response) => (response, String::new()),
        Err(error) => (Vec::new(), error),
    };
    Ok(succeeded.into())
}

fn host_response(mut caller: Caller<'_, State>, address: u32) -> wasmtime::Result<()> {
    let (mut memory, state) = guest_memory::of(&mut caller, "__host_response")?;
    memory.write(address, &state.host_response)
}

fn host_error(mut caller: Caller<'_, State>, address: u32) -> wasmtime::Result<()> {
    let (mut memory, state) = guest_memory::of(&mut caller, "__host_error")?;
    memory.write(address, state.host_error.as_bytes())
}

fn console_log(mut caller: Caller<'_, State>, address: u32, length: u32) -> wasmtime::Result<()> {
    let (memory, state) = guest_memory::of(&mut caller, "__console_log")?;
    let text = memory.text(address, length, log::LINE_LIMIT)?;
    if log::is_enabled(state) {
        log::write_line(state, "console", &text);
    }
    Ok(())
}

/// Converts a length for a guest. A length beyond `u32::MAX` exceeds the guest's memory, so writing the text fails later.
fn saturating_length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
