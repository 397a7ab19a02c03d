//! A component whose policies are files: their record, the files, and the notification.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use proviso_core::configuration::{Answer, Notification, Outcome, Part, Place, Record, Reply, StoredParts};
use proviso_crds::{LastUpdate, Notify, NotifyHttp, PolicySubscriptionStatus};
use proviso_delivery::Component;
use proviso_delivery::http::{Endpoint, post};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};

use super::Shared;
use super::command;
use super::files::{ComponentFolder, FolderError};
use crate::manifests::{Sourced, SubscriptionId, SubscriptionManifest};

/// The maximum size of a message, in bytes. Linux limits one argument of a program to 128 KiB.
const MAX_MESSAGE: usize = 120 * 1024;

/// The content of `record.json`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ComponentRecord {
    pub namespace: String,
    /// The name of the subscription.
    pub name: String,
    /// The file of the subscription. While the file cannot be read, the subscription counts as existing.
    pub manifest: PathBuf,
    /// The value of the annotation `proviso.dev/resend` of the last resend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resend: Option<String>,
    /// The way by which the component has been notified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<Notify>,
    #[serde(default)]
    pub status: PolicySubscriptionStatus,
}

/// A component of a subscription in the folder of manifests.
#[derive(Debug)]
pub struct FolderComponent {
    pub shared: Arc<Shared>,
    pub id: SubscriptionId,
    pub folder: Arc<ComponentFolder>,
    pub subscription: Arc<Sourced<SubscriptionManifest>>,
    /// The value of the annotation `proviso.dev/resend` of the last resend.
    pub resend: Option<String>,
    /// The way by which the component has been notified.
    pub notify: Option<Notify>,
    /// The status without the record of the deliveries.
    pub status: PolicySubscriptionStatus,
}

impl ComponentRecord {
    /// Reads the record of a folder. `None` if there is none, or if it is damaged: all policies are then sent again.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn read(folder: &ComponentFolder) -> Result<Option<Self>, FolderError> {
        let Some(json) = folder.record()? else { return Ok(None) };
        let record = serde_json::from_slice(&json).inspect_err(|error| {
            tracing::warn!(folder = %folder.path().display(), %error, "cannot parse the record of a component: its policies are sent again");
        });
        Ok(record.ok())
    }
}

/// Runs an access to the disk on a blocking thread.
pub async fn blocking<T: Send + 'static>(
    access: impl FnOnce() -> Result<T, FolderError> + Send + 'static,
) -> Result<T, FolderError> {
    let done = tokio::task::spawn_blocking(access).await;
    done.unwrap_or_else(|stopped| Err(FolderError::Stopped(stopped.to_string())))
}

impl FolderComponent {
    /// Writes `record.json` with this status, and reports the status.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub async fn write_status(&self, status: PolicySubscriptionStatus) -> Result<(), FolderError> {
        let record = ComponentRecord {
            namespace: self.id.namespace.clone(),
            name: self.id.name.clone(),
            manifest: self.subscription.place.file.clone(),
            resend: self.resend.clone(),
            notify: self.notify.clone(),
            status,
        };
        // The record has no map keys that are not strings, so that it can always be serialized.
        let json = serde_json::to_vec_pretty(&record).unwrap_or_default();
        let folder = Arc::clone(&self.folder);
        blocking(move || folder.write_record(&json)).await?;
        self.shared.reports.set(&self.id, record.status);
        Ok(())
    }

    async fn send(&self, notify: &Notify, messages: &[String]) -> Outcome {
        let limit = notify.time_limit();
        let Reply { accepted, answer } = match (&notify.exec, &notify.http) {
            (Some(exec), _) => {
                let Ok(_permit) = self.shared.commands.acquire().await else {
                    return Outcome::Failed { message: "the server is shutting down".to_owned() };
                };
                command::run(&exec.command, messages, limit).await
            }
            (None, Some(http)) => post_to(http, messages, limit).await,
            (None, None) => Answer::Accepted.into(),
        };
        match answer {
            Answer::Accepted => Outcome::Acknowledged,
            // The component may have applied the messages before the one that it rejects.
            Answer::Rejected(message) => Outcome::Rejected { message, is_partly_applied: accepted > 0 },
            Answer::Unknown(message) => Outcome::Failed { message },
        }
    }
}

impl Component for FolderComponent {
    type Error = FolderError;

    async fn record(&self) -> Result<Record, FolderError> {
        let folder = Arc::clone(&self.folder);
        let record = blocking(move || ComponentRecord::read(&folder)).await?;
        Ok(record.map(|record| record.status.record()).unwrap_or_default())
    }

    async fn stored(&self) -> Result<StoredParts, FolderError> {
        let folder = Arc::clone(&self.folder);
        blocking(move || folder.read()).await
    }

    async fn write_record(&self, record: &Record, last: Option<&LastUpdate>) -> Result<(), FolderError> {
        let status = PolicySubscriptionStatus { last_update: last.cloned(), ..self.status.clone() };
        self.write_status(status.with_record(record)).await
    }

    async fn write_parts(&self, parts: &[&Part], stale: &[(Place, usize)]) -> Result<(), FolderError> {
        let folder = Arc::clone(&self.folder);
        let (parts, stale): (Vec<Part>, Vec<_>) = (parts.iter().map(|part| (*part).clone()).collect(), stale.to_vec());
        blocking(move || folder.write_parts(&parts.iter().collect::<Vec<_>>(), &stale)).await?;
        self.shared.reports.report_change(&self.id);
        Ok(())
    }

    async fn notify(&self, notification: &Notification) -> Outcome {
        let outcome = match &self.subscription.spec.spec.delivery.notify {
            Some(notify) => self.send(notify, &notification.messages(MAX_MESSAGE)).await,
            None => Outcome::Acknowledged,
        };
        self.shared.metrics.count_delivery(&outcome);
        outcome
    }
}

/// Posts the messages to the endpoint within the time limit.
async fn post_to(http: &NotifyHttp, messages: &[String], limit: Duration) -> Reply {
    let end = Instant::now() + limit;
    let host = format!("{}:{}", http.service, http.port);
    let address = match timeout_at(end, address(&host)).await {
        Ok(Ok(address)) => address,
        Ok(Err(error)) => return Answer::Unknown(format!("cannot connect to {host}: {error}")).into(),
        Err(_) => return Answer::Unknown(format!("no connection to {host} within {} s", limit.as_secs())).into(),
    };
    let endpoint = Endpoint { address, host: &host, path: &http.path };
    post(endpoint, messages, end.saturating_duration_since(Instant::now())).await
}

/// Returns an address of the host that accepts connections: `localhost` has two, of which a component may use one.
async fn address(host: &str) -> std::io::Result<SocketAddr> {
    let mut addresses: Vec<_> = lookup_host(host).await?.collect();
    match addresses[..] {
        [] => Err(std::io::Error::other("the host has no address")),
        [address] => Ok(address),
        _ => {
            addresses.sort_by_key(SocketAddr::is_ipv6);
            TcpStream::connect(&addresses[..]).await?.peer_addr()
        }
    }
}
