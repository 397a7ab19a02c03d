//! The experiments that are previewed on a request of their policy. In a cluster, an experiment that covers the same requests as
//! its policy shares the webhook of the policy. Other experiments have their own webhooks. No request counts twice for an
//! experiment.

use std::sync::Arc;

use proviso_core::Review;
use proviso_core::matching::Coverage;

use crate::table::{Entry, Experiment, Origin, Revision, Table};

/// Returns the experiments to preview on a request that `revision` has answered, and the experiments for which this is still
/// undetermined: see [`Job::undetermined`](crate::preview::Job::undetermined).
pub(super) fn piggybacked(
    table: &Table,
    entry: &Entry,
    revision: &Revision,
    review: &Review,
) -> (Arc<[Arc<Experiment>]>, Vec<Arc<Experiment>>) {
    if matches!(table.origin, Origin::Folder) {
        // Over a folder, experiments have no webhooks.
        return (Arc::clone(&entry.experiments), Vec::new());
    }
    let (mut determined, mut undetermined) = (Vec::new(), Vec::new());
    for experiment in entry.experiments.iter() {
        match is_piggybacked(table, entry, experiment, revision, review) {
            Some(true) => determined.push(Arc::clone(experiment)),
            Some(false) => {}
            None => undetermined.push(Arc::clone(experiment)),
        }
    }
    (determined.into(), undetermined)
}

/// Returns true if the request of the policy counts for the experiment; `None` if the `matchConditions` of the experiment decide.
fn is_piggybacked(
    table: &Table,
    entry: &Entry,
    experiment: &Experiment,
    revision: &Revision,
    review: &Review,
) -> Option<bool> {
    if experiment.shares_webhook_with(revision) {
        // During a change of the live generation, API servers may still call the old one. The experiment's own webhook depends on
        // the new one.
        return Some(entry.live.as_deref().is_none_or(|live| experiment.shares_webhook_with(live)));
    }
    // The API server does not call the experiment's own webhook for a request that the experiment does not cover.
    match experiment.revision.matching.covers(review, |name| table.namespaces.get(name)) {
        Coverage::NotCovered { .. } => Some(true),
        Coverage::Covered if experiment.revision.conditions.is_some() => None,
        Coverage::Covered => Some(false),
    }
}
