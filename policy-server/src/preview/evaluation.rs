//! One evaluation of an experiment on one request, from its begin to its count: by its result, or as dropped. The results of a request
//! count at most once for an experiment.

use std::sync::Arc;

use super::counter::Observation;
use super::drops::DropLog;
use crate::table::Experiment;

/// The condition under which a request counts for an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concern {
    /// The request counts, also if the experiment does not cover it.
    Always,
    /// The request came to the webhook of the policy, and the experiment has its own webhook. The request counts if the
    /// `matchConditions` of the experiment exclude it. Otherwise, the request counts that came to the experiment's webhook.
    IfExcluded,
    /// The request came to the webhook of the experiment. It counts unless the `matchConditions` of the experiment exclude it.
    UnlessExcluded,
}

/// An evaluation that is queued or running. It counts as dropped unless it is finished or cancelled: if the queue is full, at the end
/// of the worker, or after a panic.
///
/// Only an evaluation shows whether the `matchConditions` exclude a request, and another replica may answer the other webhook. So a
/// request that comes to both webhooks may count as dropped at one of them and count at the other one too: the number of dropped
/// evaluations is at least the number of requests without a result. If it is 0, no request is missing.
#[derive(Debug)]
pub(super) struct Evaluation {
    pub experiment: Arc<Experiment>,
    pub concern: Concern,
    /// The etag of the live generation; `None` if no generation is live.
    live_etag: Option<String>,
    drops: Arc<DropLog>,
    is_settled: bool,
}

impl Evaluation {
    /// Begins an evaluation. Returns `None` if the preview was stopped.
    pub(super) fn begin(
        experiment: Arc<Experiment>,
        concern: Concern,
        live_etag: Option<&str>,
        drops: &Arc<DropLog>,
    ) -> Option<Self> {
        if !experiment.begin() {
            return None;
        }
        let (live_etag, drops) = (live_etag.map(ToOwned::to_owned), Arc::clone(drops));
        Some(Self { experiment, concern, live_etag, drops, is_settled: false })
    }

    /// Counts the result.
    pub(super) fn finish(&mut self, observation: &Observation<'_>) {
        self.is_settled = true;
        self.experiment.observe(self.live_etag.as_deref(), observation);
    }

    /// Ends the evaluation without a count, because the request does not count for the experiment.
    pub(super) fn cancel(mut self) {
        self.is_settled = true;
    }
}

impl Drop for Evaluation {
    fn drop(&mut self) {
        if !self.is_settled {
            self.drops.count(&self.experiment, self.live_etag.as_deref());
        }
        self.experiment.end();
    }
}
