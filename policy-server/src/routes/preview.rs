//! Which experiments a request concerns. In a cluster those whose policy is asked about the same requests ride on its calls;
//! the others have a webhook of their own, `/preview`, which allows everything. No request counts twice for one of them.

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use jiff::Timestamp;
use proviso_core::matching::Coverage;
use proviso_core::{PreviewEndpoint, Review, Verdict};

use super::{Refusal, Server, json, read_body};
use crate::after::After;
use crate::preview::{Job, Live};
use crate::table::{Entry, Experiment, Origin, Revision, Table};

/// The experiments that a request concerns which this revision has answered, and those that it may concern: see
/// [`Job::unsure`].
pub(super) fn riding(
    table: &Table,
    entry: &Entry,
    revision: &Revision,
    review: &Review,
) -> (Arc<[Arc<Experiment>]>, Vec<Arc<Experiment>>) {
    if matches!(table.origin, Origin::Folder) {
        // There nobody else asks.
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

/// Whether the request counts for the experiment; none where its `matchConditions` decide.
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

impl Server {
    /// Answers the webhook of an experiment: whatever is asked is allowed, at once.
    pub(super) async fn preview(&self, body: Incoming, endpoint: &PreviewEndpoint) -> Result<Response<After>, Refusal> {
        let table = self.table.load_full();
        if matches!(table.origin, Origin::Folder) {
            let message = "over a folder, experiments are previewed on the calls of their policy";
            return Err(Refusal::new(StatusCode::NOT_FOUND, "unknown_path", message));
        }
        let entry = table.policies.get(&endpoint.policy);
        let experiment = entry.and_then(|entry| {
            let is_asked = |it: &&Arc<Experiment>| {
                it.id.name == endpoint.experiment && it.revision.generation == endpoint.generation
            };
            entry.experiments.iter().find(is_asked)
        });
        let read = async {
            let _memory = self.admit(&body)?;
            read_body(body).await
        };
        let body = match read.await {
            Ok(body) => body,
            Err(refusal) => {
                // Nobody is stopped by that: such a webhook may fail.
                experiment.inspect(|experiment| experiment.drop_one());
                return Err(refusal);
            }
        };
        let review = match Review::admission(body) {
            Ok(review) => review,
            Err(error) => {
                let malformed = || Refusal::new(StatusCode::BAD_REQUEST, "malformed", error.message.clone());
                let uid = error.uid.as_ref().ok_or_else(malformed)?;
                self.metrics.refuse("malformed");
                return Ok(json(StatusCode::OK, allowed(uid).into()));
            }
        };
        let answer = allowed(review.uid());
        let Some((entry, experiment)) = entry.zip(experiment) else {
            self.metrics.refuse("unknown_experiment");
            return Ok(json(StatusCode::OK, answer.into()));
        };
        let has_ridden = entry.live.as_ref().is_some_and(|live| experiment.rides_with(live));
        if review.is_dry_run() || has_ridden {
            return Ok(json(StatusCode::OK, answer.into()));
        }
        if entry.live.is_none() && entry.lacks_live {
            // What would have been said is not known here.
            experiment.drop_one();
            return Ok(json(StatusCode::OK, answer.into()));
        }
        let job = Job {
            live: Live::Unasked(entry.live.clone()),
            experiments: Arc::new([Arc::clone(experiment)]),
            unsure: Vec::new(),
            namespaces: Arc::clone(&table.namespaces),
            review,
            seen: Timestamp::now(),
        };
        let previews = self.previews.clone();
        Ok(json(StatusCode::OK, After::new(answer, move || previews.offer(job))))
    }
}

fn allowed(uid: &str) -> Bytes {
    Verdict::allow().to_review(uid).into()
}
