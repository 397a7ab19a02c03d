//! The table of all experiments, with their problems below it.

use proviso_core::Divergence;

use super::experiment::{state_style, verdict_style};
use super::page::{omissions, paragraph};
use super::style::{BAD, DIM, PLAIN, WAITING, paint};
use super::table::{Cell, Table};
use super::text::width;
use super::view::View;
use crate::found::{CLUSTER_EXPERIMENTS, EXPERIMENTS};
use crate::report::{ExperimentOverview, ExperimentReport, VerdictCount, coverage, verdict_counts};

/// The number of columns with counts.
const VERDICTS: usize = Divergence::ALL.len();

/// Renders the table of the experiments. `place` is the place that was searched, such as `the namespace team`; `None` for all
/// namespaces.
#[must_use]
pub fn experiments(overview: &ExperimentOverview, place: Option<&str>, view: &View) -> String {
    let mut page = String::new();
    if overview.experiments.is_empty() {
        let line = empty_message(overview, place, view.program);
        page.push_str(&paragraph(&line, view.width, 0, "", PLAIN));
    } else {
        page.push_str(&table(&overview.experiments, view));
    }
    for experiment in &overview.experiments {
        let Some(problem) = &experiment.problem else { continue };
        let line = format!("{}: {}: {}", experiment.experiment, problem.reason, problem.message);
        page.push('\n');
        page.push_str(&paragraph(&line, view.width, 0, "  ", BAD));
        let more = format!("  More: {} experiment status {}\n", view.program, experiment.experiment);
        page.push_str(&paint(DIM, &more));
    }
    for experiment in &overview.experiments {
        for warning in experiment.warnings.iter().filter(|warning| warning.is_outdated()) {
            let line = format!("{}: {}", experiment.experiment, warning.message);
            page.push('\n');
            page.push_str(&paragraph(&line, view.width, 0, "  ", WAITING));
        }
    }
    if !overview.unseen.is_empty() {
        page.push('\n');
    }
    omissions(&mut page, &overview.unseen, view);
    page
}

/// Returns the message for an empty list. The message does not name a kind that the user may not read.
fn empty_message(overview: &ExperimentOverview, place: Option<&str>, program: &str) -> String {
    let is_seen = |what: &str| !overview.unseen.iter().any(|it| it.what == what);
    match place {
        Some(place) if !place.starts_with("the namespace") => format!("There is no experiment of {place}."),
        _ => {
            let mut kinds = Vec::new();
            if is_seen(CLUSTER_EXPERIMENTS) {
                kinds.push("no ClusterPolicyExperiment".to_owned());
            }
            if is_seen(EXPERIMENTS) {
                kinds.push(format!("no PolicyExperiment in {}", place.unwrap_or("any namespace")));
            }
            let more = place.map_or_else(String::new, |_| format!(" All namespaces: {program} experiment status -A"));
            format!("There is {}.{more}", kinds.join(", and "))
        }
    }
}

/// Renders the table. If the terminal is too narrow for all columns, the columns POLICY and SAME are left out.
fn table(experiments: &[ExperimentReport], view: &View) -> String {
    let page = columns(experiments, view, true);
    let widest = anstream::adapter::strip_str(&page).to_string().lines().map(width).max().unwrap_or_default();
    match view.width {
        Some(columns_of_terminal) if !view.is_wide && widest > columns_of_terminal => columns(experiments, view, false),
        _ => page,
    }
}

fn columns(experiments: &[ExperimentReport], view: &View, has_all_columns: bool) -> String {
    let mut header = vec!["EXPERIMENT", "POLICY", "STATE", "FOR", "EVALUATED"];
    // The counts are in the order of `verdict_counts`. A count that is 0 for all experiments has no column.
    header.extend(["SAME", "DENIED", "ALLOWED", "MUTATED", "MESSAGE", "DETAILS", "ERRORS", "COVERAGE", "READY"]);
    if view.is_wide {
        header.extend(["ETAG", "AGE", "SUMMARY"]);
    }
    let is_shown = |column: usize| {
        let count =
            |it: &ExperimentReport| it.divergence.as_ref().map_or(0, |counts| verdict_counts(counts)[column].count);
        match column {
            0 => has_all_columns,
            1 | 2 => true,
            _ => view.is_wide || experiments.iter().any(|experiment| count(experiment) > 0),
        }
    };
    let dropped = |it: &ExperimentReport| it.divergence.as_ref().is_some_and(|counts| counts.dropped > 0);
    let has_dropped = view.is_wide || experiments.iter().any(dropped);
    let has_replicas = view.is_wide || experiments.iter().any(|experiment| experiment.replicas.is_some());
    let shown: Vec<_> = (0..VERDICTS).map(is_shown).collect();
    let mut table = Table::new(&header);
    for experiment in experiments {
        let mut row = vec![
            experiment.experiment.as_str().into(),
            if has_all_columns { experiment.policy.name() } else { "" }.into(),
            Cell::new(experiment.state_label(), state_style(experiment.state)),
            view.age(experiment.since.as_ref().map(|time| time.0)).into(),
            experiment.divergence.as_ref().map_or_else(|| "-".to_owned(), |it| it.evaluated.to_string()).into(),
        ];
        row.extend((0..VERDICTS).map(|column| match &experiment.divergence {
            _ if !shown[column] => "".into(),
            None => "-".into(),
            Some(counts) => count(verdict_counts(counts)[column]),
        }));
        let coverage = experiment.divergence.as_ref().and_then(coverage).unwrap_or_else(|| "-".to_owned());
        row.push(if has_dropped { coverage } else { String::new() }.into());
        let ready = experiment.replicas.as_ref().map_or("-", |replicas| replicas.summary.as_str());
        row.push(if has_replicas { ready } else { "" }.into());
        if view.is_wide {
            row.push(experiment.etag.as_str().into());
            row.push(view.age(experiment.created.as_ref().map(|time| time.0)).into());
            row.push(experiment.summary.as_str().into());
        }
        table.row(row);
    }
    table.render(view.width)
}

fn count(verdict: VerdictCount) -> Cell {
    Cell::new(verdict.count.to_string(), verdict_style(verdict.name, verdict.count))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plain, view};
    use super::*;
    use crate::found::{Found, Omitted};
    use crate::objects::tests::{condition, experiment as object, previewing};
    use proviso_core::PolicyId;
    use serde_json::Value;

    #[test]
    fn the_table_has_no_column_for_a_count_that_is_zero() {
        let mut other = object(1, &Value::Null);
        other.id = PolicyId::cluster("other").unwrap();
        let items = vec![object(1, &previewing(1)), other];
        let overview = ExperimentOverview::new(&Found { items, unseen: Vec::new() }, None);
        let wanted = "\
EXPERIMENT        POLICY  STATE        FOR  EVALUATED  SAME  DENIED  ALLOWED  MESSAGE  ERRORS  COVERAGE  READY
cluster.other     labels  not started  -    -          -     -       -        -        -       -         -
ns.team.stricter  labels  ACTIVE       12m  1200       1187  10      0        2        1       99.5%     2/2
";
        assert_eq!(plain(&experiments(&overview, None, &view(140))), wanted);
        let wanted = "\
EXPERIMENT        STATE        FOR  EVALUATED  DENIED  ALLOWED  MESSAGE  ERRORS  COVERAGE  READY
cluster.other     not started  -    -          -       -        -        -       -         -
ns.team.stricter  ACTIVE       12m  1200       10      0        2        1       99.5%     2/2
";
        assert_eq!(plain(&experiments(&overview, None, &view(100))), wanted);
        let wide = View { is_wide: true, width: None, ..view(0) };
        let page = plain(&experiments(&overview, None, &wide));
        assert!(
            page.contains("  MUTATED  ") && page.contains("its verdict differs for 13 of 1200 requests\n"),
            "{page}"
        );
    }

    #[test]
    fn problems_are_below_the_table() {
        let mut failed = previewing(1);
        failed["conditions"][1] = condition("Initialized", "False", "CompileError", "undeclared reference", 1);
        let found = Found { items: vec![object(1, &failed)], unseen: Vec::new() };
        let page = plain(&experiments(&ExperimentOverview::new(&found, None), None, &view(140)));
        let wanted = "\nns.team.stricter: CompileError: undeclared reference\n  \
                      More: proviso experiment status ns.team.stricter\n";
        assert!(page.ends_with(wanted), "{page}");
    }

    #[test]
    fn outdated_counts_are_named_below_the_table() {
        let mut outdated = previewing(1);
        outdated["liveEtag"] = "\"0000000000000000\"".into();
        let found = Found { items: vec![object(1, &outdated)], unseen: Vec::new() };
        let page = plain(&experiments(&ExperimentOverview::new(&found, None), None, &view(200)));
        let wanted = "\nns.team.stricter: the counts are not about the version \"0000000000000000\" of ns.team.labels: \
                      they compare with \"bfcf0795c990c98d\"\n";
        assert!(page.ends_with(wanted), "{page}");
    }

    #[test]
    fn an_empty_list_has_a_message() {
        let mut overview = ExperimentOverview { experiments: Vec::new(), unseen: Vec::new() };
        let message = |overview: &_, place| plain(&experiments(overview, place, &view(140)));
        let wanted = "There is no ClusterPolicyExperiment, and no PolicyExperiment in the namespace team. \
                      All namespaces: proviso experiment status -A\n";
        assert_eq!(message(&overview, Some("the namespace team")), wanted);
        assert_eq!(message(&overview, Some("ns.team.labels")), "There is no experiment of ns.team.labels.\n");
        let forbidden = "you may not".to_owned();
        let what = CLUSTER_EXPERIMENTS.to_owned();
        overview.unseen.push(Omitted { what, reason: "Forbidden", message: forbidden });
        let page = message(&overview, None);
        assert!(page.starts_with("There is no PolicyExperiment in any namespace.\n\nNot shown: "), "{page}");
    }
}
