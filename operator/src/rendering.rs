//! The bodies of configuration policies for components. Tenants write templates and schemas, so that a child process compiles and
//! evaluates them: see [`proviso_sandbox`]. Few of these processes run at a time, and at most half of them for one namespace.

mod job;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use moka::Expiry;
use moka::future::Cache;
use proviso_core::PolicyId;
use proviso_core::configuration::{ConfigurationPolicy, Digest, Item, Version};
use proviso_programs::templates::{ComponentFacts, RenderError};
use proviso_sandbox::{Failure, Job, JobError, Limits};
use proviso_shares::{Rank, Shares};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::jobs;
use crate::revisions::RevisedConfiguration;
use job::{PolicyInput, RENDER, RenderInput, Rendered};

pub(crate) use job::run_rendering_job;

/// The limits of one batch. Its memory is a part of the operator's container.
const RENDER_LIMITS: Limits = Limits { memory_mib: 64, time: Duration::from_secs(10), output: 12 << 20 };
/// The maximum number of policies in a batch. The content of each has at most 512 KiB.
const MAX_BATCH: usize = 16;
/// The number of child processes at the same time. Half of them may be for one namespace.
const MAX_RUNNING: u64 = 2;
/// The maximum size of the cached bodies, in bytes.
const CACHE_BYTES: u64 = 32 << 20;
/// The estimated size of a cached result without its text, in bytes, with the allocation of its revision without the content.
const ENTRY_BYTES: usize = 1024;
/// The time for which a body that is not used stays in the cache: longer than the default interval of catch-ups.
const IDLE_TIME: Duration = Duration::from_hours(1);
/// The time for which a transient error stays in the cache. Until then a policy that fails slowly is not evaluated again.
pub(crate) const TRANSIENT_ERROR_TIME: Duration = Duration::from_mins(1);

/// The bodies of policies for components, with a bounded cache. Shared by all subscriptions.
#[derive(Debug)]
pub(crate) struct Renderings<R = ChildProcess> {
    items: Cache<Key, Result<Item, RenderError>>,
    running: Shares,
    runner: R,
}

/// The runner of a job.
pub(crate) trait RunJob {
    /// Runs a job, and returns its output.
    fn run(
        &self,
        command: &'static str,
        limits: Limits,
        input: &[u8],
    ) -> impl Future<Output = Result<Vec<u8>, JobError>> + Send;
}

/// Runs each job in a child process of the operator.
#[derive(Debug, Default)]
pub(crate) struct ChildProcess;

impl RunJob for ChildProcess {
    async fn run(&self, command: &'static str, limits: Limits, input: &[u8]) -> Result<Vec<u8>, JobError> {
        Job { command, arguments: Vec::new(), limits }.run(input).await
    }
}

/// The key of a body. A policy that was deleted and created again has the same id and version, but another revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    policy: PolicyId,
    version: Version,
    revised: ByAddress,
    /// The digest of the facts of the component; `None` for content that is the same for all components.
    component: Option<Digest>,
}

/// A revision that is compared by its address. While the key exists, no other revision gets the address. The content of the revision,
/// which may have 1 MiB, is freed with the revision.
#[derive(Clone, Debug)]
struct ByAddress(Weak<RevisedConfiguration>);

impl PartialEq for ByAddress {
    fn eq(&self, other: &Self) -> bool {
        Weak::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ByAddress {}

impl Hash for ByAddress {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_ptr().hash(state);
    }
}

/// The lifetime of results: transient errors expire early.
struct Lifetime;

impl Expiry<Key, Result<Item, RenderError>> for Lifetime {
    fn expire_after_create(&self, _: &Key, value: &Result<Item, RenderError>, _: Instant) -> Option<Duration> {
        value.as_ref().err().filter(|error| error.is_transient()).map(|_| TRANSIENT_ERROR_TIME)
    }
}

/// A policy whose content depends on the component.
struct Missing<'a> {
    /// The place of the policy in the list of wanted policies.
    index: usize,
    policy: &'a ConfigurationPolicy,
    revised: &'a RevisedConfiguration,
    key: Key,
}

impl Default for Renderings {
    fn default() -> Self {
        Self::new(ChildProcess)
    }
}

impl<R: RunJob> Renderings<R> {
    fn new(runner: R) -> Self {
        let weigh = |_: &Key, value: &Result<Item, RenderError>| {
            let text = value.as_ref().map_or(0, |item| item.body().len());
            u32::try_from(text + ENTRY_BYTES).unwrap_or(u32::MAX)
        };
        let items = Cache::builder().max_capacity(CACHE_BYTES).weigher(weigh).time_to_idle(IDLE_TIME);
        let running = Shares::new(proviso_shares::Limits::of(MAX_RUNNING));
        Self { items: items.expire_after(Lifetime).build(), running, runner }
    }

    /// Returns the bodies of these policies for a component, in the order of the policies. An error of one policy does not affect the
    /// others.
    pub async fn items(
        &self,
        wanted: &[(Arc<ConfigurationPolicy>, Arc<RevisedConfiguration>)],
        component: &ComponentFacts,
    ) -> Vec<Result<Item, RenderError>> {
        let facts = Digest::of(&serde_json::to_string(component).unwrap_or_default());
        let mut results: Vec<Option<Result<Item, RenderError>>> = Vec::with_capacity(wanted.len());
        let mut missing = Vec::new();
        for (index, (policy, revised)) in wanted.iter().enumerate() {
            let content = revised.configuration.content.as_ref();
            let key = Key {
                policy: policy.id.clone(),
                version: policy.version.clone(),
                revised: ByAddress(Arc::downgrade(revised)),
                component: content.is_none().then_some(facts),
            };
            let mut result = self.items.get(&key).await;
            match (&result, content) {
                (Some(_), _) => {}
                // The content was validated before the revision became live, and is the same for all components.
                (None, Some(content)) => {
                    let item = Item::new(policy, &Value::Object(content.clone())).map_err(RenderError::from);
                    self.items.insert(key, item.clone()).await;
                    result = Some(item);
                }
                (None, None) => missing.push(Missing { index, policy, revised, key }),
            }
            results.push(result);
        }
        for (index, result) in self.render(&missing, component).await {
            if let Some(place) = results.get_mut(index) {
                *place = Some(result);
            }
        }
        let none = || Err(RenderError::Unavailable("the child process returned no result".to_owned()));
        results.into_iter().map(|result| result.unwrap_or_else(none)).collect()
    }

    /// Renders templates in batches. Each result has the place of its policy.
    async fn render(
        &self,
        missing: &[Missing<'_>],
        component: &ComponentFacts,
    ) -> Vec<(usize, Result<Item, RenderError>)> {
        let mut results = Vec::with_capacity(missing.len());
        let mut rest = missing;
        while !rest.is_empty() {
            let batch = &rest[..rest.len().min(MAX_BATCH)];
            let rendered = match self.render_batch(batch, component).await {
                Ok(rendered) => rendered,
                // One of the policies may have ended the process: each is tried alone.
                Err(_) if batch.len() > 1 => {
                    let mut alone = Vec::new();
                    for policy in batch {
                        let rendered = self.render_batch(std::slice::from_ref(policy), component).await;
                        alone.extend(rendered.unwrap_or_else(|error| vec![Err(failed(error))]));
                    }
                    alone
                }
                Err(error) => vec![Err(failed(error))],
            };
            let count = rendered.len().min(batch.len());
            for (Missing { index, policy, key, .. }, content) in batch.iter().zip(rendered) {
                let item = content.and_then(|content| read(policy, &content));
                self.items.insert(key.clone(), item.clone()).await;
                results.push((*index, item));
            }
            rest = &rest[count..];
        }
        results
    }

    /// Renders policies in one job. Returns the results of at least the first policy.
    async fn render_batch(
        &self,
        batch: &[Missing<'_>],
        component: &ComponentFacts,
    ) -> Result<Vec<Rendered<Box<RawValue>>>, JobError> {
        let stopped = |error: serde_json::Error| JobError::Stopped(error.to_string());
        let policies = batch.iter().map(|Missing { revised, .. }| PolicyInput {
            configuration: &revised.configuration,
            settings: &revised.settings,
        });
        let input = RenderInput { component: component.clone(), policies: policies.collect() };
        let input = serde_json::to_vec(&input).map_err(stopped)?;
        let _running = self.place(Some(&component.namespace), &component.namespace).await;
        let output = self.runner.run(RENDER, RENDER_LIMITS, &input).await?;
        let results: Vec<_> = serde_json::from_slice(&output).map_err(stopped)?;
        if results.is_empty() {
            return Err(JobError::Stopped("it returned no result".to_owned()));
        }
        Ok(results)
    }

    /// Waits for the permission to run a child process.
    async fn place(&self, namespace: Option<&str>, name: &impl ToString) -> proviso_shares::Permit {
        self.running.account(&name.to_string(), namespace, Rank::Live).take(1).await
    }
}

/// Reads the content that a child process has computed.
fn read(policy: &ConfigurationPolicy, content: &RawValue) -> Result<Item, RenderError> {
    let content: Value = serde_json::from_str(content.get()).map_err(unavailable)?;
    Ok(Item::new(policy, &content)?)
}

/// Returns the error of a policy that was rendered alone.
fn failed(error: JobError) -> RenderError {
    if matches!(error, JobError::Timeout(_)) {
        // The time limit of a template ends earlier, so that the machine may be slow.
        return unavailable(error);
    }
    match jobs::limit_message("evaluating", &error) {
        Some(message) => RenderError::Template(message),
        None => match error {
            JobError::Failed(Failure { message, .. }) => RenderError::Unavailable(message),
            error => unavailable(error),
        },
    }
}

fn unavailable(error: impl fmt::Display) -> RenderError {
    RenderError::Unavailable(error.to_string())
}
