//! A budget that tasks share. Requests that get nothing now can wait.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::ledger::{Ledger, Limits, Rank, Refusal};

/// A budget of a limited resource. Clones share the budget.
#[derive(Clone, Debug)]
pub struct Shares {
    inner: Arc<Inner>,
}

/// The usage of a budget at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub in_use: u64,
    /// The whole budget.
    pub total: u64,
    /// The number of requests that wait.
    pub waiting: usize,
}

#[derive(Debug)]
struct Inner {
    ledger: Mutex<Ledger<Request>>,
    limits: Limits,
    accounts: Mutex<HashMap<Key, Weak<Handle>>>,
}

/// The policy of an account.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    policy: Arc<str>,
    rank: Rank,
}

/// A waiting request.
#[derive(Debug)]
struct Request {
    account: Arc<Handle>,
    sender: oneshot::Sender<Permit>,
}

/// The account of one policy. Clones share the account.
#[derive(Clone)]
pub struct Account {
    handle: Arc<Handle>,
}

struct Handle {
    inner: Arc<Inner>,
    index: usize,
    key: Key,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(f)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account")
            .field("policy", &self.key.policy)
            .field("rank", &self.key.rank)
            .finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut accounts = self.inner.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        // Another task may have added a new account of this policy meanwhile.
        if accounts.get(&self.key).is_some_and(|account| account.strong_count() == 0) {
            accounts.remove(&self.key);
        }
        drop(accounts);
        self.inner.ledger().remove(self.index);
    }
}

/// A part of a budget. Dropping the permit returns the part.
#[derive(Debug)]
pub struct Permit {
    account: Arc<Handle>,
    amount: u64,
}

impl Permit {
    /// Takes more for this permit.
    ///
    /// # Errors
    /// Returns the limit that refuses it.
    pub fn grow(&mut self, amount: u64) -> Result<(), Refusal> {
        self.account.inner.ledger().try_take(self.account.index, amount)?;
        self.amount += amount;
        Ok(())
    }

    #[must_use]
    pub fn amount(&self) -> u64 {
        self.amount
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut ledger = self.account.inner.ledger();
        ledger.release(self.account.index, self.amount);
        grant(ledger);
    }
}

/// Grants requests until nothing more can be granted. Unlocks the ledger first: a request whose task has gone returns its permit,
/// which locks the ledger again.
fn grant(mut ledger: MutexGuard<'_, Ledger<Request>>) {
    if !ledger.has_waiters() {
        return;
    }
    let mut granted = Vec::new();
    while let Some((_, amount, request)) = ledger.grant() {
        granted.push((amount, request));
    }
    drop(ledger);
    for (amount, Request { account, sender }) in granted {
        let _ = sender.send(Permit { account, amount });
    }
}

impl Inner {
    fn ledger(&self) -> MutexGuard<'_, Ledger<Request>> {
        // No code panics between two changes that belong together.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shares {
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let inner = Inner { ledger: Mutex::new(Ledger::new(limits)), limits, accounts: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    #[must_use]
    pub fn limits(&self) -> Limits {
        self.inner.limits
    }

    #[must_use]
    pub fn usage(&self) -> Usage {
        let ledger = self.inner.ledger();
        Usage { in_use: ledger.in_use(), total: ledger.limits().total, waiting: ledger.waiters() }
    }

    /// Returns the account of a policy: its name, and its namespace (`None` for a cluster policy). All callers get the same
    /// account.
    #[must_use]
    pub fn account(&self, policy: &str, namespace: Option<&str>, rank: Rank) -> Account {
        let key = Key { policy: policy.into(), rank };
        let mut accounts = self.inner.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = accounts.get(&key).and_then(Weak::upgrade) {
            // Unlocks first: if this is the last owner meanwhile, dropping it locks the accounts.
            drop(accounts);
            return Account { handle };
        }
        let index = self.inner.ledger().add(namespace, rank);
        let handle = Arc::new(Handle { inner: Arc::clone(&self.inner), index, key: key.clone() });
        accounts.insert(key, Arc::downgrade(&handle));
        Account { handle }
    }
}

/// A request that waits. Dropping it gives up.
struct Waiting<'a> {
    account: &'a Handle,
    ticket: u64,
    receiver: oneshot::Receiver<Permit>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut ledger = self.account.inner.ledger();
        let cancelled = ledger.cancel(self.account.index, self.ticket);
        if cancelled.is_some() {
            grant(ledger);
        } else {
            drop(ledger);
        }
        // Dropped without the lock, because it may be the last owner of the account. If the request was granted, dropping the
        // receiver returns the permit.
        drop(cancelled);
    }
}

impl Account {
    fn inner(&self) -> &Inner {
        &self.handle.inner
    }

    /// Returns the limits of the budget.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.inner().limits
    }

    fn permit(&self, amount: u64) -> Permit {
        Permit { account: Arc::clone(&self.handle), amount }
    }

    /// Takes an amount, even if others wait for it: for resources that nobody waits for.
    ///
    /// # Errors
    /// Returns the limit that refuses it.
    pub fn try_take(&self, amount: u64) -> Result<Permit, Refusal> {
        self.inner().ledger().try_take(self.handle.index, amount)?;
        Ok(self.permit(amount))
    }

    /// Takes an amount if it is free and no other request waits for it; `None` otherwise.
    #[must_use]
    pub fn take_now(&self, amount: u64) -> Option<Permit> {
        let mut ledger = self.inner().ledger();
        if ledger.has_waiters() {
            return None;
        }
        ledger.try_take(self.handle.index, amount).ok()?;
        drop(ledger);
        Some(self.permit(amount))
    }

    /// Waits for an amount, in the order of the budget. At most the whole budget is taken. Cancel safe.
    pub async fn take(&self, amount: u64) -> Permit {
        let amount = amount.min(self.inner().limits.total);
        loop {
            if let Some(permit) = self.take_now(amount) {
                return permit;
            }
            let mut waiting = self.wait(amount);
            // The sender is dropped only together with its permit, or when the request is cancelled.
            if let Ok(permit) = (&mut waiting.receiver).await {
                return permit;
            }
        }
    }

    /// Waits for an amount, at most for this time.
    ///
    /// # Errors
    /// Returns the limit that refuses it at the end of the time.
    pub async fn take_within(&self, amount: u64, time: Duration) -> Result<Permit, Refusal> {
        match timeout(time, self.take(amount)).await {
            Ok(permit) => Ok(permit),
            Err(_) => Err(self.inner().ledger().refusal(self.handle.index, amount).unwrap_or(Refusal::Total)),
        }
    }

    fn wait(&self, amount: u64) -> Waiting<'_> {
        let (sender, receiver) = oneshot::channel();
        let mut ledger = self.inner().ledger();
        let request = Request { account: Arc::clone(&self.handle), sender };
        let ticket = ledger.wait(self.handle.index, amount, request);
        let waiting = Waiting { account: &self.handle, ticket, receiver };
        grant(ledger);
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMPLE: Duration = Duration::from_mins(1);
    const SHORT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn a_request_waits_until_a_permit_is_returned() {
        let shares = Shares::new(Limits::of(4));
        let account = shares.account("cluster.a", None, Rank::Live);
        let held = account.take(1).await;
        assert_eq!(account.take_within(1, SHORT).await.unwrap_err(), Refusal::Policy);
        assert_eq!(shares.usage(), Usage { in_use: 1, total: 4, waiting: 0 });
        let other = shares.account("cluster.a", None, Rank::Live);
        let waiting = tokio::spawn(async move { other.take_within(1, AMPLE).await.map(drop) });
        tokio::task::yield_now().await;
        assert_eq!(shares.usage().waiting, 1, "both handles are of one account");
        drop(held);
        waiting.await.unwrap().unwrap();
        assert_eq!(shares.usage(), Usage { in_use: 0, total: 4, waiting: 0 });
    }

    #[tokio::test]
    async fn a_dropped_request_returns_what_it_was_granted() {
        let shares = Shares::new(Limits::of(1));
        let (a, b) = (shares.account("a", Some("x"), Rank::Live), shares.account("b", Some("y"), Rank::Live));
        let held = a.take(1).await;
        let mut waiting = Box::pin(b.take(1));
        assert!(timeout(SHORT, &mut waiting).await.is_err());
        // Granted, but not received.
        drop(held);
        assert_eq!(shares.usage().in_use, 1);
        drop(waiting);
        assert_eq!(shares.usage(), Usage { in_use: 0, total: 1, waiting: 0 });
        assert!(a.take_now(1).is_some());
    }

    #[tokio::test]
    async fn the_waiting_requests_of_one_policy_do_not_delay_another_policy() {
        let shares = Shares::new(Limits::of(8));
        let greedy = shares.account("greedy", None, Rank::Live);
        let _held = [greedy.take(1).await, greedy.take(1).await];
        for _ in 0..64 {
            let greedy = greedy.clone();
            tokio::spawn(async move { greedy.take(1).await });
        }
        while shares.usage().waiting < 64 {
            tokio::task::yield_now().await;
        }
        let other = shares.account("other", None, Rank::Live);
        assert!(other.take_within(1, Duration::ZERO).await.is_ok());
    }

    #[test]
    fn a_permit_grows_within_the_share_of_its_policy() {
        let shares = Shares::new(Limits::of(400));
        let account = shares.account("a", None, Rank::Live);
        let mut permit = account.try_take(60).unwrap();
        assert_eq!((permit.grow(40), permit.grow(1), permit.amount()), (Ok(()), Err(Refusal::Policy), 100));
        drop(permit);
        assert_eq!(shares.usage().in_use, 0);
    }

    #[test]
    fn accounts_of_removed_policies_are_forgotten() {
        let shares = Shares::new(Limits::of(4));
        let permit = shares.account("a", None, Rank::Live).try_take(1).unwrap();
        assert_eq!(shares.inner.accounts.lock().unwrap().len(), 1, "its permit keeps the account");
        drop(permit);
        assert!(shares.inner.accounts.lock().unwrap().is_empty());
    }
}
