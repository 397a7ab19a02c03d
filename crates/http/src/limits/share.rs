//! An amount that clients share. No client holds more than three quarters of it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The error of a limit that leaves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exhausted {
    #[error("all clients together have reached a limit of this server")]
    All,
    #[error("this client has reached its share of a limit of this server")]
    Client,
}

#[derive(Debug)]
pub(crate) struct Share {
    total: usize,
    state: Mutex<State>,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    /// The amount that each client holds. Clients that hold nothing are left out.
    clients: HashMap<IpAddr, usize>,
}

impl Share {
    pub(super) fn new(total: usize) -> Self {
        Self { total, state: Mutex::default(), refused: AtomicU64::new(0) }
    }

    /// Returns the total amount.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    pub(super) fn used(&self) -> usize {
        self.state().used
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self, client: IpAddr, amount: usize) -> Result<(), Exhausted> {
        let taken = self.state().take(client, amount, self.total);
        if taken.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    pub(super) fn put_back(&self, client: IpAddr, amount: usize) {
        let mut state = self.state();
        state.used = state.used.saturating_sub(amount);
        if let Some(held) = state.clients.get_mut(&client) {
            *held = held.saturating_sub(amount);
            if *held == 0 {
                state.clients.remove(&client);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent even if a thread panicked while it held the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self, client: IpAddr, amount: usize, total: usize) -> Result<(), Exhausted> {
        let used = self.used.saturating_add(amount);
        if used > total {
            return Err(Exhausted::All);
        }
        let held = self.clients.get(&client).copied().unwrap_or_default() + amount;
        if held > total - total / 4 {
            return Err(Exhausted::Client);
        }
        if held > 0 {
            self.clients.insert(client, held);
        }
        self.used = used;
        Ok(())
    }
}
