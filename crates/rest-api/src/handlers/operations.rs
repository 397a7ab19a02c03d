//! The methods of long-running operations (AIP-151). An operation gets its result when the result is first computed, and keeps it.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use super::{Api, Call, Result, list};
use crate::body;
use crate::duration;
use crate::error::{Code, Error};
use crate::operation::{AwaitedEffect, Effect, Progress, StoredOperation};
use crate::resources::fields::OPERATION_FILTERS;
use crate::store::{Caller, PolicyStore};

/// The time that `:wait` waits for an operation if the request sets no timeout.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);
/// The maximum time that `:wait` waits for an operation.
const MAX_WAIT: Duration = Duration::from_mins(1);
/// The interval at which `:wait` reads the operation and its target.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

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

    /// Lists the operations whose targets the caller may read.
    pub(super) async fn list_operations(&self, call: &Call) -> Result<Value> {
        let mut operations = Vec::new();
        for operation in self.store.operations(call.caller()).await? {
            let polled = match self.refresh(call.caller(), operation.clone()).await {
                Ok(polled) => polled,
                // One operation whose progress cannot be read must not hide the others.
                Err(error) => Polled { operation, waits_for: Some(error.to_string()) },
            };
            operations.push(polled.to_json());
        }
        list(call, "operations", "", OPERATION_FILTERS, operations)
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
