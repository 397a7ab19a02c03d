//! The route `/preview` for the webhook of an experiment. The webhook allows every request.

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use jiff::Timestamp;
use proviso_core::sampling::is_sampled;
use proviso_core::{PreviewEndpoint, Review, Verdict};

use super::receive::{Unread, receive};
use super::{Refusal, Server, json};
use crate::notify_on_drop::NotifyOnDropBody;
use crate::preview::{Concern, Job, Live};
use crate::table::{Entry, Experiment, Origin};

impl Server {
    /// Answers the webhook of an experiment: allows the request at once, and queues its preview.
    pub(super) async fn preview(
        &self,
        request: Request<Incoming>,
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
        // If the experiment shares the webhook of its policy, the request of the policy counts already.
        let is_counted = |entry: &Entry, experiment: &Experiment| {
            entry.live.as_ref().is_some_and(|live| experiment.shares_webhook_with(live))
        };
        let count_dropped = || {
            let found = entry.zip(experiment).filter(|(entry, experiment)| !is_counted(entry, experiment));
            if let Some((entry, experiment)) = found {
                self.previews.count_dropped(experiment, entry.live_etag());
            }
        };
        // The webhook of an experiment has `failurePolicy: Ignore`: an error does not stop the request.
        let received = match receive(request).await {
            Ok(received) => received,
            Err(Unread { refusal, denial }) => {
                count_dropped();
                let Some((_, uid)) = denial else { return Err(refusal) };
                self.metrics.count_refused(refusal.reason);
                return Ok(json(StatusCode::OK, allowed(&uid).into()));
            }
        };
        let review = match Review::admission(received.bytes) {
            Ok(review) => review,
            Err(error) => {
                count_dropped();
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
        if review.is_dry_run() || is_counted(entry, experiment) {
            return Ok(json(StatusCode::OK, answer.into()));
        }
        if entry.live.is_none() && entry.has_unloaded_live {
            // The live revision is not loaded here, so there is no live verdict to compare with.
            if is_sampled(review.uid(), experiment.settings.sample_rate) {
                self.previews.count_dropped(experiment, entry.live_etag());
            }
            return Ok(json(StatusCode::OK, answer.into()));
        }
        let job = Job {
            live: Live::NotAsked(entry.live.clone()),
            experiments: vec![(Arc::clone(experiment), Concern::UnlessExcluded)],
            table: Arc::clone(&table),
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
