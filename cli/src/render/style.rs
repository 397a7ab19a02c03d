//! Styles of text. They are always written; the output stream leaves them out if there is no terminal.

use anstyle::{AnsiColor, Style};

use super::text::printable;

pub(super) const BOLD: Style = Style::new().bold();
pub(super) const DIM: Style = Style::new().dimmed();
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(super) const WAITING: Style = AnsiColor::Yellow.on_default();
pub(super) const PLAIN: Style = Style::new();

/// Writes a text in a style.
pub(super) fn paint(style: Style, text: &str) -> String {
    format!("{style}{}{style:#}", printable(text))
}
