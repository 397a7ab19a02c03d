//! One call of a guest: a fresh instance, its initialisation, the operation, and what came of it.

use wasmtime::{
    Instance, ModuleExport, Store, Trap, TypedFunc, UpdateDeadline, WasmBacktrace, WasmParams, WasmResults,
};

use super::module::Module;
use super::payload::Payload;
use super::state::{DeadlinePassed, Exit, State};
use crate::{Deadline, EvaluationError};

/// Bytes of a failure's text that are kept.
const REASON_LIMIT: usize = 1024;

/// Has a fresh instance of the module answer the payload.
pub(super) async fn call(module: &Module, payload: Payload, deadline: Deadline) -> Result<Vec<u8>, EvaluationError> {
    if deadline.is_over() {
        return Err(EvaluationError::DeadlineExceeded);
    }
    // The place is given back after the store, which holds the instance, is gone.
    let _place = module.loaded().engine.place(deadline).await?;
    // It has not begun: all of its time went into waiting.
    if deadline.is_over() {
        return Err(EvaluationError::Overloaded);
    }
    let mut store = new_store(module, payload, deadline);
    match run(module, &mut store).await {
        Ok(succeeded) => answer(store.into_data(), succeeded),
        Err(error) => Err(failure(&error, store.data())),
    }
}

pub(super) fn new_store(module: &Module, payload: Payload, deadline: Deadline) -> Store<State> {
    let loaded = module.loaded();
    let mut store = Store::new(loaded.engine.wasmtime(), State::new(loaded.clone(), payload, deadline));
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

/// Makes an instance and has it initialise itself.
pub(super) async fn set_up(module: &Module, store: &mut Store<State>) -> wasmtime::Result<Instance> {
    let loaded = module.loaded();
    let instance = loaded.instance.instantiate_async(&mut *store).await?;
    for initialiser in &loaded.initialisers {
        let function = function::<(), ()>(store, instance, *initialiser)?;
        exited_well(function.call_async(&mut *store, ()).await)?;
    }
    Ok(instance)
}

/// Calls an instance. Says whether the guest reported success.
async fn run(module: &Module, store: &mut Store<State>) -> wasmtime::Result<bool> {
    let instance = set_up(module, store).await?;
    let payload = &store.data().payload;
    let lengths = (i32::try_from(payload.operation().len())?, i32::try_from(payload.message_len())?);
    let guest_call = function::<(i32, i32), i32>(store, instance, module.loaded().guest_call)?;
    Ok(guest_call.call_async(&mut *store, lengths).await? != 0)
}

fn function<P: WasmParams, R: WasmResults>(
    store: &mut Store<State>,
    instance: Instance,
    export: ModuleExport,
) -> wasmtime::Result<TypedFunc<P, R>> {
    let function = instance.get_module_export(&mut *store, &export).and_then(wasmtime::Extern::into_func);
    function.ok_or_else(|| wasmtime::Error::msg("an export is no function"))?.typed(&*store)
}

/// Command modules end their initialisation by exiting; what they set up stays.
fn exited_well(result: wasmtime::Result<()>) -> wasmtime::Result<()> {
    match result {
        Err(error) if matches!(error.downcast_ref(), Some(Exit(0))) => Ok(()),
        result => result,
    }
}

fn answer(state: State, succeeded: bool) -> Result<Vec<u8>, EvaluationError> {
    let reason = match (succeeded, state.response, state.error) {
        (true, Some(response), _) => return Ok(response),
        (_, _, Some(error)) => error,
        (true, None, None) => "the policy gave no answer".into(),
        (false, _, None) => "the policy failed and gave no reason".into(),
    };
    Err(EvaluationError::Failed(bounded(reason)))
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
