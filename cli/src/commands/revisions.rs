//! `proviso revisions`.

use std::process::ExitCode;

use super::{Session, in_form, print};
use crate::arguments::Revisions;
use crate::changes::diff;
use crate::error::Error;
use crate::found::{Found, Omitted};
use crate::objects::{PolicyObject, RevisionObject};
use crate::policy_ref::PolicyRef;
use crate::render;
use crate::report::{self, RevisionReport, ShownRevision};
use crate::rollback::newest_spec;

/// The document of `proviso revisions list -o json`.
#[derive(serde::Serialize)]
struct ListReport<'a> {
    policy: &'a proviso_core::PolicyId,
    generation: i64,
    revisions: &'a [RevisionReport],
    unseen: &'a [Omitted],
}

pub async fn run(session: &Session, command: &Revisions) -> Result<ExitCode, Error> {
    let (Revisions::List { policy, .. } | Revisions::Show { policy, .. } | Revisions::Diff { policy, .. }) = command;
    let (policy, found) = fetch(session, policy).await?;
    match command {
        Revisions::List { output, .. } => {
            let revisions = report::list(&policy, &found.items);
            let list = ListReport {
                policy: &policy.id,
                generation: policy.generation,
                revisions: &revisions,
                unseen: &found.unseen,
            };
            let view = session.view(output.output);
            print(&in_form(&list, output.output, || render::list(&policy, &revisions, &found.unseen, &view))?)?;
        }
        Revisions::Show { generation, output, .. } => {
            let revision = kept(&policy, &found.items, *generation)?;
            let reports = report::list(&policy, &found.items).into_iter();
            let Some(report) = reports.into_iter().find(|report| report.generation == *generation) else {
                return Err(no_revision(&policy, &found.items, *generation));
            };
            let shown = ShownRevision { revision: report, spec: revision.data.clone() };
            let yaml = serde_yaml::to_string(&shown.spec)?;
            let view = session.view(output.output);
            print(&in_form(&shown, output.output, || render::show(&policy, &shown, &yaml, &view))?)?;
        }
        Revisions::Diff { from, to, .. } => print(&compare(&policy, &found.items, *from, *to)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn fetch(session: &Session, policy: &PolicyRef) -> Result<(PolicyObject, Found<RevisionObject>), Error> {
    let policy: PolicyObject = session.backend.find(policy).await?;
    let revisions = session.backend.revisions(&policy).await?;
    Ok((policy, revisions))
}

fn kept<'a>(
    policy: &PolicyObject,
    revisions: &'a [RevisionObject],
    generation: i64,
) -> Result<&'a RevisionObject, Error> {
    let found = revisions.iter().find(|revision| revision.generation == generation);
    found.ok_or_else(|| no_revision(policy, revisions, generation))
}

fn no_revision(policy: &PolicyObject, revisions: &[RevisionObject], generation: i64) -> Error {
    let mut kept: Vec<_> = revisions.iter().map(|revision| revision.generation).collect();
    kept.sort_unstable();
    Error::NoRevision { policy: policy.id.clone(), generation, kept }
}

/// Returns the differences of the specs of two generations. The defaults are the live and the newest generation.
fn compare(
    policy: &PolicyObject,
    revisions: &[RevisionObject],
    from: Option<i64>,
    to: Option<i64>,
) -> Result<String, Error> {
    let spec = |generation: i64| {
        if generation == policy.generation {
            // The operator may not have created the revision yet.
            return Ok(newest_spec(policy, revisions));
        }
        kept(policy, revisions, generation).map(|revision| &revision.data)
    };
    let id = &policy.id;
    let Some(from) = from.or(policy.status.live_generation) else {
        return Err(Error::Usage(format!("{id} has no live generation to start from: name a generation")));
    };
    let to = to.unwrap_or(policy.generation);
    let difference = diff((&policy.name_of(from), spec(from)?), (&policy.name_of(to), spec(to)?))?;
    if !difference.is_empty() {
        return Ok(render::coloured(&difference));
    }
    Ok(if from == to {
        let kept: Vec<_> = revisions.iter().rev().map(|revision| revision.generation.to_string()).collect();
        format!("No differences: generation {from} is live and the newest. Kept generations: {}.\n", kept.join(", "))
    } else {
        format!("No differences between generation {from} and generation {to}.\n")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{active, failed, live, policy, revision, spec};
    use serde_json::Value;

    fn revisions() -> [RevisionObject; 2] {
        [revision(2, "team", true, &[]), revision(1, "owner", true, &live("True", 1))]
    }

    fn compared(policy: &PolicyObject, from: Option<i64>, to: Option<i64>) -> String {
        let text = compare(policy, &revisions(), from, to).unwrap();
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn by_default_the_live_generation_is_compared_with_the_newest() {
        let policy = policy(2, &failed(2, 1, "CompileError", ""));
        let text = compared(&policy, None, None);
        let heads = "--- ns.team.labels generation 1 (live)\n+++ ns.team.labels generation 2 (newest)\n";
        assert!(text.starts_with(heads) && text.contains("\n-  label: owner\n+  label: team\n"), "{text}");
        assert_eq!(
            compared(&policy, Some(2), Some(1)).lines().next(),
            Some("--- ns.team.labels generation 2 (newest)")
        );
    }

    #[test]
    fn a_generation_without_a_revision_is_the_policy_itself() {
        let mut policy = policy(3, &active(1));
        policy.spec = spec("name");
        assert!(compared(&policy, None, None).contains("+  label: name\n"));
    }

    #[test]
    fn equal_generations_have_a_message() {
        let text = compared(&policy(1, &active(1)), None, None);
        assert_eq!(text, "No differences: generation 1 is live and the newest. Kept generations: 1, 2.\n");
        assert_eq!(
            compared(&policy(5, &active(1)), Some(1), Some(5)),
            "No differences between generation 1 and generation 5.\n"
        );
    }

    #[test]
    fn a_generation_that_is_not_kept_cannot_be_compared() {
        let error = compare(&policy(2, &active(2)), &revisions(), Some(7), None).unwrap_err();
        assert_eq!(error.remedy("proviso").unwrap(), "Kept generations: 1, 2.");
        let error = compare(&policy(1, &Value::Null), &[], None, None).unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{error}");
    }
}
