//! The experiments that are previewed on a request of their policy. In a cluster, an experiment that covers the same requests as
//! its policy shares the webhook of the policy. Other experiments have their own webhooks. No request counts twice for an
//! experiment.
//!
//! The webhook of an experiment has the rules and selectors of the experiment, but none of its `matchConditions` that a replica can
//! evaluate. The API server would not call the webhook if a condition fails, because the webhook ignores failures, although the
//! experiment may deny such requests once it is live.

use std::sync::Arc;

use proviso_core::Review;
use proviso_core::matching::Coverage;

use crate::preview::Concern;
use crate::table::{Entry, Experiment, Origin, Revision, Table};

/// Returns the experiments to preview on a request that `revision` has answered.
pub(super) fn piggybacked(
    table: &Table,
    entry: &Entry,
    revision: &Revision,
    review: &Review,
) -> Vec<(Arc<Experiment>, Concern)> {
    let concerned = |experiment: &Arc<Experiment>| {
        let concern = concern(table, entry, experiment, revision, review)?;
        Some((Arc::clone(experiment), concern))
    };
    entry.experiments.iter().filter_map(concerned).collect()
}

/// Returns the condition under which the request of the policy counts for the experiment; `None` if it does not count.
fn concern(
    table: &Table,
    entry: &Entry,
    experiment: &Experiment,
    revision: &Revision,
    review: &Review,
) -> Option<Concern> {
    if matches!(table.origin, Origin::Folder) {
        // Over a folder, experiments have no webhooks.
        return Some(Concern::Always);
    }
    if experiment.shares_webhook_with(revision) {
        // During a change of the live generation, API servers may still call the old one. The experiment's own webhook depends on
        // the new one.
        let is_shared = entry.live.as_deref().is_none_or(|live| experiment.shares_webhook_with(live));
        return is_shared.then_some(Concern::Always);
    }
    // The API server does not call the experiment's own webhook for a request that its rules and selectors do not cover.
    let admission = experiment.revision.admission()?;
    match admission.matching.covers(review, |name| table.namespaces.get(name)) {
        Coverage::NotCovered { .. } => Some(Concern::Always),
        Coverage::Covered if admission.conditions.is_some() => Some(Concern::IfExcluded),
        Coverage::Covered => None,
    }
}
