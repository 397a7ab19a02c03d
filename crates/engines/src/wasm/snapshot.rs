//! Snapshots: runs the initialisation of a module once, when the module is compiled, and records the initialised state in a new
//! module. Each instance of the new module is fresh, but already initialised. Without a snapshot, initialisation takes most of
//! the time of an evaluation of a Go policy.
//!
//! All instances share the times and random numbers that the guest read during its initialisation. The behaviour towards the
//! host must stay the same, so two kinds of modules get no snapshot: a module that calls its host during initialisation, and a
//! module that answers the trial calls differently with a snapshot.

mod data;

use std::sync::Arc;
use std::time::Duration;

use wasmparser::{Parser, Payload as Section};
use wasmtime::{Extern, Instance, Store, Val};
use wasmtime_wizer::{InstanceState, SnapshotVal, ValType, Wizer};

use super::abi::{Abi, Exports};
use super::call;
use super::engine::Engine;
use super::module::Module;
use super::module_info::ModuleInfo;
use super::payload::Payload;
use super::state::State;
use super::wapc::{self, INITIALISERS};
use crate::{Deadline, EvaluationError, NoHost};

/// The maximum time for the initialisation, and for each trial call.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of bytes that a snapshot may add to its module.
const GROWTH_LIMIT: usize = 32 << 20;

/// Returns the compiled module with its initialised state. Returns `None` if the module has no initialisers, or if its state
/// cannot be recorded. A missing snapshot is not an error: the module works without a snapshot, but slower.
pub(super) fn take(engine: &Engine, wasm: &[u8]) -> Option<wasmtime::Module> {
    let initialisers = initialisers(wasm);
    if initialisers.is_empty() {
        return None;
    }
    // Recording needs its own thread: the caller may be inside an async runtime, and wizer panics on some valid modules.
    let outcome = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("wasm-snapshot".into());
        match thread.spawn_scoped(scope, || record(engine, wasm, &initialisers)) {
            Ok(thread) => {
                thread.join().unwrap_or_else(|_| Err(wasmtime::Error::msg("recording the snapshot panicked")))
            }
            Err(error) => Err(error.into()),
        }
    });
    outcome.inspect_err(|error| tracing::debug!(%error, "the module is used without a snapshot")).ok()
}

/// Returns the names of the initialisers that a module exports.
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
        // The host does not call the function again if its export has another name.
        wizer.func_rename(&format!("__initialised_by{initialiser}"), initialiser);
    }
    let (context, instrumented) = wizer.instrument(wasm)?;
    let original = link(engine, &wasmtime::Module::from_binary(engine.wasmtime(), &instrumented)?)?;
    let snapshot = runtime.block_on(async {
        let deadline = Deadline::after(TIMEOUT);
        let _slot = engine.acquire_slot(deadline).await?;
        let mut store = call::new_store(&original, Payload::protocol_version(), Arc::new(NoHost), deadline);
        let Exports::Wapc(exports) = &original.loaded().exports else {
            return Err(wasmtime::Error::msg("the module is not a waPC module"));
        };
        let instance = wapc::instantiate(&mut store, &original.loaded().instance, exports).await?;
        if store.data().has_called_host {
            return Err(wasmtime::Error::msg("the module called its host during initialisation"));
        }
        let mut recorder = Recorder { store, instance, has_failed: false };
        let snapshot = wizer.snapshot(&context, &mut recorder).await?;
        if recorder.has_failed {
            Err(wasmtime::Error::msg("a part of the module's state cannot be read"))
        } else {
            Ok(snapshot)
        }
    })?;
    let snapshot = data::join_segments(&snapshot)?.unwrap_or(snapshot);
    if snapshot.len() > wasm.len() + GROWTH_LIMIT {
        return Err(wasmtime::Error::msg(format!("the snapshot is too large: {} bytes", snapshot.len())));
    }
    let compiled = wasmtime::Module::from_binary(engine.wasmtime(), &snapshot)?;
    let recorded = link(engine, &compiled)?;
    if !runtime.block_on(have_same_answers(&original, &recorded)) {
        return Err(wasmtime::Error::msg("the module answers differently with a snapshot"));
    }
    Ok(compiled)
}

fn link(engine: &Engine, module: &wasmtime::Module) -> wasmtime::Result<Module> {
    Ok(Module::link(engine, module, ModuleInfo::new(Abi::Wapc))?)
}

/// Makes trial calls of the operations that every policy supports. Returns true if both modules answer them in the same way.
async fn have_same_answers(original: &Module, recorded: &Module) -> bool {
    for payload in [Payload::protocol_version, || Payload::validate_settings(b"{}".as_slice().into())] {
        let answer = call::call(original, payload(), Arc::new(NoHost), Deadline::after(TIMEOUT)).await;
        if matches!(answer, Err(EvaluationError::DeadlineExceeded | EvaluationError::Overloaded)) {
            return false;
        }
        if answer != call::call(recorded, payload(), Arc::new(NoHost), Deadline::after(TIMEOUT)).await {
            return false;
        }
    }
    true
}

/// Reads the globals and the memory of an instance for wizer, by the names that wizer gave to the exports.
struct Recorder {
    store: Store<State>,
    instance: Instance,
    /// True if wizer tried to read an export that does not exist.
    has_failed: bool,
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
                self.has_failed = true;
                SnapshotVal::I32(0)
            }
        }
    }

    async fn memory_contents(&mut self, name: &str, contents: impl FnOnce(&[u8]) + Send) {
        match self.instance.get_export(&mut self.store, name) {
            Some(Extern::Memory(memory)) => contents(memory.data(&self.store)),
            _ => self.has_failed = true,
        }
    }
}
