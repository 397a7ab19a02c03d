//! The ticker: a thread that advances the engine's epoch. Each advance interrupts the running guests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::config::EngineError;

/// The interval at which a running guest checks its deadline and yields to other tasks.
const TICK: Duration = Duration::from_millis(1);
/// The number of ticks without a guest after which the ticker rests. Under load, evaluations need not wake it.
const TICKS_BEFORE_REST: u32 = 100;

/// A handle of the ticker thread. Dropping the handle ends the thread.
#[derive(Debug)]
pub(super) struct Ticker {
    thread: Thread,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    /// The evaluation slots of the engine. A guest runs only in a slot.
    slots: Arc<Semaphore>,
    concurrency: usize,
    is_resting: AtomicBool,
    has_ended: AtomicBool,
}

impl Ticker {
    /// Starts the ticker of an engine whose evaluation slots, all free, are `slots`.
    pub(super) fn start(engine: &wasmtime::Engine, slots: Arc<Semaphore>) -> Result<Self, EngineError> {
        // A strong reference would keep the engine and its pool alive as long as the thread.
        let engine = engine.weak();
        Self::calling(slots, move || engine.upgrade().map(|engine| engine.increment_epoch()))
    }

    /// Starts a thread that calls `advance` at each tick, until it returns `None`.
    fn calling(slots: Arc<Semaphore>, advance: impl Fn() -> Option<()> + Send + 'static) -> Result<Self, EngineError> {
        let concurrency = slots.available_permits();
        let state = State { slots, concurrency, is_resting: false.into(), has_ended: false.into() };
        let state = Arc::new(state);
        let ticking = Arc::clone(&state);
        let thread = thread::Builder::new()
            .name("wasm-ticker".into())
            .spawn(move || ticking.tick(advance))
            .map_err(|error| EngineError::Ticker(error.to_string()))?;
        Ok(Self { thread: thread.thread().clone(), state })
    }

    /// Ensures that the ticker does not rest. The caller holds a slot.
    pub(super) fn wake(&self) {
        // Either this thread sees that the ticker rests, or the ticker sees that a slot is in use.
        fence(Ordering::SeqCst);
        if self.state.is_resting.load(Ordering::Relaxed) {
            self.thread.unpark();
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.state.has_ended.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl State {
    /// Calls `advance` at each tick, until it returns `None` or the ticker ends.
    fn tick(&self, advance: impl Fn() -> Option<()>) {
        let mut idle_ticks = 0;
        while !self.has_ended.load(Ordering::Acquire) {
            if idle_ticks < TICKS_BEFORE_REST {
                thread::park_timeout(TICK);
            } else {
                self.rest();
                idle_ticks = 0;
            }
            if advance().is_none() {
                return;
            }
            idle_ticks = if self.is_idle() { idle_ticks + 1 } else { 0 };
        }
    }

    /// Waits until a guest runs or the ticker ends.
    fn rest(&self) {
        self.is_resting.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while self.is_idle() && !self.has_ended.load(Ordering::Acquire) {
            thread::park();
        }
        self.is_resting.store(false, Ordering::Relaxed);
    }

    fn is_idle(&self) -> bool {
        self.slots.available_permits() == self.concurrency
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, RecvTimeoutError};

    use super::*;

    const WAIT: Duration = Duration::from_mins(1);

    #[test]
    fn the_ticker_rests_while_no_guest_runs() {
        let slots = Arc::new(Semaphore::new(2));
        let (sender, ticks) = mpsc::channel();
        let ticker = Ticker::calling(Arc::clone(&slots), move || sender.send(()).ok()).unwrap();
        for _ in 0..3 {
            let slot = slots.try_acquire().unwrap();
            ticker.wake();
            for _ in 0..2 * TICKS_BEFORE_REST {
                ticks.recv_timeout(WAIT).unwrap();
            }
            drop(slot);
            let mut last = 0;
            while ticks.recv_timeout(50 * TICK).is_ok() {
                last += 1;
                assert!(last < 100 * TICKS_BEFORE_REST, "the ticker does not rest");
            }
        }
        drop(ticker);
        while let Ok(()) = ticks.recv_timeout(WAIT) {}
        assert_eq!(ticks.recv_timeout(WAIT), Err(RecvTimeoutError::Disconnected), "the thread has ended");
    }
}
