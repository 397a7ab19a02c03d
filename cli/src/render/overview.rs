//! The table of all policies, with their problems below it.

use anstyle::Style;
use proviso_crds::PolicyPhase;

use super::page::{omissions, paragraph};
use super::style::{BAD, BOLD, DIM, GOOD, PLAIN, WAITING, paint};
use super::table::{Cell, Table};
use super::view::View;
use crate::found::{CLUSTER_POLICIES, POLICIES};
use crate::report::{Overview, PolicyReport};

/// Renders the table of the policies. `of_all_namespaces` and `namespace` are the place that was searched.
#[must_use]
pub fn overview(overview: &Overview, of_all_namespaces: bool, namespace: &str, view: &View) -> String {
    let mut page = String::new();
    if overview.policies.is_empty() {
        let is_seen = |what: &str| !overview.unseen.iter().any(|it| it.what == what);
        let mut kinds = Vec::new();
        if is_seen(CLUSTER_POLICIES) {
            kinds.push("no ClusterPolicy".to_owned());
        }
        if is_seen(POLICIES) {
            let place =
                if of_all_namespaces { "any namespace".to_owned() } else { format!("the namespace {namespace}") };
            kinds.push(format!("no Policy in {place}"));
        }
        let more =
            if of_all_namespaces { String::new() } else { format!(" All namespaces: {} status -A", view.program) };
        let line = format!("There is {}.{more}", kinds.join(", and "));
        page.push_str(&paragraph(&line, view.width, 0, "", PLAIN));
    } else {
        page.push_str(&table(&overview.policies, view));
    }
    for policy in overview.policies.iter().filter(|policy| policy.problem.is_some()) {
        page.push('\n');
        problem(&mut page, policy, view);
    }
    if !overview.unseen.is_empty() {
        page.push('\n');
    }
    omissions(&mut page, &overview.unseen, view);
    page
}

fn table(policies: &[PolicyReport], view: &View) -> String {
    let mut header = vec!["POLICY", "PHASE", "LIVE", "NEWEST", "MODE", "READY", "AGE"];
    if view.is_wide {
        header.extend(["SERVER", "SUMMARY"]);
    }
    let mut table = Table::new(&header);
    for policy in policies {
        let mut row: Vec<Cell> = vec![
            // The id has the namespace, and other commands accept it.
            policy.policy.as_str().into(),
            phase(policy.phase),
            number(policy.live_generation),
            policy.generation.to_string().into(),
            policy.mode.map_or_else(|| "-".to_owned(), |mode| format!("{mode:?}")).into(),
            policy.replicas.as_ref().map_or("-", |replicas| replicas.summary.as_str()).into(),
            view.age(policy.created.as_ref().map(|time| time.0)).into(),
        ];
        if view.is_wide {
            row.push(policy.policy_server.as_deref().unwrap_or("-").into());
            row.push(policy.summary.as_str().into());
        }
        table.row(row);
    }
    table.render(view.width)
}

fn problem(page: &mut String, policy: &PolicyReport, view: &View) {
    let Some(problem) = &policy.problem else { return };
    let line = format!("{}: {}", policy.policy, policy.summary);
    page.push_str(&paragraph(&line, view.width, 0, "", BOLD));
    let line = format!("{}: {}", problem.reason, problem.message);
    page.push_str("  ");
    page.push_str(&paragraph(&line, view.width, 2, "  ", problem_style(policy.phase)));
    let line = format!("  More: {} status {}\n", view.program, policy.policy);
    page.push_str(&paint(DIM, &line));
}

fn number(generation: Option<i64>) -> Cell {
    generation.map_or_else(|| "-".to_owned(), |generation| generation.to_string()).into()
}

fn problem_style(phase: PolicyPhase) -> Style {
    if phase == PolicyPhase::Failed { BAD } else { WAITING }
}

pub(super) fn phase(phase: PolicyPhase) -> Cell {
    Cell::new(format!("{phase:?}"), phase_style(phase))
}

pub(super) fn phase_style(phase: PolicyPhase) -> Style {
    match phase {
        PolicyPhase::Active => GOOD,
        PolicyPhase::Failed => BAD,
        PolicyPhase::Pending | PolicyPhase::Updating => WAITING,
        PolicyPhase::Disabled => DIM,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plain, view};
    use super::*;
    use crate::found::{Found, Omitted};
    use crate::objects::tests::{active, failed, policy};
    use proviso_core::PolicyId;

    fn two_policies() -> Overview {
        let mut cluster = policy(4, &active(4));
        cluster.id = PolicyId::cluster("trusted-registries").unwrap();
        let message = "spec.program.cel.validations[0].expression: undeclared reference to 'parms'";
        let items = vec![policy(8, &failed(8, 7, "CompileError", message)), cluster];
        Overview::new(Found { items, unseen: Vec::new() })
    }

    #[test]
    fn problems_are_below_the_table() {
        let wanted = "\
POLICY                      PHASE   LIVE  NEWEST  MODE     READY  AGE
cluster.trusted-registries  Active  4     4       Protect  2/2    12d
ns.team.labels              Failed  7     8       Protect  0/2    12d

ns.team.labels: generation 8 does not work; generation 7 goes on answering
  CompileError: spec.program.cel.validations[0].expression: undeclared reference
  to 'parms'
  More: proviso status ns.team.labels
";
        assert_eq!(plain(&overview(&two_policies(), false, "team", &view(80))), wanted);
    }

    #[test]
    fn wide_output_has_a_summary_of_each_policy() {
        let page = plain(&overview(&two_policies(), true, "team", &View { is_wide: true, ..view(140) }));
        assert!(page.contains("12d  default  generation 4 answers requests\n"), "{page}");
    }

    #[test]
    fn an_empty_list_has_a_message() {
        let mut nothing = Overview { policies: Vec::new(), unseen: Vec::new() };
        assert_eq!(
            plain(&overview(&nothing, false, "team", &view(140))),
            "There is no ClusterPolicy, and no Policy in the namespace team. All namespaces: proviso status -A\n"
        );
        // The message does not name a kind that the user may not read.
        let message = "you may not list clusterpolicies.proviso.dev".to_owned();
        nothing.unseen.push(Omitted { what: CLUSTER_POLICIES.to_owned(), reason: "Forbidden", message });
        let page = plain(&overview(&nothing, true, "team", &view(140)));
        assert!(page.starts_with("There is no Policy in any namespace.\n\nNot shown: ClusterPolicies: "), "{page}");
    }
}
