//! The progress of a rollout, by the reports of the leader and of the replicas.

use std::time::Duration;

use super::{Observed, Pod, ReadyPod, Replica, Revision};
use crate::failure::Failure;

/// The time after which a missing report is a problem to name in the status: the report of the leader since the creation of the
/// revision, and the report of a Ready pod since the leader has prepared the revision.
pub const REPORT_TIMEOUT: Duration = Duration::from_mins(1);

/// The rollout progress of the newest generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The generation may not become live: see [`Observed::refusal`].
    Refused(Failure),
    /// The generation has no revision yet.
    Unscheduled,
    /// The leader prepares the revision, or the operator validates it if it needs no replicas.
    Initializing,
    /// No leader has reported about the revision within [`REPORT_TIMEOUT`].
    NotPrepared,
    InitializationFailed(Failure),
    /// No pod of the policy server is Ready.
    NoReplicas,
    /// The replicas load the revision.
    Loading,
    /// Some pods have reported nothing about the revision within [`REPORT_TIMEOUT`], and no pod has reported a failure.
    Silent,
    /// These pods cannot load the revision, so the webhook does not move to it.
    LoadingFailed(Vec<(String, Failure)>),
    /// Each Ready pod serves the revision, but break-glass keeps the webhook on another generation.
    BreakGlass,
    Live,
    Disabled,
}

pub(super) fn of(observed: &Observed, newest: Option<&Revision>, live: Option<i64>, ready: usize) -> Progress {
    if let Some(failure) = observed.refusal.as_ref().filter(|_| live != Some(observed.generation)) {
        // A policy can be disabled in any case.
        return if observed.is_enabled { Progress::Refused(failure.clone()) } else { Progress::Disabled };
    }
    let Some(revision) = newest else { return Progress::Unscheduled };
    if !observed.is_enabled {
        return Progress::Disabled;
    }
    match &revision.initialized {
        // The live generation keeps answering even if a later preparation of it fails.
        _ if live == Some(revision.generation) => {
            let is_elsewhere = observed.is_break_glass && !observed.is_called(revision.generation);
            return if is_elsewhere { Progress::BreakGlass } else { Progress::Live };
        }
        // Without replicas, no leader is late: the operator validates the revision itself.
        None if observed.needs_replicas && revision.waiting_for >= REPORT_TIMEOUT => return Progress::NotPrepared,
        None => return Progress::Initializing,
        Some(Err(failure)) => return Progress::InitializationFailed(failure.clone()),
        Some(Ok(())) => {}
    }
    if observed.needs_replicas && observed.pods.is_empty() {
        return Progress::NoReplicas;
    }
    // Also for a policy that needs no replicas, which has no pods.
    if ready == observed.pods.len() {
        return if observed.is_break_glass { Progress::BreakGlass } else { Progress::Live };
    }
    let failed = failed(&revision.replicas, observed.pods.iter().map(|ready| &ready.pod));
    if !failed.is_empty() {
        return Progress::LoadingFailed(failed);
    }
    if silent(revision, &observed.pods).is_empty() { Progress::Loading } else { Progress::Silent }
}

/// Returns the number of pods that serve the revision.
pub(super) fn ready(revision: &Revision, pods: &[ReadyPod]) -> usize {
    pods.iter().filter(|ready| matches!(result(&revision.replicas, &ready.pod), Some(Ok(())))).count()
}

/// Returns the pods that have reported nothing about the revision within [`REPORT_TIMEOUT`].
pub(super) fn silent(revision: &Revision, pods: &[ReadyPod]) -> Vec<String> {
    let silent = unreported(revision, pods).filter(|(_, waiting_for)| *waiting_for >= REPORT_TIMEOUT);
    silent.map(|(pod, _)| pod.name.clone()).collect()
}

/// Returns the pods that serve the revision with a restriction.
pub(super) fn warnings(revision: &Revision, pods: &[ReadyPod]) -> Vec<(String, Failure)> {
    let warning = |pod: &Pod| report(&revision.replicas, pod)?.warning.clone();
    pods.iter().filter_map(|ready| Some((ready.pod.name.clone(), warning(&ready.pod)?))).collect()
}

/// Returns the time until a missing report becomes a problem; `None` if no report is awaited.
pub(super) fn report_due(observed: &Observed, revision: &Revision, progress: &Progress) -> Option<Duration> {
    let left = |waiting_for| REPORT_TIMEOUT.checked_sub(waiting_for).filter(|left| !left.is_zero());
    match progress {
        Progress::Initializing => left(revision.waiting_for).filter(|_| observed.needs_replicas),
        Progress::Loading | Progress::Silent | Progress::BreakGlass | Progress::Live => {
            unreported(revision, &observed.pods).filter_map(|(_, waiting_for)| left(waiting_for)).min()
        }
        _ => None,
    }
}

/// Returns the pods without a report, each with the time for which the operator has waited for the report.
fn unreported<'a>(revision: &'a Revision, pods: &'a [ReadyPod]) -> impl Iterator<Item = (&'a Pod, Duration)> {
    let unreported = pods.iter().filter(move |ready| report(&revision.replicas, &ready.pod).is_none());
    unreported.map(move |ready| (&ready.pod, ready.ready_for.min(revision.waiting_for)))
}

/// Returns the pods that cannot serve the revision, with the reason.
pub(crate) fn failed<'a>(replicas: &[Replica], pods: impl IntoIterator<Item = &'a Pod>) -> Vec<(String, Failure)> {
    let failed = pods.into_iter().filter_map(|pod| match result(replicas, pod) {
        Some(Err(failure)) => Some((pod.name.clone(), failure.clone())),
        _ => None,
    });
    failed.collect()
}

/// Returns the result that this pod has reported.
pub(crate) fn result<'a>(replicas: &'a [Replica], pod: &Pod) -> Option<&'a Result<(), Failure>> {
    report(replicas, pod)?.result.as_ref()
}

/// Returns the report of this pod. Reports of an earlier pod of the same name do not count.
fn report<'a>(replicas: &'a [Replica], pod: &Pod) -> Option<&'a Replica> {
    replicas.iter().find(|replica| replica.pod == *pod)
}
