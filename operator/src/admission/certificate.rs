//! The serving certificate of the operator, and the tokens of its webhook. Every replica issues its own certificate, because all replicas may read
//! the CA.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use proviso_http::Certificate;

use super::Tokens;
use crate::ca::SECRET;
use crate::ca::certificate::Pair;
use crate::ca::secret::CaSecret;
use crate::ca::serving::ServingCertificate;
use crate::config::Config;
use crate::objects::{RESYNC, RETRY, duration_until, watch_config};

/// Renews the serving certificate until the future is dropped.
pub(crate) fn maintain(
    client: &Client,
    config: &Config,
    names: Vec<String>,
    serving: &Arc<Certificate>,
    tokens: &Arc<Tokens>,
) -> impl Future<Output = ()> + use<> {
    let secrets = Api::<Secret>::namespaced(client.clone(), &config.namespace);
    let renewer = CertificateRenewer {
        secrets,
        names,
        lifetime: config.lifetimes.certificate,
        serving: Arc::clone(serving),
        tokens: Arc::clone(tokens),
    };
    renewer.run()
}

struct CertificateRenewer {
    secrets: Api<Secret>,
    names: Vec<String>,
    lifetime: Duration,
    serving: Arc<Certificate>,
    /// The tokens of the webhook's path, which follow from the CA.
    tokens: Arc<Tokens>,
}

impl CertificateRenewer {
    async fn run(self) {
        let only = watch_config().fields(&format!("metadata.name={SECRET}"));
        let mut changes = Box::pin(watcher(self.secrets.clone(), only).default_backoff());
        let mut current = None;
        loop {
            let pause = match self.renew(&mut current).await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::warn!(%error, "cannot renew the serving certificate; trying again");
                    RETRY
                }
            };
            tokio::select! {
                _ = changes.next() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Replaces the certificate if it is due. Returns the time until the next check.
    async fn renew(&self, current: &mut Option<Pair>) -> anyhow::Result<Duration> {
        let now = Timestamp::now();
        let found = self.secrets.get_opt(SECRET).await?;
        let Some(ca_secret) = found.and_then(|secret| CaSecret::read(&secret, now).ok()) else {
            // The leader is about to create or repair the CA.
            return Ok(RETRY);
        };
        self.tokens.learn(&ca_secret.signing);
        let serving = ServingCertificate::current(current.take(), &ca_secret.signing, &self.names, self.lifetime, now)?;
        if serving.is_new {
            self.serving.replace(serving.pair.certificate.as_bytes(), serving.pair.key.as_bytes())?;
            tracing::info!("issued a serving certificate");
        }
        *current = Some(serving.pair);
        Ok(duration_until(serving.next_check, now).min(RESYNC))
    }
}
