//! `proviso experiment`.

mod commit;
mod create;
mod preview;
mod status;
mod watch;

use std::process::ExitCode;

use super::{Session as SessionAt, ask, print};
use crate::arguments::Experiment;
use crate::changes::diff;
use crate::error::Error;
use crate::experiment::ExperimentError;
use crate::home::Home;
use crate::objects::{ExperimentObject, PolicyObject};
use crate::policy_ref::ExperimentRef;
use crate::render;
use crate::report::ExperimentReport;

/// These commands work in a cluster, and with a server.
type Session = SessionAt<Home>;

pub async fn run(session: &Session, command: &Experiment) -> Result<ExitCode, Error> {
    match command {
        Experiment::Create(arguments) => create::run(session, arguments).await,
        Experiment::Start(arguments) => preview::start(session, arguments).await,
        Experiment::Stop { experiment } => preview::stop(session, experiment).await,
        Experiment::Status(arguments) => status::run(session, arguments).await,
        Experiment::Diff { experiment } => {
            let (experiment, policy) = with_policy(session, experiment).await?;
            print(&difference(&experiment, &policy)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Experiment::Commit(arguments) => commit::run(session, arguments).await,
        Experiment::Delete { experiment, yes } => delete(session, experiment, *yes).await,
    }
}

async fn find(session: &Session, ExperimentRef(reference): &ExperimentRef) -> Result<ExperimentObject, Error> {
    session.at.find_experiment(reference).await
}

async fn with_policy(session: &Session, reference: &ExperimentRef) -> Result<(ExperimentObject, PolicyObject), Error> {
    let experiment = find(session, reference).await?;
    let policy = session.at.policy_of(&experiment).await?;
    let policy = policy.ok_or_else(|| ExperimentError::NoPolicy {
        experiment: experiment.id.clone(),
        policy: experiment.policy.clone(),
    })?;
    Ok((experiment, policy))
}

/// What a commit would change, as a person reads it.
fn difference(experiment: &ExperimentObject, policy: &PolicyObject) -> Result<String, Error> {
    let new = format!("{} (experiment)", experiment.id);
    let difference = diff((&policy.name_of(policy.generation), &policy.spec), (&new, &experiment.spec))?;
    Ok(if difference.is_empty() {
        format!("Nothing differs: {} is what {} is.\n", experiment.id, policy.id)
    } else {
        render::coloured(&difference)
    })
}

async fn delete(session: &Session, reference: &ExperimentRef, is_confirmed: bool) -> Result<ExitCode, Error> {
    ask::check(is_confirmed)?;
    let experiment = find(session, reference).await?;
    if !is_confirmed {
        let report = ExperimentReport::new(&experiment);
        say(&experiment, &format!("{}; {}", report.state_in_words(), report.summary))?;
        let counts = if report.divergence.is_some() { " What was counted goes with it." } else { "" };
        if !ask::ask(&format!("Delete {}?{counts}", experiment.id))? {
            say(&experiment, "it was not deleted")?;
            return Ok(ExitCode::FAILURE);
        }
    }
    session.at.delete(&experiment).await?;
    say(&experiment, &format!("deleted; {} stays as it is", experiment.policy))?;
    Ok(ExitCode::SUCCESS)
}

fn say(experiment: &ExperimentObject, what: &str) -> Result<(), Error> {
    print(&format!("{}: {}\n", experiment.id, render::printable(what)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{active, experiment, policy};
    use serde_json::Value;

    #[test]
    fn a_difference_is_from_the_newest_policy_to_the_experiment() {
        let (mut experiment, policy) = (experiment(1, &Value::Null), policy(2, &active(2)));
        let text = difference(&experiment, &policy).unwrap();
        let text = anstream::adapter::strip_str(&text).to_string();
        let heads = "--- ns.team.labels generation 2 (live, newest)\n+++ ns.team.stricter (experiment)\n";
        assert!(text.starts_with(heads) && text.ends_with("-  label: owner\n+  label: team\n"), "{text}");
        experiment.spec = policy.spec.clone();
        let same = "Nothing differs: ns.team.stricter is what ns.team.labels is.\n";
        assert_eq!(difference(&experiment, &policy).unwrap(), same);
    }
}
