//! How a call of a guest ends.

/// The answer of the guest, or its own reason for having none. A trap is an error.
pub(super) type Outcome = wasmtime::Result<Result<Vec<u8>, String>>;

/// The guest called `proc_exit`.
#[derive(Debug, thiserror::Error)]
#[error("the policy exited with code {0}")]
pub(super) struct Exit(pub(super) i32);

/// The guest was stopped at its deadline.
#[derive(Debug, thiserror::Error)]
#[error("the deadline passed")]
pub(super) struct DeadlinePassed;

/// Takes an exit with code 0 for a return: commands end by exiting.
pub(super) fn exited_well(result: wasmtime::Result<()>) -> wasmtime::Result<()> {
    match result {
        Err(error) if matches!(error.downcast_ref(), Some(Exit(0))) => Ok(()),
        result => result,
    }
}
