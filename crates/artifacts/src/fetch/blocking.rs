//! Runs file reads and long computations outside the async workers.

use super::error::FetchError;

/// Runs `work` on a blocking thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FetchError> + Send + 'static,
) -> Result<T, FetchError> {
    tokio::task::spawn_blocking(work).await.map_err(|stopped| FetchError::Stopped(stopped.to_string()))?
}
