//! Records the history of the run, and prints its events.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use proviso_e2e::torture::history::{History, Note, OutageKind, Request, Time};

/// Locks a mutex. A panic of another task does not matter for the data of this program.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The numbers of requests of a policy that are no dry runs. Only these are previewed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub begun: u64,
    pub answered: u64,
}

pub struct Recorder {
    start: Instant,
    history: Mutex<History>,
    counts: Mutex<BTreeMap<String, Counts>>,
}

impl Recorder {
    pub fn new() -> Self {
        Self { start: Instant::now(), history: Mutex::default(), counts: Mutex::default() }
    }

    /// Returns the time since the start of the run.
    pub fn now(&self) -> Time {
        self.start.elapsed()
    }

    /// Records an event, and prints it.
    pub fn note(&self, text: impl Display) {
        let note = Note { at: self.now(), text: text.to_string() };
        eprintln!("{:>10.3} s  {}", note.at.as_secs_f64(), note.text);
        self.with(|history| history.notes.push(note));
    }

    pub fn with<T>(&self, change: impl FnOnce(&mut History) -> T) -> T {
        change(&mut lock(&self.history))
    }

    pub fn begin_outage(&self, kind: OutageKind, cause: impl Into<String>) -> usize {
        let at = self.now();
        self.with(|history| history.begin_outage(at, kind, cause.into()))
    }

    pub fn end_outage(&self, number: usize) {
        let at = self.now();
        self.with(|history| history.end_outage(at, number));
    }

    pub fn crash(&self, text: String) {
        self.note(&text);
        let note = Note { at: self.now(), text };
        self.with(|history| history.crashes.push(note));
    }

    pub fn refusal(&self, text: String) {
        self.note(&text);
        let note = Note { at: self.now(), text };
        self.with(|history| history.refusals.push(note));
    }

    /// Counts a request that is about to be sent, and may be previewed.
    pub fn begin_request(&self, policy: &str) {
        lock(&self.counts).entry(policy.to_owned()).or_default().begun += 1;
    }

    /// Records an answered request. `is_counted` is true for a request that [`Self::begin_request`] has counted.
    pub fn answer(&self, request: Request, is_counted: bool) {
        if is_counted {
            lock(&self.counts).entry(request.policy.clone()).or_default().answered += 1;
        }
        self.with(|history| history.requests.push(request));
    }

    pub fn counts(&self, policy: &str) -> Counts {
        lock(&self.counts).get(policy).copied().unwrap_or_default()
    }
}
