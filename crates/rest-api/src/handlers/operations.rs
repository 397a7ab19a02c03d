//! The methods of long-running operations (AIP-151). An operation gets its result when the result is first computed, and keeps it.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

use super::{Api, Call, Result, list_arguments};
use crate::body;
use crate::duration;
use crate::error::{Code, Error};
use crate::operation::{AwaitedEffect, Effect, OperationSummary, Progress, StoredOperation};
use crate::resources::fields::OPERATION_FILTERS;
use crate::store::{Caller, PolicyStore};

/// The time that `:wait` waits for an operation if the request sets no timeout.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);
/// The maximum time that `:wait` waits for an operation.
const MAX_WAIT: Duration = Duration::from_mins(1);
/// The interval at which `:wait` reads the operation and its target.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum number of lists of operations that run at the same time. A list has the metadata of all operations in memory.
pub(super) const MAX_LISTS: usize = 2;
/// The time for which a list waits for other lists.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of operations that one list reads.
const MAX_LISTED: usize = 100;

/// An operation, and the event that it waits for, if it has not ended.
struct Polled {
    operation: StoredOperation,
    waits_for: Option<String>,
}

impl Polled {
    fn to_json(&self) -> Value {
        self.operation.to_json(self.waits_for.as_deref())
    }
}

impl Call {
    /// Returns the id of the operation.
    fn operation(&self) -> Result<&str> {
        let id = self.variables.first().map(String::as_str).unwrap_or_default();
        let is_id =
            (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if is_id {
            Ok(id)
        } else {
            Err(Error::not_found(&format!("operations/{}", id.chars().take(100).collect::<String>())))
        }
    }
}

impl<S: PolicyStore> Api<S> {
    /// Stores the operation of an effect that has started, and returns it. `deleted` is the resource of an effect that has deleted
    /// it.
    pub(super) async fn start_operation(
        &self,
        call: &Call,
        awaited: AwaitedEffect,
        deleted: Option<Value>,
    ) -> Result<Value> {
        let operation = StoredOperation::new(awaited, Time(Timestamp::now()), deleted);
        let polled = match self.compute(call.caller(), operation.clone()).await {
            Ok(polled) => polled,
            // The effect has started, even if its progress cannot be read: for example, if the caller lacks the permission.
            Err(error) => Polled { operation, waits_for: Some(error.to_string()) },
        };
        if let Err(error) = self.store.create_operation(polled.operation.clone()).await {
            let resource = polled.operation.awaited.target();
            tracing::warn!(resource, %error, "cannot store an operation");
            // A client needs no operation that has ended.
            if polled.operation.result.is_none() {
                let message = format!(
                    "{resource} was changed, but its operation cannot be stored: read {resource} instead: {error}"
                );
                return Err(Error::new(Code::Unavailable, "OPERATION_NOT_STORED", message));
            }
        }
        Ok(polled.to_json())
    }

    pub(super) async fn get_operation(&self, call: &Call) -> Result<Value> {
        Ok(self.poll(call.caller(), call.operation()?).await?.to_json())
    }

    /// Waits until the operation has ended, or until the timeout. Each second, the wait reads the operation and its target once.
    pub(super) async fn wait_operation(&self, call: &Call) -> Result<Value> {
        let message = body::message("", call.object()?, &["name", "timeout"])?;
        let wait_time = match message.get("timeout") {
            None | Some(Value::Null) => DEFAULT_WAIT,
            Some(timeout) => timeout
                .as_str()
                .and_then(duration::parse)
                .ok_or_else(|| Error::invalid("timeout", "is not a duration such as \"10s\""))?,
        };
        let (id, until) = (call.operation()?, Instant::now() + wait_time.min(MAX_WAIT));
        loop {
            let next = Instant::now() + POLL_INTERVAL;
            let polled = self.poll(call.caller(), id).await?;
            if polled.operation.result.is_some() {
                return Ok(polled.to_json());
            }
            tokio::time::sleep_until(next.min(until)).await;
            // A last read before the interval has passed would be one read too many.
            if next > until {
                return Ok(polled.to_json());
            }
        }
    }

    /// Lists the operations that the caller may list. The permissions are checked before an operation is read, and only the operations
    /// of the page are read.
    pub(super) async fn list_operations(&self, call: &Call) -> Result<Value> {
        let (filter, page) = list_arguments(call, "operations", "", OPERATION_FILTERS)?;
        let is_match = |operation: &Value| filter.as_ref().is_none_or(|filter| filter.matches(operation));
        let _permit = self.list_permit().await?;
        let mut found = self.store.operations(call.caller()).await?;
        found.retain(|summary| {
            // An operation without a result may have ended.
            let ended = OperationSummary { is_done: true, ..summary.clone() };
            page.is_after_previous(&summary.name()) && (is_match(&summary.to_json()) || is_match(&ended.to_json()))
        });
        found.sort_by(|one, other| one.id.cmp(&other.id));
        let (mut operations, mut read) = (Vec::new(), 0);
        while read < found.len().min(MAX_LISTED) && operations.len() < page.size() {
            let id = &found[read].id;
            read += 1;
            let operation = match self.store.operation(call.caller(), id).await {
                Ok(operation) => operation,
                // The operation has expired in the meantime, or the caller has lost the permission.
                Err(error) if [Code::NotFound, Code::PermissionDenied].contains(&error.code) => continue,
                Err(error) => return Err(error),
            };
            let polled = match self.refresh(call.caller(), operation.clone()).await {
                Ok(polled) => polled,
                // One operation whose progress cannot be read must not hide the others.
                Err(error) => Polled { operation, waits_for: Some(error.to_string()) },
            };
            operations.extend(Some(polled.to_json()).filter(is_match));
        }
        let last = found[..read].last().filter(|_| read < found.len()).map(OperationSummary::name);
        Ok(page.response("operations", operations, last.as_deref()))
    }

    /// Waits until this list may run.
    async fn list_permit(&self) -> Result<SemaphorePermit<'_>> {
        let permit = tokio::time::timeout(LIST_TIMEOUT, self.lists.acquire()).await;
        permit.ok().and_then(std::result::Result::ok).ok_or_else(|| {
            let message = format!("{MAX_LISTS} other lists of operations are running: try again");
            Error::new(Code::ResourceExhausted, "TOO_MANY_LISTS", message)
        })
    }

    async fn poll(&self, caller: Option<&Caller>, id: &str) -> Result<Polled> {
        let operation = self.store.operation(caller, id).await?;
        self.refresh(caller, operation).await
    }

    /// Computes the result of an operation that has none, and records it.
    async fn refresh(&self, caller: Option<&Caller>, operation: StoredOperation) -> Result<Polled> {
        if operation.result.is_some() {
            return Ok(Polled { operation, waits_for: None });
        }
        let polled = self.compute(caller, operation).await?;
        match &polled.operation.result {
            Some(result) => {
                let operation = self.store.finish_operation(&polled.operation.id, result.clone()).await?;
                Ok(Polled { operation, waits_for: None })
            }
            None => Ok(polled),
        }
    }

    /// Computes the state of an operation without a result.
    async fn compute(&self, caller: Option<&Caller>, mut operation: StoredOperation) -> Result<Polled> {
        let awaited = &operation.awaited;
        let mut progress = self.store.progress(caller, awaited).await?;
        let has_resource = !matches!(awaited.effect, Effect::Delete | Effect::Commit);
        let mut resource = None;
        if progress == Progress::Done && has_resource {
            let read = match awaited.experiment() {
                None => self.store.policy(caller, &awaited.policy).await.map(|policy| policy.to_json()),
                Some(name) => self.store.experiment(caller, &name).await.map(|experiment| experiment.to_json()),
            };
            match read {
                Ok(read) => resource = Some(read),
                // The resource was deleted after the effect.
                Err(error) if error.code == Code::NotFound => progress = Progress::Failed(error),
                Err(error) => return Err(error),
            }
        }
        if let Some(result) = operation.result_of(&progress, resource) {
            operation.finish(result);
        }
        let waits_for = if let Progress::Running(event) = progress { Some(event) } else { None };
        Ok(Polled { operation, waits_for })
    }
}
