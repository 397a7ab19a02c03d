//! `proviso rollback`: requests a rollback from the operator, and waits for its outcome.

use std::process::ExitCode;

use super::follow::{self, say};
use super::status::is_settled;
use super::{Session, print};
use crate::arguments::Rollback;
use crate::changes::{changes, diff, is_same};
use crate::error::Error;
use crate::objects::{PolicyObject, RevisionObject};
use crate::render;
use crate::report::EventReport;
use crate::rollback::error::PlanError;
use crate::rollback::{Outcome, Request, Step, newest_spec, plan, under_way};

pub async fn run(session: &Session, arguments: &Rollback) -> Result<ExitCode, Error> {
    let cluster = &session.at;
    let policy: PolicyObject = cluster.find(&arguments.policy).await?;
    let (to, wanted) = match cluster.revisions(&policy).await {
        Ok(found) => {
            let target = plan(&policy, &found.items, arguments.to)?;
            let present = newest_spec(&policy, &found.items);
            if arguments.dry_run {
                print(&preview(&policy, present, target)?)?;
                return Ok(ExitCode::SUCCESS);
            }
            if is_same(present, &target.data) {
                say(&policy, &Step::Done(Outcome::Unchanged).in_words(&origin(target.generation)))?;
                return Ok(if is_settled(&policy) { ExitCode::SUCCESS } else { ExitCode::FAILURE });
            }
            let fields = changes(present, &target.data).join(", ");
            say(&policy, &format!("back to generation {}; changes {fields}", target.generation))?;
            (target.generation, Some(target.data.clone()))
        }
        // The operator knows what is kept.
        Err(error @ Error::Forbidden { .. }) => match arguments.to.or_else(|| under_way(&policy)) {
            _ if arguments.dry_run => return Err(error),
            Some(to) => (to, None),
            None => return Err(PlanError::Blind { policy: policy.id.clone(), cause: error.to_string() }.into()),
        },
        Err(error) => return Err(error),
    };
    let request = Request { uid: policy.uid.clone(), before: policy.generation, origin: origin(to), wanted, new: None };
    let known = cluster.events(&policy).await.ok().map(|events| EventReport::list(&events));
    cluster.ask_for_rollback(&policy, to).await?;
    let asked = Step::Asked.in_words(&request.origin);
    if !arguments.wait {
        let follow = format!("{} status {} --watch", session.program, policy.id);
        say(&policy, &format!("{asked}; follow it: {follow}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    say(&policy, &asked)?;
    let outcome = follow::new_generation(session, &policy, request, known.as_deref(), arguments.timeout).await?;
    Ok(if outcome.is_some_and(|it| it.is_success()) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn origin(generation: i64) -> String {
    format!("generation {generation}")
}

/// Renders the changes that the rollback would make.
fn preview(policy: &PolicyObject, present: &serde_json::Value, target: &RevisionObject) -> Result<String, Error> {
    let (id, newest, to) = (&policy.id, policy.generation, target.generation);
    let difference = diff((&policy.name_of(newest), present), (&policy.name_of(to), &target.data))?;
    if difference.is_empty() {
        return Ok(format!("{id}: {}\n", Step::Done(Outcome::Unchanged).in_words(&origin(to))));
    }
    let next = newest + 1;
    let end = format!("{id} would become what generation {to} was, as generation {next}. Nothing was changed.\n");
    Ok(render::coloured(&difference) + &end)
}
