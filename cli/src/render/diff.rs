//! The colours of a unified diff.

use anstyle::{AnsiColor, Style};

use super::style::{BOLD, DIM, PLAIN, paint};

const ADDED: Style = AnsiColor::Green.on_default();
const REMOVED: Style = AnsiColor::Red.on_default();

/// Colours a unified diff. The first two lines are the headers.
#[must_use]
pub fn coloured(diff: &str) -> String {
    let style = |number: usize, line: &str| match line.as_bytes().first() {
        _ if number < 2 => BOLD,
        Some(b'+') => ADDED,
        Some(b'-') => REMOVED,
        Some(b'@') => DIM,
        _ => PLAIN,
    };
    diff.lines().enumerate().map(|(number, line)| paint(style(number, line), line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_do_not_change_the_text_of_a_diff() {
        let diff = "--- a\n+++ b\n@@ -1,2 +1,2 @@\n same\n-old\n+new\n";
        let coloured = coloured(diff);
        assert_eq!(anstream::adapter::strip_str(&coloured).to_string(), diff);
        assert!(coloured.contains("\u{1b}[31m-old\u{1b}[0m\n\u{1b}[32m+new\u{1b}[0m\n"), "{coloured:?}");
    }
}
