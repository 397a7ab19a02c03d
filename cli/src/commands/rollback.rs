//! `proviso rollback`: asks the operator, and waits for what comes of it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::status::is_settled;
use super::{Session, print};
use crate::arguments::Rollback;
use crate::changes::{changes, diff, is_same};
use crate::error::Error;
use crate::objects::{PolicyObject, ROLLBACK_TO, RevisionObject};
use crate::render;
use crate::report::EventReport;
use crate::rollback::{Outcome, PlanError, Request, Step, newest_spec, plan, under_way};

/// Between two looks. Looking again needs no more rights than looking once, which watching would.
const PAUSE: Duration = Duration::from_millis(500);
/// How long the operator may take to say why it made no new generation.
const EXPLANATION: Duration = Duration::from_secs(5);

pub async fn run(session: &Session, arguments: &Rollback) -> Result<ExitCode, Error> {
    let cluster = &session.cluster;
    let policy = cluster.find(&arguments.policy).await?;
    let (to, wanted) = match cluster.revisions(&policy).await {
        Ok(found) => {
            let target = plan(&policy, &found.items, arguments.to)?;
            let present = newest_spec(&policy, &found.items);
            if arguments.dry_run {
                print(&preview(&policy, present, target)?)?;
                return Ok(ExitCode::SUCCESS);
            }
            if is_same(present, &target.data) {
                say(&policy, &Step::Done(Outcome::Unchanged).in_words(target.generation))?;
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
    let request = Request { uid: policy.uid.clone(), before: policy.generation, to, wanted, new: None };
    let known = cluster.events(&policy).await.ok().map(|events| EventReport::list(&events));
    cluster.ask_for_rollback(&policy, to).await?;
    if !arguments.wait {
        let follow = format!("{} status {} --watch", session.program, policy.id);
        say(&policy, &format!("{}; follow it: {follow}", Step::Asked.in_words(to)))?;
        return Ok(ExitCode::SUCCESS);
    }
    wait(session, &policy, request, known.as_deref(), arguments.timeout).await
}

/// What would change.
fn preview(policy: &PolicyObject, present: &serde_json::Value, target: &RevisionObject) -> Result<String, Error> {
    let (id, newest, to) = (&policy.id, policy.generation, target.generation);
    let difference = diff((&policy.name_of(newest), present), (&policy.name_of(to), &target.data))?;
    if difference.is_empty() {
        return Ok(format!("{id}: {}\n", Step::Done(Outcome::Unchanged).in_words(to)));
    }
    let next = newest + 1;
    let end = format!("{id} would become what generation {to} was, as generation {next}. Nothing was changed.\n");
    Ok(render::coloured(&difference) + &end)
}

async fn wait(
    session: &Session,
    policy: &PolicyObject,
    mut request: Request,
    known: Option<&[EventReport]>,
    patience: Duration,
) -> Result<ExitCode, Error> {
    let start = Instant::now();
    let mut last = Step::Asked;
    let mut answered = None;
    say(policy, &last.in_words(request.to))?;
    loop {
        let step = look(session, policy, &mut request, known).await?;
        // While nothing can be said, what was said stands.
        let step = step.unwrap_or_else(|| last.clone());
        if step != last {
            say(policy, &step.in_words(request.to))?;
        }
        if let Step::Done(outcome) = &step {
            return end(session, policy, outcome);
        }
        if step == Step::Answered && answered.get_or_insert_with(Instant::now).elapsed() > EXPLANATION {
            let to = request.to;
            say(policy, &format!("generation {to} is not kept, or is what it already is; its Events may say more"))?;
            return Ok(ExitCode::FAILURE);
        }
        if start.elapsed() > patience {
            say(policy, &too_late(session, policy, &step))?;
            return Ok(ExitCode::FAILURE);
        }
        last = step;
        tokio::time::sleep(PAUSE).await;
    }
}

/// None while the API server does not tell: it took the request, so it may be back before the patience is over. While it
/// starts, it knows neither rights nor kinds.
async fn look(
    session: &Session,
    policy: &PolicyObject,
    request: &mut Request,
    known: Option<&[EventReport]>,
) -> Result<Option<Step>, Error> {
    let found = match session.cluster.get(&policy.id).await {
        Ok(found) => found,
        Err(error @ (Error::Unauthorized { .. } | Error::Malformed { .. })) => return Err(error),
        Err(_) => return Ok(None),
    };
    let step = request.look(found.as_ref(), &[]);
    // Who may not see Events, and so cannot tell new ones from old ones, has to do without.
    let Some(known) = known.filter(|_| step == Step::Answered) else { return Ok(Some(step)) };
    let events = EventReport::list(&session.cluster.events(policy).await.unwrap_or_default());
    let is_new = |event: &EventReport| known.iter().all(|known| known.version != event.version);
    let new: Vec<_> = events.into_iter().filter(is_new).collect();
    Ok(Some(request.look(found.as_ref(), &new)))
}

fn end(session: &Session, policy: &PolicyObject, outcome: &Outcome) -> Result<ExitCode, Error> {
    if outcome.is_success() {
        return Ok(ExitCode::SUCCESS);
    }
    if *outcome != Outcome::Gone {
        say(policy, &format!("more: {} status {}", session.program, policy.id))?;
    }
    Ok(ExitCode::FAILURE)
}

fn too_late(session: &Session, policy: &PolicyObject, step: &Step) -> String {
    let id = &policy.id;
    match step {
        Step::Asked => {
            let object = match id.namespace() {
                Some(namespace) => format!("policies.proviso.dev {} -n {namespace}", id.name()),
                None => format!("clusterpolicies.proviso.dev {}", id.name()),
            };
            format!(
                "the operator has not taken it up. Look at it: kubectl get pods -n {}. It will do it when it is back, unless \
                 you take the request back: kubectl annotate {object} {ROLLBACK_TO}-",
                session.cluster.proviso_namespace()
            )
        }
        _ => format!("not live yet; it goes on by itself: {} status {id} --watch", session.program),
    }
}

fn say(policy: &PolicyObject, what: &str) -> Result<(), Error> {
    print(&format!("{}: {}\n", policy.id, render::printable(what)))
}
