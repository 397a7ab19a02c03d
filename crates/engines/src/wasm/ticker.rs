//! The ticker: a thread that advances the engine's epoch. Each advance interrupts the running guests.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use super::config::EngineError;

/// The interval at which a running guest checks its deadline and yields to other tasks.
pub(super) const TICK: Duration = Duration::from_millis(1);

/// A handle of the ticker thread. Dropping the handle ends the thread.
#[derive(Debug)]
pub(super) struct Ticker {
    _alive: Sender<()>,
}

impl Ticker {
    pub(super) fn start(engine: &wasmtime::Engine) -> Result<Self, EngineError> {
        let (alive, dropped) = mpsc::channel::<()>();
        // A strong reference would keep the engine and its pool alive as long as the thread.
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
