//! The results of calls of a guest.

/// The answer of the guest, or the guest's own error message. A trap is a [`wasmtime::Error`].
pub(super) type Outcome = wasmtime::Result<Result<Vec<u8>, String>>;

/// The error that ends a guest after it called `proc_exit`.
#[derive(Debug, thiserror::Error)]
#[error("the policy exited with code {0}")]
pub(super) struct Exit(pub(super) i32);

/// The error that stops a guest at its deadline.
#[derive(Debug, thiserror::Error)]
#[error("the deadline passed")]
pub(super) struct DeadlinePassed;

/// The error that stops a guest that needs memory within its limit when the share of its policy has no more. Another evaluation may
/// have taken it, so this is no failure of the guest.
#[derive(Debug, thiserror::Error)]
#[error("the share of the policy has no more memory")]
pub(super) struct MemoryTaken;

/// Converts an exit with code 0 into a normal return, because commands end by exiting.
pub(super) fn accept_exit_zero(result: wasmtime::Result<()>) -> wasmtime::Result<()> {
    match result {
        Err(error) if matches!(error.downcast_ref(), Some(Exit(0))) => Ok(()),
        result => result,
    }
}
