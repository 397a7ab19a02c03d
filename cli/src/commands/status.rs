//! `proviso status`.

use std::process::ExitCode;

use proviso_crds::PolicyPhase;
use serde::Serialize;

use super::{Session, in_form, print, watch};
use crate::arguments::Status;
use crate::error::Error;
use crate::found::Omitted;
use crate::objects::PolicyObject;
use crate::policy_ref::PolicyRef;
use crate::render;
use crate::report::{Detail, EventReport, Overview};

/// The exit code while a policy is being rolled out.
const EXIT_ROLLING_OUT: u8 = 3;

/// The report about one policy or all policies.
#[derive(PartialEq, Serialize)]
#[serde(untagged)]
enum Report {
    Overview(Overview),
    Detail(Box<Detail>),
}

pub async fn run(session: &Session, arguments: &Status) -> Result<ExitCode, Error> {
    let report = read_report(session, arguments).await?;
    if !arguments.watch {
        print(&text(session, arguments, &report)?)?;
        return Ok(exit_code(&report));
    }
    let read = async || read_report(session, arguments).await;
    let show = |report: &Report| watch::show(report, arguments.output.output, || text(session, arguments, report));
    match watch::watch(session.program, report, read, show).await? {}
}

fn text(session: &Session, arguments: &Status, report: &Report) -> Result<String, Error> {
    let form = arguments.output.output;
    let view = session.view(form);
    in_form(report, form, || match report {
        Report::Overview(overview) => {
            render::overview(overview, arguments.all_namespaces, session.backend.namespace(), &view)
        }
        Report::Detail(detail) => render::detail(detail, &view),
    })
}

async fn read_report(session: &Session, arguments: &Status) -> Result<Report, Error> {
    Ok(match &arguments.policy {
        None => Report::Overview(Overview::new(session.backend.all(arguments.all_namespaces).await?)),
        Some(policy) => Report::Detail(Box::new(detail(session, policy).await?)),
    })
}

/// Reads everything about a policy that the user may read.
async fn detail(session: &Session, reference: &PolicyRef) -> Result<Detail, Error> {
    let policy: PolicyObject = session.backend.find(reference).await?;
    let (revisions, events) = tokio::join!(session.backend.revisions(&policy), session.backend.events(&policy));
    let mut unseen = Vec::new();
    let revisions = match revisions {
        Ok(found) => {
            unseen.extend(found.unseen);
            found.items
        }
        Err(error) => omit("the status of each replica", error, &mut unseen)?,
    };
    let events = match events {
        Ok(events) => EventReport::list(&events),
        Err(error) => omit("events", error, &mut unseen)?,
    };
    Ok(Detail::new(&policy, &revisions, events, unseen, &session.command_context()))
}

/// Omits objects that the user may not read. Returns any other error.
fn omit<T>(what: &str, error: Error, unseen: &mut Vec<Omitted>) -> Result<Vec<T>, Error> {
    let Error::Forbidden { .. } = error else { return Err(error) };
    unseen.push(Omitted::forbidden(what, &error));
    Ok(Vec::new())
}

fn exit_code(report: &Report) -> ExitCode {
    let phases: Vec<_> = match report {
        Report::Overview(overview) => overview.policies.iter().map(|policy| policy.phase).collect(),
        Report::Detail(detail) => vec![detail.policy.phase],
    };
    ExitCode::from(worst(&phases))
}

fn worst(phases: &[PolicyPhase]) -> u8 {
    let is_good = |phase: &PolicyPhase| matches!(phase, PolicyPhase::Active | PolicyPhase::Disabled);
    if phases.contains(&PolicyPhase::Failed) {
        1
    } else if phases.iter().all(is_good) {
        0
    } else {
        EXIT_ROLLING_OUT
    }
}

/// Returns true if a policy is Active or Disabled.
pub(super) fn is_settled(policy: &PolicyObject) -> bool {
    worst(&[crate::report::PolicyReport::new(policy).phase]) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_phase_decides_the_exit_code() {
        use PolicyPhase::{Active, Disabled, Failed, Pending, Updating};
        for (phases, wanted) in [
            (vec![], 0),
            (vec![Active, Disabled], 0),
            (vec![Active, Updating, Failed], 1),
            (vec![Active, Pending], 3),
            (vec![Updating], 3),
        ] {
            assert_eq!(worst(&phases), wanted, "{phases:?}");
        }
    }
}
