//! Snapshots: runs the initialisation of a module once, when the module is compiled, and records the initialised state in a new
//! module. Each instance of the new module is fresh, but already initialised. Without a snapshot, initialisation takes most of
//! the time of an evaluation of a Go policy.
//!
//! All instances share the recorded state, for as long as the compiled module is cached. A snapshot must not change an answer
//! (docs/adr/0017-snapshots-do-not-change-answers.md), so a module gets no snapshot if its initialisation
//! - reads the wall clock,
//! - reads random numbers, unless only Go's runtime does so, for its hash tables (`go.rs`),
//! - exchanges data with the host, or asks for more memory than the limit.
//!
//! A module also gets no snapshot if it answers the trial calls differently with it (`trial.rs`).

mod data;
mod go;
mod initialise;
mod trial;

use std::time::Duration;

use wasmparser::{Parser, Payload as Section};
use wasmtime::{Extern, Instance, Store, Val, ensure};
use wasmtime_wizer::{InstanceState, ModuleContext, SnapshotVal, ValType, Wizer};

use super::abi::Abi;
use super::engine::Engine;
use super::module::Module;
use super::module_info::ModuleInfo;
use super::payload::Payload;
use super::state::State;
use super::wapc::INITIALISERS;
use crate::Deadline;

/// The maximum time for the initialisation.
const INITIALISATION_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum time for all trial calls.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum number of bytes that a snapshot may add to its module.
const GROWTH_LIMIT: usize = 32 << 20;
/// The seeds that the trial calls of a Go module have in addition to the seed of the snapshot.
const OTHER_SEEDS: [u64; 3] = [1, 2, 3];

/// Returns the compiled module with its initialised state; `None` if the module has no initialisers.
///
/// # Errors
/// Returns an error if the state cannot be recorded, or if it could change an answer. The module works without a snapshot, but
/// slower.
pub(super) fn take(engine: &Engine, wasm: &[u8]) -> wasmtime::Result<Option<wasmtime::Module>> {
    let initialisers = initialisers(wasm);
    if initialisers.is_empty() {
        return Ok(None);
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
    outcome.map(Some)
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
    // A fixed seed would let everyone predict the hash values of Go guests, and so slow down their hash tables.
    let seed = getrandom::u64();
    let seed = seed.map_err(|error| wasmtime::Error::msg(format!("cannot get random numbers: {error}")))?;
    let (snapshot, reads) = runtime.block_on(record_state(&wizer, &context, &original, seed))?;
    if reads > 0 {
        go::check(wasm, reads)?;
    }
    let snapshot = data::join_segments(&snapshot)?.unwrap_or(snapshot);
    ensure!(snapshot.len() <= wasm.len() + GROWTH_LIMIT, "the snapshot is too large: {} bytes", snapshot.len());
    let compiled = wasmtime::Module::from_binary(engine.wasmtime(), &snapshot)?;
    let recorded = link(engine, &compiled)?;
    let other_seeds = if reads > 0 { &OTHER_SEEDS[..] } else { &[] };
    let deadline = Deadline::after(TRIAL_TIMEOUT);
    runtime.block_on(trial::compare_answers(&original, &recorded, seed, other_seeds, deadline))?;
    Ok(compiled)
}

fn link(engine: &Engine, module: &wasmtime::Module) -> wasmtime::Result<Module> {
    Ok(Module::link(engine, module, ModuleInfo::new(Abi::Wapc))?)
}

/// Initialises an instance of the instrumented module, and returns the module with its state. Also returns the number of times
/// that the instance has read random numbers.
async fn record_state(
    wizer: &Wizer,
    context: &ModuleContext<'_>,
    original: &Module,
    seed: u64,
) -> wasmtime::Result<(Vec<u8>, u32)> {
    let deadline = Deadline::after(INITIALISATION_TIMEOUT);
    let _slot = original.loaded().engine.acquire_slot(deadline).await?;
    let mut store = initialise::new_store(original, Payload::protocol_version(), seed, deadline);
    let instance = initialise::instantiate(&mut store, original).await?;
    let state = store.data();
    ensure!(!state.has_called_host, "the module calls its host during its initialisation");
    ensure!(!state.clocks.has_read_wall(), "the module reads the clock during its initialisation");
    ensure!(!state.limits.has_refused_memory, "the initialisation of the module asks for more memory than the limit");
    let reads = state.random.reads();
    let mut recorder = Recorder { store, instance, has_failed: false };
    let snapshot = wizer.snapshot(context, &mut recorder).await?;
    ensure!(!recorder.has_failed, "a part of the module's state cannot be read");
    Ok((snapshot, reads))
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
