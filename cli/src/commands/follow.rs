//! Following a new generation of a policy until it is live.

use std::time::{Duration, Instant};

use super::{Session, print};
use crate::error::Error;
use crate::objects::PolicyObject;
use crate::render;
use crate::report::EventReport;
use crate::rollback::{Outcome, Request, Step};
use proviso_crds::names::ROLLBACK_TO;

/// Between two looks. Looking again needs no more rights than looking once, which watching would.
pub(super) const PAUSE: Duration = Duration::from_millis(500);
/// How long the operator may take to say why it made no new generation.
const EXPLANATION: Duration = Duration::from_secs(5);

/// Follows a request for a new generation to its end, saying what it waits for. None if that took too long.
///
/// `known`: the Events from before the request.
pub(super) async fn new_generation(
    session: &Session,
    policy: &PolicyObject,
    mut request: Request,
    known: Option<&[EventReport]>,
    patience: Duration,
) -> Result<Option<Outcome>, Error> {
    let start = Instant::now();
    let mut last = Step::Asked;
    let mut answered = None;
    loop {
        let step = look(session, policy, &mut request, known).await?;
        // While nothing can be said, what was said stands.
        let step = step.unwrap_or_else(|| last.clone());
        if step != last {
            say(policy, &step.in_words(&request.origin))?;
        }
        if let Step::Done(outcome) = &step {
            end(session, policy, outcome)?;
            return Ok(Some(outcome.clone()));
        }
        if step == Step::Answered && answered.get_or_insert_with(Instant::now).elapsed() > EXPLANATION {
            let origin = &request.origin;
            say(policy, &format!("{origin} is not kept, or is what it already is; its Events may say more"))?;
            return Ok(None);
        }
        if start.elapsed() > patience {
            say(policy, &too_late(session, policy, &step))?;
            return Ok(None);
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
    let found = match session.at.get(&policy.id).await {
        Ok(found) => found,
        Err(error @ (Error::Unauthorized { .. } | Error::Malformed { .. })) => return Err(error),
        Err(_) => return Ok(None),
    };
    let step = request.look(found.as_ref(), &[]);
    // Who may not see Events, and so cannot tell new ones from old ones, has to do without.
    let Some(known) = known.filter(|_| step == Step::Answered) else { return Ok(Some(step)) };
    let events = EventReport::list(&session.at.events(policy).await.unwrap_or_default());
    let is_new = |event: &EventReport| known.iter().all(|known| known.version != event.version);
    let new: Vec<_> = events.into_iter().filter(is_new).collect();
    Ok(Some(request.look(found.as_ref(), &new)))
}

fn end(session: &Session, policy: &PolicyObject, outcome: &Outcome) -> Result<(), Error> {
    if !outcome.is_success() && *outcome != Outcome::Gone {
        say(policy, &format!("more: {} status {}", session.program, policy.id))?;
    }
    Ok(())
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
                session.at.proviso_namespace()
            )
        }
        _ => format!("not live yet; it goes on by itself: {} status {id} --watch", session.program),
    }
}

pub(super) fn say(policy: &PolicyObject, what: &str) -> Result<(), Error> {
    print(&format!("{}: {}\n", policy.id, render::printable(what)))
}
