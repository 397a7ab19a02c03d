//! The limits of an instance, and the memory that it takes from the share of its policy.

use proviso_shares::{Account, Permit};
use wasmtime::ResourceLimiter;

use super::config::TABLE_ELEMENTS;
use super::outcome::MemoryTaken;

/// Refuses growth beyond the limits. The pool of wasmtime would refuse the growth too, but would not record the refusal.
pub(super) struct Limits {
    /// The maximum size of the memory, in bytes.
    pub(super) memory: usize,
    /// True if the guest has asked for more memory than its limit.
    pub(super) has_refused_memory: bool,
    /// The account of the policy; `None` if only the limit counts.
    account: Option<Account>,
    /// The memory that the instance has taken from the account.
    taken: Option<Permit>,
}

impl Limits {
    /// Makes the limits of an instance whose memory has at most `memory` bytes, and at most the share of a policy.
    pub(super) fn new(memory: usize, account: Option<Account>) -> Self {
        let share = account.as_ref().map(|account| account.limits().per_policy);
        let memory = share.and_then(|share| usize::try_from(share).ok()).map_or(memory, |share| memory.min(share));
        Self { memory, has_refused_memory: false, account, taken: None }
    }

    /// Takes the memory of an instance that grows to `size` bytes. Returns false if the share has no more.
    fn take(&mut self, size: usize) -> bool {
        let Some(account) = &self.account else { return true };
        let size = u64::try_from(size).unwrap_or(u64::MAX);
        if let Some(taken) = &mut self.taken {
            let more = size.saturating_sub(taken.amount());
            return more == 0 || taken.grow(more).is_ok();
        }
        self.taken = account.try_take(size).ok();
        self.taken.is_some()
    }
}

impl ResourceLimiter for Limits {
    fn memory_growing(&mut self, _current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if desired > self.memory {
            self.has_refused_memory = true;
            return Ok(false);
        }
        // The module itself does not permit the growth: the budget, which all policies share, is not asked.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        if self.take(desired) { Ok(true) } else { Err(MemoryTaken.into()) }
    }

    fn table_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_ELEMENTS)
    }
}

#[cfg(test)]
mod tests {
    use proviso_shares::{Rank, Shares};

    use super::*;

    const MIB: usize = 1 << 20;

    fn grows(limits: &mut Limits, mib: usize) -> bool {
        limits.memory_growing(0, mib * MIB, None).unwrap()
    }

    /// Returns true if the growth fails because others have taken the memory.
    fn is_taken(limits: &mut Limits, mib: usize) -> bool {
        limits.memory_growing(0, mib * MIB, None).is_err_and(|error| error.is::<MemoryTaken>())
    }

    #[test]
    fn instances_of_one_policy_share_its_memory() {
        let shares = Shares::new(proviso_shares::Limits::of(64 * MIB as u64));
        let account = shares.account("a", None, Rank::Live);
        let (mut one, mut two) =
            (Limits::new(128 * MIB, Some(account.clone())), Limits::new(128 * MIB, Some(account.clone())));
        assert!(grows(&mut one, 1) && grows(&mut one, 10));
        assert_eq!(shares.usage().in_use, 10 * MIB as u64);
        assert!(is_taken(&mut two, 7) && !two.has_refused_memory);
        drop(one);
        let mut three = Limits::new(128 * MIB, Some(account));
        assert!(grows(&mut three, 16), "the whole share");
        assert!(!grows(&mut three, 17) && three.has_refused_memory);
        let mut other = Limits::new(8 * MIB, Some(shares.account("b", None, Rank::Live)));
        assert!(grows(&mut other, 8), "another policy has its own share");
        assert!(!grows(&mut other, 9) && other.has_refused_memory);
    }

    #[test]
    fn an_instance_without_an_account_has_only_its_limit() {
        let mut limits = Limits::new(2 * MIB, None);
        assert!(grows(&mut limits, 2) && !grows(&mut limits, 3) && limits.has_refused_memory);
    }
}
