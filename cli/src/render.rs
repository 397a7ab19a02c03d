//! From reports to text for people: pure. Styles are always written; the stream leaves them out where there is no
//! terminal.

mod detail;
mod diff;
mod experiment;
mod experiments;
mod frame;
mod module;
mod overview;
mod revisions;
mod suite;
mod table;
mod text;
mod verdict;

use anstyle::{AnsiColor, Style};
use jiff::Timestamp;

pub use detail::detail;
pub use diff::coloured;
pub use experiment::{before_commit, experiment, live_experiment};
pub use experiments::experiments;
pub use frame::frame;
pub use module::module;
pub use overview::overview;
pub use revisions::{list, show};
pub use suite::{junit, suite, summary as suite_summary, tap};
pub use text::printable;
pub use verdict::verdict;

use crate::report::{NextStep, Unseen};
use table::{Cell, Table};
use text::{age, paragraph, width};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();
const WAITING: Style = AnsiColor::Yellow.on_default();
const PLAIN: Style = Style::new();

/// How, and when, something is looked at.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Of the terminal, in columns; none if it is none, and lines may be as long as they like.
    pub width: Option<usize>,
    pub now: Timestamp,
    /// More columns.
    pub is_wide: bool,
    /// The name by which a person calls this program.
    pub program: &'static str,
}

impl View {
    fn age(&self, since: Option<Timestamp>) -> String {
        since.map_or_else(|| "-".to_owned(), |since| age(self.now.duration_since(since)))
    }

    /// The end of every page: what may be missing.
    fn unseen(&self, page: &mut String, unseen: &[Unseen]) {
        for it in unseen {
            let line = match it.reason {
                "Forbidden" => format!("Not shown: {}: {}.", it.what, it.message),
                _ => format!("Not shown: {} cannot be understood: {}", it.what, it.message),
            };
            page.push_str(&paragraph(&line, self.width, 0, "  ", WAITING));
        }
    }
}

/// An error and its remedy, for a terminal of this width.
#[must_use]
pub fn complaint(error: &str, remedy: Option<&str>, columns: Option<usize>) -> String {
    let error = paragraph(error, columns, "error: ".len(), "  ", PLAIN);
    let remedy = remedy.map_or_else(String::new, |it| format!("  {}", paragraph(it, columns, 2, "  ", PLAIN)));
    format!("{} {error}{remedy}", paint(BAD, "error:"))
}

fn paint(style: Style, text: &str) -> String {
    format!("{style}{}{style:#}", printable(text))
}

fn heading(page: &mut String, text: &str) {
    page.push('\n');
    page.push_str(&paint(BOLD, text));
    page.push('\n');
}

/// Facts, one a line, in two columns.
fn facts(page: &mut String, view: &View, facts: &[(&str, String)]) {
    let widest = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    for (name, fact) in facts {
        let name = format!("{name:widest$}  ");
        page.push_str(&paint(DIM, &name));
        page.push_str(&paragraph(fact, view.width, name.len(), &" ".repeat(name.len()), PLAIN));
    }
}

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
    // On a line of its own and whole, to be copied.
    page.push_str(&paint(PLAIN, &format!("  {command}\n")));
}

/// Something that is not as a person may think.
#[must_use]
pub fn warning(text: &str, columns: Option<usize>) -> String {
    let text = paragraph(text, columns, "warning: ".len(), "  ", PLAIN);
    format!("{} {text}", paint(WAITING, "warning:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn view(width: usize) -> View {
        let now = crate::objects::tests::NOW.parse().unwrap();
        View { width: Some(width), now, is_wide: false, program: "proviso" }
    }

    /// The text without its styles.
    pub(super) fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn what_is_missing_is_said_in_one_line_each() {
        let mut page = String::new();
        let message = "you may not list policyrevisions.proviso.dev in the namespace proviso-system".to_owned();
        let unseen = Unseen { what: "the replicas one by one".to_owned(), reason: "Forbidden", message };
        view(200).unseen(&mut page, &[unseen]);
        assert_eq!(
            plain(&page),
            "Not shown: the replicas one by one: you may not list policyrevisions.proviso.dev in the namespace \
             proviso-system.\n"
        );
    }
}
