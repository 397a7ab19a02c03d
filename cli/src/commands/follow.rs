//! Follows a new generation of a policy until it is live.

use std::time::{Duration, Instant};

use super::{Session, print};
use crate::error::Error;
use crate::objects::PolicyObject;
use crate::render;
use crate::report::EventReport;
use crate::rollback::{Outcome, Request, Step};
use proviso_crds::names::ROLLBACK_TO;

/// The interval between two reads of an object. A watch would need the verb `watch`; reading needs only `get`.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The time that the operator has to write an Event about a request that made no new generation.
const EXPLANATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Follows a request for a new generation until it has an outcome, and prints each step. Returns `None` after `timeout`, or
/// if the operator does not explain why it made no new generation.
///
/// `known` are the Events before the request; `None` if the user may not read Events.
pub(super) async fn new_generation(
    session: &Session,
    policy: &PolicyObject,
    mut request: Request,
    known: Option<&[EventReport]>,
    timeout: Duration,
) -> Result<Option<Outcome>, Error> {
    let start = Instant::now();
    let mut last = Step::Requested;
    let mut acknowledged_since = None;
    loop {
        let step = read_step(session, policy, &mut request, known).await?;
        // While the API server does not answer, the last step is still valid.
        let step = step.unwrap_or_else(|| last.clone());
        if step != last {
            print_line(policy, &step.message(&request.origin))?;
        }
        if let Step::Done(outcome) = &step {
            print_hint(session, policy, outcome)?;
            return Ok(Some(outcome.clone()));
        }
        if step == Step::Acknowledged
            && acknowledged_since.get_or_insert_with(Instant::now).elapsed() > EXPLANATION_TIMEOUT
        {
            let origin = &request.origin;
            let line =
                format!("{origin} is not kept, or the policy has its spec already; the policy's Events may say more");
            print_line(policy, &line)?;
            return Ok(None);
        }
        if start.elapsed() > timeout {
            print_line(policy, &timeout_message(session, policy, &step))?;
            return Ok(None);
        }
        last = step;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Reads the policy, and returns the step of the request. Returns `None` if the API server does not answer: it has accepted
/// the request, so it may be back before the timeout. An API server that starts may also answer "forbidden" or "not found",
/// because it has not loaded the RBAC rules and the kinds.
async fn read_step(
    session: &Session,
    policy: &PolicyObject,
    request: &mut Request,
    known: Option<&[EventReport]>,
) -> Result<Option<Step>, Error> {
    let found = match session.backend.get(&policy.id).await {
        Ok(found) => found,
        Err(error @ (Error::Unauthorized { .. } | Error::Malformed { .. })) => return Err(error),
        Err(_) => return Ok(None),
    };
    let step = request.step(found.as_ref(), &[]);
    // Without the Events before the request, new Events cannot be distinguished from old ones.
    let Some(known) = known.filter(|_| step == Step::Acknowledged) else { return Ok(Some(step)) };
    let events = EventReport::list(&session.backend.events(policy).await.unwrap_or_default());
    let is_new = |event: &EventReport| known.iter().all(|known| known.version != event.version);
    let new: Vec<_> = events.into_iter().filter(is_new).collect();
    Ok(Some(request.step(found.as_ref(), &new)))
}

/// Prints the command that shows more about a failure.
fn print_hint(session: &Session, policy: &PolicyObject, outcome: &Outcome) -> Result<(), Error> {
    if !outcome.is_success() && *outcome != Outcome::Gone {
        print_line(policy, &format!("more: {} status {}", session.program, policy.id))?;
    }
    Ok(())
}

fn timeout_message(session: &Session, policy: &PolicyObject, step: &Step) -> String {
    let id = &policy.id;
    match step {
        Step::Requested => {
            let object = match id.namespace() {
                Some(namespace) => format!("policies.proviso.dev {} -n {namespace}", id.name()),
                None => format!("clusterpolicies.proviso.dev {}", id.name()),
            };
            format!(
                "the operator has not processed the request. Check the operator: kubectl get pods -n {}. It will process the \
                 request when it runs, unless you withdraw it: kubectl annotate {object} {ROLLBACK_TO}-",
                session.backend.proviso_namespace()
            )
        }
        _ => format!("not live yet; the rollout continues: {} status {id} --watch", session.program),
    }
}

/// Prints a line about a policy.
pub(super) fn print_line(policy: &PolicyObject, text: &str) -> Result<(), Error> {
    print(&format!("{}: {}\n", policy.id, render::printable(text)))
}
