//! The certificate that the operator shows to API servers. Every replica signs its own: all of them may read the
//! authority, and nobody else need know of it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use proviso_http::Certificate;

use crate::authority::SECRET;
use crate::authority::certificate::Pair;
use crate::authority::kept::Kept;
use crate::authority::leaf::Leaf;
use crate::config::Config;
use crate::objects::{RESYNC, RETRY, until, watching};

/// Keeps the certificate valid until this is dropped.
pub(crate) fn keep(
    client: &Client,
    config: &Config,
    names: Vec<String>,
    shown: &Arc<Certificate>,
) -> impl Future<Output = ()> + use<> {
    let secrets = Api::<Secret>::namespaced(client.clone(), &config.namespace);
    let keeper = Keeper { secrets, names, lifetime: config.lifetimes.certificate, shown: Arc::clone(shown) };
    keeper.run()
}

struct Keeper {
    secrets: Api<Secret>,
    names: Vec<String>,
    lifetime: Duration,
    shown: Arc<Certificate>,
}

impl Keeper {
    async fn run(self) {
        let only = watching().fields(&format!("metadata.name={SECRET}"));
        let mut changes = Box::pin(watcher(self.secrets.clone(), only).default_backoff());
        let mut current = None;
        loop {
            let pause = match self.renew(&mut current).await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::warn!(%error, "the certificate cannot be kept; trying again");
                    RETRY
                }
            };
            tokio::select! {
                _ = changes.next() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Replaces the certificate if that is due; how long to wait before the next look.
    async fn renew(&self, current: &mut Option<Pair>) -> anyhow::Result<Duration> {
        let now = Timestamp::now();
        let found = self.secrets.get_opt(SECRET).await?;
        let Some(kept) = found.and_then(|secret| Kept::read(&secret, now).ok()) else {
            // The one who leads is about to make it, or to mend it.
            return Ok(RETRY);
        };
        let leaf = Leaf::current(current.take(), &kept.signing, &self.names, self.lifetime, now)?;
        if leaf.is_new {
            self.shown.replace(leaf.pair.certificate.as_bytes(), leaf.pair.key.as_bytes())?;
            tracing::info!("a certificate for admission was signed");
        }
        *current = Some(leaf.pair);
        Ok(until(leaf.look_again, now).min(RESYNC))
    }
}
