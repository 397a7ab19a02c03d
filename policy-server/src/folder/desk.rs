//! The task of a folder source. It looks at the folder, takes the preparations that ended, and carries out the orders of the
//! API, one at a time: an order sees what is served, and nobody but editors of the files changes it meanwhile.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use proviso_rest_api::{Code, Error};
use tokio::sync::{mpsc, oneshot};

use super::scan::Folder;
use super::{FolderSource, commit};

/// How often the folder is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The number of orders that can wait.
const QUEUE: usize = 64;

/// An order, and its answer, which is given when the change has been written down.
type Order = Box<dyn FnOnce(&mut FolderSource, &mut Folder) -> Box<dyn FnOnce() + Send> + Send>;

type Result<T> = std::result::Result<T, Error>;

/// Takes orders.
#[derive(Clone)]
pub struct Desk(mpsc::Sender<Order>);

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Desk")
    }
}

impl Desk {
    /// Has the source carry out an order, over the folder as it is now.
    ///
    /// # Errors
    /// Those of the order, and when the server ends.
    pub async fn ask<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut FolderSource, &mut Folder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        let order: Order = Box::new(move |source, folder| {
            source.look(folder);
            let result = order(source, folder);
            // Nobody listens when the client has gone.
            Box::new(move || drop(sender.send(result)))
        });
        let ending = || Error::new(Code::Unavailable, "SHUTTING_DOWN", "the server is ending");
        self.0.send(order).await.map_err(|_| ending())?;
        receiver.await.map_err(|_| ending())?
    }
}

impl FolderSource {
    /// Returns the desk that takes orders, and the task. The task runs until it is dropped.
    pub fn follow(self, path: PathBuf) -> (Desk, impl Future<Output = ()>) {
        let (sender, orders) = mpsc::channel(QUEUE);
        (Desk(sender), self.run(path, orders))
    }

    async fn run(mut self, path: PathBuf, mut orders: mpsc::Receiver<Order>) {
        commit::recover(&path);
        let mut folder = Folder::new(path.clone());
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let mut answer = None;
            tokio::select! {
                _ = look.tick() => {
                    let looked = tokio::task::spawn_blocking(move || {
                        let scan = folder.changed();
                        (folder, scan)
                    });
                    let scan = match looked.await {
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
                }
                // The state and the table are written once for many: this makes a restart fast.
                settled = self.lifecycle.settled() => settled.iter().for_each(|key| self.take_settled(key)),
                // One at a time, and never beside a look: a version that is compared is still there when it is swapped.
                Some(order) = orders.recv() => {
                    answer = Some(tokio::task::block_in_place(|| order(&mut self, &mut folder)));
                }
            }
            // The folder has no other replicas.
            self.is_changed |= self.lifecycle.start(true);
            self.publish().await;
            if let Some(answer) = answer {
                answer();
            }
        }
    }
}
