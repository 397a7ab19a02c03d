//! A lock over all replicas: the Lease `proviso-request-policies` in the namespace of the operator. One change holds the Lease at a
//! time. A holder that crashes loses it after [`LEASE_DURATION`].
//!
//! A replica measures the age of a claim with its own monotonic clock, from the first time that it sees the claim. It never compares
//! the time that the holder wrote with its own clock, because the clocks may differ.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, Patch};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout_at};

use super::Result;
use super::failure::from_kube;
use super::write::{patch_params, post_params};
use crate::error::{Code, Error};

/// The name of the Lease.
const NAME: &str = "proviso-request-policies";
/// The time after which another replica takes the Lease from a holder that does not release it.
const LEASE_DURATION: Duration = Duration::from_secs(10);
/// The time from a claim within which the holder must end its writes. The rest of [`LEASE_DURATION`] is for a write that is still on
/// its way to the API server when the holder gives up.
const HOLD_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which a change waits for the Lease. It is longer than [`LEASE_DURATION`], so that a change outlives a crashed holder.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(20);
/// The interval at which a waiting change reads the Lease.
const POLL_INTERVAL: Duration = Duration::from_millis(40);

/// The Lease, as one replica sees it.
pub(super) struct WriteLease {
    leases: Api<Lease>,
    /// The id of this replica, which is random.
    holder: String,
    /// The version of the claim of another replica, and the time when this replica saw it first. The changes of this replica take turns
    /// at this mutex, so that only one of them contends with the other replicas.
    observed: Mutex<Option<(String, Instant)>>,
}

impl WriteLease {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        let holder = uuid::Uuid::new_v4().to_string();
        Self { leases: Api::namespaced(client, namespace), holder, observed: Mutex::default() }
    }

    /// Runs a change while this replica holds the Lease.
    ///
    /// # Errors
    /// Returns the error of the change, or an error with [`Code::Unavailable`] if the Lease was not free in time, or if the change did
    /// not end in time. In the last case the change may have been written.
    pub(super) async fn hold<T>(&self, change: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let until = Instant::now() + ACQUIRE_TIMEOUT;
        let busy = |_| {
            let message = "other request policies are being changed: try again";
            Error::new(Code::Unavailable, "REQUEST_POLICIES_BUSY", message)
        };
        let mut observed = timeout_at(until, self.observed.lock()).await.map_err(busy)?;
        let (claim, start) = timeout_at(until, self.acquire(&mut observed)).await.map_err(busy)??;
        if let Ok(result) = timeout_at(start + HOLD_TIMEOUT, change).await {
            self.release(&claim).await;
            return result;
        }
        // The Lease is not released: the write may still be on its way, and must arrive before the next holder reads.
        let message = format!(
            "the API server did not answer within {} s: read the policy again, because it may have been changed",
            HOLD_TIMEOUT.as_secs()
        );
        Err(Error::new(Code::Unavailable, "API_SERVER", message))
    }

    /// Waits until this replica holds the Lease. Returns the Lease, and a time before the claim was written.
    async fn acquire(&self, observed: &mut Option<(String, Instant)>) -> Result<(Lease, Instant)> {
        loop {
            let lease = self.read().await?;
            if is_free(&lease, observed, Instant::now()) {
                let start = Instant::now();
                match self.write(&lease, claim(&self.holder)).await {
                    Ok(lease) => return Ok((lease, start)),
                    // Another replica was faster.
                    Err(error) if error.code == Code::Aborted => {}
                    Err(error) => return Err(error),
                }
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Reads the Lease, or creates it without a holder.
    async fn read(&self) -> Result<Lease> {
        match self.leases.get_opt(NAME).await {
            Ok(Some(lease)) => return Ok(lease),
            Ok(None) => {}
            Err(error) => return Err(from_kube(&error, NAME)),
        }
        let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(LeaseSpec::default()) };
        match self.leases.create(&post_params(), &lease).await {
            Ok(lease) => Ok(lease),
            // Another replica was faster.
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                self.leases.get(NAME).await.map_err(|error| from_kube(&error, NAME))
            }
            Err(error) => Err(from_kube(&error, NAME)),
        }
    }

    /// Replaces the claim of the Lease in the version that it has.
    async fn write(&self, lease: &Lease, claim: Value) -> Result<Lease> {
        let patch = json!({"metadata": {"resourceVersion": lease.resource_version()}, "spec": claim});
        let written = self.leases.patch(NAME, &patch_params(), &Patch::Merge(patch)).await;
        written.map_err(|error| from_kube(&error, NAME))
    }

    /// Releases the Lease, so that the next change need not wait until the claim expires.
    async fn release(&self, lease: &Lease) {
        let nobody =
            json!({"holderIdentity": null, "acquireTime": null, "renewTime": null, "leaseDurationSeconds": null});
        if let Err(error) = self.write(lease, nobody).await {
            tracing::warn!(lease = NAME, %error, "the lease could not be released; it expires by itself");
        }
    }
}

/// Returns true if the Lease has no holder, or if the claim of its holder has not changed for [`LEASE_DURATION`]. A claim of this
/// replica counts too: only an interrupted change leaves it behind, whose write may still be on its way.
fn is_free(lease: &Lease, observed: &mut Option<(String, Instant)>, now: Instant) -> bool {
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
    if holder.is_none_or(str::is_empty) {
        *observed = None;
        return true;
    }
    let version = lease.resource_version().unwrap_or_default();
    match observed {
        Some((known, since)) if *known == version => now.duration_since(*since) >= LEASE_DURATION,
        _ => {
            *observed = Some((version, now));
            false
        }
    }
}

/// Returns the claim of this holder, as fields of the spec of the Lease.
fn claim(holder: &str) -> Value {
    let now = MicroTime(Timestamp::now());
    json!({
        "holderIdentity": holder, "leaseDurationSeconds": LEASE_DURATION.as_secs(), "acquireTime": now, "renewTime": now,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: Option<&str>, version: &str) -> Lease {
        let metadata = ObjectMeta { resource_version: Some(version.to_owned()), ..ObjectMeta::default() };
        let spec = LeaseSpec { holder_identity: holder.map(ToOwned::to_owned), ..LeaseSpec::default() };
        Lease { metadata, spec: Some(spec) }
    }

    #[test]
    fn a_claim_expires_by_the_clock_of_the_observer() {
        let (mut observed, start) = (None, Instant::now());
        let mut is_free = |holder: Option<&str>, version: &str, second: u64| {
            is_free(&lease(holder, version), &mut observed, start + Duration::from_secs(second))
        };
        assert!(is_free(None, "1", 0));
        assert!(is_free(Some(""), "2", 1));
        assert!(!is_free(Some("other"), "3", 2));
        assert!(!is_free(Some("other"), "3", 11));
        // Another change holds the Lease since.
        assert!(!is_free(Some("other"), "4", 13));
        assert!(!is_free(Some("other"), "4", 22));
        assert!(is_free(Some("other"), "4", 23));
        // The Lease was free in between.
        assert!(is_free(None, "5", 24));
        assert!(!is_free(Some("other"), "4", 40));
    }

    #[test]
    fn a_write_ends_before_the_lease_can_be_taken_over() {
        assert!(HOLD_TIMEOUT * 2 <= LEASE_DURATION);
        assert!(ACQUIRE_TIMEOUT > LEASE_DURATION);
    }
}
