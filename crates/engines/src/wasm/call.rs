//! Calls a guest: creates a fresh instance, passes the payload and returns the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::timeout_at;
use wasmtime::{Store, Trap, UpdateDeadline, WasmBacktrace};

use super::limits::Limits;
use super::module::Module;
use super::outcome::{DeadlinePassed, MemoryTaken, Outcome};
use super::pace::Pace;
use super::payload::Payload;
use super::state::State;
use crate::isolation::NOT_BEGUN;
use crate::{Budget, Deadline, EvaluationError, Host, Shortage};

/// The maximum length of the text of a failure, in bytes.
const REASON_LIMIT: usize = 1024;

/// Creates a fresh instance of the module and returns its answer to the payload.
pub(super) async fn call(
    module: &Module,
    payload: Payload,
    host: Arc<dyn Host>,
    deadline: Deadline,
) -> Result<Vec<u8>, EvaluationError> {
    if deadline.has_passed() {
        return Err(EvaluationError::DeadlineExceeded);
    }
    let slot = module.loaded().engine.acquire_slot(deadline).await?;
    // The evaluation has not started: it spent all of its time waiting for a slot.
    if deadline.has_passed() {
        return Err(NOT_BEGUN);
    }
    let budget = Budget::current();
    let (pace, runner) = Pace::new(budget.as_ref().and_then(|budget| budget.pacing.clone()));
    let (module, mut store) = (module.clone(), new_store(module, payload, host, deadline));
    set_pace(&mut store, pace);
    let has_begun = Arc::new(AtomicBool::new(false));
    let begun = Arc::clone(&has_begun);
    let evaluation = async move {
        // Both are released after the store has dropped the instance.
        let _held = (slot, budget);
        let mut store = store;
        begun.store(true, Ordering::Relaxed);
        let loaded = module.loaded();
        let outcome = loaded.exports.call(&mut store, &loaded.instance).await;
        answer(outcome, store.data())
    };
    // A guest that runs ends at a tick. A guest that waits for its turn, or for a CPU, ends here.
    let ended = timeout_at(deadline.instant().into(), runner.run(evaluation)).await;
    let late = || if has_begun.load(Ordering::Relaxed) { EvaluationError::DeadlineExceeded } else { NOT_BEGUN };
    ended.unwrap_or_else(|_| Err(late()))
}

/// Converts the outcome of a call into the guest's answer or the error of the evaluation.
pub(super) fn answer(outcome: Outcome, state: &State) -> Result<Vec<u8>, EvaluationError> {
    match outcome {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(reason)) => Err(EvaluationError::Failed(truncated(reason))),
        Err(error) => Err(failure(&error, state)),
    }
}

/// Creates the store of one instance. A guest that runs for long yields at each tick.
pub(super) fn new_store(module: &Module, payload: Payload, host: Arc<dyn Host>, deadline: Deadline) -> Store<State> {
    let loaded = module.loaded();
    let memory = Budget::current().map(|budget| budget.memory.clone());
    let limits = Limits::new(loaded.engine.memory_limit(), memory);
    let state = State::new(loaded.memory, limits, payload, host, deadline);
    let mut store = Store::new(loaded.engine.wasmtime(), state);
    store.limiter(|state| &mut state.limits);
    store.set_epoch_deadline(1);
    let (pace, _) = Pace::new(None);
    set_pace(&mut store, pace);
    store
}

fn set_pace(store: &mut Store<State>, pace: Pace) {
    store.epoch_deadline_callback(move |context| {
        if context.data().deadline.has_passed() {
            return Err(DeadlinePassed.into());
        }
        Ok(UpdateDeadline::YieldCustom(1, Box::pin(pace.interrupt())))
    });
}

fn failure(error: &wasmtime::Error, state: &State) -> EvaluationError {
    if error.is::<DeadlinePassed>() {
        return EvaluationError::DeadlineExceeded;
    }
    if error.is::<MemoryTaken>() {
        return EvaluationError::Overloaded(Shortage::Memory);
    }
    let mut reason = match error.downcast_ref::<Trap>() {
        Some(trap) => trap_message(*trap, error.downcast_ref()),
        None => error.root_cause().to_string(),
    };
    if state.limits.has_refused_memory {
        let limit = state.limits.memory >> 10;
        reason = format!("{reason} (it had asked for more memory than its limit of {limit} KiB)");
    }
    if let Some(error) = &state.error {
        reason = format!("{reason}: {error}");
    }
    let stderr = String::from_utf8_lossy(&state.process.stderr);
    if !stderr.trim().is_empty() {
        reason = format!("{reason}: {}", stderr.trim());
    }
    EvaluationError::Failed(truncated(reason))
}

fn trap_message(trap: Trap, backtrace: Option<&WasmBacktrace>) -> String {
    let function = backtrace.and_then(|backtrace| backtrace.frames().first()?.func_name());
    match function {
        Some(function) => format!("the policy trapped: {trap} in function {function}"),
        None => format!("the policy trapped: {trap}"),
    }
}

/// Truncates a text to [`REASON_LIMIT`], because a guest can produce a text of any length.
pub(super) fn truncated(mut text: String) -> String {
    if text.len() > REASON_LIMIT {
        text.truncate(text.floor_char_boundary(REASON_LIMIT));
        text.push('…');
    }
    text
}
