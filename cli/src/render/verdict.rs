//! The verdict of a policy.

use super::diff::coloured;
use super::page::{facts, heading, paragraph};
use super::style::{BAD, BOLD, GOOD, PLAIN, WAITING, paint};
use super::view::View;
use crate::report::verdict::VerdictReport;

/// Renders the verdict of a policy. `difference` is the diff of a mutation.
#[must_use]
pub fn verdict(report: &VerdictReport, difference: &str, view: &View) -> String {
    let (word, style) = if report.allowed { ("allowed", GOOD) } else { ("denied", BAD) };
    let mut page = format!("{}  {}", paint(BOLD, &report.policy), paint(style, word));
    let mut details = Vec::new();
    if let Some(code) = report.code {
        details.push(code.to_string());
    }
    details.extend(report.reason.clone());
    if !details.is_empty() {
        page.push_str(&paint(PLAIN, &format!(" ({})", details.join(" "))));
    }
    page.push('\n');
    if let Some(reason) = &report.not_asked {
        page.push_str(&paragraph(&format!("not asked: {reason}"), view.width, 0, "  ", WAITING));
    }
    if let Some(message) = &report.message {
        page.push_str(&paragraph(message, view.width, 0, "  ", PLAIN));
    }
    for cause in &report.causes {
        page.push_str("- ");
        page.push_str(&paragraph(cause, view.width, 2, "  ", PLAIN));
    }
    if !report.warnings.is_empty() {
        heading(&mut page, "Warnings");
        for warning in &report.warnings {
            page.push_str("- ");
            page.push_str(&paragraph(warning, view.width, 2, "  ", WAITING));
        }
    }
    if !report.audit_annotations.is_empty() {
        heading(&mut page, "Audit annotations");
        let annotations: Vec<_> =
            report.audit_annotations.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
        facts(&mut page, view, &annotations);
    }
    if !difference.is_empty() {
        page.push('\n');
        page.push_str(&coloured(difference));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plain, view};
    use super::*;

    #[test]
    fn a_verdict_has_causes_warnings_and_annotations() {
        let mut report = VerdictReport {
            policy: "cluster.labels".to_owned(),
            allowed: false,
            not_asked: None,
            message: Some("no owner".to_owned()),
            code: Some(403),
            reason: Some("Forbidden".to_owned()),
            causes: vec!["label owner is missing".to_owned()],
            warnings: vec!["team is deprecated".to_owned()],
            audit_annotations: [("owner".to_owned(), "none".to_owned())].into(),
            patch: None,
        };
        let wanted = "\
cluster.labels  denied (403 Forbidden)
no owner
- label owner is missing

Warnings
- team is deprecated

Audit annotations
owner  none
";
        assert_eq!(plain(&verdict(&report, "", &view(80))), wanted);
        report = VerdictReport { policy: "a.rego".to_owned(), allowed: true, ..VerdictReport::default() };
        let page = plain(&verdict(&report, "--- a\n+++ b\n-x\n+y\n", &view(80)));
        assert_eq!(page, "a.rego  allowed\n\n--- a\n+++ b\n-x\n+y\n");
    }
}
