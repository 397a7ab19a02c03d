//! The signals by which the controller wakes the task of a subscription. Signals that arrive while the task is busy are not lost.

use std::sync::Mutex;

use tokio::sync::Notify;

use crate::cache::lock;

/// The causes of a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Causes {
    /// A policy that concerns the subscription has changed.
    pub policies: bool,
    /// An object of the component, its workload or a claim has changed.
    pub objects: bool,
}

#[derive(Debug, Default)]
pub(super) struct Wake {
    causes: Mutex<Causes>,
    notify: Notify,
}

impl Wake {
    pub fn policies(&self) {
        lock(&self.causes).policies = true;
        self.notify.notify_one();
    }

    pub fn objects(&self) {
        lock(&self.causes).objects = true;
        self.notify.notify_one();
    }

    /// Returns the causes since the last call.
    pub fn take(&self) -> Causes {
        std::mem::take(&mut lock(&self.causes))
    }

    /// Waits for a signal. A signal since the last wait counts.
    pub async fn signalled(&self) {
        self.notify.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_signal_while_the_task_is_busy_is_not_lost() {
        let wake = Wake::default();
        wake.policies();
        wake.objects();
        assert!(wake.signalled().now_or_never().is_some());
        assert_eq!(wake.take(), Causes { policies: true, objects: true });
        assert_eq!((wake.take(), wake.signalled().now_or_never()), (Causes::default(), None));
    }
}
