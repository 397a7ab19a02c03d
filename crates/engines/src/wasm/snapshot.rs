//! Runs the initialisation of a module once, when it is compiled, and records the outcome in a new module: its
//! instances are as fresh as before, but set up. For Go that is most of the time of an evaluation.
//!
//! What the guest saw of clocks and random numbers meanwhile becomes the same for all instances. What hosts see of it
//! must not differ, so a module that calls its host while it sets itself up is left as it is, and so is one that
//! answers the questions of a trial differently with a snapshot.

mod data;

use std::sync::Arc;
use std::time::Duration;

use wasmparser::{Parser, Payload as Section};
use wasmtime::{Extern, Instance, Store, Val};
use wasmtime_wizer::{InstanceState, SnapshotVal, ValType, Wizer};

use super::abi::{Abi, Exports};
use super::call;
use super::engine::Engine;
use super::facts::Facts;
use super::module::Module;
use super::payload::Payload;
use super::state::State;
use super::wapc::{self, INITIALISERS};
use crate::{Deadline, EvaluationError, NoHost};

/// How long initialisation, and then the trial, may take.
const BUDGET: Duration = Duration::from_secs(2);
/// How many bytes a snapshot may add to its module.
const GROWTH_LIMIT: usize = 32 << 20;

/// The module with its initialisation behind it, compiled; none where there is no initialisation, or where the
/// outcome cannot be recorded. That is never an error: the module is right without, only slower.
pub(super) fn take(engine: &Engine, wasm: &[u8]) -> Option<wasmtime::Module> {
    let initialisers = initialisers(wasm);
    if initialisers.is_empty() {
        return None;
    }
    // A thread of its own: the caller may be inside a runtime, and wizer panics over some modules that are valid.
    let outcome = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("wasm-snapshot".into());
        match thread.spawn_scoped(scope, || record(engine, wasm, &initialisers)) {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err(wasmtime::Error::msg("it panicked"))),
            Err(error) => Err(error.into()),
        }
    });
    outcome.inspect_err(|error| tracing::debug!(%error, "the module is used without a snapshot")).ok()
}

fn initialisers(wasm: &[u8]) -> Vec<&'static str> {
    let exports = Parser::new(0).parse_all(wasm).find_map(|section| match section {
        Ok(Section::ExportSection(exports)) => Some(exports),
        _ => None,
    });
    let names: Vec<_> = exports.into_iter().flatten().flatten().map(|export| export.name).collect();
    INITIALISERS.into_iter().filter(|initialiser| names.contains(initialiser)).collect()
}

fn record(engine: &Engine, wasm: &[u8], initialisers: &[&str]) -> wasmtime::Result<wasmtime::Module> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let mut wizer = Wizer::new();
    wizer.keep_init_func(true);
    for initialiser in initialisers {
        // Under another name the function is not called again.
        wizer.func_rename(&format!("__initialised_by{initialiser}"), initialiser);
    }
    let (context, instrumented) = wizer.instrument(wasm)?;
    let original = link(engine, &wasmtime::Module::from_binary(engine.wasmtime(), &instrumented)?)?;
    let snapshot = runtime.block_on(async {
        let deadline = Deadline::after(BUDGET);
        let _place = engine.place(deadline).await?;
        let mut store = call::new_store(&original, Payload::protocol_version(), Arc::new(NoHost), deadline);
        let Exports::Wapc(exports) = &original.loaded().exports else {
            return Err(wasmtime::Error::msg("it is no waPC module"));
        };
        let instance = wapc::set_up(&mut store, &original.loaded().instance, exports).await?;
        if store.data().called_host {
            return Err(wasmtime::Error::msg("it called its host"));
        }
        let mut recorder = Recorder { store, instance, missing: false };
        let snapshot = wizer.snapshot(&context, &mut recorder).await?;
        if recorder.missing { Err(wasmtime::Error::msg("a part of its state is out of reach")) } else { Ok(snapshot) }
    })?;
    let snapshot = data::joined(&snapshot)?.unwrap_or(snapshot);
    if snapshot.len() > wasm.len() + GROWTH_LIMIT {
        return Err(wasmtime::Error::msg(format!("the snapshot has {} bytes", snapshot.len())));
    }
    let compiled = wasmtime::Module::from_binary(engine.wasmtime(), &snapshot)?;
    let recorded = link(engine, &compiled)?;
    if !runtime.block_on(agree(&original, &recorded)) {
        return Err(wasmtime::Error::msg("it answers differently with a snapshot"));
    }
    Ok(compiled)
}

fn link(engine: &Engine, module: &wasmtime::Module) -> wasmtime::Result<Module> {
    Ok(Module::link(engine, module, Facts::of(Abi::Wapc))?)
}

/// Asks both the questions that every policy answers.
async fn agree(original: &Module, recorded: &Module) -> bool {
    for question in [Payload::protocol_version, || Payload::validate_settings(b"{}".as_slice().into())] {
        let answer = call::call(original, question(), Arc::new(NoHost), Deadline::after(BUDGET)).await;
        if matches!(answer, Err(EvaluationError::DeadlineExceeded | EvaluationError::Overloaded)) {
            return false;
        }
        if answer != call::call(recorded, question(), Arc::new(NoHost), Deadline::after(BUDGET)).await {
            return false;
        }
    }
    true
}

/// Lets wizer read the globals and the memory of an instance, under the names that it gave them.
struct Recorder {
    store: Store<State>,
    instance: Instance,
    /// Something was asked for that is not there.
    missing: bool,
}

impl InstanceState for Recorder {
    async fn global_get(&mut self, name: &str, _: ValType) -> SnapshotVal {
        let global = self.instance.get_global(&mut self.store, name);
        match global.map(|global| global.get(&mut self.store)) {
            Some(Val::I32(value)) => SnapshotVal::I32(value),
            Some(Val::I64(value)) => SnapshotVal::I64(value),
            Some(Val::F32(value)) => SnapshotVal::F32(value),
            Some(Val::F64(value)) => SnapshotVal::F64(value),
            Some(Val::V128(value)) => SnapshotVal::V128(value.as_u128()),
            _ => {
                self.missing = true;
                SnapshotVal::I32(0)
            }
        }
    }

    async fn memory_contents(&mut self, name: &str, contents: impl FnOnce(&[u8]) + Send) {
        match self.instance.get_export(&mut self.store, name) {
            Some(Extern::Memory(memory)) => contents(memory.data(&self.store)),
            _ => self.missing = true,
        }
    }
}
