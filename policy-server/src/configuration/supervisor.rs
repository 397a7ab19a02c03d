//! The deliveries of all subscriptions: starts and stops one task for each service component name, and removes the folders of components
//! that no subscription has any more.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proviso_core::{Failure, Reason};
use proviso_crds::reasons;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::actor::{Actor, Request};
use super::component::{ComponentRecord, blocking};
use super::files::{ComponentFolder, FolderError, RECORD};
use super::{Shared, Snapshot, scn};
use crate::manifests::{ObjectId, Problem, SubscriptionId, may_still_hold};

/// The name of a folder has at most this number of bytes.
const MAX_FOLDER: usize = 255;

/// The supervisor of the deliveries.
pub struct Supervisor {
    pub shared: Arc<Shared>,
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    pub requests: mpsc::UnboundedReceiver<(SubscriptionId, Request)>,
    /// The running deliveries by service component name.
    pub running: BTreeMap<String, Running>,
}

/// The running deliveries of a subscription.
pub struct Running {
    id: SubscriptionId,
    folder: Arc<ComponentFolder>,
    requests: mpsc::UnboundedSender<Request>,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A service component name that is no name of a folder.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("spec.scn: {0:?} is no name of a folder: it begins with a dot, or has a slash or a NUL character")]
    Character(String),
    #[error("spec.scn: has {0} bytes, and the name of a folder has at most {MAX_FOLDER}: make it shorter")]
    Length(usize),
}

/// Checks that a service component name can be the name of a folder.
///
/// # Errors
/// Returns an error for a name that would leave the folder of `--deliver-to`, is hidden, or is too long.
pub fn check_folder_name(scn: &str) -> Result<(), NameError> {
    if scn.starts_with('.') || scn.contains(['/', '\0']) {
        return Err(NameError::Character(scn.to_owned()));
    }
    if scn.len() > MAX_FOLDER { Err(NameError::Length(scn.len())) } else { Ok(()) }
}

impl Supervisor {
    /// Follows the folder of manifests until the task is aborted.
    pub async fn run(mut self) {
        loop {
            let snapshot = Arc::clone(&self.snapshots.borrow_and_update());
            self.follow(&snapshot).await;
            tokio::select! {
                changed = self.snapshots.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                Some((id, request)) = self.requests.recv() => self.forward(&id, request),
            }
        }
    }

    fn forward(&self, id: &SubscriptionId, request: Request) {
        if let Some(running) = self.running.values().find(|running| running.id == *id) {
            // A task that has ended belongs to a subscription that is gone.
            let _ = running.requests.send(request);
        }
    }

    async fn follow(&mut self, snapshot: &Snapshot) {
        let ids: BTreeSet<_> = snapshot.subscriptions.keys().collect();
        self.shared.reports.retain(&ids);
        self.shared.reports.touch();
        let wanted = self.assign(snapshot);
        // Before the first complete reading, policies and subscriptions look removed.
        if snapshot.is_complete {
            self.shared.begin();
        }
        let Some(folder) = self.shared.deliver_to.clone() else { return };
        let is_gone = |scn: &String, running: &Running| wanted.get(scn) != Some(&running.id);
        let gone: Vec<_> = self.running.extract_if(.., |scn, running| is_gone(scn, running)).collect();
        for (_, running) in gone {
            // A later write would create the folder again.
            let closing = Arc::clone(&running.folder);
            drop(running);
            let _ = tokio::task::spawn_blocking(move || closing.close()).await;
        }
        if !self.shared.has_begun() {
            return;
        }
        self.remove_orphans(&folder, snapshot, &wanted).await;
        for (scn, id) in wanted {
            if !self.running.contains_key(&scn) {
                let running = self.start(folder.join(&scn), &scn, id);
                self.running.insert(scn, running);
            }
        }
    }

    /// Returns the subscription of each service component name. Reports the subscriptions that have no deliveries.
    fn assign(&self, snapshot: &Snapshot) -> BTreeMap<String, SubscriptionId> {
        let mut wanted: BTreeMap<String, SubscriptionId> = BTreeMap::new();
        for (id, subscription) in &snapshot.subscriptions {
            let name = scn(id, subscription);
            let failure = if self.shared.deliver_to.is_none() {
                let message = "the server has no folder for the policies of components: start it with --deliver-to";
                Failure::new(reasons::NOT_CONFIGURED, message)
            } else if let Err(error) = check_folder_name(&name) {
                Failure::new(Reason::INVALID, error.to_string())
            } else if let Some(first) = wanted.get(&name) {
                let message = format!(
                    "the subscription {first} has the service component name {name} too: give one of them another `spec.scn`"
                );
                Failure::new(reasons::SCN_CONFLICT, message)
            } else {
                wanted.insert(name, id.clone());
                continue;
            };
            if self.shared.reports.refuse(id, &failure) {
                tracing::warn!(
                    subscription = %id, place = %subscription.place, reason = %failure.reason, error = failure.message,
                    "the subscription is not delivered"
                );
            }
        }
        wanted
    }

    fn start(&self, path: PathBuf, scn: &str, id: SubscriptionId) -> Running {
        let (requests, receiver) = mpsc::unbounded_channel();
        let folder = Arc::new(ComponentFolder::new(path));
        let actor = Actor {
            shared: Arc::clone(&self.shared),
            id: id.clone(),
            scn: scn.to_owned(),
            folder: Arc::clone(&folder),
            snapshots: self.snapshots.clone(),
            requests: receiver,
            resend: None,
        };
        Running { id, folder, requests, task: proviso_tasks::spawn("deliveries", actor.run()) }
    }

    /// Removes the folders of the subscriptions that are gone. Only a folder with a record was written by a server.
    async fn remove_orphans(&self, folder: &Path, snapshot: &Snapshot, wanted: &BTreeMap<String, SubscriptionId>) {
        let (folder, wanted) = (folder.to_owned(), wanted.keys().cloned().collect::<BTreeSet<_>>());
        let problems = snapshot.problems.clone();
        let removed = blocking(move || remove_orphans(&folder, &wanted, &problems));
        let (removed, errors) = removed.await.unwrap_or_else(|error| (Vec::new(), vec![error]));
        for component in removed {
            tracing::info!(component, "removed the folder of a component without a subscription");
        }
        for error in errors {
            tracing::error!(%error, "cannot remove the folder of a component without a subscription");
        }
    }
}

/// Removes the folders in `folder` whose subscriptions are gone, except those of the service component names `wanted`. Returns the names
/// of the removed folders, and the errors of the others: an error in one folder keeps no other folder.
fn remove_orphans(
    folder: &Path,
    wanted: &BTreeSet<String>,
    problems: &[Problem],
) -> Result<(Vec<String>, Vec<FolderError>), FolderError> {
    let names = || -> std::io::Result<Vec<String>> {
        let entries = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
        let names = entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok());
        Ok(names.filter(|name| check_folder_name(name).is_ok() && !wanted.contains(name)).collect())
    };
    let (mut removed, mut errors) = (Vec::new(), Vec::new());
    for name in names().map_err(|error| FolderError::Io { path: folder.to_owned(), error })? {
        let path = folder.join(&name);
        // A link leads to another folder, which the server has not written.
        let is_folder = std::fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        if !is_folder || !path.join(RECORD).is_file() {
            continue;
        }
        match remove_orphan(path, problems) {
            Ok(true) => removed.push(name),
            Ok(false) => {}
            Err(error) => errors.push(error),
        }
    }
    Ok((removed, errors))
}

/// Removes a folder with a record whose subscription is gone. Returns false if the folder stays.
fn remove_orphan(path: PathBuf, problems: &[Problem]) -> Result<bool, FolderError> {
    let component = ComponentFolder::new(path);
    let Some(record) = ComponentRecord::read(&component)? else { return Ok(false) };
    if may_hold(problems, &record) {
        return Ok(false);
    }
    component.remove()?;
    Ok(true)
}

/// Returns true if an unreadable document may contain the subscription of a component.
fn may_hold(problems: &[Problem], record: &ComponentRecord) -> bool {
    let id = SubscriptionId { namespace: record.namespace.clone(), name: record.name.clone() };
    may_still_hold(problems, &ObjectId::Subscription(id), &record.manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_in_one_folder_keeps_no_other_orphan() {
        let root = tempfile::tempdir().unwrap();
        let record = serde_json::to_vec(&ComponentRecord::default()).unwrap();
        for name in ["a", "b", "c", "wanted", "foreign"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
            if name != "foreign" {
                std::fs::write(root.path().join(name).join(RECORD), &record).unwrap();
            }
        }
        // A file in place of the folder of bodies.
        std::fs::write(root.path().join("b/items"), "").unwrap();
        let wanted = BTreeSet::from(["wanted".to_owned()]);
        let (mut removed, errors) = remove_orphans(root.path(), &wanted, &[]).unwrap();
        removed.sort();
        assert_eq!(removed, ["a", "c"]);
        assert!(matches!(errors.as_slice(), [FolderError::NotFolder(path)] if path.ends_with("b/items")), "{errors:?}");
        assert!(!root.path().join("a").exists() && root.path().join("wanted").exists());
    }

    #[test]
    fn a_service_component_name_stays_in_its_folder() {
        for name in ["meter", "dcae.meter-1", "ä b", "x..", &"x".repeat(255)] {
            assert_eq!(check_folder_name(name), Ok(()), "{name}");
        }
        for name in ["..", ".", ".lock", "../x", "a/b", "/etc", "a\0b"] {
            assert_eq!(check_folder_name(name), Err(NameError::Character(name.to_owned())), "{name}");
        }
        assert_eq!(check_folder_name(&"ä".repeat(128)), Err(NameError::Length(256)));
    }
}
