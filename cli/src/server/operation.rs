//! Long-running operations (AIP-151): followed by `:wait`.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::client::Client;
use super::error::ServerError;
use crate::error::Error;

/// The longest wait of one call, shorter than the read timeout.
const CALL: Duration = Duration::from_secs(10);
/// The pause before a server that was away is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// An operation of a server, with its last response.
pub struct Operation {
    client: Client,
    answer: Value,
}

/// The outcome of an operation at the end of the wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    Done,
    /// The reason.
    Failed(String),
    /// The operation still runs: the thing that it waits for.
    Running(String),
}

impl Operation {
    pub(super) fn new(client: Client, answer: Value) -> Self {
        Self { client, answer }
    }

    /// Waits until the operation has ended, at most for `patience`. The server may be away meanwhile.
    ///
    /// # Errors
    /// When the server refuses, or is still away at the end.
    pub async fn wait(mut self, patience: Duration) -> Result<Ended, Error> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match ended(&self.answer) {
                Ended::Running(what) if left.is_zero() => return Ok(Ended::Running(what)),
                Ended::Running(_) => {}
                ended => return Ok(ended),
            }
            let path = format!("{}:wait", self.answer["name"].as_str().unwrap_or_default());
            let body = json!({"timeout": format!("{:.3}s", left.min(CALL).as_secs_f64())});
            match self.client.call(Method::POST, &path, Some(&body)).await {
                Ok(answer) => self.answer = answer,
                Err(Error::Server(ServerError::Unreachable { .. })) if !left.is_zero() => {
                    tokio::time::sleep(PAUSE.min(left)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn ended(operation: &Value) -> Ended {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match (operation["done"].as_bool(), operation.get("error")) {
        (Some(true), Some(error)) => Ended::Failed(text(&error["message"])),
        (Some(true), None) => Ended::Done,
        _ => Ended::Running(text(&operation["metadata"]["waitsFor"])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_says_what_came_of_it() {
        for (operation, wanted) in [
            (json!({"done": true, "response": {}}), Ended::Done),
            (json!({"done": true, "error": {"code": 9, "message": "no"}}), Ended::Failed("no".to_owned())),
            (json!({"done": false, "metadata": {"waitsFor": "it"}}), Ended::Running("it".to_owned())),
            // AIP-151: absent is false.
            (json!({"name": "operations/x"}), Ended::Running(String::new())),
        ] {
            assert_eq!(ended(&operation), wanted, "{operation}");
        }
    }
}
