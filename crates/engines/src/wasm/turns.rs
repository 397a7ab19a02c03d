//! The turns of evaluations that run for longer than a tick. They share a few turns of one tick each, so that many endless loops
//! at the same time take no more CPU time than a few, and other evaluations find a free thread.

use proviso_shares::Account;

use super::ticker::TICK;

/// The turns of one evaluation.
pub(super) struct Turns {
    /// The account of the policy; `None` if the evaluation may run all the time.
    account: Option<Account>,
    /// True if a tick has interrupted the evaluation before. A tick may interrupt an evaluation that has just begun.
    is_long: bool,
}

impl Turns {
    pub(super) fn new(account: Option<Account>) -> Self {
        Self { account, is_long: false }
    }

    /// Returns the future that an interrupted evaluation waits for. Other tasks always run first.
    pub(super) fn next(&mut self) -> impl Future<Output = ()> + Send + 'static {
        let was_long = std::mem::replace(&mut self.is_long, true);
        let account = self.account.clone().filter(|_| was_long);
        async move {
            // Unlike wasmtime's own yield, tokio's lets the runtime poll for I/O before the guest continues.
            tokio::task::yield_now().await;
            if let Some(account) = account {
                let turn = account.take(1).await;
                // The turn ends with the tick, also if the guest waits for its host meanwhile.
                tokio::spawn(async move {
                    tokio::time::sleep(TICK).await;
                    drop(turn);
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proviso_shares::{Limits, Rank, Shares};

    use super::*;

    #[tokio::test]
    async fn long_evaluations_take_turns() {
        let shares = Shares::new(Limits::of(1));
        let turns = |policy: &str| Turns::new(Some(shares.account(policy, None, Rank::Live)));
        let mut short = turns("short");
        let held = shares.account("holder", None, Rank::Live).take(1).await;
        short.next().await;
        let next = short.next();
        let waiting = tokio::time::timeout(Duration::from_millis(50), next).await;
        assert!(waiting.is_err(), "from the second tick on, an evaluation waits for its turn");
        drop(held);
        short.next().await;
        turns("other").next().await;
        let mut other = turns("other");
        other.next().await;
        // The turn of `short` ends by itself.
        other.next().await;
    }

    #[tokio::test]
    async fn an_evaluation_without_an_account_only_yields() {
        let mut turns = Turns::new(None);
        for _ in 0..3 {
            turns.next().await;
        }
    }
}
