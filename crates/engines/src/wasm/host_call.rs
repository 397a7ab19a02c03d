//! A guest asks its host. The host has its own idea of who may ask what; here is only that the answer comes in time.

use std::sync::Arc;

use tokio::time::timeout_at;
use wasmtime::Caller;

use super::outcome::DeadlinePassed;
use super::state::State;
use super::{guest_memory, log};
use crate::HostCall;

/// The longest message of a guest, in bytes.
const MESSAGE_LIMIT: usize = 16 << 20;
/// Bytes of the name of a host function that are kept.
const NAME_LIMIT: usize = 128;

/// Eight numbers, as waPC has them: address and length of binding, namespace, operation and message.
pub(super) type Ranges = (u32, u32, u32, u32, u32, u32, u32, u32);

/// The host's answer or its words why there is none. `function` is the import that the guest called.
pub(super) async fn ask(
    caller: &mut Caller<'_, State>,
    function: &'static str,
    ranges: Ranges,
) -> wasmtime::Result<Result<Vec<u8>, String>> {
    let (binding, binding_len, namespace, namespace_len, operation, operation_len, message, message_len) = ranges;
    let (memory, state) = guest_memory::of(caller, function)?;
    let binding = memory.text(binding, binding_len, NAME_LIMIT)?;
    let namespace = memory.text(namespace, namespace_len, NAME_LIMIT)?;
    let operation = memory.text(operation, operation_len, NAME_LIMIT)?;
    let message = memory.read(message, message_len, MESSAGE_LIMIT)?;
    state.called_host = true;
    // Ours, and nobody needs a permission for it.
    if binding == "kubewarden" && namespace == "tracing" && operation == "log" {
        if log::is_wanted(state) {
            log::event(state, &String::from_utf8_lossy(&message[..message.len().min(log::LINE)]));
        }
        return Ok(Ok(Vec::new()));
    }
    let (host, deadline, payload) = (Arc::clone(&state.host), state.deadline, message.to_vec());
    let call = HostCall { binding: &binding, namespace: &namespace, operation: &operation, payload: &payload };
    match timeout_at(deadline.instant().into(), host.call(call, deadline)).await {
        Ok(answer) if !deadline.is_over() => Ok(answer),
        // A host that keeps its word answers in time; one that does not is not waited for.
        Ok(_) | Err(_) => Err(DeadlinePassed.into()),
    }
}
