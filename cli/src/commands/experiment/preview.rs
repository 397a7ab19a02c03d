//! `proviso experiment start` and `stop`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use proviso_crds::{PreviewChange, PreviewMetadata};

use super::super::follow::POLL_INTERVAL;
use super::session::{Session, find, print_line};
use crate::arguments::{Start, Stop};
use crate::backend::Started;
use crate::cluster::Action;
use crate::error::Error;
use crate::experiment::progress::{self, Progress};
use crate::objects::ExperimentObject;
use crate::report::{ExperimentReport, counts_summary};
use crate::server::OperationState;

pub async fn start(session: &Session, arguments: &Start) -> Result<ExitCode, Error> {
    let experiment = find(session, &arguments.experiment).await?;
    let (started, now) = start_now(session, &experiment).await?;
    if !arguments.wait {
        return Ok(ExitCode::SUCCESS);
    }
    let (line, is_previewed) = match started {
        Started::InCluster(_) => {
            let preview = now.and_then(|now| now.status.preview_metadata);
            let Some(PreviewMetadata { start_time, generation, .. }) = preview else {
                return not_previewed(session, &experiment);
            };
            let (uid, start) = (&experiment.uid, PreviewChange { time: &start_time, generation });
            let of_start = |now: Option<&ExperimentObject>| progress::of_start(uid, start, now);
            match wait(session, &experiment, arguments.timeout, of_start).await? {
                Progress::Waiting(_) => return not_previewed(session, &experiment),
                ended => started_line(&ended),
            }
        }
        Started::Operation(operation) => match operation.wait(arguments.timeout).await? {
            OperationState::Done => ("it is previewed".to_owned(), true),
            OperationState::Failed(message) => (message, false),
            OperationState::Running(reason) => (format!("not previewed yet: it waits for {reason}"), false),
        },
    };
    print_line(&experiment, &line)?;
    Ok(exit_code(is_previewed))
}

fn exit_code(is_success: bool) -> ExitCode {
    if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Starts an experiment, and prints its state. Returns the experiment after the start; `None` if it was deleted meanwhile.
pub(super) async fn start_now(
    session: &Session,
    experiment: &ExperimentObject,
) -> Result<(Started, Option<ExperimentObject>), Error> {
    let started = session.backend.act(experiment, &Action::Start).await?;
    Ok((started, print_state(session, experiment, "started").await?))
}

/// Returns the message about the end of a start, and true if every replica previews the experiment.
fn started_line(progress: &Progress) -> (String, bool) {
    match progress {
        Progress::Done => ("every replica previews it".to_owned(), true),
        Progress::Failed(failure) => (format!("its preview was stopped: {failure}"), false),
        Progress::Gone => ("it was deleted or committed".to_owned(), false),
        Progress::Restarted => ("it was started again before every replica had loaded it".to_owned(), false),
        Progress::Waiting(_) | Progress::Stopped => ("it was changed or stopped by another user".to_owned(), false),
    }
}

fn not_previewed(session: &Session, experiment: &ExperimentObject) -> Result<ExitCode, Error> {
    let line =
        format!("not previewed by every replica yet; more: {} experiment status {}", session.program, experiment.id);
    print_line(experiment, &line)?;
    Ok(ExitCode::FAILURE)
}

pub async fn stop(session: &Session, arguments: &Stop) -> Result<ExitCode, Error> {
    let experiment = find(session, &arguments.experiment).await?;
    let stopped = session.backend.act(&experiment, &Action::Stop).await?;
    let now = print_state(session, &experiment, "stopped").await?;
    if !arguments.wait {
        return Ok(ExitCode::SUCCESS);
    }
    let progress = match stopped {
        Started::InCluster(_) => {
            // An experiment that was never started, or that was deleted meanwhile, is not evaluated.
            let stopped = now.and_then(|now| Some((now.status.preview_metadata?.stop_time?, now.generation)));
            let Some((stop_time, generation)) = stopped else { return Ok(ExitCode::SUCCESS) };
            let (uid, stop) = (&experiment.uid, PreviewChange { time: &stop_time, generation });
            let of_stop = |now: Option<&ExperimentObject>| progress::of_stop(uid, stop, now);
            wait(session, &experiment, arguments.timeout, of_stop).await?
        }
        Started::Operation(operation) => match operation.wait(arguments.timeout).await? {
            OperationState::Done => Progress::Done,
            OperationState::Running(reason) => Progress::Waiting(reason),
            OperationState::Failed(message) => {
                print_line(&experiment, &message)?;
                return Ok(ExitCode::FAILURE);
            }
        },
    };
    let (line, is_stopped) = stopped_line(session, &experiment, &progress).await?;
    print_line(&experiment, &line)?;
    Ok(exit_code(is_stopped))
}

/// Returns the message about the end of a stop with the final counts, and true if no replica evaluates the experiment any more.
async fn stopped_line(
    session: &Session,
    experiment: &ExperimentObject,
    progress: &Progress,
) -> Result<(String, bool), Error> {
    Ok(match progress {
        Progress::Done => {
            let counts = session.backend.reload(experiment).await?.and_then(|now| now.status.divergence);
            (format!("no replica evaluates it any more; {}", counts_summary(counts.as_ref())), true)
        }
        Progress::Gone => ("it was deleted or committed".to_owned(), true),
        Progress::Restarted => ("it was started again".to_owned(), false),
        Progress::Waiting(_) | Progress::Failed(_) | Progress::Stopped => {
            let more = format!("{} experiment status {}", session.program, experiment.id);
            (format!("not stopped on every replica yet; more: {more}"), false)
        }
    })
}

/// Prints the action that was done, and the new state of the experiment. Returns the experiment; `None` if it was deleted.
async fn print_state(
    session: &Session,
    experiment: &ExperimentObject,
    done: &str,
) -> Result<Option<ExperimentObject>, Error> {
    let Some(now) = session.backend.reload(experiment).await? else {
        print_line(experiment, &format!("{done}, and deleted meanwhile"))?;
        return Ok(None);
    };
    let report = ExperimentReport::new(&now);
    print_line(&now, &format!("{done}: {}; {}", report.state_label(), report.summary))?;
    Ok(Some(now))
}

/// Reads the experiment until its progress is another one than waiting, at most for `timeout`, and prints what it waits for.
/// Returns the last progress.
async fn wait(
    session: &Session,
    experiment: &ExperimentObject,
    timeout: Duration,
    progress: impl Fn(Option<&ExperimentObject>) -> Progress,
) -> Result<Progress, Error> {
    let begin = Instant::now();
    let mut last = Progress::Waiting(String::new());
    loop {
        match session.backend.reload(experiment).await {
            Ok(now) => {
                let now = progress(now.as_ref());
                let Progress::Waiting(reason) = &now else { return Ok(now) };
                if now != last {
                    print_line(experiment, reason)?;
                }
                last = now;
            }
            Err(error @ (Error::Unauthorized { .. } | Error::Malformed { .. })) => return Err(error),
            // The action was accepted, so the wait continues: the API server may be back before the timeout.
            Err(_) => {}
        }
        if begin.elapsed() > timeout {
            return Ok(last);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proviso_core::Failure;

    #[test]
    fn only_a_start_that_every_replica_has_loaded_succeeds() {
        for (progress, wanted, is_success) in [
            (Progress::Done, "every replica previews it", true),
            (Progress::Failed(Failure::new("TooMany", "no")), "its preview was stopped: TooMany: no", false),
            (Progress::Stopped, "it was changed or stopped by another user", false),
            (Progress::Restarted, "it was started again before every replica had loaded it", false),
            (Progress::Gone, "it was deleted or committed", false),
        ] {
            let (line, is_previewed) = started_line(&progress);
            assert_eq!((line.as_str(), is_previewed), (wanted, is_success), "{progress:?}");
        }
    }
}
