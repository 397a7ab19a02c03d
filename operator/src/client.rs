//! The operator's client of the API server.

use std::sync::Arc;
use std::time::Duration;

use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::util::MapRequestLayer;

use crate::metrics::Metrics;

/// The time without data after which the client closes a connection. A watch ends before that time: see
/// [`crate::objects::watch_config`].
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The same time for a command in a pod: a little more than the longest time limit of a notification.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(330);

/// Connects to the cluster of this pod, or to the one that `KUBECONFIG` names. The client has a read timeout, because
/// a request on a connection that the network has dropped would otherwise wait for as long as the kernel retransmits.
pub(crate) async fn connect(metrics: Arc<Metrics>) -> kube::Result<Client> {
    connect_with(metrics, READ_TIMEOUT).await
}

/// Connects as [`connect`] does, for commands in pods: a command may run for some minutes without output.
pub(crate) async fn connect_for_commands(metrics: Arc<Metrics>) -> kube::Result<Client> {
    connect_with(metrics, COMMAND_TIMEOUT).await
}

async fn connect_with(metrics: Arc<Metrics>, read_timeout: Duration) -> kube::Result<Client> {
    let mut config = Config::infer().await.map_err(kube::Error::InferConfig)?;
    config.read_timeout = Some(read_timeout);
    let count = MapRequestLayer::new(move |request: http::Request<Body>| {
        metrics.request(&request);
        request
    });
    Ok(ClientBuilder::try_from(config)?.with_layer(&count).build())
}
