//! The task of a folder source. The task polls the folder, handles finished preparations, and runs the commands of the REST API,
//! one at a time: while a command runs, only an editor of the files can change the manifests.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use proviso_rest_api::{Code, Error};
use tokio::sync::{mpsc, oneshot};

use super::scan::Folder;
use super::{FolderSource, commit};

/// The interval at which the folder is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The maximum number of waiting commands.
const QUEUE: usize = 64;

/// A command of the REST API. It returns a closure that sends its result. The task calls the closure after it has published the
/// change.
type Command = Box<dyn FnOnce(&mut FolderSource, &mut Folder) -> Box<dyn FnOnce() + Send> + Send>;

type Result<T> = std::result::Result<T, Error>;

/// A handle that sends commands to the task of a folder source.
#[derive(Clone)]
pub struct FolderStoreHandle(mpsc::Sender<Command>);

impl fmt::Debug for FolderStoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FolderStoreHandle")
    }
}

impl FolderStoreHandle {
    /// Runs a command in the task of the source, after a poll of the folder, and returns its result.
    ///
    /// # Errors
    /// Returns the error of the command, or an error with the reason `SHUTTING_DOWN` if the server shuts down.
    pub async fn run<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut FolderSource, &mut Folder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        let command: Command = Box::new(move |source, folder| {
            source.poll(folder);
            let result = command(source, folder);
            // The receiver is dropped if the client has closed its connection.
            Box::new(move || drop(sender.send(result)))
        });
        let shutting_down = || Error::new(Code::Unavailable, "SHUTTING_DOWN", "the server is shutting down");
        self.0.send(command).await.map_err(|_| shutting_down())?;
        receiver.await.map_err(|_| shutting_down())?
    }
}

impl FolderSource {
    /// Returns a handle that sends commands to the task, and the task. The task runs until it is dropped.
    pub fn follow(self, path: PathBuf) -> (FolderStoreHandle, impl Future<Output = ()>) {
        let (sender, commands) = mpsc::channel(QUEUE);
        (FolderStoreHandle(sender), self.run(path, commands))
    }

    async fn run(mut self, path: PathBuf, mut commands: mpsc::Receiver<Command>) {
        commit::recover(&path);
        let mut folder = Folder::new(path.clone());
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let mut send_result = None;
            tokio::select! {
                _ = poll.tick() => {
                    let polling = tokio::task::spawn_blocking(move || {
                        let scan = folder.changed();
                        (folder, scan)
                    });
                    let scan = match polling.await {
                        Ok((returned, scan)) => {
                            folder = returned;
                            scan
                        }
                        Err(error) => {
                            tracing::error!(%error, "reading the folder of manifests failed; trying again");
                            folder = Folder::new(path.clone());
                            None
                        }
                    };
                    if let Some(scan) = scan {
                        self.take_scan(scan);
                    }
                    self.retire();
                    self.follow_time();
                }
                // The state file and the table are written once for many revisions: a restart is fast.
                settled = self.lifecycle.settled() => settled.iter().for_each(|key| self.take_settled(key)),
                // Commands run one at a time and not during a poll: between the comparison of versions and the write, the task
                // changes nothing else.
                Some(command) = commands.recv() => {
                    send_result = Some(tokio::task::block_in_place(|| command(&mut self, &mut folder)));
                }
            }
            // A server over a folder is its own leader, because it has no other replicas.
            self.is_changed |= self.lifecycle.start(true);
            self.publish().await;
            if let Some(send_result) = send_result {
                send_result();
            }
        }
    }
}
