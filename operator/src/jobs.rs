//! The child processes in which the operator compiles and evaluates what users write: their limits, and their errors.

use std::time::Duration;

use proviso_crds::validation::FieldError;
use proviso_sandbox::{Failure, JobError, Limits};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The limits of the check of one spec. Its memory is a part of the operator's container. The API server waits for 10 s.
pub(crate) const CHECK_LIMITS: Limits = Limits { memory_mib: 64, time: Duration::from_secs(5), output: 256 * 1024 };
/// The exit code of a job that could not be carried out.
const UNREADABLE: u8 = 10;

/// Reads the input of a job. The error names the field.
pub(crate) fn read<T: DeserializeOwned>(input: &[u8]) -> Result<T, String> {
    let deserializer = &mut serde_json::Deserializer::from_slice(input);
    serde_path_to_error::deserialize(deserializer).map_err(|error| format!("{}: {}", error.path(), error.inner()))
}

/// Returns the output of a job, or the failure of a job that could not be carried out.
pub(crate) fn write<T: Serialize>(result: Result<T, String>) -> Result<Vec<u8>, Failure> {
    result
        .and_then(|output| serde_json::to_vec(&output).map_err(|error| error.to_string()))
        .map_err(|message| Failure { code: UNREADABLE, message })
}

/// Returns the error of a job that exceeded its limits; `None` for another error. `activity` is what the job does, such as `compiling`.
pub(crate) fn limit_message(activity: &str, error: &JobError) -> Option<String> {
    match error {
        JobError::Timeout(limit) => {
            Some(format!("{activity} it took longer than {} s: make it smaller", limit.as_secs()))
        }
        JobError::Memory(mib) => Some(format!("{activity} it takes more than {mib} MiB of memory: make it smaller")),
        JobError::Output(_) => Some(format!("the result of {activity} it is too large")),
        JobError::Failed(_) | JobError::Killed | JobError::Stopped(_) => None,
    }
}

/// Returns errors of fields as one text.
pub(crate) fn to_text(errors: &[FieldError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
