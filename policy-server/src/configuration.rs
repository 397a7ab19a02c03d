//! The delivery of configuration policies to components without a cluster: the subscriptions of the folder of manifests, one task for each
//! of them, files below `--deliver-to`, and commands or HTTP requests that notify the components.

mod actor;
mod command;
mod component;
mod content;
mod files;
mod reports;
mod snapshot;
mod status;
mod store;
mod supervisor;

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proviso_programs::templates::ComponentFacts;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::manifests::{Sourced, SubscriptionId, SubscriptionManifest};
use crate::metrics::Metrics;
use actor::Request;
use reports::Reports;
use supervisor::Supervisor;

pub use content::Content;
pub use snapshot::Snapshot;
pub use store::FolderConfiguration;

/// The maximum number of commands that run at the same time.
const MAX_COMMANDS: usize = 16;
/// The file that a server locks in the folder of `--deliver-to`. No service component name begins with a dot.
const LOCK: &str = ".lock";

/// The options of the deliveries.
#[derive(Clone, Debug)]
pub struct DeliveryOptions {
    /// The folder of `--deliver-to`; `None` if nothing is delivered.
    pub deliver_to: Option<PathBuf>,
    /// The interval at which the state of each component is compared with the policies that it should have.
    pub catch_up_interval: Duration,
}

/// The state that all deliveries share.
#[derive(Debug)]
struct Shared {
    deliver_to: Option<PathBuf>,
    catch_up_interval: Duration,
    /// The permits of commands.
    commands: Semaphore,
    reports: Reports,
    metrics: Arc<Metrics>,
    /// True after the folder of manifests was complete for the first time.
    has_begun: AtomicBool,
}

/// The error of a folder that cannot be used for deliveries.
#[derive(Debug, thiserror::Error)]
pub enum DeliverToError {
    #[error("--deliver-to {path}: {error}", path = path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("--deliver-to {path} is in use by another policy server: give each server its own folder", path = .0.display())]
    Locked(PathBuf),
}

/// A handle for the API, to read subscriptions and to request deliveries.
#[derive(Clone, Debug)]
pub struct DeliveriesHandle {
    shared: Arc<Shared>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    requests: mpsc::UnboundedSender<(SubscriptionId, Request)>,
}

impl Shared {
    fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }
}

/// Locks the folder of `--deliver-to` until the returned file is dropped. Creates the folder if it is missing.
///
/// # Errors
/// Returns an error if the folder cannot be created, or if another server has locked it.
pub fn lock(folder: &Path) -> Result<File, DeliverToError> {
    let failed = |error| DeliverToError::Io { path: folder.to_owned(), error };
    std::fs::create_dir_all(folder).map_err(failed)?;
    let file = File::create(folder.join(LOCK)).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(DeliverToError::Locked(folder.to_owned())),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Returns a handle, and the task that delivers policies until it is dropped. Commands that run are killed then, and their results count
/// as unknown.
pub fn start(
    options: DeliveryOptions,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    metrics: Arc<Metrics>,
) -> (DeliveriesHandle, impl Future<Output = ()> + Send) {
    let (requests, receiver) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared {
        deliver_to: options.deliver_to,
        catch_up_interval: options.catch_up_interval,
        commands: Semaphore::new(MAX_COMMANDS),
        reports: Reports::new(Arc::clone(&metrics)),
        metrics,
        has_begun: AtomicBool::new(false),
    });
    let supervisor = Supervisor {
        shared: Arc::clone(&shared),
        snapshots: snapshots.clone(),
        requests: receiver,
        running: BTreeMap::new(),
    };
    (DeliveriesHandle { shared, snapshots, requests }, supervisor.run())
}

/// Returns the service component name of the component of a subscription.
fn scn(id: &SubscriptionId, subscription: &Sourced<SubscriptionManifest>) -> String {
    subscription.spec.spec.service_component_name(&id.namespace, &id.name)
}

/// Returns the component as templates read it. Nothing runs in Kubernetes here: the labels are those of the subscription.
fn component_facts(id: &SubscriptionId, subscription: &Sourced<SubscriptionManifest>) -> ComponentFacts {
    ComponentFacts::new(&subscription.spec.spec, (&id.namespace, &id.name), subscription.spec.labels.clone())
}
