//! The table of subscriptions, and the page of one subscription.

use anstyle::Style;
use proviso_crds::{LastUpdate, MAX_PENDING};

use super::diff::coloured;
use super::page::{facts, heading, next_steps, omissions, paragraph};
use super::style::{BAD, BOLD, DIM, GOOD, PLAIN, WAITING, paint};
use super::table::{Cell, Table};
use super::view::View;
use crate::report::{
    DeliveryState, ItemReport, ItemState, PolicyBodies, SubscriptionDetail, SubscriptionOverview, SubscriptionReport,
};

/// Renders the table of subscriptions. `namespace` is the namespace that was searched; `None` for all namespaces.
#[must_use]
pub fn subscriptions(overview: &SubscriptionOverview, namespace: Option<&str>, view: &View) -> String {
    let mut page = String::new();
    if overview.subscriptions.is_empty() {
        let line = match namespace {
            Some(namespace) => format!(
                "There is no PolicySubscription in the namespace {namespace}. All namespaces: {} subscriptions list -A",
                view.program
            ),
            None => "There is no PolicySubscription in any namespace.".to_owned(),
        };
        page.push_str(&paragraph(&line, view.width, 0, "", PLAIN));
    } else {
        page.push_str(&table(&overview.subscriptions, view));
    }
    for report in &overview.subscriptions {
        let Some(problem) = &report.problem else { continue };
        page.push('\n');
        let line = format!("{}/{}: {}", report.namespace, report.name, report.summary);
        page.push_str(&paragraph(&line, view.width, 0, "", BOLD));
        page.push_str("  ");
        let line = format!("{}: {}", problem.reason, problem.message);
        page.push_str(&paragraph(&line, view.width, 2, "  ", BAD));
        let (program, name, namespace) = (view.program, &report.name, &report.namespace);
        page.push_str(&paint(DIM, &format!("  More: {program} subscriptions status {name} -n {namespace}\n")));
    }
    if !overview.unseen.is_empty() {
        page.push('\n');
    }
    omissions(&mut page, &overview.unseen, view);
    page
}

fn table(reports: &[SubscriptionReport], view: &View) -> String {
    let mut header = vec!["SUBSCRIPTION", "COMPONENT", "POLICIES", "STATE", "UPDATED", "AGE"];
    if view.is_wide {
        header.extend(["SCN", "CONFIGMAP", "NOTIFY", "SUMMARY"]);
    }
    let mut table = Table::new(&header);
    for report in reports {
        let mut row: Vec<Cell> = vec![
            format!("{}/{}", report.namespace, report.name).into(),
            // A component outside of Kubernetes has only its service component name.
            report.component.as_ref().unwrap_or(&report.scn).as_str().into(),
            report.policies.as_deref().unwrap_or("-").into(),
            Cell::new(format!("{:?}", report.state), state_style(report.state)),
            view.age(report.last_update.as_ref().map(|update| update.time.0)).into(),
            view.age(report.created.as_ref().map(|time| time.0)).into(),
        ];
        if view.is_wide {
            let notify = report.notify.unwrap_or("-");
            row.extend([report.scn.as_str(), &report.config_map, notify, &report.summary].map(Cell::from));
        }
        table.row(row);
    }
    table.render(view.width)
}

/// Renders the page of one subscription.
#[must_use]
pub fn subscription(detail: &SubscriptionDetail, view: &View) -> String {
    let report = &detail.subscription;
    let mut page = paint(BOLD, &format!("{}/{}", report.namespace, report.name));
    page.push_str("  ");
    page.push_str(&paint(state_style(report.state), &format!("{:?}", report.state)));
    page.push('\n');
    page.push_str(&paragraph(&report.summary, view.width, 0, "", PLAIN));
    page.push('\n');
    facts(&mut page, view, &about(report, view));
    if let Some(problem) = &report.problem {
        heading(&mut page, "Problem");
        let line = format!("{}: {}", problem.reason, problem.message);
        page.push_str(&paragraph(&line, view.width, 0, "", state_style(report.state)));
    }
    if !detail.items.is_empty() {
        heading(&mut page, "Policies");
        page.push_str(&items(&detail.items, view));
    }
    if detail.is_truncated {
        let line = format!("The status has only the first {MAX_PENDING} changes that the component does not have yet.");
        page.push_str(&paragraph(&line, view.width, 0, "", WAITING));
    }
    if let Some(bodies) = &detail.bodies {
        heading(&mut page, "Differences");
        if bodies.is_empty() {
            page.push_str("None.\n");
        }
        for bodies in bodies {
            difference(&mut page, bodies, view);
        }
    }
    next_steps(&mut page, &detail.next_steps, view);
    if !detail.unseen.is_empty() {
        page.push('\n');
    }
    omissions(&mut page, &detail.unseen, view);
    page
}

fn about(report: &SubscriptionReport, view: &View) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    facts.extend(report.component.clone().map(|component| ("Component", component)));
    facts.push(("SCN", report.scn.clone()));
    facts.push(("ConfigMap", report.config_map.clone()));
    facts.push(("Notify", report.notify.unwrap_or("none: the component reads its ConfigMap").to_owned()));
    facts.extend(report.policies.clone().map(|policies| ("Policies", policies)));
    facts.extend(report.last_update.as_ref().map(|update| ("Last update", last_update(update, view))));
    facts
}

fn last_update(update: &LastUpdate, view: &View) -> String {
    let result = update.result.map_or_else(|| "in flight".to_owned(), |result| format!("{result:?}"));
    let message = update.message.as_ref().map_or_else(String::new, |message| format!(": {message}"));
    format!("{} ago, {result}{message}", view.age(Some(update.time.0)))
}

fn items(items: &[ItemReport], view: &View) -> String {
    let mut table = Table::new(&["POLICY", "HAS", "SHOULD HAVE", "STATE", "MESSAGE"]);
    for item in items {
        table.row(vec![
            item.policy.as_str().into(),
            item.has.as_deref().unwrap_or("-").into(),
            item.should.as_deref().unwrap_or("-").into(),
            Cell::new(format!("{:?}", item.state), item_style(item.state)),
            item.message.as_deref().unwrap_or_default().into(),
        ]);
    }
    table.render(view.width)
}

fn difference(page: &mut String, bodies: &PolicyBodies, view: &View) {
    for cause in &bodies.unknown {
        page.push_str(&paragraph(&format!("{}: {cause}", bodies.policy), view.width, 0, "  ", WAITING));
    }
    page.push_str(&coloured(&bodies.diff));
}

fn state_style(state: DeliveryState) -> Style {
    match state {
        DeliveryState::Delivered => GOOD,
        DeliveryState::Pending => WAITING,
        DeliveryState::Rejected | DeliveryState::Failed => BAD,
    }
}

fn item_style(state: ItemState) -> Style {
    match state {
        ItemState::Current => GOOD,
        ItemState::Pending | ItemState::Unconfirmed => WAITING,
        ItemState::Rejected => BAD,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plain, view};
    use super::*;
    use crate::found::Found;
    use crate::objects::tests::subscription as object;
    use serde_json::{Value, json};

    fn rejected() -> Value {
        let (old, new) = (format!("sha256:{}", "0".repeat(64)), format!("sha256:{}", "1".repeat(64)));
        json!({
            "observedGeneration": 1, "summary": "1/2",
            "conditions": [{
                "type": "Delivered", "status": "False", "reason": "Rejected", "message": "m",
                "lastTransitionTime": "2026-11-21T09:30:00Z",
            }],
            "policies": [
                {"id": "cluster.log-level", "version": "1", "digest": old},
                {"id": "cluster.memory", "version": "3", "digest": old},
            ],
            "pending": [{"id": "cluster.memory", "version": "4"}],
            "rejected": [{"id": "cluster.memory", "version": "4", "digest": new, "message": "exit code 3: too much"}],
            "lastUpdate": {
                "id": "u", "time": "2026-11-21T09:59:00Z", "result": "Rejected", "message": "exit code 3: too much",
            },
        })
    }

    #[test]
    fn a_rejection_is_below_the_table() {
        let overview = SubscriptionOverview::new(Found { items: vec![object(1, &rejected())], unseen: Vec::new() });
        let wanted = "\
SUBSCRIPTION    COMPONENT             POLICIES  STATE     UPDATED  AGE
team/collector  Deployment/collector  1/2       Rejected  60s      12d

team/collector: the component keeps its last good policies (1/2)
  Rejected: cluster.memory version 4: exit code 3: too much
  More: proviso subscriptions status collector -n team
";
        assert_eq!(plain(&subscriptions(&overview, Some("team"), &view(80))), wanted);
        let wide = plain(&subscriptions(&overview, None, &View { is_wide: true, ..view(200) }));
        assert!(wide.contains("team.collector  collector-policies  exec    the component keeps"), "{wide}");
        let nothing = SubscriptionOverview { subscriptions: Vec::new(), unseen: Vec::new() };
        assert_eq!(
            plain(&subscriptions(&nothing, Some("team"), &view(200))),
            "There is no PolicySubscription in the namespace team. All namespaces: proviso subscriptions list -A\n"
        );
    }

    #[test]
    fn the_page_of_a_subscription_has_each_policy_and_the_differences() {
        let object = object(1, &rejected());
        let items = ItemReport::list(&object);
        let bodies = PolicyBodies {
            policy: "cluster.memory".to_owned(),
            has: None,
            should: None,
            unknown: Vec::new(),
            diff: "--- a\n+++ b\n@@ -1 +1 @@\n-min: 1\n+min: 2\n".to_owned(),
        };
        let detail = SubscriptionDetail::new(&object, items, Some(vec![bodies]), Vec::new(), "proviso");
        let wanted = "\
team/collector  Rejected
the component keeps its last good policies (1/2)

Component    Deployment/collector
SCN          team.collector
ConfigMap    collector-policies
Notify       exec
Policies     1/2
Last update  60s ago, Rejected: exit code 3: too much

Problem
Rejected: cluster.memory version 4: exit code 3: too much

Policies
POLICY             HAS  SHOULD HAVE  STATE     MESSAGE
cluster.log-level  1    1            Current
cluster.memory     3    4            Rejected  exit code 3: too much

Differences
--- a
+++ b
@@ -1 +1 @@
-min: 1
+min: 2

Next steps
- Compare the bodies: proviso subscriptions status collector -n team --diff
- Undo the change: proviso rollback cluster.memory
- Send the policies again: proviso subscriptions resend collector -n team
";
        assert_eq!(plain(&subscription(&detail, &view(100))), wanted);
    }
}
