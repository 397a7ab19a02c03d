//! Evaluations that end at their deadline, on a machine of any speed.

use std::time::Duration;

use proviso_engines::Deadline;
use tokio::time::timeout_at;

/// An evaluation may end so much later than its deadline.
const GRACE: Duration = Duration::from_millis(250);

/// The result of an evaluation that goes on until its deadline, and no longer. Fails for one that ends before it, or that
/// is still waiting, or has given its thread away once more, when the grace is over.
///
/// A busy machine changes nothing. The runtime fires timers in the order of their times, however late it comes to that, and
/// asks the evaluation before it gives it up: an evaluation that ends at its deadline has then ended.
pub async fn ended_at<T>(deadline: Deadline, evaluation: impl Future<Output = T>) -> T {
    let result = timeout_at((deadline.instant() + GRACE).into(), evaluation).await;
    let result = result.expect("it ends at its deadline, not after it");
    assert!(deadline.is_over(), "it ended before its deadline");
    result
}
