//! Long-running operations (AIP-151). The method `:wait` follows them.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::client::Client;
use super::error::ServerError;
use crate::error::Error;

/// The longest wait of one call. Shorter than the read timeout of the client.
const MAX_CALL_WAIT: Duration = Duration::from_secs(10);
/// The pause before the next call to a server that did not answer.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// An operation of a server, with its last response.
pub struct Operation {
    client: Client,
    answer: Value,
}

/// The state of an operation at the end of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationState {
    /// The operation has succeeded.
    Done,
    /// The operation has failed; the text is the message of its error.
    Failed(String),
    /// The operation still runs; the text is the reason.
    Running(String),
}

impl Operation {
    pub(super) fn new(client: Client, answer: Value) -> Self {
        Self { client, answer }
    }

    /// Waits until the operation has ended, at most for `timeout`. The wait continues while the server does not answer.
    ///
    /// # Errors
    /// When the server refuses the request, or does not answer at the end of the timeout.
    pub async fn wait(mut self, timeout: Duration) -> Result<OperationState, Error> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match state(&self.answer) {
                OperationState::Running(reason) if left.is_zero() => return Ok(OperationState::Running(reason)),
                OperationState::Running(_) => {}
                ended => return Ok(ended),
            }
            let path = format!("{}:wait", self.answer["name"].as_str().unwrap_or_default());
            let body = json!({"timeout": format!("{:.3}s", left.min(MAX_CALL_WAIT).as_secs_f64())});
            match self.client.call(Method::POST, &path, Some(&body)).await {
                Ok(answer) => self.answer = answer,
                Err(Error::Server(ServerError::Unreachable { .. })) if !left.is_zero() => {
                    tokio::time::sleep(RETRY_PAUSE.min(left)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn state(operation: &Value) -> OperationState {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match (operation["done"].as_bool(), operation.get("error")) {
        (Some(true), Some(error)) => OperationState::Failed(text(&error["message"])),
        (Some(true), None) => OperationState::Done,
        _ => OperationState::Running(text(&operation["metadata"]["waitsFor"])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_an_operation_is_read() {
        for (operation, wanted) in [
            (json!({"done": true, "response": {}}), OperationState::Done),
            (json!({"done": true, "error": {"code": 9, "message": "no"}}), OperationState::Failed("no".to_owned())),
            (json!({"done": false, "metadata": {"waitsFor": "it"}}), OperationState::Running("it".to_owned())),
            // An absent `done` is false (AIP-151).
            (json!({"name": "operations/x"}), OperationState::Running(String::new())),
        ] {
            assert_eq!(state(&operation), wanted, "{operation}");
        }
    }
}
