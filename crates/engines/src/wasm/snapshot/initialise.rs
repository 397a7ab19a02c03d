//! Instances that initialise themselves in a reproducible way: their clocks stand still, and their random numbers have a seed.

use std::sync::Arc;

use wasmtime::{Instance, Store};

use crate::wasm::abi::Exports;
use crate::wasm::call;
use crate::wasm::module::Module;
use crate::wasm::payload::Payload;
use crate::wasm::state::State;
use crate::wasm::wapc;
use crate::wasm::wasi::{Clocks, Random};
use crate::{Deadline, NoHost};

/// Creates a store for one instance of the module.
pub(super) fn new_store(module: &Module, payload: Payload, seed: u64, deadline: Deadline) -> Store<State> {
    let mut store = call::new_store(module, payload, Arc::new(NoHost), deadline);
    let state = store.data_mut();
    state.clocks = Clocks::stopped();
    state.random = Random::seeded(seed);
    store
}

/// Creates an instance of the module and calls its initialisers.
pub(super) async fn instantiate(store: &mut Store<State>, module: &Module) -> wasmtime::Result<Instance> {
    wapc::instantiate(store, &module.loaded().instance, wapc_exports(module)?).await
}

/// Returns the exports of a waPC module.
pub(super) fn wapc_exports(module: &Module) -> wasmtime::Result<&wapc::Exports> {
    match &module.loaded().exports {
        Exports::Wapc(exports) => Ok(exports),
        Exports::Opa(_) | Exports::Wasi(_) => Err(wasmtime::Error::msg("the module is not a waPC module")),
    }
}
