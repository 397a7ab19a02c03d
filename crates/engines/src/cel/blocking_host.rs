//! Calls of the host from an evaluation. An evaluation runs on a blocking thread, and blocks it until the host answers or the
//! deadline passes.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::time::timeout_at;

use crate::{Deadline, Host, HostCall};

/// The host during one evaluation.
#[derive(Clone)]
pub(super) struct BlockingHost {
    host: Arc<dyn Host>,
    deadline: Deadline,
    runtime: Handle,
}

impl fmt::Debug for BlockingHost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(formatter)
    }
}

impl BlockingHost {
    /// Creates a host that uses the current runtime.
    ///
    /// # Panics
    /// Panics outside of a Tokio runtime.
    pub(super) fn new(host: Arc<dyn Host>, deadline: Deadline) -> Self {
        Self { host, deadline, runtime: Handle::current() }
    }

    /// Returns the status of a `SubjectAccessReview`, given its attributes.
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
            answer.await.unwrap_or_else(|_| Err("the SubjectAccessReview was not answered in time".to_owned()))
        })?;
        serde_json::from_slice(&answer).map_err(|error| format!("the answer is not valid: {error}"))
    }
}

/// Returns the Namespace with this name. An error if it does not exist, or if the host fails.
pub(super) async fn namespace(host: &dyn Host, name: &str, deadline: Deadline) -> Result<Arc<Value>, String> {
    let found = timeout_at(deadline.instant().into(), host.namespace(name, deadline)).await;
    let found = found.unwrap_or_else(|_| Err(format!("the Namespace {name} was not read in time")))?;
    found.ok_or_else(|| format!("there is no Namespace {name}"))
}
