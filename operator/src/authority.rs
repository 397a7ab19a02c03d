//! The operator's own authority: it vouches for the policy servers to the API servers. It lives in the Secret
//! `proviso-ca`, and is replaced in time without anybody being refused.

pub(crate) mod certificate;
pub(crate) mod kept;
pub(crate) mod leaf;
pub(crate) mod rotation;

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
use crate::objects::{self, OURS, RESYNC, RETRY};
use certificate::Pair;
use kept::{Kept, Surroundings};
use proviso_crds::names::{POLICY_LABEL, ROTATION_SINCE};
use rotation::{Step, Times};

/// In the operator's namespace.
pub(crate) const SECRET: &str = "proviso-ca";

/// What the rest of the operator has to know.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Trusted {
    /// All who vouch for policy servers now, in PEM.
    pub bundle: String,
    /// The one that signs.
    pub signing: Pair,
}

/// What the rest of the operator knows; nothing before the authority was found or made.
pub(crate) type Receiver = watch::Receiver<Option<Arc<Trusted>>>;

/// Every change of it, for controllers.
pub(crate) fn changes(receiver: Receiver) -> impl Stream<Item = ()> {
    futures_util::stream::unfold(receiver, async |mut receiver| {
        receiver.changed().await.ok()?;
        Some(((), receiver))
    })
}

/// Keeps the authority.
pub(crate) struct Authority {
    client: Client,
    namespace: String,
    lifetimes: Lifetimes,
    trusted: watch::Sender<Option<Arc<Trusted>>>,
}

/// Why it cannot be kept.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Kubernetes(#[from] kube::Error),
    #[error("an authority cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error("the authority's own certificate: {0}")]
    Flaw(#[from] certificate::Flaw),
}

impl Error {
    /// Stable name: log field.
    fn reason(&self) -> &'static str {
        match self {
            Self::Kubernetes(_) => "KubernetesError",
            Self::Make(_) => "CertificateError",
            Self::Flaw(_) => "InvalidAuthority",
        }
    }
}

impl Authority {
    pub fn new(client: Client, namespace: String, lifetimes: Lifetimes) -> Self {
        Self { client, namespace, lifetimes, trusted: watch::Sender::new(None) }
    }

    pub fn trusted(&self) -> Receiver {
        self.trusted.subscribe()
    }

    /// Keeps it until nobody polls this any more.
    pub async fn run(&self) {
        // What was known when this ran before may be old.
        self.trusted.send_replace(None);
        let only = objects::watching().fields(&format!("metadata.name={SECRET}"));
        let mut changes = Box::pin(watcher(self.secrets(), only).default_backoff());
        loop {
            let pause = self.reconcile().await.unwrap_or_else(|error| {
                tracing::warn!(reason = error.reason(), %error, "the authority cannot be kept; trying again");
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

    /// Takes one step, if one is due; how long to wait for the next.
    async fn reconcile(&self) -> Result<Duration, Error> {
        let (now, lifetime) = (Timestamp::now(), self.lifetimes.authority);
        let found = self.secrets().get_opt(SECRET).await?;
        let kept = match &found {
            Some(secret) => Kept::read(secret, now),
            None => Err(self.named_by_servers().await?),
        };
        let kept = match kept {
            Ok(kept) => kept,
            Err(trusted) => Kept::begin(trusted, now, lifetime)?,
        };
        // Also what somebody changed that does not matter is put right.
        if self.write(found.as_ref(), &kept).await? {
            return Ok(Duration::ZERO);
        }
        self.tell(&kept);
        let times =
            Times { announcement: self.lifetimes.announcement, retirement: self.lifetimes.authority_retirement };
        let step = rotation::step(&kept.standing(&self.surroundings().await?, lifetime)?, &times, now);
        if let Some(next) = kept.after(step, now, lifetime)? {
            tracing::info!(?step, "the authority is being replaced");
            self.write(found.as_ref(), &next).await?;
            return Ok(Duration::ZERO);
        }
        Ok(match step {
            Step::WaitUntil(due) => objects::until(due, now).min(RESYNC),
            _ => RETRY.min(times.announcement),
        })
    }

    /// Writes it as what comes after the Secret that was found; whether the Secret is another now. If another operator was
    /// faster, its authority is ours.
    async fn write(&self, found: Option<&Secret>, kept: &Kept) -> Result<bool, Error> {
        let mut wanted = Secret { data: Some(kept.data()), type_: Some("Opaque".to_owned()), ..Secret::default() };
        wanted.metadata.name = Some(SECRET.to_owned());
        wanted.metadata.annotations = Some([(ROTATION_SINCE.to_owned(), kept.since().to_string())].into());
        wanted.metadata.labels = Some(objects::labels(SECRET, SECRET));
        let Some(secret) = objects::changed_secret(found.cloned(), wanted) else { return Ok(false) };
        match objects::write_secret(&self.secrets(), &secret).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() || status.is_conflict() => {}
            result => drop(result?),
        }
        Ok(true)
    }

    fn tell(&self, kept: &Kept) {
        let trusted = Trusted { bundle: kept.bundle(), signing: kept.signing.clone() };
        self.trusted.send_if_modified(|known| {
            let is_new = known.as_deref() != Some(&trusted);
            *known = Some(Arc::new(trusted));
            is_new
        });
    }

    /// Who vouched for the certificates that are in use: when the Secret is lost, these go on.
    async fn named_by_servers(&self) -> kube::Result<Vec<String>> {
        let secrets = self.secrets().list(&ListParams::default().labels(OURS)).await?;
        let mut named: Vec<_> =
            secrets.iter().flat_map(|secret| certificate::each(&kept::text(secret, "ca.crt"))).collect();
        named.sort_unstable();
        named.dedup();
        Ok(named)
    }

    async fn surroundings(&self) -> kube::Result<Surroundings> {
        let (of_servers, of_policies) =
            (ListParams::default().labels(OURS), ListParams::default().labels(POLICY_LABEL));
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
        let servers = secrets.iter().map(|secret| kept::text(secret, "tls.crt"));
        Ok(Surroundings {
            servers: servers.filter(|certificate| !certificate.is_empty()).collect(),
            bundles: validating.chain(mutating).map(bundle).collect(),
        })
    }
}
