//! Waits for a condition with a time limit.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The time limit for the start of a component. A start takes seconds; the limit is long for slow machines.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_mins(2);
/// The interval between two attempts.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The time limit of an attempt: a process that is still starting may accept a connection and never answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Repeats `attempt` until it succeeds, and returns its result. An attempt that takes more than 5 s counts as failed. The error
/// names the condition by `what`.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// # use std::time::Duration;
/// let mut attempts = 0;
/// let found = proviso_e2e::until("the third attempt", Duration::from_secs(5), async || {
///     attempts += 1;
///     anyhow::ensure!(attempts == 3, "only attempt {attempts}");
///     Ok(attempts)
/// });
/// assert_eq!(found.await.unwrap(), 3);
/// # });
/// ```
///
/// # Errors
///
/// The error of the last attempt, if no attempt succeeds within `bound`.
pub async fn until<T>(what: &str, bound: Duration, attempt: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    until_with(what, bound, ATTEMPT_TIMEOUT, attempt).await
}

/// Waits until the clock shows a later second than `time`, so that an object that is created then is younger: the times of creation
/// of Kubernetes' objects are whole seconds.
///
/// # Errors
///
/// If the clock stands still, or is behind `time` for more than 30 s.
pub async fn until_after(time: &Time) -> Result<()> {
    until("the next second", Duration::from_secs(30), async || {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        ensure!(i64::try_from(now)? > time.0.as_second(), "the same second");
        Ok(())
    })
    .await
}

/// Like [`until`], with another time limit for an attempt. For attempts that take more than 5 s on a busy machine, such as
/// several commands.
///
/// # Errors
///
/// As for [`until`].
pub async fn until_with<T>(
    what: &str,
    bound: Duration,
    attempt_timeout: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + bound;
    loop {
        let error = match tokio::time::timeout(attempt_timeout, attempt()).await.context("no answer").flatten() {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        if Instant::now() >= deadline {
            return Err(error.context(format!("timed out after {bound:?} waiting for {what}")));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
