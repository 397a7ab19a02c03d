//! Helpers for the tests of pages.

use super::*;

/// Returns a view of a terminal of this width.
pub(super) fn view(width: usize) -> View {
    let now = crate::objects::tests::NOW.parse().unwrap();
    View { width: Some(width), now, is_wide: false, program: "proviso" }
}

/// Removes the styles of a text.
pub(super) fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}
