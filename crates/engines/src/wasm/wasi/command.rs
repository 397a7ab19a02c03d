//! Policies that are WASI commands: the operation is an argument, the message comes on standard input, the answer goes to
//! standard output, and an exit code other than zero is a failure.

use wasmtime::{Caller, InstancePre, Linker, ModuleExport, Store};

use super::process::{PIPE_LIMIT, Process};
use crate::CompileError;
use crate::wasm::export::{export, function, is_function};
use crate::wasm::host_call::{self, Ranges};
use crate::wasm::outcome::{Outcome, accept_exit_zero};
use crate::wasm::state::State;

pub(in crate::wasm) const START: &str = "_start";

pub(in crate::wasm) struct Exports {
    start: ModuleExport,
}

impl Exports {
    pub(in crate::wasm) fn of(module: &wasmtime::Module) -> Result<Self, CompileError> {
        Ok(Self { start: export(module, START, |kind| is_function(kind, 0, 0))? })
    }
}

/// Runs the command and returns its standard output.
pub(in crate::wasm) async fn call(store: &mut Store<State>, module: &InstancePre<State>, exports: &Exports) -> Outcome {
    let state = store.data_mut();
    let operation = match state.payload.operation() {
        b"validate_settings" => "validate-settings",
        _ => "validate",
    };
    state.process = Process {
        arguments: vec!["policy.wasm", operation],
        stdin: state.payload.pieces().concat(),
        stdout: Some(Vec::new()),
        ..Process::default()
    };
    let instance = module.instantiate_async(&mut *store).await?;
    let start = function::<(), ()>(&mut *store, instance, exports.start)?;
    accept_exit_zero(start.call_async(&mut *store, ()).await)?;
    let answer = store.data_mut().process.stdout.take().unwrap_or_default();
    Ok(if answer.is_empty() { Err("the policy gave no answer".into()) } else { Ok(answer) })
}

/// Defines the function by which commands call their host. Commands in JavaScript import it from another module.
pub(in crate::wasm) fn define_host(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    for module in ["host", "kubewarden:javy/host"] {
        linker.func_wrap_async(module, "call", |caller, ranges: Ranges| Box::new(host_call(caller, ranges)))?;
    }
    Ok(())
}

/// Returns 0 for an answer and 1 for an error. Appends the answer or the error to standard input.
async fn host_call(mut caller: Caller<'_, State>, ranges: Ranges) -> wasmtime::Result<u32> {
    let answer = host_call::call_host(&mut caller, "host.call", ranges).await?;
    let process = &mut caller.data_mut().process;
    let failed = answer.is_err();
    process.stdin.drain(..std::mem::take(&mut process.stdin_offset));
    let reply = answer.unwrap_or_else(String::into_bytes);
    if process.stdin.len() + reply.len() > PIPE_LIMIT {
        return Err(wasmtime::Error::msg("the policy does not read the answers of its host"));
    }
    process.stdin.extend_from_slice(&reply);
    Ok(failed.into())
}
