//! `proviso experiment start` and `stop`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::super::follow::POLL_INTERVAL;
use super::session::{Session, find, print_line};
use crate::arguments::Start;
use crate::backend::Started;
use crate::cluster::Action;
use crate::error::Error;
use crate::experiment::{Progress, progress};
use crate::objects::ExperimentObject;
use crate::policy_ref::ExperimentRef;
use crate::report::ExperimentReport;
use crate::server::OperationState;

/// The time that a preview may have a problem before the wait ends. The policy server tries again after a transient problem,
/// such as a registry that is unavailable for a moment.
const STUCK_TIMEOUT: Duration = Duration::from_secs(10);

pub async fn start(session: &Session, arguments: &Start) -> Result<ExitCode, Error> {
    let experiment = find(session, &arguments.experiment).await?;
    let started = start_now(session, &experiment).await?;
    if !arguments.wait {
        return Ok(ExitCode::SUCCESS);
    }
    match started {
        Started::InCluster(_) => wait(session, &experiment, arguments.timeout).await,
        Started::Operation(operation) => {
            let (line, code) = match operation.wait(arguments.timeout).await? {
                OperationState::Done => ("it is previewed".to_owned(), ExitCode::SUCCESS),
                OperationState::Failed(message) => (message, ExitCode::FAILURE),
                OperationState::Running(reason) => {
                    (format!("not previewed yet: it waits for {reason}"), ExitCode::FAILURE)
                }
            };
            print_line(&experiment, &line)?;
            Ok(code)
        }
    }
}

/// Starts an experiment, and prints its state.
pub(super) async fn start_now(session: &Session, experiment: &ExperimentObject) -> Result<Started, Error> {
    let started = session.backend.act(experiment, &Action::Start).await?;
    print_state(session, experiment, "started").await?;
    Ok(started)
}

pub async fn stop(session: &Session, reference: &ExperimentRef) -> Result<ExitCode, Error> {
    let experiment = find(session, reference).await?;
    session.backend.act(&experiment, &Action::Stop).await?;
    print_state(session, &experiment, "stopped").await?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the action that was done, and the new state of the experiment.
async fn print_state(session: &Session, experiment: &ExperimentObject, done: &str) -> Result<(), Error> {
    let Some(now) = session.backend.reload(experiment).await? else {
        return print_line(experiment, &format!("{done}, and deleted meanwhile"));
    };
    let report = ExperimentReport::new(&now);
    print_line(&now, &format!("{done}: {}; {}", report.state_label(), report.summary))
}

/// Waits until every replica previews the experiment, at most for `timeout`.
async fn wait(session: &Session, started: &ExperimentObject, timeout: Duration) -> Result<ExitCode, Error> {
    let begin = Instant::now();
    let (mut last, mut stuck_since) = (None, None);
    loop {
        let now = match session.backend.reload(started).await {
            Ok(now) => Some(progress(&started.uid, started.generation, now.as_ref())),
            Err(error @ (Error::Unauthorized { .. } | Error::Malformed { .. })) => return Err(error),
            // The preview was started, so the wait continues: the API server may be back before the timeout.
            Err(_) => None,
        };
        if let Some(now) = now.filter(|now| last.as_ref() != Some(now)) {
            print_line(started, &now.message())?;
            if !matches!(now, Progress::Stuck(_)) {
                stuck_since = None;
            }
            last = Some(now);
        }
        match &last {
            Some(Progress::Previewing) => return Ok(ExitCode::SUCCESS),
            Some(Progress::Stopped | Progress::Gone) => return Ok(ExitCode::FAILURE),
            Some(Progress::Stuck(_))
                if stuck_since.get_or_insert_with(Instant::now).elapsed() > STUCK_TIMEOUT.min(timeout) =>
            {
                print_not_previewed(session, started)?;
                return Ok(ExitCode::FAILURE);
            }
            _ if begin.elapsed() > timeout => {
                print_not_previewed(session, started)?;
                return Ok(ExitCode::FAILURE);
            }
            _ => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

fn print_not_previewed(session: &Session, experiment: &ExperimentObject) -> Result<(), Error> {
    let line =
        format!("not previewed by every replica yet; more: {} experiment status {}", session.program, experiment.id);
    print_line(experiment, &line)
}
