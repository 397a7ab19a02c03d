//! The terminal and the time that a page is written for.

use jiff::Timestamp;

use super::text::age;

/// The terminal and the time that a page is written for.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// The width of the terminal in columns; `None` if the output is not a terminal, and lines may have any length.
    pub width: Option<usize>,
    pub now: Timestamp,
    /// True if tables have more columns (`-o wide`).
    pub is_wide: bool,
    /// The name by which the user calls this program.
    pub program: &'static str,
}

impl View {
    /// Returns the age since a time; `-` if the time is unknown.
    pub(super) fn age(&self, since: Option<Timestamp>) -> String {
        since.map_or_else(|| "-".to_owned(), |since| age(self.now.duration_since(since)))
    }

    /// Returns the time that is left until a time, in the format of ages.
    pub(super) fn left(&self, until: Timestamp) -> String {
        age(until.duration_since(self.now))
    }
}
