//! The styles of text. A page always has styles; the output stream removes them if it is not a terminal.

use anstyle::{AnsiColor, Style};

use super::text::printable;

pub(super) const BOLD: Style = Style::new().bold();
pub(super) const DIM: Style = Style::new().dimmed();
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(super) const WAITING: Style = AnsiColor::Yellow.on_default();
pub(super) const PLAIN: Style = Style::new();

/// Returns a text in a style.
pub(super) fn paint(style: Style, text: &str) -> String {
    format!("{style}{}{style:#}", printable(text))
}
