//! `proviso experiment commit`: shows the changes, asks for confirmation, commits the versions that were shown, and waits
//! until the new generation is live. `--to-file` writes the policy to a file instead.

use std::process::ExitCode;

use super::super::follow;
use super::super::{Session as ClusterSession, confirm, print};
use super::difference::difference;
use super::session::{Session, print_line, with_policy};
use super::to_file;
use crate::arguments::{Commit, Form};
use crate::backend::Started;
use crate::cluster::Action;
use crate::error::Error;
use crate::experiment::{CommitPlan, plan_commit};
use crate::gitops;
use crate::objects::{ExperimentObject, PolicyObject};
use crate::render;
use crate::report::ExperimentReport;
use crate::rollback::Request;
use crate::server::OperationState;
use crate::terminal;

pub async fn run(session: &Session, arguments: &Commit) -> Result<ExitCode, Error> {
    // A file changes nothing that needs a confirmation.
    if arguments.to_file.is_none() {
        confirm::check(arguments.yes)?;
    }
    let (experiment, policy) = with_policy(session, &arguments.experiment).await?;
    let (etag, parent_etag) = (arguments.etag.as_deref(), arguments.parent_etag.as_deref());
    let plan = plan_commit(&experiment, &policy, etag, parent_etag)?;
    // The commit replaces the newest version of the policy, so the evidence should be about that version.
    let report = ExperimentReport::new(&experiment).compared_with(Some(&policy.etag));
    let page = render::before_commit(&report, &session.view(Form::Table));
    let page = format!("{page}{}\n", difference(&experiment, &policy)?);
    if let Some(file) = &arguments.to_file {
        return to_file::run(session, file, (&experiment, &policy), &plan, &page);
    }
    print(&page)?;
    if let Some(warning) = gitops::warning(&policy, &experiment, session.program) {
        terminal::print_warning(&warning);
    }
    let CommitPlan { etag, parent_etag } = plan;
    let question = format!("Give the spec of the experiment to {}, and delete the experiment?", policy.id);
    if !arguments.yes && !confirm::ask(&question)? {
        print_line(&experiment, "it was not committed")?;
        return Ok(ExitCode::FAILURE);
    }
    let action = Action::Commit { etag, parent_etag };
    let started = match session.backend.act(&experiment, &action).await {
        Ok(started) => started,
        Err(error) => {
            if error.is_unanswered() {
                let message = "it is unknown if the commit succeeded: it did if the experiment no longer exists";
                print_line(&experiment, message)?;
            }
            return Err(error);
        }
    };
    print_line(&experiment, &format!("committed: its spec is now the spec of {}", policy.id))?;
    match started {
        Started::InCluster(cluster) => {
            let session = ClusterSession { backend: *cluster, program: session.program };
            follow(&session, arguments, &experiment, &policy).await
        }
        Started::Operation(operation) if arguments.wait => {
            let (line, code) = match operation.wait(arguments.timeout).await? {
                OperationState::Done => ("it is live".to_owned(), ExitCode::SUCCESS),
                OperationState::Failed(message) => (format!("it is not live: {message}"), ExitCode::FAILURE),
                OperationState::Running(reason) => (format!("not live yet: it waits for {reason}"), ExitCode::FAILURE),
            };
            follow::print_line(&policy, &line)?;
            Ok(code)
        }
        Started::Operation(_) => Ok(ExitCode::SUCCESS),
    }
}

/// Follows the policy's new generation in a cluster.
async fn follow(
    session: &ClusterSession,
    arguments: &Commit,
    experiment: &ExperimentObject,
    policy: &PolicyObject,
) -> Result<ExitCode, Error> {
    let undo = undo_hint(policy, session.program);
    // Without a change there is no new generation.
    if policy.spec == experiment.spec {
        follow::print_line(
            policy,
            &format!("nothing changes: generation {} has this spec already", policy.generation),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.wait {
        follow::print_line(policy, &format!("follow it: {} status {} --watch", session.program, policy.id))?;
        follow::print_line(policy, &undo)?;
        return Ok(ExitCode::SUCCESS);
    }
    let request = request(experiment, policy);
    let outcome = follow::new_generation(session, policy, request, None, arguments.timeout).await?;
    follow::print_line(policy, &undo)?;
    Ok(if outcome.is_some_and(|it| it.is_success()) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the request for the generation that a commit creates.
fn request(experiment: &ExperimentObject, policy: &PolicyObject) -> Request {
    Request {
        uid: policy.uid.clone(),
        old_generation: policy.generation,
        origin: format!("the experiment {}", experiment.id),
        desired_spec: Some(experiment.spec.clone()),
        known_refusal: policy.refused_rollback().cloned(),
        new_generation: None,
    }
}

/// Returns a message about how to undo the commit.
fn undo_hint(policy: &PolicyObject, program: &str) -> String {
    let id = &policy.id;
    match policy.status.live_generation {
        Some(live) => format!("to undo the commit: {program} rollback {id} --to {live}"),
        None => format!("no generation was live before; to undo the commit, disable or delete {id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{active, experiment, policy, spec};
    use crate::rollback::Step;
    use serde_json::Value;

    #[test]
    fn a_commit_is_followed_until_a_generation_has_the_spec_of_the_experiment() {
        let mut request = request(&experiment(1, &Value::Null), &policy(2, &active(2)));
        let mut committed = policy(3, &active(3));
        committed.spec = spec("team");
        let step = request.step(Some(&committed), &[]);
        let wanted = "generation 3 answers requests, with the spec of the experiment ns.team.stricter";
        assert_eq!(step.message(&request.origin), wanted);
        let step = request.step(Some(&policy(4, &active(4))), &[]);
        assert!(matches!(step, Step::Done(_)) && step.message(&request.origin).contains("another user"));
    }

    #[test]
    fn a_commit_is_undone_by_a_rollback_to_the_live_generation() {
        let hint = undo_hint(&policy(3, &active(2)), "proviso");
        assert_eq!(hint, "to undo the commit: proviso rollback ns.team.labels --to 2");
        assert!(undo_hint(&policy(1, &Value::Null), "proviso").contains("disable"));
    }
}
