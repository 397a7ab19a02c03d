//! Waiting for a condition, within bounds.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// The longest time that a component may take to come up. It takes seconds; this is for slow machines.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// One look may take this long: a connection to a process that is just coming up may never be served.
const LOOK: Duration = Duration::from_secs(5);

/// Looks until it succeeds, for at most `bound`; then the error is what the last look said. A look that takes more than
/// 5 s is given up for the next.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// # use std::time::Duration;
/// let mut looks = 0;
/// let found = proviso_e2e::until("the third look", Duration::from_secs(5), async || {
///     looks += 1;
///     anyhow::ensure!(looks == 3, "only look {looks}");
///     Ok(looks)
/// });
/// assert_eq!(found.await.unwrap(), 3);
/// # });
/// ```
pub async fn until<T>(what: &str, bound: Duration, mut look: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + bound;
    loop {
        let error = match tokio::time::timeout(LOOK, look()).await.context("no answer").flatten() {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        if Instant::now() >= deadline {
            return Err(error.context(format!("waited {bound:?} in vain for {what}")));
        }
        tokio::time::sleep(PAUSE).await;
    }
}
