//! Error messages and warnings.

use super::page::paragraph;
use super::style::{BAD, PLAIN, WAITING, paint};

/// Renders an error and its remedy, for a terminal of this width.
#[must_use]
pub fn error(error: &str, remedy: Option<&str>, columns: Option<usize>) -> String {
    let error = paragraph(error, columns, "error: ".len(), "  ", PLAIN);
    let remedy = remedy.map_or_else(String::new, |it| format!("  {}", paragraph(it, columns, 2, "  ", PLAIN)));
    format!("{} {error}{remedy}", paint(BAD, "error:"))
}

/// Renders a warning, for a terminal of this width.
#[must_use]
pub fn warning(text: &str, columns: Option<usize>) -> String {
    let text = paragraph(text, columns, "warning: ".len(), "  ", PLAIN);
    format!("{} {text}", paint(WAITING, "warning:"))
}
