//! The certificate authority (CA) of the operator, which signs the serving certificates of policy servers. The CA is
//! stored in the Secret `proviso-ca`, and is rotated in time without an interruption of requests.

pub(crate) mod certificate;
pub(crate) mod rotation;
pub(crate) mod secret;
pub(crate) mod serving;

use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use tokio::sync::watch;

use crate::config::Lifetimes;
use crate::objects::{self, PART_OF_PROVISO, RESYNC, RETRY};
use certificate::Pair;
use proviso_crds::names::{POLICY_LABEL, ROTATION_SINCE};
use rotation::{Step, Times};
use secret::{CaSecret, CaUsage};

/// The name of the Secret, in the operator's namespace.
pub(crate) const SECRET: &str = "proviso-ca";

/// The CA in the form that the rest of the operator needs.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct CurrentCa {
    /// All CA certificates to trust, in PEM.
    pub bundle: String,
    /// The CA certificate and key that sign.
    pub signing: Pair,
}

/// A subscription to the current CA; `None` until the CA has been read or created.
pub(crate) type Receiver = watch::Receiver<Option<Arc<CurrentCa>>>;

/// Returns a stream with an item for each change of the CA, for controllers.
pub(crate) fn changes(receiver: Receiver) -> impl Stream<Item = ()> {
    futures_util::stream::unfold(receiver, async |mut receiver| {
        receiver.changed().await.ok()?;
        Some(((), receiver))
    })
}

/// Reconciles the CA: creates it, rotates it, and publishes it to subscribers.
pub(crate) struct CertificateAuthority {
    client: Client,
    namespace: String,
    lifetimes: Lifetimes,
    current: watch::Sender<Option<Arc<CurrentCa>>>,
}

/// The error of a reconcile of the CA.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Kubernetes(#[from] kube::Error),
    #[error("cannot generate the CA: {0}")]
    Make(#[from] rcgen::Error),
    #[error("CA certificate: {0}")]
    Flaw(#[from] certificate::Flaw),
}

impl Error {
    /// Returns the stable name of the error, for the log field `reason`.
    fn reason(&self) -> &'static str {
        match self {
            Self::Kubernetes(_) => "KubernetesError",
            Self::Make(_) => "CertificateError",
            Self::Flaw(_) => "InvalidAuthority",
        }
    }
}

impl CertificateAuthority {
    pub fn new(client: Client, namespace: String, lifetimes: Lifetimes) -> Self {
        Self { client, namespace, lifetimes, current: watch::Sender::new(None) }
    }

    pub fn subscribe(&self) -> Receiver {
        self.current.subscribe()
    }

    /// Reconciles the CA until the future is dropped.
    pub async fn run(&self) {
        // The value of an earlier leadership may be outdated.
        self.current.send_replace(None);
        let only = objects::watch_config().fields(&format!("metadata.name={SECRET}"));
        let mut changes = Box::pin(watcher(self.secrets(), only).default_backoff());
        loop {
            let pause = self.reconcile().await.unwrap_or_else(|error| {
                tracing::warn!(reason = error.reason(), %error, "cannot reconcile the CA; trying again");
                RETRY
            });
            tokio::select! {
                _ = changes.next() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Repairs the Secret, or takes one step of a rotation if one is due. Returns the time until the next reconcile.
    async fn reconcile(&self) -> Result<Duration, Error> {
        let (now, lifetime) = (Timestamp::now(), self.lifetimes.authority);
        let found = self.secrets().get_opt(SECRET).await?;
        let ca_secret = match &found {
            Some(secret) => CaSecret::read(secret, now),
            None => Err(self.ca_certificates_of_servers().await?),
        };
        let ca_secret = match ca_secret {
            Ok(ca_secret) => ca_secret,
            Err(trusted) => CaSecret::generate(trusted, now, lifetime)?,
        };
        // Restores the Secret after any manual change, even if the change does not affect the CA.
        if self.write(found.as_ref(), &ca_secret).await? {
            return Ok(Duration::ZERO);
        }
        self.publish(&ca_secret);
        let times =
            Times { announcement: self.lifetimes.announcement, retirement: self.lifetimes.authority_retirement };
        let step = rotation::step(&ca_secret.rotation_state(&self.usage().await?, lifetime)?, &times, now);
        if let Some(next) = ca_secret.after(step, now, lifetime)? {
            tracing::info!(?step, "rotating the CA");
            self.write(found.as_ref(), &next).await?;
            return Ok(Duration::ZERO);
        }
        Ok(match step {
            Step::WaitUntil(due) => objects::duration_until(due, now).min(RESYNC),
            _ => RETRY.min(times.announcement),
        })
    }

    /// Writes the Secret unless `found` is up to date. Returns whether the Secret has changed. If another operator
    /// wrote first, its CA is used.
    async fn write(&self, found: Option<&Secret>, ca_secret: &CaSecret) -> Result<bool, Error> {
        let mut desired =
            Secret { data: Some(ca_secret.data()), type_: Some("Opaque".to_owned()), ..Secret::default() };
        desired.metadata.name = Some(SECRET.to_owned());
        desired.metadata.annotations = Some([(ROTATION_SINCE.to_owned(), ca_secret.since().to_string())].into());
        desired.metadata.labels = Some(objects::labels(SECRET, SECRET));
        let Some(secret) = objects::changed_secret(found.cloned(), desired) else { return Ok(false) };
        match objects::write_secret(&self.secrets(), &secret).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() || status.is_conflict() => {}
            result => drop(result?),
        }
        Ok(true)
    }

    fn publish(&self, ca_secret: &CaSecret) {
        let current = CurrentCa { bundle: ca_secret.bundle(), signing: ca_secret.signing.clone() };
        self.current.send_if_modified(|known| {
            let is_new = known.as_deref() != Some(&current);
            *known = Some(Arc::new(current));
            is_new
        });
    }

    /// Returns the CA certificates of the serving certificates in use. They stay trusted if the Secret is lost.
    async fn ca_certificates_of_servers(&self) -> kube::Result<Vec<String>> {
        let secrets = self.secrets().list(&ListParams::default().labels(PART_OF_PROVISO)).await?;
        let mut certificates: Vec<_> =
            secrets.iter().flat_map(|secret| certificate::split_pem(&secret::text(secret, "ca.crt"))).collect();
        certificates.sort_unstable();
        certificates.dedup();
        Ok(certificates)
    }

    async fn usage(&self) -> kube::Result<CaUsage> {
        let (of_servers, of_policies) =
            (ListParams::default().labels(PART_OF_PROVISO), ListParams::default().labels(POLICY_LABEL));
        let secrets = self.secrets();
        let validating = Api::<ValidatingWebhookConfiguration>::all(self.client.clone());
        let mutating = Api::<MutatingWebhookConfiguration>::all(self.client.clone());
        let (secrets, validating, mutating) =
            tokio::try_join!(secrets.list(&of_servers), validating.list(&of_policies), mutating.list(&of_policies))?;
        let validating = validating.iter().flat_map(|it| it.webhooks.iter().flatten()).map(|it| &it.client_config);
        let mutating = mutating.iter().flat_map(|it| it.webhooks.iter().flatten()).map(|it| &it.client_config);
        let bundle = |config: &WebhookClientConfig| {
            config.ca_bundle.as_ref().map(|bundle| String::from_utf8_lossy(&bundle.0).into_owned()).unwrap_or_default()
        };
        let servers = secrets.iter().map(|secret| secret::text(secret, "tls.crt"));
        Ok(CaUsage {
            servers: servers.filter(|certificate| !certificate.is_empty()).collect(),
            bundles: validating.chain(mutating).map(bundle).collect(),
        })
    }
}
