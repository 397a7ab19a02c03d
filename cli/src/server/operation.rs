//! What takes time (AIP-151): followed by `:wait`.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::{Server, ServerError};
use crate::error::Error;

/// How long one call may wait: less than a server may be silent.
const CALL: Duration = Duration::from_secs(10);
/// Before a server that was away is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// An operation of a server, as it was answered last.
pub struct Operation {
    server: Server,
    answer: Value,
}

/// What came of it, as far as was waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    Done,
    /// Why.
    Failed(String),
    /// Not yet: what it waits for.
    Running(String),
}

impl Operation {
    pub(super) fn new(server: Server, answer: Value) -> Self {
        Self { server, answer }
    }

    /// Waits until it has ended, or until the patience has. Who is away meanwhile may come back before.
    ///
    /// # Errors
    /// When the server refuses to say, or is still away at the end.
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
            match self.server.call(Method::POST, &path, Some(&body)).await {
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
