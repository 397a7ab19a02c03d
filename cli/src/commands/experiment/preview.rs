//! `proviso experiment start` and `stop`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::super::follow::PAUSE;
use super::session::{Session, find, say};
use crate::arguments::Start;
use crate::backend::Started;
use crate::cluster::Action;
use crate::error::Error;
use crate::experiment::{Progress, progress};
use crate::objects::ExperimentObject;
use crate::policy_ref::ExperimentRef;
use crate::report::ExperimentReport;
use crate::server::Ended;

/// The time that a preview may be stuck before the wait ends: the policy server tries again when a replica is busy or a
/// registry is away for a moment.
const STUCK: Duration = Duration::from_secs(10);

pub async fn start(session: &Session, arguments: &Start) -> Result<ExitCode, Error> {
    let experiment = find(session, &arguments.experiment).await?;
    let begun = start_now(session, &experiment).await?;
    if !arguments.wait {
        return Ok(ExitCode::SUCCESS);
    }
    match begun {
        Started::InCluster(_) => wait(session, &experiment, arguments.timeout).await,
        Started::Operation(operation) => {
            let (what, code) = match operation.wait(arguments.timeout).await? {
                Ended::Done => ("it is previewed".to_owned(), ExitCode::SUCCESS),
                Ended::Failed(why) => (why, ExitCode::FAILURE),
                Ended::Running(what) => (format!("not previewed yet: it waits for {what}"), ExitCode::FAILURE),
            };
            say(&experiment, &what)?;
            Ok(code)
        }
    }
}

/// Starts an experiment, and prints its state.
pub(super) async fn start_now(session: &Session, experiment: &ExperimentObject) -> Result<Started, Error> {
    let begun = session.at.act(experiment, &Action::Start).await?;
    tell(session, experiment, "started").await?;
    Ok(begun)
}

pub async fn stop(session: &Session, reference: &ExperimentRef) -> Result<ExitCode, Error> {
    let experiment = find(session, reference).await?;
    session.at.act(&experiment, &Action::Stop).await?;
    tell(session, &experiment, "stopped").await?;
    Ok(ExitCode::SUCCESS)
}

/// Prints what was done, and the state of the experiment.
async fn tell(session: &Session, experiment: &ExperimentObject, done: &str) -> Result<(), Error> {
    let Some(now) = session.at.again(experiment).await? else {
        return say(experiment, &format!("{done}, and deleted meanwhile"));
    };
    let report = ExperimentReport::new(&now);
    say(&now, &format!("{done}: {}; {}", report.state_in_words(), report.summary))
}

async fn wait(session: &Session, started: &ExperimentObject, patience: Duration) -> Result<ExitCode, Error> {
    let begin = Instant::now();
    let (mut last, mut stuck) = (None, None);
    loop {
        let now = match session.at.again(started).await {
            Ok(now) => Some(progress(&started.uid, started.generation, now.as_ref())),
            Err(error @ (Error::Unauthorized { .. } | Error::Malformed { .. })) => return Err(error),
            // It was started: the API server may be back before the patience is over.
            Err(_) => None,
        };
        if let Some(now) = now.filter(|now| last.as_ref() != Some(now)) {
            say(started, &now.in_words())?;
            if !matches!(now, Progress::Stuck(_)) {
                stuck = None;
            }
            last = Some(now);
        }
        match &last {
            Some(Progress::Previewing) => return Ok(ExitCode::SUCCESS),
            Some(Progress::Stopped | Progress::Gone) => return Ok(ExitCode::FAILURE),
            Some(Progress::Stuck(_)) if stuck.get_or_insert_with(Instant::now).elapsed() > STUCK.min(patience) => {
                more(session, started)?;
                return Ok(ExitCode::FAILURE);
            }
            _ if begin.elapsed() > patience => {
                more(session, started)?;
                return Ok(ExitCode::FAILURE);
            }
            _ => tokio::time::sleep(PAUSE).await,
        }
    }
}

fn more(session: &Session, experiment: &ExperimentObject) -> Result<(), Error> {
    let id = &experiment.id;
    say(experiment, &format!("not previewed by every replica yet; more: {} experiment status {id}", session.program))
}
