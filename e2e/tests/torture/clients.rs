//! Clients that request admission at a steady rate, and record the answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use proviso_e2e::torture::history::{Outcome, Request};
use proviso_e2e::torture::plan::POLICIES;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::recorder::Recorder;
use crate::specs::{LABEL, MARKER, policy_name};

/// The interval between two requests of a policy.
const INTERVAL: Duration = Duration::from_millis(150);
/// The largest number of concurrent requests of a policy. During an outage, requests wait for their time limit.
const MAX_CONCURRENT: usize = 120;
/// The time limit of a request: longer than that of a webhook.
const TIMEOUT: Duration = Duration::from_secs(25);
/// The number of requests of which one is no dry run. Experiments do not count dry runs.
const REQUESTS_WITH_ONE_REAL: u64 = 4;

/// The running clients. They end with [`Self::finish`], or when this value is dropped.
pub struct Clients {
    is_over: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Clients {
    /// Starts a client for each policy.
    pub fn start(requests: &Api<ConfigMap>, recorder: &Arc<Recorder>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for policy in (0..POLICIES).map(policy_name) {
            tasks.spawn(run(policy, requests.clone(), Arc::clone(recorder), Arc::clone(&is_over)));
        }
        Self { is_over, tasks }
    }

    /// Ends the clients, and waits for the answers to their requests.
    pub async fn finish(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.tasks.join_all().await;
    }
}

async fn run(policy: String, api: Api<ConfigMap>, recorder: Arc<Recorder>, is_over: Arc<AtomicBool>) {
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut requests, mut number) = (JoinSet::new(), 0_u64);
    while !is_over.load(Ordering::Relaxed) {
        interval.tick().await;
        while requests.try_join_next().is_some() {}
        if requests.len() < MAX_CONCURRENT {
            let (policy, api, recorder) = (policy.clone(), api.clone(), Arc::clone(&recorder));
            let dry_run = !number.is_multiple_of(REQUESTS_WITH_ONE_REAL);
            requests.spawn(async move { request(&policy, &api, dry_run, &recorder).await });
            number += 1;
        }
    }
    requests.join_all().await;
}

/// Creates a `ConfigMap` that the policy matches, and records the answer.
pub async fn request(policy: &str, api: &Api<ConfigMap>, dry_run: bool, recorder: &Recorder) {
    if !dry_run {
        recorder.begin_request(policy);
    }
    let begin = recorder.now();
    let outcome = create(policy, api, dry_run).await;
    recorder.answer(Request { policy: policy.to_owned(), begin, end: recorder.now(), outcome }, !dry_run);
}

/// Creates a `ConfigMap` that the policy matches. Returns the answer.
pub async fn create(policy: &str, api: &Api<ConfigMap>, dry_run: bool) -> Outcome {
    let map = ConfigMap {
        metadata: ObjectMeta {
            generate_name: Some("asked-".to_owned()),
            labels: Some([(LABEL.to_owned(), policy.to_owned())].into()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    };
    let parameters = PostParams { dry_run, ..PostParams::default() };
    match tokio::time::timeout(TIMEOUT, api.create(&parameters, &map)).await {
        Ok(Ok(created)) => Outcome::Allowed(created.metadata.annotations.and_then(|mut all| all.remove(MARKER))),
        Ok(Err(error)) => outcome_of(error),
        Err(_) => Outcome::Unanswered(format!("no answer within {TIMEOUT:?}")),
    }
}

/// Returns the outcome of a request that was not allowed.
fn outcome_of(error: kube::Error) -> Outcome {
    let status = match error {
        kube::Error::Api(status) => status,
        other => return Outcome::Unanswered(other.to_string()),
    };
    let message = status.message.as_str();
    let Some((_, denial)) = message.split_once("denied the request: ") else {
        let is_webhook_failure = message.contains("failed calling webhook");
        let message = message.to_owned();
        return if is_webhook_failure { Outcome::Undecided(message) } else { Outcome::Unanswered(message) };
    };
    // A policy server denies with the code 500 if it has no decision.
    let denial = denial.to_owned();
    if status.code == 500 { Outcome::Undecided(denial) } else { Outcome::Denied(denial) }
}
