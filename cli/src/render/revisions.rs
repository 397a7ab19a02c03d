//! The table of the revisions of a policy, and the page about one revision.

use anstyle::Style;
use jiff::Timestamp;

use super::detail::replica_table;
use super::page::{facts, heading, omissions, paragraph};
use super::style::{BAD, BOLD, DIM, GOOD, PLAIN, WAITING, paint};
use super::table::{Cell, Table};
use super::text::printable;
use super::view::View;
use crate::found::Omitted;
use crate::objects::PolicyObject;
use crate::report::{RevisionReport, RevisionState, ShownRevision};

/// The largest number of changed fields in the table, unless the table is wide.
const MAX_CHANGES: usize = 3;

#[must_use]
pub fn list(policy: &PolicyObject, revisions: &[RevisionReport], unseen: &[Omitted], view: &View) -> String {
    let mut page = String::new();
    if revisions.first().is_none_or(|newest| newest.generation < policy.generation) {
        let line = format!("Generation {} has no revision yet: the operator creates it.", policy.generation);
        page.push_str(&paragraph(&line, view.width, 0, "", WAITING));
    }
    let mut header = vec!["GENERATION", "STATE", "FOR", "READY", "AGE"];
    if view.is_wide {
        header.extend(["LOADED", "SERVER", "REVISION"]);
    }
    header.push("CHANGED");
    if view.is_wide {
        header.push("PROBLEM");
    }
    let mut table = Table::new(&header);
    for revision in revisions {
        let mut row = vec![
            revision.generation.to_string().into(),
            Cell::new(state(revision), state_style(revision.state)),
            view.age(revision.since.as_ref().map(|time| time.0)).into(),
            match revision.ready() {
                (_, 0) => "-".to_owned(),
                (ready, total) => format!("{ready}/{total}"),
            }
            .into(),
            view.age(revision.created.as_ref().map(|time| time.0)).into(),
        ];
        if view.is_wide {
            row.push(if revision.loaded { "yes" } else { "no" }.into());
            row.push(revision.policy_server.as_deref().unwrap_or("-").into());
            row.push(revision.name.as_str().into());
        }
        row.push(changed(revision, view.is_wide).into());
        if view.is_wide {
            row.push(revision.problem.as_ref().map_or("", |problem| problem.message.as_str()).into());
        }
        table.row(row);
    }
    page.push_str(&table.render(view.width));
    omissions(&mut page, unseen, view);
    page
}

/// Renders the page about a revision. `yaml` is its spec.
#[must_use]
pub fn show(policy: &PolicyObject, shown: &ShownRevision, yaml: &str, view: &View) -> String {
    let revision = &shown.revision;
    let mut page = format!("{}  ", paint(BOLD, &format!("{} generation {}", policy.id, revision.generation)));
    page.push_str(&paint(state_style(revision.state), &format!("{:?}", revision.state)));
    page.push('\n');
    if let Some(problem) = &revision.problem {
        page.push_str(&paragraph(&format!("{}: {}", problem.reason, problem.message), view.width, 0, "", BAD));
    }
    page.push('\n');
    let time = |time: Option<Timestamp>| match time {
        Some(time) => format!("{time} ({} ago)", view.age(Some(time))),
        None => "-".to_owned(),
    };
    let mut rows = vec![("Revision", revision.name.clone())];
    // No replica loads a policy that configures components.
    if let Some(server) = &revision.policy_server {
        rows.push(("Server", server.clone()));
        rows.push(("Loaded", if revision.loaded { "yes" } else { "no" }.to_owned()));
    }
    rows.push(("Created", time(revision.created.as_ref().map(|time| time.0))));
    if let Some(since) = &revision.since {
        let name = if revision.state == RevisionState::Live { "Live since" } else { "Live until" };
        rows.push((name, time(Some(since.0))));
    }
    rows.extend(revision.modules.iter().map(|module| ("Module", format!("{} {}", module.module, module.digest))));
    facts(&mut page, view, &rows);
    if revision.loaded && revision.policy_server.is_some() {
        heading(&mut page, "Replicas");
        let shown = revision.problem.as_ref().map(|problem| problem.message.as_str());
        page.push_str(&replica_table(&revision.replicas, shown, view));
    }
    heading(&mut page, "Spec");
    page.push_str(&printable(yaml));
    page
}

fn state(revision: &RevisionReport) -> String {
    match (&revision.problem, revision.state) {
        (Some(problem), RevisionState::Failed) => format!("Failed ({})", problem.reason),
        (_, state) => format!("{state:?}"),
    }
}

fn state_style(state: RevisionState) -> Style {
    match state {
        RevisionState::Live => GOOD,
        RevisionState::Failed => BAD,
        RevisionState::RollingOut => WAITING,
        RevisionState::Retiring => PLAIN,
        RevisionState::Replaced | RevisionState::NeverLive | RevisionState::Disabled => DIM,
    }
}

fn changed(revision: &RevisionReport, is_wide: bool) -> String {
    let Some(changes) = &revision.changes else { return "(oldest kept)".to_owned() };
    if changes.is_empty() {
        return "nothing".to_owned();
    }
    let shown = if is_wide { changes.len() } else { changes.len().min(MAX_CHANGES) };
    let more = changes.len() - shown;
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", changes[..shown].join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plain, view};
    use super::*;
    use crate::objects::RevisionObject;
    use crate::objects::tests::{active, condition, live, policy, revision, with_replica};
    use crate::report;
    use proviso_crds::{ConditionStatus, ModuleStatus};

    fn revisions() -> Vec<RevisionObject> {
        let newest = revision(4, "team", true, &[condition("Initialized", "True", "Prepared", "", 4)]);
        let newest = with_replica(newest, "server-0", ConditionStatus::False, "CacheError", "no space left");
        let serving =
            with_replica(revision(3, "owner", true, &live("True", 3)), "server-0", ConditionStatus::True, "Loaded", "");
        let failed = revision(2, "owner", false, &[condition("Initialized", "False", "CompileError", "no", 2)]);
        vec![newest, serving, failed, revision(1, "name", false, &live("False", 1))]
    }

    #[test]
    fn the_table_shows_the_state_of_each_revision() {
        let policy = policy(5, &active(3));
        let wanted = "\
Generation 5 has no revision yet: the operator creates it.
GENERATION  STATE                  FOR  READY  AGE  CHANGED
4           Failed (CacheError)    -    0/1    40m  settings.label
3           Live                   40m  1/1    40m  nothing
2           Failed (CompileError)  -    -      40m  settings.label
1           Replaced               40m  -      40m  (oldest kept)
";
        let reports = report::list(&policy, &revisions());
        assert_eq!(plain(&list(&policy, &reports, &[], &view(80))), wanted);
    }

    #[test]
    fn the_page_of_a_revision_shows_spec_and_module() {
        let policy = policy(4, &active(3));
        let mut revision = revisions().swap_remove(1);
        let module = ModuleStatus { module: "registry://r/p:v1".to_owned(), digest: "sha256:00".to_owned() };
        revision.status.modules.push(module);
        let report = report::list(&policy, std::slice::from_ref(&revision)).swap_remove(0);
        let shown = ShownRevision { revision: report, spec: revision.data };
        let wanted = "\
ns.team.labels generation 3  Live

Revision    ns.team.labels-3
Server      default
Loaded      yes
Created     2026-11-21T09:20:00Z (40m ago)
Live since  2026-11-21T09:20:00Z (40m ago)
Module      registry://r/p:v1 sha256:00

Replicas
POD       READY  FOR  VERSION  REASON
server-0  True   30m  0.1.0    Loaded

Spec
enabled: true
";
        assert_eq!(plain(&show(&policy, &shown, "enabled: true\n", &view(80))), wanted);
    }
}
