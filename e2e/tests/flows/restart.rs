//! Operators that end in the middle of a flow.

use std::sync::atomic::Ordering;

use anyhow::{Result, bail};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, future, stream};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::Api;
use kube::api::{DeleteParams, ListParams, WatchEvent, WatchParams};
use rustix::process::{Signal, kill_process};
use serde::de::DeserializeOwned;

use crate::stage::{OPERATORS, Stage, process_of};

/// How the operators end.
#[derive(Clone, Copy)]
pub enum End {
    /// As when they are rolled out anew, or their node is drained: they let go of their lease.
    Terminated,
    /// As when their node is lost: others wait until the lease is over.
    Killed,
}

/// Does something, and ends all operators once that many changes of revisions, webhooks and policy servers have been seen:
/// each number is another moment of what the operator does.
pub async fn in_the_middle_of<T>(
    doing: impl Future<Output = Result<T>>,
    changes: usize,
    end: End,
    stage: &Stage,
) -> Result<T> {
    let mut events = changes_of(stage).await?;
    let stop = async {
        for _ in 0..changes {
            events.try_next().await?;
        }
        stop_operators(end, stage).await
    };
    // Without an operator nobody looks at policies, and so none is taken.
    stage.asks_again.store(true, Ordering::Relaxed);
    let mut doing = std::pin::pin!(doing);
    let result = tokio::select! {
        result = &mut doing => result.and_then(|_| bail!("it was done before {changes} changes: nothing was stopped")),
        stopped = stop => match stopped {
            Ok(()) => doing.await,
            Err(error) => Err(error),
        },
    };
    stage.asks_again.store(false, Ordering::Relaxed);
    let result = result?;
    stage.until_operated().await?;
    Ok(result)
}

/// Ends every operator at once; Kubernetes starts others.
async fn stop_operators(end: End, stage: &Stage) -> Result<()> {
    let operators = ListParams::default().labels(OPERATORS);
    if let End::Killed = end {
        for pod in stage.pods().list(&operators).await? {
            // One that was only just started may not run yet.
            if let Ok(process) = process_of(&pod, "operator") {
                kill_process(process, Signal::KILL)?;
            }
        }
    }
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    stage.pods().delete_collection(&now, &operators).await?;
    Ok(())
}

/// An item for each change from now on.
async fn changes_of(stage: &Stage) -> Result<impl Stream<Item = Result<()>> + Unpin> {
    let client = &stage.client;
    Ok(stream::select_all([
        watch(stage.revisions()).await?,
        watch(stage.servers()).await?,
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
