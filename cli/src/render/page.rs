//! The parts of a page: paragraphs, headings, facts, next steps and omissions.

use anstyle::Style;

use super::style::{BOLD, DIM, PLAIN, WAITING, paint};
use super::text::{width, wrap};
use super::view::View;
use crate::found::Omitted;
use crate::report::NextStep;

/// Breaks a text into lines of this width. The first line begins at column `used`, the others begin with `indent`.
pub(super) fn paragraph(text: &str, columns: Option<usize>, used: usize, indent: &str, style: Style) -> String {
    let columns = columns.unwrap_or(usize::MAX);
    let lines = wrap(text, columns.saturating_sub(used), columns.saturating_sub(indent.len()));
    let mut page = String::new();
    for (number, line) in lines.iter().enumerate() {
        if number > 0 {
            page.push_str(indent);
        }
        page.push_str(&paint(style, line));
        page.push('\n');
    }
    page
}

/// Adds a heading.
pub(super) fn heading(page: &mut String, text: &str) {
    page.push('\n');
    page.push_str(&paint(BOLD, text));
    page.push('\n');
}

/// Adds facts in two columns, one a line.
pub(super) fn facts(page: &mut String, view: &View, facts: &[(&str, String)]) {
    let widest = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    for (name, fact) in facts {
        let name = format!("{name:widest$}  ");
        page.push_str(&paint(DIM, &name));
        page.push_str(&paragraph(fact, view.width, name.len(), &" ".repeat(name.len()), PLAIN));
    }
}

/// Adds the steps that the user can do next, if there are any.
pub(super) fn next_steps(page: &mut String, steps: &[NextStep], view: &View) {
    if !steps.is_empty() {
        heading(page, "Next steps");
        for step in steps {
            next_step(page, step, view);
        }
    }
}

/// Adds a step that the user can do next.
fn next_step(page: &mut String, step: &NextStep, view: &View) {
    let Some(command) = &step.command else {
        page.push_str("- ");
        return page.push_str(&paragraph(&format!("{}.", step.what), view.width, 2, "  ", PLAIN));
    };
    let line = format!("- {}: {command}", step.what);
    if view.width.is_none_or(|columns| width(&line) <= columns) {
        return page.push_str(&paint(PLAIN, &(line + "\n")));
    }
    page.push_str("- ");
    page.push_str(&paragraph(&format!("{}:", step.what), view.width, 2, "  ", PLAIN));
    // The command has its own line and is not broken, so that the user can copy it.
    page.push_str(&paint(PLAIN, &format!("  {command}\n")));
}

/// Ends a page with the objects that it does not show.
pub(super) fn omissions(page: &mut String, unseen: &[Omitted], view: &View) {
    for it in unseen {
        let line = match it.reason {
            "Forbidden" => format!("Not shown: {}: {}.", it.what, it.message),
            _ => format!("Not shown: {} is invalid: {}", it.what, it.message),
        };
        page.push_str(&paragraph(&line, view.width, 0, "  ", WAITING));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::tests::{plain, view};

    #[test]
    fn each_omission_is_a_line() {
        let mut page = String::new();
        let message = "you may not list policyrevisions.proviso.dev in the namespace proviso-system".to_owned();
        let unseen = Omitted { what: "the status of each replica".to_owned(), reason: "Forbidden", message };
        omissions(&mut page, &[unseen], &view(200));
        assert_eq!(
            plain(&page),
            "Not shown: the status of each replica: you may not list policyrevisions.proviso.dev in the namespace \
             proviso-system.\n"
        );
    }
}
