//! Writes the status of revisions. The leader and each replica write separate parts, by server-side apply with separate field
//! managers. The API server accepts the leader's part only for the state from which it was computed, so that a late write of a former
//! leader changes nothing.

use std::sync::Arc;

use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use proviso_crds::PolicyRevision;
use proviso_crds::conditions::status_patch;
use proviso_crds::names::field_managers;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::reported::Reported;
use super::status::Update;
use crate::config::Replica;

/// The maximum number of concurrent status updates. A starting replica may have hundreds.
const CONCURRENCY: usize = 8;

/// The result of a status update.
#[derive(Debug)]
pub(super) struct Written {
    /// The status in the last response of the API server; `None` if nothing was written.
    pub reported: Option<Reported>,
    /// The `metadata.resourceVersion` of the leader's part, if the API server refused the part because it has a newer state.
    pub outdated: Option<String>,
}

/// The writer of status updates.
#[derive(Clone, Debug)]
pub(super) struct Reporter {
    revisions: Api<DynamicObject>,
    pod_name: String,
    permits: Arc<Semaphore>,
}

impl Reporter {
    pub(super) fn new(client: &Client, replica: &Replica) -> Self {
        let kind = ApiResource::erase::<PolicyRevision>(&());
        Self {
            revisions: Api::namespaced_with(client.clone(), &replica.namespace, &kind),
            pod_name: replica.pod_name.clone(),
            permits: Arc::new(Semaphore::new(CONCURRENCY)),
        }
    }

    /// Writes a status update of the revision with this name and uid in the background. Calls `done` with the result.
    pub(super) fn start(
        &self,
        name: String,
        uid: String,
        update: Update,
        done: impl FnOnce(Result<Written, kube::Error>) + Send + 'static,
    ) {
        let reporter = self.clone();
        // The follower waits for the result.
        proviso_tasks::spawn("status update", async move {
            let Ok(_permit) = reporter.permits.acquire().await else { return };
            done(reporter.write(&name, &uid, update).await);
        });
    }

    async fn write(&self, name: &str, uid: &str, update: Update) -> Result<Written, kube::Error> {
        let mut written = Written { reported: None, outdated: None };
        if let Some(part) = update.leader {
            let version = update.resource_version;
            match self.apply(name, uid, version.as_deref(), field_managers::LEADER, &part).await {
                Ok(object) => written.reported = Some(Reported::read(&object, &self.pod_name)),
                // Another client was faster. This is no error: the watch delivers the newer state.
                Err(kube::Error::Api(status)) if status.is_conflict() => written.outdated = version,
                Err(error) => return Err(error),
            }
        }
        if let Some(part) = update.replica {
            let manager = field_managers::replica(&self.pod_name);
            let object = self.apply(name, uid, None, &manager, &part).await?;
            written.reported = Some(Reported::read(&object, &self.pod_name));
        }
        Ok(written)
    }

    async fn apply(
        &self,
        name: &str,
        uid: &str,
        resource_version: Option<&str>,
        manager: &str,
        status: &Value,
    ) -> Result<DynamicObject, kube::Error> {
        let mut object = status_patch::<PolicyRevision>(status);
        // With the uid, the API server refuses to change another object of the same name. With the version, it refuses to change
        // another state of the object.
        object["metadata"] = match resource_version {
            Some(version) => json!({"name": name, "uid": uid, "resourceVersion": version}),
            None => json!({"name": name, "uid": uid}),
        };
        let parameters = PatchParams::apply(manager).force();
        self.revisions.patch_status(name, &parameters, &Patch::Apply(&object)).await
    }
}
