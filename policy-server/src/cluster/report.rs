//! Writes the status of revisions. The leader and each replica write separate parts, by server-side apply with separate field
//! managers.

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

    /// Writes a status update of the revision with this name and uid in the background. Calls `done` with the status in the
    /// response of the API server.
    pub(super) fn start(
        &self,
        name: String,
        uid: String,
        update: Update,
        done: impl FnOnce(Result<Reported, kube::Error>) + Send + 'static,
    ) {
        let reporter = self.clone();
        tokio::spawn(async move {
            let Ok(_permit) = reporter.permits.acquire().await else { return };
            done(reporter.write(&name, &uid, update).await);
        });
    }

    async fn write(&self, name: &str, uid: &str, update: Update) -> Result<Reported, kube::Error> {
        let as_replica = field_managers::replica(&self.pod_name);
        let mut reported = Reported::default();
        for (manager, part) in [(field_managers::LEADER, update.leader), (as_replica.as_str(), update.replica)] {
            if let Some(part) = part {
                let object = self.apply(name, uid, manager, &part).await?;
                reported = Reported::read(&object, &self.pod_name);
            }
        }
        Ok(reported)
    }

    async fn apply(&self, name: &str, uid: &str, manager: &str, status: &Value) -> Result<DynamicObject, kube::Error> {
        let mut object = status_patch::<PolicyRevision>(status);
        // With the uid, the API server refuses to change another object of the same name.
        object["metadata"] = json!({"name": name, "uid": uid});
        let parameters = PatchParams::apply(manager).force();
        self.revisions.patch_status(name, &parameters, &Patch::Apply(&object)).await
    }
}
