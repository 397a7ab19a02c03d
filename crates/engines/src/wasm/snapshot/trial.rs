//! Trial calls: calls of a module with and without its snapshot, whose answers must be equal.
//!
//! All calls read the same time and the same random numbers. Without the snapshot, the module initialises itself with several
//! seeds: an answer that depends on the seed is always the same with the snapshot, but not without it.

use serde_json::value::RawValue;
use wasmtime::{Store, ensure};

use super::initialise::{self, wapc_exports};
use crate::wasm::call;
use crate::wasm::module::Module;
use crate::wasm::outcome::Outcome;
use crate::wasm::payload::Payload;
use crate::wasm::state::State;
use crate::wasm::wapc;
use crate::wasm::wasi::{Clocks, Random};
use crate::{Deadline, EvaluationError};

/// The seed of the random numbers that a module reads after its initialisation.
const CALL_SEED: u64 = 4;
/// The requests of the trial calls: changes of common kinds, and JSON that is not from Kubernetes. Some objects have many
/// labels, for guests whose answers have the order of a hash table.
const REQUESTS: &str = include_str!("requests.json");

/// Returns an error if a trial call has another answer with the snapshot than without it, or if the calls do not end in time.
/// `seed` is the seed with which the state was recorded.
pub(super) async fn compare_answers(
    original: &Module,
    recorded: &Module,
    seed: u64,
    other_seeds: &[u64],
    deadline: Deadline,
) -> wasmtime::Result<()> {
    for (operation, message) in calls()? {
        let payload = || Payload::Other { operation, message: message.as_bytes().into() };
        let with_snapshot = answer(recorded, payload(), seed, deadline).await;
        for seed in [seed].iter().chain(other_seeds) {
            let without_snapshot = answer(original, payload(), *seed, deadline).await;
            let has_ended = has_ended(&with_snapshot) && has_ended(&without_snapshot);
            ensure!(has_ended, "the trial calls of the module take too long");
            ensure!(with_snapshot == without_snapshot, "the module answers differently with a snapshot");
        }
    }
    Ok(())
}

/// Returns the operations and messages of the trial calls. Every policy supports these operations.
fn calls() -> serde_json::Result<Vec<(&'static str, String)>> {
    let requests: Vec<&RawValue> = serde_json::from_str(REQUESTS)?;
    let mut calls = vec![("protocol_version", String::new()), ("validate_settings", "{}".to_owned())];
    let message = |request: &RawValue| format!(r#"{{"request":{},"settings":{{}}}}"#, request.get());
    calls.extend(requests.into_iter().map(|request| ("validate", message(request))));
    Ok(calls)
}

/// Returns the answer of a fresh instance that initialises itself with this seed. The seed has no effect on a module with a
/// snapshot, which does not initialise itself.
async fn answer(module: &Module, payload: Payload, seed: u64, deadline: Deadline) -> Result<Vec<u8>, EvaluationError> {
    // The slot is declared before the store, so that it is released after the store has dropped the instance.
    let _slot = module.loaded().engine.acquire_slot(deadline).await?;
    let mut store = initialise::new_store(module, payload, seed, deadline);
    let outcome = outcome(&mut store, module).await;
    call::answer(outcome, store.data())
}

async fn outcome(store: &mut Store<State>, module: &Module) -> Outcome {
    let instance = initialise::instantiate(store, module).await?;
    let state = store.data_mut();
    state.clocks = Clocks::stopped();
    state.random = Random::seeded(CALL_SEED);
    wapc::call_instance(store, instance, wapc_exports(module)?).await
}

fn has_ended(answer: &Result<Vec<u8>, EvaluationError>) -> bool {
    !matches!(answer, Err(EvaluationError::DeadlineExceeded | EvaluationError::Overloaded(_)))
}
