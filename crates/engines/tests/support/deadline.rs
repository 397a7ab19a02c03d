//! A check that an evaluation ends at its deadline. The check does not depend on the speed of the machine.

use std::time::Duration;

use proviso_engines::Deadline;
use tokio::time::timeout_at;

/// The maximum time by which an evaluation may miss its deadline.
const GRACE: Duration = Duration::from_millis(250);

/// Returns the result of an evaluation that ends at its deadline.
///
/// A busy machine does not change the result: the runtime fires timers in the order of their times, even if late, and polls the
/// evaluation before the timeout. An evaluation that ends at its deadline has ended by then.
///
/// # Panics
/// Panics if the evaluation ends before its deadline, or is still pending after the deadline and [`GRACE`].
pub async fn ended_at<T>(deadline: Deadline, evaluation: impl Future<Output = T>) -> T {
    let result = timeout_at((deadline.instant() + GRACE).into(), evaluation).await;
    let result = result.expect("the evaluation ends at its deadline, not later");
    assert!(deadline.has_passed(), "the evaluation ended before its deadline");
    result
}
