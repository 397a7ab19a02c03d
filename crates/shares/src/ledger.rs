//! The accounts of a budget: how much each policy and each namespace holds, and who waits. Pure: no locks, clocks or tasks.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use slab::Slab;

/// The limits of a budget, in its own unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The whole budget.
    pub total: u64,
    /// The maximum for one policy.
    pub per_policy: u64,
    /// The maximum for the policies of one namespace together. Cluster policies have no namespace: each counts by itself.
    pub per_namespace: u64,
}

impl Limits {
    /// Returns the limits of a budget: a quarter for one policy, a half for one namespace, and at least 1 for each.
    #[must_use]
    pub fn of(total: u64) -> Self {
        Self::with_minimum(total, 1)
    }

    /// Returns the limits of a budget of which a policy needs at least `minimum`: a quarter for one policy, a half for one
    /// namespace, but at least `minimum` for each. One policy still gets at most a half of the budget.
    #[must_use]
    pub fn with_minimum(total: u64, minimum: u64) -> Self {
        let total = total.max(1);
        let half = (total / 2).max(1);
        Self { total, per_policy: (total / 4).max(minimum).min(half), per_namespace: half }
    }
}

/// The limit that kept an account from taking an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The policy holds its share.
    Policy,
    /// The namespace of the policy holds its share.
    Namespace,
    /// The whole budget is in use.
    Total,
}

impl Refusal {
    pub const ALL: [Self; 3] = [Self::Policy, Self::Namespace, Self::Total];

    /// Returns the name of the refusal in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Namespace => "namespace",
            Self::Total => "total",
        }
    }
}

/// The order of accounts that wait. An account of the rank `Background` gets nothing while one of the rank `Live` waits for the
/// same budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rank {
    Live,
    Background,
}

/// The accounts of a budget. `W` is the data of a waiting request.
#[derive(Debug)]
pub(crate) struct Ledger<W> {
    limits: Limits,
    in_use: u64,
    accounts: Slab<Account<W>>,
    groups: Slab<Group>,
    /// The groups of namespaces. A cluster policy has a group of its own.
    namespaces: HashMap<Arc<str>, usize>,
    /// The accounts with waiting requests.
    waiting: Vec<usize>,
    /// The number of the last grant.
    grants: u64,
    /// The number of the last waiting request.
    tickets: u64,
}

#[derive(Debug)]
struct Account<W> {
    group: usize,
    rank: Rank,
    in_use: u64,
    last_grant: u64,
    waiters: VecDeque<Waiter<W>>,
}

/// The policies of a namespace, or one cluster policy.
#[derive(Debug)]
struct Group {
    namespace: Option<Arc<str>>,
    limit: u64,
    in_use: u64,
    last_grant: u64,
    accounts: usize,
}

#[derive(Debug)]
struct Waiter<W> {
    ticket: u64,
    amount: u64,
    data: W,
}

/// Returns true if a holder of `in_use` may take `amount` too. A holder of nothing may take one amount that is larger than its
/// limit: otherwise a single large request would never be granted.
fn fits(in_use: u64, amount: u64, limit: u64) -> bool {
    in_use == 0 || in_use.saturating_add(amount) <= limit
}

impl<W> Ledger<W> {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            in_use: 0,
            accounts: Slab::new(),
            groups: Slab::new(),
            namespaces: HashMap::new(),
            waiting: Vec::new(),
            grants: 0,
            tickets: 0,
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn in_use(&self) -> u64 {
        self.in_use
    }

    /// Returns the number of waiting requests.
    pub(crate) fn waiters(&self) -> usize {
        self.waiting.iter().map(|account| self.accounts[*account].waiters.len()).sum()
    }

    pub(crate) fn has_waiters(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Adds an account of a policy of this namespace; `None` for a cluster policy.
    pub(crate) fn add(&mut self, namespace: Option<&str>, rank: Rank) -> usize {
        let known = namespace.and_then(|namespace| self.namespaces.get(namespace).copied());
        let group = known.unwrap_or_else(|| {
            let namespace: Option<Arc<str>> = namespace.map(Into::into);
            let limit = if namespace.is_some() { self.limits.per_namespace } else { self.limits.total };
            let group = Group { namespace: namespace.clone(), limit, in_use: 0, last_grant: 0, accounts: 0 };
            let group = self.groups.insert(group);
            self.namespaces.extend(namespace.map(|namespace| (namespace, group)));
            group
        });
        self.groups[group].accounts += 1;
        self.accounts.insert(Account { group, rank, in_use: 0, last_grant: 0, waiters: VecDeque::new() })
    }

    /// Removes an account that holds nothing and does not wait.
    pub(crate) fn remove(&mut self, account: usize) {
        let group = self.accounts.remove(account).group;
        self.groups[group].accounts -= 1;
        if self.groups[group].accounts == 0
            && let Some(namespace) = self.groups.remove(group).namespace
        {
            self.namespaces.remove(&namespace);
        }
    }

    /// Returns the limit that keeps the account from taking the amount now; `None` if none does.
    pub(crate) fn refusal(&self, account: usize, amount: u64) -> Option<Refusal> {
        self.own_refusal(account, amount).or_else(|| self.lacks(amount).then_some(Refusal::Total))
    }

    fn own_refusal(&self, account: usize, amount: u64) -> Option<Refusal> {
        let account = &self.accounts[account];
        let group = &self.groups[account.group];
        if !fits(account.in_use, amount, self.limits.per_policy) {
            Some(Refusal::Policy)
        } else if !fits(group.in_use, amount, group.limit) {
            Some(Refusal::Namespace)
        } else {
            None
        }
    }

    fn lacks(&self, amount: u64) -> bool {
        self.in_use.saturating_add(amount) > self.limits.total
    }

    /// Takes the amount, whoever waits.
    pub(crate) fn try_take(&mut self, account: usize, amount: u64) -> Result<(), Refusal> {
        if let Some(refusal) = self.refusal(account, amount) {
            return Err(refusal);
        }
        self.charge(account, amount);
        Ok(())
    }

    fn charge(&mut self, account: usize, amount: u64) {
        self.grants += 1;
        let account = &mut self.accounts[account];
        account.in_use += amount;
        account.last_grant = self.grants;
        let group = &mut self.groups[account.group];
        group.in_use += amount;
        group.last_grant = self.grants;
        self.in_use += amount;
    }

    pub(crate) fn release(&mut self, account: usize, amount: u64) {
        let account = &mut self.accounts[account];
        account.in_use -= amount;
        self.groups[account.group].in_use -= amount;
        self.in_use -= amount;
    }

    /// Adds a request that waits for the amount. Returns its ticket. [`Self::grant`] must follow.
    pub(crate) fn wait(&mut self, account: usize, amount: u64, data: W) -> u64 {
        self.tickets += 1;
        let waiters = &mut self.accounts[account].waiters;
        if waiters.is_empty() {
            self.waiting.push(account);
        }
        waiters.push_back(Waiter { ticket: self.tickets, amount, data });
        self.tickets
    }

    /// Removes a waiting request. Returns `None` if it was granted already. [`Self::grant`] must follow: the request may have kept
    /// others from smaller amounts.
    pub(crate) fn cancel(&mut self, account: usize, ticket: u64) -> Option<W> {
        let waiters = &mut self.accounts[account].waiters;
        let position = waiters.iter().position(|waiter| waiter.ticket == ticket)?;
        let waiter = waiters.remove(position)?;
        if waiters.is_empty() {
            self.waiting.retain(|waiting| *waiting != account);
        }
        Some(waiter.data)
    }

    /// Grants the next waiting request, and returns its account, amount and data; `None` if nothing can be granted now. Each
    /// account is served in the order of its requests. Of the accounts, the next is the one whose namespace holds the least, then
    /// the one whose namespace was served the longest ago, and then the same for the policy. If its amount is not free, nobody
    /// else gets a smaller one: a large request is not overtaken for ever.
    pub(crate) fn grant(&mut self) -> Option<(usize, u64, W)> {
        let front = |account: usize| self.accounts[account].waiters.front().map(|waiter| (account, waiter.amount));
        let candidates = self.waiting.iter().filter_map(|account| front(*account));
        let permitted = candidates.filter(|(account, amount)| self.own_refusal(*account, *amount).is_none());
        let (account, amount) = permitted.min_by_key(|(account, _)| {
            let account = &self.accounts[*account];
            let group = &self.groups[account.group];
            (account.rank, group.in_use, group.last_grant, account.in_use, account.last_grant)
        })?;
        if self.lacks(amount) {
            return None;
        }
        self.charge(account, amount);
        let waiters = &mut self.accounts[account].waiters;
        let waiter = waiters.pop_front()?;
        if waiters.is_empty() {
            self.waiting.retain(|waiting| *waiting != account);
        }
        Some((account, amount, waiter.data))
    }
}

#[cfg(test)]
mod tests;
