//! `proviso rollback`: requests a rollback from the operator, and waits for its outcome.

use std::process::ExitCode;

use super::follow::{self, print_line};
use super::status::is_settled;
use super::{Session, print};
use crate::arguments::Rollback;
use crate::changes::{changes, diff, is_same};
use crate::error::Error;
use crate::objects::{PolicyObject, RevisionObject};
use crate::render;
use crate::report::EventReport;
use crate::rollback::error::PlanError;
use crate::rollback::{Outcome, Request, Step, generation_to_replace, newest_spec, plan};

pub async fn run(session: &Session, arguments: &Rollback) -> Result<ExitCode, Error> {
    let cluster = &session.backend;
    let policy: PolicyObject = cluster.find(&arguments.policy).await?;
    let (to, desired_spec) = match cluster.revisions(&policy).await {
        Ok(found) => {
            let target = plan(&policy, &found.items, arguments.to)?;
            let current = newest_spec(&policy, &found.items);
            if arguments.dry_run {
                print(&preview(&policy, current, target)?)?;
                return Ok(ExitCode::SUCCESS);
            }
            if is_same(current, &target.data) {
                print_line(&policy, &Step::Done(Outcome::Unchanged).message(&origin(target.generation)))?;
                return Ok(if is_settled(&policy) { ExitCode::SUCCESS } else { ExitCode::FAILURE });
            }
            let fields = changes(current, &target.data).join(", ");
            print_line(&policy, &format!("rolls back to generation {}; changes {fields}", target.generation))?;
            (target.generation, Some(target.data.clone()))
        }
        // The user may not read revisions, but the operator may, and checks that the generation is kept.
        Err(error @ Error::Forbidden { .. }) => match arguments.to.or_else(|| generation_to_replace(&policy)) {
            _ if arguments.dry_run => return Err(error),
            Some(to) => (to, None),
            None => {
                let cause = error.to_string();
                return Err(PlanError::UnknownGenerations { policy: policy.id.clone(), cause }.into());
            }
        },
        Err(error) => return Err(error),
    };
    let request = Request {
        uid: policy.uid.clone(),
        old_generation: policy.generation,
        origin: origin(to),
        desired_spec,
        known_refusal: policy.refused_rollback().cloned(),
        new_generation: None,
    };
    let known = cluster.events(&policy).await.ok().map(|events| EventReport::list(&events));
    cluster.request_rollback(&policy, to).await?;
    let requested = Step::Requested.message(&request.origin);
    if !arguments.wait {
        let follow = format!("{} status {} --watch", session.program, policy.id);
        print_line(&policy, &format!("{requested}; follow it: {follow}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    print_line(&policy, &requested)?;
    let outcome = follow::new_generation(session, &policy, request, known.as_deref(), arguments.timeout).await?;
    Ok(if outcome.is_some_and(|it| it.is_success()) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn origin(generation: i64) -> String {
    format!("generation {generation}")
}

/// Renders the changes that the rollback would make.
fn preview(policy: &PolicyObject, current: &serde_json::Value, target: &RevisionObject) -> Result<String, Error> {
    let (id, newest, to) = (&policy.id, policy.generation, target.generation);
    let difference = diff((&policy.name_of(newest), current), (&policy.name_of(to), &target.data))?;
    if difference.is_empty() {
        return Ok(format!("{id}: {}\n", Step::Done(Outcome::Unchanged).message(&origin(to))));
    }
    let next = newest + 1;
    let end = format!("{id} would get the spec of generation {to}, as generation {next}. Nothing was changed.\n");
    Ok(render::coloured(&difference) + &end)
}
