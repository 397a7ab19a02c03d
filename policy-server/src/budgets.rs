//! The budgets of evaluations, which all policies share: places, memory of wasm instances, and the CPU time of long evaluations.
//! Their sizes follow from the configuration and from the limits of the container (docs/adr/0022).

use std::time::{Duration, Instant};

use proviso_core::PolicyId;
use proviso_engines::{Budget, Pacing};
use proviso_shares::{Account, Limits, Permit, Rank, Refusal, Shares};

use crate::container::Container;
use crate::metrics::{PlaceMetrics, RefusalReason};

/// The time that a request waits for a place. The time limit of its evaluation begins after it.
pub const QUEUE_TIME: Duration = Duration::from_millis(250);
/// The part of the `timeoutSeconds` of a webhook that is not for the evaluation: the wait for a place, and the transport.
const WEBHOOK_RESERVE: Duration = Duration::from_millis(500);
/// The part of the container's memory for wasm instances. A half is for compilers, and the last quarter for the rest of the server.
const MEMORY_SHARE: u64 = 4;
/// The memory for each place, in bytes: the part of an instance that stays resident, the review, and the answer.
const MEMORY_PER_PLACE: u64 = 4 << 20;
/// The maximum number of places for each CPU. More evaluations at the same time only wait for each other.
const PLACES_PER_CPU: u64 = 32;
/// The minimum number of places, if the configuration does not set a smaller one: one policy gets two of them.
const MIN_PLACES: u64 = 8;

/// The memory that a wasm evaluation waits for, in bytes: more than most instances begin with.
const INSTANCE_MEMORY: u64 = 2 << 20;

/// The budgets of evaluations.
#[derive(Clone, Debug)]
pub struct Budgets {
    pub places: Shares,
    /// The memory of wasm instances, in bytes.
    pub memory: Shares,
    turns: Shares,
}

/// The accounts of one policy.
#[derive(Clone, Debug)]
pub struct Accounts {
    live: Account,
    preview: Account,
    memory: Account,
    pacing: Pacing,
}

/// The error of an evaluation that found no free place in time, or no memory. The caller may try again.
#[derive(Clone, Copy, Debug)]
pub struct Overloaded;

impl Budgets {
    /// Makes the budgets for at most `concurrency` evaluations, with wasm instances of at most `memory_limit` bytes.
    #[must_use]
    pub fn new(concurrency: u32, memory_limit: usize, container: Container) -> Self {
        let cpus = u64::try_from(container.cpus).unwrap_or(1);
        let concurrency = u64::from(concurrency);
        let instance = u64::try_from(memory_limit).unwrap_or(u64::MAX);
        let wanted = concurrency.saturating_mul(instance);
        let memory = container.memory.map_or(wanted, |limit| wanted.min(limit / MEMORY_SHARE));
        let possible = (memory / MEMORY_PER_PLACE).min(PLACES_PER_CPU * cpus).max(MIN_PLACES);
        Self {
            places: Shares::new(Limits::of(concurrency.min(possible))),
            memory: Shares::new(Limits::with_minimum(memory, instance)),
            // One CPU stays free for short evaluations.
            turns: Shares::new(Limits::of((cpus.saturating_sub(1)).max(1))),
        }
    }

    /// Returns the accounts of a policy. All its generations and experiments share them, but each generation has its own pacing.
    #[must_use]
    pub fn accounts(&self, policy: &PolicyId) -> Accounts {
        let account = |shares: &Shares, rank| shares.account(policy.as_str(), policy.namespace(), rank);
        Accounts {
            live: account(&self.places, Rank::Live),
            preview: account(&self.places, Rank::Background),
            memory: account(&self.memory, Rank::Live),
            pacing: Pacing::new(account(&self.turns, Rank::Live)),
        }
    }
}

impl Accounts {
    /// Takes a place for an answer, and for a wasm instance waits until the share of the policy has memory for it. Waits at most
    /// [`QUEUE_TIME`].
    ///
    /// # Errors
    /// Returns an error if no place or no memory became free in time.
    pub async fn place(&self, is_wasm: bool, metrics: &PlaceMetrics) -> Result<Budget, Overloaded> {
        let start = Instant::now();
        let budget = match self.live.take_now(1) {
            Some(place) => self.budget(place),
            None => self.wait(start, metrics).await?,
        };
        // The instance itself takes the memory when it grows.
        if is_wasm && self.memory.take_now(INSTANCE_MEMORY).is_none() {
            let left = QUEUE_TIME.saturating_sub(start.elapsed());
            self.memory.take_within(INSTANCE_MEMORY, left).await.map_err(|_| {
                metrics.count_refused(RefusalReason::Memory);
                Overloaded
            })?;
        }
        Ok(budget)
    }

    async fn wait(&self, start: Instant, metrics: &PlaceMetrics) -> Result<Budget, Overloaded> {
        let place = self.live.take_within(1, QUEUE_TIME).await;
        metrics.observe_wait(start.elapsed());
        place.map(|place| self.budget(place)).map_err(|refusal| {
            metrics.count_refused(match refusal {
                Refusal::Policy => RefusalReason::Policy,
                Refusal::Namespace => RefusalReason::Namespace,
                Refusal::Total => RefusalReason::Total,
            });
            Overloaded
        })
    }

    /// Takes a place for a preview, when no answer waits for one. Waits at most [`QUEUE_TIME`].
    ///
    /// # Errors
    /// Returns an error if no place became free in time.
    pub async fn preview_place(&self) -> Result<Budget, Overloaded> {
        let place = self.preview.take_within(1, QUEUE_TIME).await.map_err(|_| Overloaded)?;
        // Previews run on a thread of their own, with a low priority.
        Ok(Budget { place, memory: self.memory.clone(), pacing: None })
    }

    /// Waits for a place for the preparation of the policy, which no caller waits for.
    pub async fn preparation_place(&self) -> Budget {
        self.budget(self.live.take(1).await)
    }

    fn budget(&self, place: Permit) -> Budget {
        Budget { place, memory: self.memory.clone(), pacing: Some(self.pacing.clone()) }
    }
}

/// Returns the time limit of an evaluation whose caller, an API server, waits for `webhook_timeout`: the answer arrives before the
/// API server gives up, also if the evaluation waits for a place.
#[must_use]
pub fn within_webhook(timeout: Duration, webhook_timeout: Duration) -> Duration {
    timeout.min(webhook_timeout.saturating_sub(WEBHOOK_RESERVE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    const MIB: u64 = 1 << 20;

    fn sizes(concurrency: u32, container: Container) -> (u64, u64, u64) {
        let budgets = Budgets::new(concurrency, 128 << 20, container);
        let memory = budgets.memory.limits();
        (budgets.places.limits().total, memory.total / MIB, memory.per_policy / MIB)
    }

    #[test]
    fn the_budgets_fit_into_the_container() {
        let container = |mib: u64, cpus| Container { memory: Some(mib * MIB), cpus };
        for (concurrency, container, wanted) in [
            // Places; memory of all instances in MiB; memory of the instances of one policy in MiB.
            (64, container(1024, 4), (64, 256, 128)),
            (64, container(512, 4), (32, 128, 64)),
            (64, container(256, 1), (16, 64, 32)),
            (64, container(64, 1), (8, 16, 8)),
            (64, container(4096, 1), (32, 1024, 256)),
            (1000, container(65_536, 8), (256, 16_384, 4096)),
            (2, container(1024, 4), (2, 256, 128)),
            (64, Container { memory: None, cpus: 2 }, (64, 8192, 2048)),
        ] {
            let (places, memory, per_policy) = sizes(concurrency, container);
            assert_eq!((places, memory, per_policy), wanted, "{concurrency} {container:?}");
        }
    }

    #[test]
    fn an_evaluation_ends_before_the_api_server_gives_up() {
        let seconds = Duration::from_secs;
        assert_eq!(within_webhook(seconds(2), seconds(10)), seconds(2));
        assert_eq!(within_webhook(seconds(30), seconds(10)) + WEBHOOK_RESERVE, seconds(10));
        assert_eq!(within_webhook(seconds(2), seconds(1)), Duration::from_millis(500));
        assert!(WEBHOOK_RESERVE > QUEUE_TIME);
    }

    #[tokio::test]
    async fn a_wasm_evaluation_waits_for_the_memory_of_its_policy_and_is_then_refused() {
        let budgets = Budgets::new(64, 128 << 20, Container { memory: Some(512 * MIB), cpus: 4 });
        let (greedy, other) = (PolicyId::cluster("greedy").unwrap(), PolicyId::cluster("other").unwrap());
        let metrics = Metrics::new().policy(&greedy, "wasm").places;
        let accounts = budgets.accounts(&greedy);
        let all = accounts.memory.try_take(64 * MIB).unwrap();
        assert!(accounts.place(true, &metrics).await.is_err());
        assert!(accounts.place(false, &metrics).await.is_ok(), "an interpreter needs no memory of wasm instances");
        assert!(budgets.accounts(&other).place(true, &metrics).await.is_ok(), "another policy has its own share");
        drop(all);
        assert!(accounts.place(true, &metrics).await.is_ok());
        assert_eq!(budgets.places.usage().in_use, 0, "a refused evaluation returns its place");
    }

    #[tokio::test]
    async fn a_preview_gets_no_place_before_an_answer() {
        let budgets = Budgets::new(1, 1 << 20, Container { memory: None, cpus: 1 });
        let accounts = budgets.accounts(&PolicyId::cluster("a").unwrap());
        let held = accounts.preparation_place().await;
        let (preview, live) = (accounts.clone(), accounts.clone());
        let preview = tokio::spawn(async move { preview.preview_place().await });
        let live = tokio::spawn(async move { live.preparation_place().await });
        while budgets.places.usage().waiting < 2 {
            tokio::task::yield_now().await;
        }
        drop(held);
        let live = live.await.unwrap();
        // The preview still waits, or has given up.
        assert_eq!(budgets.places.usage().in_use, 1);
        drop(live);
        drop(preview.await.unwrap());
        assert_eq!(budgets.places.usage().in_use, 0);
    }
}
