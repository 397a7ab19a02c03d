//! Sends requests at a steady rate. Each request must get the right verdict, from a generation that was live during the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet};

use crate::test_cluster::{Requester, TestCluster, deny};

/// The number of requests per second, unless a flow sets another one.
const RATE: u32 = 150;
/// The longest time after which an API server uses a changed webhook. It learns of the change by a watch, so this is generous.
const PROPAGATION_TIME: Duration = Duration::from_secs(5);

/// The times at which each generation was first seen to be live, oldest first.
type LiveTimes = Arc<Mutex<Vec<(i64, Instant)>>>;

/// The largest number of concurrent requests, so that the load does not overload a busy machine.
const MAX_CONCURRENT: usize = 16;

/// The smallest number of answers of a load, exclusive.
const MIN_ANSWERS: usize = 100;

/// A load of requests. It ends with [`Self::finish`], or when this value is dropped.
pub struct Load {
    stop: Stop,
    task: JoinHandle<Vec<Answer>>,
}

/// The right answer to each request of a load.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// A live generation denies the request, with its generation as the message.
    Denied,
    Allowed,
}

struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The answer to one request.
struct Answer {
    begin: Instant,
    end: Instant,
    /// The generation that denied the request, `None` if the request was allowed as expected, or a message about a wrong answer.
    generation: Result<Option<i64>, String>,
}

impl Load {
    /// Starts requests for a policy that denies with its generation as the message.
    pub fn start(requester: Requester) -> Self {
        Self::start_with(requester, Expected::Denied, RATE)
    }

    /// Starts this number of requests per second.
    pub fn start_with(requester: Requester, expected: Expected, rate: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_secs(1) / rate);
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let (mut requests, mut answers) = (JoinSet::new(), Vec::new());
            // The test may end soon, so the load continues until it has enough answers.
            while !is_over.load(Ordering::Relaxed) || answers.len() <= MIN_ANSWERS {
                tick.tick().await;
                let requester = requester.clone();
                requests.spawn(async move {
                    let begin = Instant::now();
                    let generation = match (requester.dry_run().await, expected) {
                        (Ok(Some(message)), Expected::Denied) => {
                            message.parse().map(Some).map_err(|_| format!("denied: {message}"))
                        }
                        (Ok(Some(message)), Expected::Allowed) => Err(format!("denied: {message}")),
                        (Ok(None), Expected::Allowed) => Ok(None),
                        (Ok(None), Expected::Denied) => Err("allowed".to_owned()),
                        (Err(error), _) => Err(format!("{error:#}")),
                    };
                    Answer { begin, end: Instant::now(), generation }
                });
                while let Some(Ok(answer)) = requests.try_join_next() {
                    answers.push(answer);
                }
                while requests.len() >= MAX_CONCURRENT
                    && let Some(Ok(answer)) = requests.join_next().await
                {
                    answers.push(answer);
                }
            }
            answers.extend(requests.join_all().await);
            answers
        });
        Self { stop: Stop(stop), task }
    }

    /// Ends the load after enough answers, and checks that each answer is from a generation that was live during the request.
    pub async fn finish(self, live_times: &[(i64, Instant)]) -> Result<()> {
        drop(self.stop);
        let answers = self.task.await?;
        let mut failed = Vec::new();
        let mut wrong = Vec::new();
        for answer in &answers {
            match &answer.generation {
                Err(message) => failed.push(message),
                Ok(Some(generation)) if !was_live(*generation, answer, live_times) => wrong.push(*generation),
                Ok(_) => {}
            }
        }
        let time = answers.iter().map(|it| it.end).max().zip(answers.iter().map(|it| it.begin).min());
        let seconds = time.map_or(0.0, |(end, begin)| (end - begin).as_secs_f64());
        eprintln!("{} requests in {seconds:.1} s: {} failed, {} wrong", answers.len(), failed.len(), wrong.len());
        ensure!(
            failed.is_empty(),
            "{} of {} failed: {:#?}",
            failed.len(),
            answers.len(),
            &failed[..failed.len().min(5)]
        );
        ensure!(wrong.is_empty(), "{} of {} by a generation that was not live: {wrong:?}", wrong.len(), answers.len());
        ensure!(answers.len() > MIN_ANSWERS, "only {} requests", answers.len());
        Ok(())
    }
}

/// Returns true if the generation may have been live during the request. It may have been live before the test saw it.
fn was_live(generation: i64, answer: &Answer, live_times: &[(i64, Instant)]) -> bool {
    // The generation may be live as soon as the test has seen the previous one.
    let since = live_times.iter().rev().find(|(other, _)| *other < generation).map(|(_, time)| *time);
    // The generation may answer until all API servers use the next one.
    let until = live_times.iter().find(|(other, _)| *other > generation).map(|(_, time)| *time + PROPAGATION_TIME);
    since.is_none_or(|since| answer.end >= since) && until.is_none_or(|until| answer.begin <= until)
}

/// Returns the spec of [`deny`] with the time limits of [`with_long_timeout`].
pub fn deny_with_long_timeout(name: &str, message: &str) -> Value {
    with_long_timeout(deny(name, message))
}

/// Returns the spec with time limits of 30 s, so that no request fails on a busy machine.
pub fn with_long_timeout(mut spec: Value) -> Value {
    spec["timeoutEvalSeconds"] = 30.into();
    spec["admission"]["timeoutSeconds"] = 30.into();
    spec
}

pub async fn a_hundred_edits_lose_no_request(cluster: &TestCluster) -> Result<()> {
    const EDITS: i64 = 100;
    let name = "edits";
    let first = cluster.write(name, &deny_with_long_timeout(name, "1")).await?;
    cluster.until_live(name, first).await?;
    cluster.until_denied(name, "1").await?;
    let pods = cluster.restarts().await?;
    let live_times = LiveTimes::new(Mutex::new(vec![(first, Instant::now())]));
    let load = Load::start(cluster.requester(name));
    let begin = Instant::now();
    for edit in 1..=EDITS {
        let generation = cluster.write(name, &deny_with_long_timeout(name, &(first + edit).to_string())).await?;
        cluster.until_live(name, generation).await?;
        live_times.lock().await.push((generation, Instant::now()));
    }
    eprintln!("{EDITS} edits, each live before the next: {:.1} s", begin.elapsed().as_secs_f64());
    cluster.until_denied(name, &(first + EDITS).to_string()).await?;
    load.finish(&live_times.lock().await).await?;
    ensure!(cluster.restarts().await? == pods, "a pod was restarted");
    cluster.delete(name).await
}
