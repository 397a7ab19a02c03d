//! The webhook of an experiment, `/preview`: it allows everything.

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use jiff::Timestamp;
use proviso_core::{PreviewEndpoint, Review, Verdict};

use super::{Refusal, Server, json, read_body};
use crate::after::After;
use crate::preview::{Job, Live};
use crate::table::{Experiment, Origin};

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
