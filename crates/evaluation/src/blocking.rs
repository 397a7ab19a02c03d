//! Runs compilations on blocking threads. A compilation takes long and does not yield.

use crate::error::PrepareError;

/// Runs a compilation on a blocking thread of the tokio runtime.
///
/// # Errors
/// Returns the error of the compilation, or [`PrepareError::Invalid`] if the compilation panicked.
pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PrepareError> + Send + 'static,
) -> Result<T, PrepareError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|stopped| {
        Err(PrepareError::Invalid {
            field: "spec.program".to_owned(),
            message: format!("the compilation was aborted: {stopped}"),
        })
    })
}
