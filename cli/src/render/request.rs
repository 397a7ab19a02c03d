//! The outcome of a request to a service: the decision, the trail of the policies, and the explanation of a field.

use proviso_core::request::{Explanation, FieldPath, Relation, TrailEntry};

use super::diff::coloured;
use super::page::{heading, paragraph};
use super::style::{BAD, BOLD, DIM, GOOD, PLAIN, WAITING, paint};
use super::table::{Cell, Table};
use super::view::View;
use crate::report::request::RequestReport;

/// Renders the outcome of a request. `difference` is the diff of the payload. `field` is the field that is explained.
#[must_use]
pub fn request(report: &RequestReport<'_>, difference: &str, field: Option<&FieldPath>, view: &View) -> String {
    let style = match report.status {
        "APPROVED" | "MODIFIED" => GOOD,
        _ => BAD,
    };
    let mut page = paint(style, report.status);
    if let (Some(provider), None) = (report.service_provider, &report.message) {
        page.push_str(&paint(PLAIN, &format!("  service provider {provider}")));
    }
    page.push('\n');
    if let Some(message) = &report.message {
        page.push_str(&paragraph(message, view.width, 0, "  ", PLAIN));
    }
    page.push('\n');
    if report.trail.is_empty() {
        page.push_str(&paint(WAITING, "No policy covers the request.\n"));
    } else {
        page.push_str(&trail(report.trail, view));
    }
    if let (Some(explanation), Some(field)) = (&report.explanation, field) {
        explain(&mut page, explanation, field, view);
    }
    if !difference.is_empty() {
        page.push('\n');
        page.push_str(&coloured(difference));
    }
    page
}

fn trail(entries: &[TrailEntry], view: &View) -> String {
    let mut table = Table::new(&["LEVEL", "PRIORITY", "POLICY", "PROVIDER", "EFFECT"]);
    for entry in entries {
        table.row(vec![
            entry.level.as_str().into(),
            entry.priority.to_string().into(),
            Cell::new(entry.revision.policy.as_str(), BOLD),
            entry.provider.as_deref().unwrap_or_default().into(),
            effect(entry).into(),
        ]);
    }
    table.render(view.width)
}

/// Returns the effect of a policy in words.
fn effect(entry: &TrailEntry) -> String {
    let fields = |paths: Vec<&FieldPath>| paths.iter().map(|path| name(path)).collect::<Vec<_>>().join(", ");
    let mut parts = Vec::new();
    if entry.is_undefined {
        parts.push("its result is undefined".to_owned());
    }
    if !entry.patched.is_empty() {
        parts.push(format!("patches {}", fields(entry.patched.iter().collect())));
    }
    let (locked, constrained): (Vec<_>, Vec<_>) = entry.constrained.iter().partition(|it| it.is_lock);
    if !locked.is_empty() {
        parts.push(format!("locks {}", fields(locked.iter().map(|it| &it.field).collect())));
    }
    if !constrained.is_empty() {
        parts.push(format!("constrains {}", fields(constrained.iter().map(|it| &it.field).collect())));
    }
    if !entry.provider_constraints.is_empty() {
        parts.push("constrains the service provider".to_owned());
    }
    if parts.is_empty() { "-".to_owned() } else { parts.join("; ") }
}

fn explain(page: &mut String, explanation: &Explanation<'_>, field: &FieldPath, view: &View) {
    heading(page, &format!("The field {}", name(field)));
    let value = explanation.value.map_or_else(|| "does not exist".to_owned(), |value| format!("is {value}"));
    let set_by = match explanation.set_by {
        Some(entry) => format!("set by {}", policy(entry)),
        None if explanation.value.is_some() => "as the caller sent it".to_owned(),
        None => "the caller did not send it".to_owned(),
    };
    page.push_str(&paragraph(&format!("It {value}: {set_by}."), view.width, 0, "  ", PLAIN));
    for hold in &explanation.holds {
        let verb = if hold.is_lock { "locks" } else { "constrains" };
        let (subject, note) = match hold.relation {
            Relation::Field => ("it".to_owned(), ""),
            Relation::Parent => (format!("its parent {}", name(hold.field)), ""),
            Relation::Child => (
                format!("the field {} within it", name(hold.field)),
                ", so that it can be neither removed nor replaced",
            ),
        };
        let line = format!("{} {verb} {subject}{note}: {}", policy(hold.policy), hold.constraint);
        page.push_str("- ");
        page.push_str(&paragraph(&line, view.width, 2, "  ", PLAIN));
    }
    if explanation.holds.is_empty() {
        page.push_str(&paint(DIM, "No policy constrains it.\n"));
    }
}

fn policy(entry: &TrailEntry) -> String {
    format!("{} ({}, priority {})", entry.revision.policy, entry.level.as_str(), entry.priority)
}

/// Returns the name of a field; the path of all fields is empty.
fn name(path: &FieldPath) -> String {
    let name = path.to_string();
    if name.is_empty() { "(the whole payload)".to_owned() } else { name }
}
