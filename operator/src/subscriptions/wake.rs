//! The signals by which the controller wakes the task of a subscription. Signals that arrive while the task is busy are not lost.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::cache::lock;

/// The time that the policies of a component must stay the same before the component gets a single change.
const QUIET: Duration = Duration::from_millis(200);
/// The time that the policies of a component must stay the same after many changes.
const MAX_QUIET: Duration = Duration::from_secs(2);
/// The longest time that a change of a policy waits while other policies of the component change.
const MAX_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Wake {
    changes: Mutex<Changes>,
    notify: Notify,
}

/// The changes of the policies of a component. Many changes in quick succession, for example of a whole repository, become few updates:
/// each change makes the component wait longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Changes {
    /// The time of the first change that the component has not got yet.
    waiting: Option<Instant>,
    /// The time of the last change, and the number of changes in quick succession until then.
    last: Option<(Instant, u32)>,
}

impl Changes {
    /// Adds a change. Returns true if no other change waits.
    fn add(&mut self, now: Instant) -> bool {
        let earlier = self.last.filter(|(last, _)| now.saturating_duration_since(*last) <= MAX_QUIET);
        self.last = Some((now, earlier.map_or(1, |(_, count)| count.saturating_add(1))));
        let is_first = self.waiting.is_none();
        self.waiting.get_or_insert(now);
        is_first
    }

    fn due(&self) -> Option<Instant> {
        let (first, (last, count)) = (self.waiting?, self.last?);
        Some((last + QUIET.saturating_mul(count).min(MAX_QUIET)).min(first + MAX_WAIT))
    }
}

impl Wake {
    /// Reports that a policy has changed that concerns the subscription.
    pub fn policies(&self) {
        // While a change waits, the task wakes up by itself: at the latest when the change is due.
        let is_first = lock(&self.changes).add(Instant::now());
        if is_first {
            self.notify.notify_one();
        }
    }

    /// Reports that an object of the component, its workload or a claim has changed.
    pub fn objects(&self) {
        self.notify.notify_one();
    }

    /// Returns the time at which the component should get the changes of its policies; `None` if there are none.
    pub fn due(&self) -> Option<Instant> {
        lock(&self.changes).due()
    }

    /// Ends the wait: the task resolves the subscription now. Later changes wait again.
    pub fn begin(&self) {
        lock(&self.changes).waiting = None;
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

    #[test]
    fn many_changes_at_once_wait_for_each_other_for_a_limited_time() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let changes = |times: &[u64]| {
            let mut changes = Changes::default();
            for millis in times {
                changes.add(at(*millis));
            }
            changes
        };
        let often: Vec<_> = (0..100).map(|number| number * 100).collect();
        for (times, due) in [
            (&[][..], None),
            (&[0], Some(200)),
            (&[0, 100], Some(100 + 2 * 200)),
            (&[0, 1_000, 2_000], Some(2_000 + 3 * 200)),
            (&often[..20], Some(1_900 + 2_000)),
            (&often, Some(10_000)),
        ] {
            assert_eq!(changes(times).due(), due.map(at), "{times:?}");
        }
        // After an update, the next changes are still part of many.
        let mut continued = changes(&often[..20]);
        continued.waiting = None;
        assert_eq!(continued.due(), None);
        continued.add(at(2_000));
        assert_eq!(continued.due(), Some(at(2_000 + 2_000)));
        // Much later, a single change does not wait long.
        continued.waiting = None;
        continued.add(at(10_000));
        assert_eq!(continued.due(), Some(at(10_000 + 200)));
    }

    #[tokio::test]
    async fn a_signal_while_the_task_is_busy_is_not_lost() {
        let wake = Wake::default();
        wake.policies();
        wake.objects();
        assert!(wake.signalled().now_or_never().is_some());
        assert!(wake.due().is_some());
        wake.begin();
        assert_eq!((wake.due(), wake.signalled().now_or_never()), (None, None));
        // Only the first of several changes wakes the task, and the next one after the task has begun.
        wake.policies();
        assert!(wake.signalled().now_or_never().is_some());
        wake.policies();
        assert!(wake.signalled().now_or_never().is_none());
        wake.begin();
        wake.policies();
        assert!(wake.signalled().now_or_never().is_some());
    }
}
