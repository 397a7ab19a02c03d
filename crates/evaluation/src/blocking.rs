//! Compiling takes long and does not yield: it runs on blocking threads.

use crate::error::PrepareError;

/// Runs a compilation on a blocking thread of the tokio runtime.
///
/// # Errors
/// The error of the compilation, or that it panicked.
pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PrepareError> + Send + 'static,
) -> Result<T, PrepareError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|stopped| {
        Err(PrepareError::Invalid {
            field: "spec.program".to_owned(),
            message: format!("compiling stopped: {stopped}"),
        })
    })
}
