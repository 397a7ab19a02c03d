//! The status of an experiment. `previewMetadata` and `commit` are not written here: they record the requests to start,
//! stop and commit, not their results.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::Patch;
use proviso_core::experiment::etag;
use proviso_core::experiment::rollout::{Decision, Progress};
use proviso_crds::conditions::status_patch;
use proviso_crds::names::PREVIEW_START;
use proviso_crds::{DivergenceCounts, ExperimentStatus, MAX_CANARIES, PreviewReport, PreviewState, ReplicaCount};

use super::observe::ObservedObjects;
use super::{conditions, events};
use crate::context::{Context, Error};
use crate::kinds::{self, ExperimentObject};
use crate::objects;

/// The minimum interval between two writes of the counts of an experiment.
const COUNTS_INTERVAL: Duration = Duration::from_secs(10);

/// Writes the status if it has changed. Returns the time until the next write if the counts may not be written yet.
pub(super) async fn write<K: ExperimentObject>(
    experiment: &K,
    found: &ObservedObjects<K>,
    decision: &Decision,
    context: &Context,
) -> Result<Option<Duration>, Error> {
    let known = experiment.status().cloned().unwrap_or_default();
    let uid = experiment.uid().ok_or(Error::Incomplete("uid"))?;
    let expiry = expiry_notice(&known, decision);
    let mut status = status(experiment, &known, found, decision, expiry.as_deref())?;
    let counts =
        |status: &ExperimentStatus| (status.divergence.clone(), status.samples.clone(), status.canaries.clone());
    // New counts are written at once, and so are the final ones: the candidate is deleted next.
    let is_counting = is_previewed(&decision.progress) && evidence(&known) == evidence(&status);
    let mut later = None;
    if counts(&known) != counts(&status) && is_counting {
        let last = context.with_counts_written(|written| written.get(&uid).copied());
        later = last.and_then(|last| COUNTS_INTERVAL.checked_sub(last.elapsed())).filter(|left| !left.is_zero());
        if later.is_some() {
            (status.divergence, status.samples, status.canaries) = counts(&known);
        }
    }
    if status == known {
        return Ok(later);
    }
    // Empty counts do not delay the next write.
    let has_counts = status.divergence.as_ref().is_some_and(|it| !it.is_empty()) || !status.canaries.is_empty();
    if counts(&known) != counts(&status) && has_counts {
        context.with_counts_written(|written| written.insert(uid, Instant::now()));
    }
    // Events before the status: see `policies::status`.
    for event in events::of_status(&kinds::id(experiment)?, &known, &status, expiry.as_deref()) {
        context.publish_or_log(experiment, event).await;
    }
    let ours = ExperimentStatus { preview_metadata: None, commit: None, ..status };
    let api = kinds::api::<K>(&context.client, experiment);
    let patch = Patch::Apply(status_patch::<K>(&ours));
    let (name, params) = (experiment.name_any(), objects::apply_params());
    K::cache(&context.caches).write(api.patch_status(&name, &params, &patch)).await?;
    Ok(later)
}

/// Returns the facts that tell counts of different periods apart.
fn evidence(status: &ExperimentStatus) -> Option<(i64, Option<&str>)> {
    let DivergenceCounts { since, live_etag, .. } = status.divergence.as_ref()?;
    Some((since.0.as_second(), live_etag.as_deref()))
}

/// Returns whether a preview is active.
fn is_previewed(progress: &Progress) -> bool {
    use Progress::{NotAccepted, NotStarted, Stopping, Suspended};
    !matches!(progress, NotAccepted | NotStarted | Stopping | Suspended)
}

/// Returns the announcement that an active preview ends soon.
fn expiry_notice(known: &ExperimentStatus, decision: &Decision) -> Option<String> {
    let end = known.preview_metadata.as_ref()?.expire_time.as_ref().filter(|_| decision.expires_soon)?;
    Some(format!("the preview stops by itself at {}", end.0))
}

fn status<K: ExperimentObject>(
    experiment: &K,
    known: &ExperimentStatus,
    found: &ObservedObjects<K>,
    decision: &Decision,
    expiry: Option<&str>,
) -> Result<ExperimentStatus, Error> {
    let generation = experiment.meta().generation.ok_or(Error::Incomplete("generation"))?;
    let uid = experiment.uid().ok_or(Error::Incomplete("uid"))?;
    let own_etag = etag(&uid, generation);
    let live_etag = found.live.as_ref().map(|live| etag(&live.policy_ref.uid, live.policy_ref.generation));
    // A configuration policy evaluates no requests.
    let evaluates = experiment.spec().policy.configuration.is_none();
    let report = if evaluates { report(known, found, generation, (&own_etag, live_etag.as_deref())) } else { None };
    let is_previewing = decision.progress == Progress::Previewing;
    let canaries = found.canaries.iter().filter(|_| is_previewing).take(MAX_CANARIES).cloned().collect();
    let mut states = conditions::states(experiment, found, decision)?;
    if let Some(notice) = expiry {
        states[2].message = format!("{}; {notice}", states[2].message);
    }
    let now = Timestamp::now();
    let conditions = conditions::TYPES
        .into_iter()
        .zip(states)
        .map(|(type_, state)| state.into_condition(type_, &known.conditions, Some(generation), now));
    let (ready, total) = (decision.ready, decision.total);
    let loaded = known.preview_metadata.as_ref().filter(|_| is_previewing);
    Ok(ExperimentStatus {
        etag: Some(own_etag),
        live_etag,
        preview_metadata: known.preview_metadata.clone(),
        previewed_start_time: loaded
            .map(|session| session.start_time.clone())
            .or_else(|| known.previewed_start_time.clone()),
        commit: known.commit.clone(),
        divergence: report.as_ref().map(|report| report.counts.clone()),
        samples: report.map(|report| report.samples).unwrap_or_default(),
        canaries,
        replicas: (evaluates && is_previewed(&decision.progress)).then(|| ReplicaCount {
            ready: ready.try_into().unwrap_or(u32::MAX),
            total: total.try_into().unwrap_or(u32::MAX),
            summary: format!("{ready}/{total}"),
        }),
        conditions: conditions.collect(),
    })
}

/// Returns the results of the last preview: those of the candidate or, after a stop, those in the known status. `None` if
/// the experiment was never started, or was changed after its start. Only the results of the comparison with the
/// current live version count.
fn report<K: ExperimentObject>(
    known: &ExperimentStatus,
    found: &ObservedObjects<K>,
    generation: i64,
    (own_etag, live_etag): (&str, Option<&str>),
) -> Option<PreviewReport> {
    let session = known.preview_metadata.as_ref().filter(|session| session.generation == generation)?;
    let (start, is_active) = (session.start_time.0.to_string(), session.state == PreviewState::Active);
    // The etag is absent in counts of an older version.
    let is_of_session = |counts: &&DivergenceCounts| {
        counts.since >= session.start_time && counts.etag.as_ref().is_none_or(|etag| etag == own_etag)
    };
    let counted = known.divergence.as_ref().filter(is_of_session);
    let counted = counted.map(|counts| PreviewReport { counts: counts.clone(), samples: known.samples.clone() });
    let of_session = found.candidates.iter().find(|candidate| {
        let of = candidate.experiment_ref.as_ref().map(|it| it.generation);
        of == Some(generation) && candidate.annotations().get(PREVIEW_START) == Some(&start)
    });
    let Some(candidate) = of_session else {
        let empty = || PreviewReport::sum([], &session.start_time, own_etag, live_etag);
        return if is_active { Some(empty()) } else { counted };
    };
    let reports = candidate.status.replicas.iter().filter_map(|replica| replica.preview.as_ref());
    let mut sum = PreviewReport::sum(reports, &session.start_time, own_etag, live_etag);
    // The clock of a replica may be late.
    sum.counts.since = sum.counts.since.max(session.start_time.clone());
    match counted {
        // After a stop, a replica of an older version removes its report, and the live version may change.
        Some(counted) if !is_active && counted.counts.evaluated > sum.counts.evaluated => Some(counted),
        _ => Some(sum),
    }
}
