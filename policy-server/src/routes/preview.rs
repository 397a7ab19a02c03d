//! The route `/preview` for the webhook of an experiment. The webhook allows every request.

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use jiff::Timestamp;
use proviso_core::{PreviewEndpoint, Review, Verdict};

use super::{Refusal, Server, json, receive};
use crate::notify_on_drop::NotifyOnDropBody;
use crate::preview::{Job, Live};
use crate::table::{Experiment, Origin};

impl Server {
    /// Answers the webhook of an experiment: allows the request at once, and queues its preview.
    pub(super) async fn preview(
        &self,
        body: Incoming,
        endpoint: &PreviewEndpoint,
    ) -> Result<Response<NotifyOnDropBody>, Refusal> {
        let table = self.table.load_full();
        if matches!(table.origin, Origin::Folder) {
            let message =
                "over a folder, experiments have no webhooks: they are previewed on the requests of their policy";
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
            let _memory = self.reserve_memory(&body)?;
            receive(body).await
        };
        let body = match read.await {
            Ok(body) => body,
            Err(refusal) => {
                // The webhook of an experiment has `failurePolicy: Ignore`: an error does not stop the request.
                experiment.inspect(|experiment| experiment.count_dropped());
                return Err(refusal);
            }
        };
        let review = match Review::admission(body) {
            Ok(review) => review,
            Err(error) => {
                let malformed = || Refusal::new(StatusCode::BAD_REQUEST, "malformed", error.message.clone());
                let uid = error.uid.as_ref().ok_or_else(malformed)?;
                self.metrics.count_refused("malformed");
                return Ok(json(StatusCode::OK, allowed(uid).into()));
            }
        };
        let answer = allowed(review.uid());
        let Some((entry, experiment)) = entry.zip(experiment) else {
            self.metrics.count_refused("unknown_experiment");
            return Ok(json(StatusCode::OK, answer.into()));
        };
        // If the experiment shares the webhook of its policy, the request of the policy counts already.
        let is_counted = entry.live.as_ref().is_some_and(|live| experiment.shares_webhook_with(live));
        if review.is_dry_run() || is_counted {
            return Ok(json(StatusCode::OK, answer.into()));
        }
        if entry.live.is_none() && entry.has_unloaded_live {
            // The live revision is not loaded here, so there is no live verdict to compare with.
            experiment.count_dropped();
            return Ok(json(StatusCode::OK, answer.into()));
        }
        let job = Job {
            live: Live::NotAsked(entry.live.clone()),
            experiments: Arc::new([Arc::clone(experiment)]),
            undetermined: Vec::new(),
            namespaces: Arc::clone(&table.namespaces),
            review,
            arrived_at: Timestamp::now(),
        };
        let previews = self.previews.clone();
        Ok(json(StatusCode::OK, NotifyOnDropBody::new(answer, move || previews.offer(job))))
    }
}

fn allowed(uid: &str) -> Bytes {
    Verdict::allow().to_review(uid).into()
}
