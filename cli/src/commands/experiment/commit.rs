//! `proviso experiment commit`: shows, asks, commits what was shown, and waits until it is live.

use std::process::ExitCode;

use super::super::follow;
use super::super::{Session as SessionAt, ask, print};
use super::difference::difference;
use super::session::{Session, say, with_policy};
use crate::arguments::{Commit, Form};
use crate::backend::Started;
use crate::cluster::Action;
use crate::error::Error;
use crate::experiment::{CommitPlan, plan_commit};
use crate::objects::{ExperimentObject, PolicyObject};
use crate::render;
use crate::report::ExperimentReport;
use crate::rollback::Request;
use crate::server::Ended;

pub async fn run(session: &Session, arguments: &Commit) -> Result<ExitCode, Error> {
    ask::check(arguments.yes)?;
    let (experiment, policy) = with_policy(session, &arguments.experiment).await?;
    let (etag, parent_etag) = (arguments.etag.as_deref(), arguments.parent_etag.as_deref());
    let CommitPlan { etag, parent_etag } = plan_commit(&experiment, &policy, etag, parent_etag)?;
    let report = ExperimentReport::new(&experiment);
    let page = render::before_commit(&report, &session.view(Form::Table));
    print(&format!("{page}{}\n", difference(&experiment, &policy)?))?;
    if !arguments.yes && !ask::ask(&format!("Make this {}, and delete the experiment?", policy.id))? {
        say(&experiment, "it was not committed")?;
        return Ok(ExitCode::FAILURE);
    }
    let action = Action::Commit { etag, parent_etag };
    let begun = match session.at.act(&experiment, &action).await {
        Ok(begun) => begun,
        Err(error) => {
            if error.is_unanswered() {
                let message = "whether it was committed is not known: it was, if there is no such experiment any more";
                say(&experiment, message)?;
            }
            return Err(error);
        }
    };
    say(&experiment, &format!("committed: {} is what it was", policy.id))?;
    match begun {
        Started::InCluster(cluster) => {
            let session = SessionAt { at: *cluster, program: session.program };
            follow(&session, arguments, &experiment, &policy).await
        }
        Started::Operation(operation) if arguments.wait => {
            let (what, code) = match operation.wait(arguments.timeout).await? {
                Ended::Done => ("it is live".to_owned(), ExitCode::SUCCESS),
                Ended::Failed(why) => (format!("it is not live: {why}"), ExitCode::FAILURE),
                Ended::Running(what) => (format!("not live yet: it waits for {what}"), ExitCode::FAILURE),
            };
            follow::say(&policy, &what)?;
            Ok(code)
        }
        Started::Operation(_) => Ok(ExitCode::SUCCESS),
    }
}

/// Follows the policy's new generation in a cluster.
async fn follow(
    session: &SessionAt,
    arguments: &Commit,
    experiment: &ExperimentObject,
    policy: &PolicyObject,
) -> Result<ExitCode, Error> {
    let back = way_back(policy, session.program);
    // Without a change there is no new generation.
    if policy.spec == experiment.spec {
        follow::say(policy, &format!("nothing changes: generation {} was that already", policy.generation))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.wait {
        follow::say(policy, &format!("follow it: {} status {} --watch", session.program, policy.id))?;
        follow::say(policy, &back)?;
        return Ok(ExitCode::SUCCESS);
    }
    let request = request(experiment, policy);
    let outcome = follow::new_generation(session, policy, request, None, arguments.timeout).await?;
    follow::say(policy, &back)?;
    Ok(if outcome.is_some_and(|it| it.is_success()) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The new generation that a commit makes.
fn request(experiment: &ExperimentObject, policy: &PolicyObject) -> Request {
    Request {
        uid: policy.uid.clone(),
        before: policy.generation,
        origin: format!("the experiment {}", experiment.id),
        wanted: Some(experiment.spec.clone()),
        new: None,
    }
}

fn way_back(policy: &PolicyObject, program: &str) -> String {
    let id = &policy.id;
    match policy.status.live_generation {
        Some(live) => format!("the way back: {program} rollback {id} --to {live}"),
        None => format!("nothing was live before; the way back is to disable or delete {id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{active, experiment, policy, spec};
    use crate::rollback::Step;
    use serde_json::Value;

    #[test]
    fn a_commit_is_followed_to_the_generation_that_is_what_the_experiment_was() {
        let mut request = request(&experiment(1, &Value::Null), &policy(2, &active(2)));
        let mut committed = policy(3, &active(3));
        committed.spec = spec("team");
        let step = request.look(Some(&committed), &[]);
        let told = "generation 3 answers requests: what the experiment ns.team.stricter was";
        assert_eq!(step.in_words(&request.origin), told);
        let step = request.look(Some(&policy(4, &active(4))), &[]);
        assert!(matches!(step, Step::Done(_)) && step.in_words(&request.origin).contains("somebody else"));
    }

    #[test]
    fn the_way_back_is_to_what_was_live() {
        let back = way_back(&policy(3, &active(2)), "proviso");
        assert_eq!(back, "the way back: proviso rollback ns.team.labels --to 2");
        assert!(way_back(&policy(1, &Value::Null), "proviso").contains("disable"));
    }
}
