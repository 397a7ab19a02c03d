//! One call of a guest: a fresh instance, the question, and what came of it.

use std::sync::Arc;

use wasmtime::{Store, Trap, UpdateDeadline, WasmBacktrace};

use super::module::Module;
use super::outcome::DeadlinePassed;
use super::payload::Payload;
use super::state::State;
use crate::{Deadline, EvaluationError, Host};

/// Bytes of a failure's text that are kept.
const REASON_LIMIT: usize = 1024;

/// Has a fresh instance of the module answer the payload.
pub(super) async fn call(
    module: &Module,
    payload: Payload,
    host: Arc<dyn Host>,
    deadline: Deadline,
) -> Result<Vec<u8>, EvaluationError> {
    if deadline.is_over() {
        return Err(EvaluationError::DeadlineExceeded);
    }
    let loaded = module.loaded();
    // The place is given back after the store, which holds the instance, is gone.
    let _place = loaded.engine.place(deadline).await?;
    // It has not begun: all of its time went into waiting.
    if deadline.is_over() {
        return Err(EvaluationError::Overloaded);
    }
    let mut store = new_store(module, payload, host, deadline);
    match loaded.exports.call(&mut store, &loaded.instance).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(reason)) => Err(EvaluationError::Failed(bounded(reason))),
        Err(error) => Err(failure(&error, store.data())),
    }
}

pub(super) fn new_store(module: &Module, payload: Payload, host: Arc<dyn Host>, deadline: Deadline) -> Store<State> {
    let loaded = module.loaded();
    let state = State::new(loaded.memory, loaded.engine.memory_limit(), payload, host, deadline);
    let mut store = Store::new(loaded.engine.wasmtime(), state);
    store.limiter(|state| &mut state.limits);
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(|context| {
        if context.data().deadline.is_over() {
            return Err(DeadlinePassed.into());
        }
        // Unlike wasmtime's own yield, tokio's lets the runtime look for I/O before it comes back here.
        Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
    });
    store
}

fn failure(error: &wasmtime::Error, state: &State) -> EvaluationError {
    if error.is::<DeadlinePassed>() {
        return EvaluationError::DeadlineExceeded;
    }
    let mut reason = match error.downcast_ref::<Trap>() {
        Some(trap) => trapped(*trap, error.downcast_ref()),
        None => error.root_cause().to_string(),
    };
    if state.limits.memory_refused {
        let limit = state.limits.memory >> 10;
        reason = format!("{reason} (it had asked for more memory than its limit of {limit} KiB)");
    }
    if let Some(error) = &state.error {
        reason = format!("{reason}: {error}");
    }
    let said = String::from_utf8_lossy(&state.process.stderr);
    if !said.trim().is_empty() {
        reason = format!("{reason}: {}", said.trim());
    }
    EvaluationError::Failed(bounded(reason))
}

fn trapped(trap: Trap, backtrace: Option<&WasmBacktrace>) -> String {
    let function = backtrace.and_then(|backtrace| backtrace.frames().first()?.func_name());
    match function {
        Some(function) => format!("the policy trapped: {trap} in function {function}"),
        None => format!("the policy trapped: {trap}"),
    }
}

/// Cuts a text that a guest may have made long.
fn bounded(mut text: String) -> String {
    if text.len() > REASON_LIMIT {
        text.truncate(text.floor_char_boundary(REASON_LIMIT));
        text.push('…');
    }
    text
}
