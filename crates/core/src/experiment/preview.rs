//! The rules of previews that a cluster and a folder share: the obstacles that suspend a preview, its end, and the stops after which
//! `autoStart` starts the same version again.

use std::time::Duration;

/// The time before the end of a preview at which its status says when it ends. For a preview that lives for less than two days: half of
/// its life.
pub const EXPIRY_NOTICE: Duration = Duration::from_hours(24);

/// An obstacle to an active preview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The experiment is not accepted: its policy does not exist or cannot be read, or has too many experiments.
    NotAccepted,
    /// The version of the experiment cannot be prepared.
    NotPrepared,
}

impl Obstacle {
    /// Returns true if the obstacle suspends the preview at once. `was_loaded` is true if the version was loaded since the start of the
    /// preview: in a cluster, by every Ready replica.
    #[must_use]
    pub const fn suspends(self, was_loaded: bool) -> bool {
        match self {
            // Without a policy, nothing can be previewed, also not a version that was loaded before.
            Self::NotAccepted => true,
            // A version that was loaded since the start stays previewed as long as it is loaded.
            Self::NotPrepared => !was_loaded,
        }
    }
}

/// The reason why a preview is suspended, as far as it decides about another start by `autoStart`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A caller stopped the preview, or its time to live has passed. The preview stays suspended until the experiment changes.
    Lasting,
    /// The experiment was changed. Over a folder, the new version has the same generation if the old one was never loaded.
    Updated,
    /// The experiment was not accepted.
    NotAccepted,
    /// No replica was Ready.
    NoReplicas,
    /// The start failed for another reason.
    Failed,
}

impl StopReason {
    /// Returns true if `autoStart` starts the same version again when the cause of the stop is gone.
    #[must_use]
    pub const fn permits_restart(self) -> bool {
        match self {
            Self::Lasting => false,
            Self::Updated | Self::NotAccepted | Self::NoReplicas | Self::Failed => true,
        }
    }
}

/// The end of an active preview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The time until the preview stops by itself; zero if it must stop now.
    pub left: Duration,
    /// The time from the start of the preview until then.
    pub ttl: Duration,
}

impl Expiry {
    /// Returns the time before the end at which the status announces the end.
    #[must_use]
    pub fn notice(&self) -> Duration {
        EXPIRY_NOTICE.min(self.ttl / 2)
    }

    /// Returns true if the preview must stop now.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.left.is_zero()
    }

    /// Returns true if the status must announce the end.
    #[must_use]
    pub fn is_soon(&self) -> bool {
        self.left <= self.notice()
    }

    /// Returns the time until the status must announce the end, or after that until the end; `None` if the end has come.
    #[must_use]
    pub fn next_change(&self) -> Option<Duration> {
        let until_notice = self.left.saturating_sub(self.notice());
        let due = if until_notice.is_zero() { self.left } else { until_notice };
        Some(due).filter(|due| !due.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_obstacle_suspends_a_start_and_only_a_refusal_suspends_a_loaded_preview() {
        for (obstacle, was_loaded, wanted) in [
            (Obstacle::NotAccepted, false, true),
            (Obstacle::NotAccepted, true, true),
            (Obstacle::NotPrepared, false, true),
            (Obstacle::NotPrepared, true, false),
        ] {
            assert_eq!(obstacle.suspends(was_loaded), wanted, "{obstacle:?}, loaded before: {was_loaded}");
        }
    }

    #[test]
    fn auto_start_repeats_no_preview_that_a_caller_stopped_or_that_has_ended() {
        for (reason, wanted) in [
            (StopReason::Lasting, false),
            (StopReason::Updated, true),
            (StopReason::NotAccepted, true),
            (StopReason::NoReplicas, true),
            (StopReason::Failed, true),
        ] {
            assert_eq!(reason.permits_restart(), wanted, "{reason:?}");
        }
    }

    #[test]
    fn an_end_is_announced_a_day_before_or_at_half_of_a_shorter_life() {
        let (hour, day) = (Duration::from_hours(1), Duration::from_hours(24));
        let second = Duration::from_secs(1);
        for (left, ttl, notice, is_soon, next_change) in [
            (14 * day, 14 * day, day, false, Some(13 * day)),
            (day + second, 14 * day, day, false, Some(second)),
            (day, 14 * day, day, true, Some(day)),
            (second, 14 * day, day, true, Some(second)),
            (4 * hour, 4 * hour, 2 * hour, false, Some(2 * hour)),
            (2 * hour, 4 * hour, 2 * hour, true, Some(2 * hour)),
            (Duration::ZERO, 4 * hour, 2 * hour, true, None),
            // The end is not after the start.
            (Duration::ZERO, Duration::ZERO, Duration::ZERO, true, None),
        ] {
            let expiry = Expiry { left, ttl };
            let found = (expiry.notice(), expiry.is_soon(), expiry.next_change());
            assert_eq!(found, (notice, is_soon, next_change), "{expiry:?}");
            assert_eq!(expiry.is_over(), next_change.is_none(), "{expiry:?}");
        }
    }
}
