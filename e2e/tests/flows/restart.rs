//! Ends the operators in the middle of a flow.

use std::sync::atomic::Ordering;

use anyhow::{Result, bail};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, future, stream};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::Api;
use kube::api::{DeleteParams, ListParams, WatchEvent, WatchParams};
use rustix::process::{Signal, kill_process};
use serde::de::DeserializeOwned;

use crate::test_cluster::{OPERATORS, TestCluster, process_of};

/// The way in which the operators end.
#[derive(Clone, Copy)]
pub enum OperatorEnd {
    /// The operators are terminated and release their lease, as in a rollout or when their node is drained.
    Terminated,
    /// The operators are killed, as when their node fails. New operators wait until the lease expires.
    Killed,
}

/// Runs `flow`, and ends all operators after this number of changes of revisions, webhooks and policy servers. Each number
/// interrupts the work of the operator at another point.
pub async fn with_operator_end<T>(
    flow: impl Future<Output = Result<T>>,
    changes: usize,
    end: OperatorEnd,
    cluster: &TestCluster,
) -> Result<T> {
    let mut events = changes_of(cluster).await?;
    let stop = async {
        for _ in 0..changes {
            events.try_next().await?;
        }
        stop_operators(end, cluster).await
    };
    // Without an operator the admission webhook does not answer, and the API server refuses policies.
    cluster.retries_webhook_failures.store(true, Ordering::Relaxed);
    let mut flow = std::pin::pin!(flow);
    let result = tokio::select! {
        result = &mut flow => {
            result.and_then(|_| bail!("the flow ended before {changes} changes, so the operators were not stopped"))
        }
        stopped = stop => match stopped {
            Ok(()) => flow.await,
            Err(error) => Err(error),
        },
    };
    cluster.retries_webhook_failures.store(false, Ordering::Relaxed);
    let result = result?;
    cluster.until_operators_answer().await?;
    Ok(result)
}

/// Ends all operators. Kubernetes starts new ones.
async fn stop_operators(end: OperatorEnd, cluster: &TestCluster) -> Result<()> {
    let operators = ListParams::default().labels(OPERATORS);
    if let OperatorEnd::Killed = end {
        for pod in cluster.pods().list(&operators).await? {
            // The process of a new pod may not run yet.
            if let Ok(process) = process_of(&pod, "operator") {
                kill_process(process, Signal::KILL)?;
            }
        }
    }
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    cluster.pods().delete_collection(&now, &operators).await?;
    Ok(())
}

/// Returns a stream with an item for each change from now on.
async fn changes_of(cluster: &TestCluster) -> Result<impl Stream<Item = Result<()>> + Unpin> {
    let client = &cluster.client;
    Ok(stream::select_all([
        watch(cluster.revisions()).await?,
        watch(cluster.servers()).await?,
        watch(Api::<ValidatingWebhookConfiguration>::all(client.clone())).await?,
        watch(Api::<MutatingWebhookConfiguration>::all(client.clone())).await?,
    ]))
}

async fn watch<K>(api: Api<K>) -> Result<stream::BoxStream<'static, Result<()>>>
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let version = api.list(&ListParams::default().limit(1)).await?.metadata.resource_version.unwrap_or_default();
    let events = api.watch(&WatchParams::default().timeout(290), &version).await?;
    let changes = events.map_err(Into::into).try_filter(|event| {
        future::ready(matches!(event, WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_)))
    });
    Ok(changes.map_ok(drop).boxed())
}
