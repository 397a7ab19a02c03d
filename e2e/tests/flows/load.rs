//! Requests at a steady rate, each of which must be decided, and by a generation that was live while it was under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet};

use crate::stage::{Asker, Stage, deny};

/// Requests in a second.
const RATE: u32 = 150;
/// How much later than the operator an API server may learn of a switch. It is told by a watch: this is generous.
const LAG: Duration = Duration::from_secs(5);

/// When each generation was seen to be live first, oldest first.
type Seen = Arc<Mutex<Vec<(i64, Instant)>>>;

/// Requests under way at the same time: a machine that is busy with other things is asked less, not drowned.
const IN_FLIGHT: usize = 16;

/// A load has more answers than this.
const ENOUGH: usize = 100;

/// Requests that go on until this is finished, or dropped.
pub struct Load {
    stop: Stop,
    task: JoinHandle<Vec<Answer>>,
}

struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One request: when it began and ended, and the generation that denied it, or what else came.
struct Answer {
    begin: Instant,
    end: Instant,
    generation: Result<i64, String>,
}

impl Load {
    /// Asks about a policy whose message is its generation.
    pub fn start(asker: Asker) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_secs(1) / RATE);
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let (mut asking, mut answers) = (JoinSet::new(), Vec::new());
            // What it accompanies may be fast.
            while !is_over.load(Ordering::Relaxed) || answers.len() <= ENOUGH {
                tick.tick().await;
                let asker = asker.clone();
                asking.spawn(async move {
                    let begin = Instant::now();
                    let generation = match asker.ask().await {
                        Ok(Some(message)) => message.parse().map_err(|_| format!("denied: {message}")),
                        Ok(None) => Err("let through".to_owned()),
                        Err(error) => Err(format!("{error:#}")),
                    };
                    Answer { begin, end: Instant::now(), generation }
                });
                while let Some(Ok(answer)) = asking.try_join_next() {
                    answers.push(answer);
                }
                while asking.len() >= IN_FLIGHT
                    && let Some(Ok(answer)) = asking.join_next().await
                {
                    answers.push(answer);
                }
            }
            answers.extend(asking.join_all().await);
            answers
        });
        Self { stop: Stop(stop), task }
    }

    /// Ends it, once there were enough answers. Every answer must have come from a generation that was live then.
    pub async fn finish(self, seen: &[(i64, Instant)]) -> Result<()> {
        drop(self.stop);
        let answers = self.task.await?;
        let mut failed = Vec::new();
        let mut wrong = Vec::new();
        for answer in &answers {
            match &answer.generation {
                Err(what) => failed.push(what),
                Ok(generation) if !was_live(*generation, answer, seen) => wrong.push(*generation),
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
        ensure!(answers.len() > ENOUGH, "only {} requests", answers.len());
        Ok(())
    }
}

/// Whether the generation was live at some time of the request. It may have been so before it was seen to be.
fn was_live(generation: i64, answer: &Answer, seen: &[(i64, Instant)]) -> bool {
    // Live since the one before it was seen.
    let since = seen.iter().rev().find(|(other, _)| *other < generation).map(|(_, when)| *when);
    // Live until the next one was seen, and known to API servers.
    let until = seen.iter().find(|(other, _)| *other > generation).map(|(_, when)| *when + LAG);
    since.is_none_or(|since| answer.end >= since) && until.is_none_or(|until| answer.begin <= until)
}

/// [`deny`], with half a minute for each request: that a machine is busy loses none.
pub fn deny_in_time(name: &str, message: &str) -> Value {
    let mut spec = deny(name, message);
    spec["timeoutEvalSeconds"] = 30.into();
    spec["admission"]["timeoutSeconds"] = 30.into();
    spec
}

pub async fn a_hundred_edits_lose_no_request(stage: &Stage) -> Result<()> {
    const EDITS: i64 = 100;
    let name = "edits";
    let first = stage.write(name, &deny_in_time(name, "1")).await?;
    stage.until_live(name, first).await?;
    stage.until_denied(name, "1").await?;
    let pods = stage.restarts().await?;
    let seen = Seen::new(Mutex::new(vec![(first, Instant::now())]));
    let load = Load::start(stage.asker(name));
    let begin = Instant::now();
    for edit in 1..=EDITS {
        let generation = stage.write(name, &deny_in_time(name, &(first + edit).to_string())).await?;
        stage.until_live(name, generation).await?;
        seen.lock().await.push((generation, Instant::now()));
    }
    eprintln!("{EDITS} edits, each live before the next: {:.1} s", begin.elapsed().as_secs_f64());
    stage.until_denied(name, &(first + EDITS).to_string()).await?;
    load.finish(&seen.lock().await).await?;
    ensure!(stage.restarts().await? == pods, "a pod was restarted");
    stage.delete(name).await
}
