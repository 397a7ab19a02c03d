//! Calls from a guest to its host. The host checks the guest's permissions, and this module enforces the deadline.

use std::sync::Arc;

use tokio::time::timeout_at;
use wasmtime::Caller;

use super::outcome::DeadlinePassed;
use super::state::State;
use super::{guest_memory, log};
use crate::HostCall;

/// The maximum length of a guest's message, in bytes.
const MESSAGE_LIMIT: usize = 16 << 20;
/// The maximum length of a binding, namespace or operation, in bytes. The rest is truncated.
const NAME_LIMIT: usize = 128;

/// The eight parameters of a waPC host call: address and length of binding, namespace, operation and message.
pub(super) type Ranges = (u32, u32, u32, u32, u32, u32, u32, u32);

/// Calls the host and returns its answer, or its error text. `function` is the import that the guest called.
pub(super) async fn call_host(
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
    state.has_called_host = true;
    // Every policy may log: this capability needs no permission and no host.
    if binding == "kubewarden" && namespace == "tracing" && operation == "log" {
        if log::is_enabled(state) {
            log::write_event(state, &String::from_utf8_lossy(&message[..message.len().min(log::LINE_LIMIT)]));
        }
        return Ok(Ok(Vec::new()));
    }
    let (host, deadline, payload) = (Arc::clone(&state.host), state.deadline, message.to_vec());
    let call = HostCall { binding: &binding, namespace: &namespace, operation: &operation, payload: &payload };
    match timeout_at(deadline.instant().into(), host.call(call, deadline)).await {
        Ok(answer) if !deadline.has_passed() => Ok(answer),
        // A correct host answers by the deadline. An answer after the deadline is dropped.
        Ok(_) | Err(_) => Err(DeadlinePassed.into()),
    }
}
