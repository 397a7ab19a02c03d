//! The clock of running guests: a thread that advances the engine's epoch.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use super::config::EngineError;

/// How often a running guest looks at its deadline and lets other tasks run.
const TICK: Duration = Duration::from_millis(10);

/// Ends its thread when it is dropped.
#[derive(Debug)]
pub(super) struct Ticker {
    _alive: Sender<()>,
}

impl Ticker {
    pub(super) fn start(engine: &wasmtime::Engine) -> Result<Self, EngineError> {
        let (alive, dropped) = mpsc::channel::<()>();
        // A strong reference would keep the engine, and through it the pool, for as long as the thread.
        let engine = engine.weak();
        std::thread::Builder::new()
            .name("wasm-ticker".into())
            .spawn(move || {
                while dropped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                    let Some(engine) = engine.upgrade() else { return };
                    engine.increment_epoch();
                }
            })
            .map_err(|error| EngineError::Ticker(error.to_string()))?;
        Ok(Self { _alive: alive })
    }
}
