//! The operator's client of the API server.

use std::sync::Arc;
use std::time::Duration;

use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::util::MapRequestLayer;

use crate::metrics::Metrics;

/// How long the API server may say nothing on a connection. A watch says at least that it ends: see [`crate::objects::watching`].
const SILENCE: Duration = Duration::from_secs(30);

/// Connects to the cluster that this program runs in, or that `KUBECONFIG` names. The client closes connections on which nothing
/// arrives: a request on one that the network has forgotten would wait for as long as the kernel sends again.
pub(crate) async fn connect(metrics: Arc<Metrics>) -> kube::Result<Client> {
    let mut config = Config::infer().await.map_err(kube::Error::InferConfig)?;
    config.read_timeout = Some(SILENCE);
    let count = MapRequestLayer::new(move |request: http::Request<Body>| {
        metrics.request(&request);
        request
    });
    Ok(ClientBuilder::try_from(config)?.with_layer(&count).build())
}
