//! How an evaluation, which runs on a thread of its own, asks the world: it waits there until the answer comes or the time
//! is over.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::time::timeout_at;

use crate::{Deadline, Host, HostCall};

/// A host for the time of one evaluation.
#[derive(Clone)]
pub(super) struct Asking {
    host: Arc<dyn Host>,
    deadline: Deadline,
    runtime: Handle,
}

impl fmt::Debug for Asking {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(formatter)
    }
}

impl Asking {
    /// Called where asynchronous code runs.
    pub(super) fn new(host: Arc<dyn Host>, deadline: Deadline) -> Self {
        Self { host, deadline, runtime: Handle::current() }
    }

    /// Whether somebody may do something: the status of a `SubjectAccessReview`.
    pub(super) fn can_i(&self, review: &Value) -> Result<Value, String> {
        let payload = json!({"subject_access_review": review, "disable_cache": false}).to_string();
        let call = HostCall {
            binding: "kubewarden",
            namespace: "kubernetes",
            operation: "can_i",
            payload: payload.as_bytes(),
        };
        let answer = self.runtime.block_on(async {
            let answer = timeout_at(self.deadline.instant().into(), self.host.call(call, self.deadline));
            answer.await.unwrap_or_else(|_| Err("the answer did not come in time".to_owned()))
        })?;
        serde_json::from_slice(&answer).map_err(|error| format!("the answer is not valid: {error}"))
    }
}

/// The Namespace that a request is about, where one of these asks for it.
pub(super) async fn namespace(host: &dyn Host, name: &str, deadline: Deadline) -> Result<Arc<Value>, String> {
    let found = timeout_at(deadline.instant().into(), host.namespace(name, deadline)).await;
    let found = found.unwrap_or_else(|_| Err(format!("the Namespace {name} did not come in time")))?;
    found.ok_or_else(|| format!("there is no Namespace {name}"))
}
