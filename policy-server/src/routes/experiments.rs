//! The experiments that a request concerns. In a cluster those whose policy is asked about the same requests ride on its calls;
//! the others have a webhook of their own. No request counts twice for one of them.

use std::sync::Arc;

use proviso_core::Review;
use proviso_core::matching::Coverage;

use crate::table::{Entry, Experiment, Origin, Revision, Table};

/// Returns the experiments that a request concerns which `revision` has answered, and those that it may concern: see
/// [`Job::unsure`](crate::preview::Job::unsure).
pub(super) fn riding(
    table: &Table,
    entry: &Entry,
    revision: &Revision,
    review: &Review,
) -> (Arc<[Arc<Experiment>]>, Vec<Arc<Experiment>>) {
    if matches!(table.origin, Origin::Folder) {
        // Over a folder, experiments have no webhook of their own.
        return (Arc::clone(&entry.experiments), Vec::new());
    }
    let (mut sure, mut unsure) = (Vec::new(), Vec::new());
    for experiment in entry.experiments.iter() {
        match rides(table, entry, experiment, revision, review) {
            Some(true) => sure.push(Arc::clone(experiment)),
            Some(false) => {}
            None => unsure.push(Arc::clone(experiment)),
        }
    }
    (sure.into(), unsure)
}

/// Returns whether the request counts for the experiment; `None` if its `matchConditions` decide that.
fn rides(table: &Table, entry: &Entry, experiment: &Experiment, revision: &Revision, review: &Review) -> Option<bool> {
    if experiment.rides_with(revision) {
        // While API servers turn from one generation to the next, the webhook is there for the next.
        return Some(entry.live.as_deref().is_none_or(|live| experiment.rides_with(live)));
    }
    // What the experiment does not cover its own webhook is not called about: it lets it pass.
    match experiment.revision.matching.covers(review, |name| table.namespaces.get(name)) {
        Coverage::NotCovered { .. } => Some(true),
        Coverage::Covered if experiment.revision.conditions.is_some() => None,
        Coverage::Covered => Some(false),
    }
}
