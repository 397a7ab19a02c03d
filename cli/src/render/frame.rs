//! Draws a page over the previous page. Each line is written over the old line, and only the rest of the line is erased, all
//! in one write, so that the screen does not flicker. A page always begins at the first line of the screen, because terminals
//! move older lines in different ways when their size changes.

use unicode_width::UnicodeWidthChar as _;

const HOME: &str = "\x1b[H";
const ERASE_LINE: &str = "\x1b[K";
const ERASE_BELOW: &str = "\x1b[J";
/// The begin of a synchronized update: the terminal shows the new content only at its end. Terminals that do not support it
/// ignore it.
const BEGIN: &str = "\x1b[?2026h";
const END: &str = "\x1b[?2026l";
const PLAIN: &str = "\x1b[0m";

/// Returns the bytes that make a terminal of this size show the page and nothing else. The cursor ends below the page.
#[must_use]
pub fn frame(page: &str, columns: usize, rows: usize) -> String {
    // The last row is for the cursor.
    let max_lines = rows.saturating_sub(1).max(1);
    let lines: Vec<_> = page.lines().collect();
    let mut frame = format!("{BEGIN}{HOME}");
    let mut line = |text: &str| {
        frame.push_str(&cut(text, columns));
        frame.push_str(ERASE_LINE);
        frame.push_str("\r\n");
    };
    let shown = if lines.len() <= max_lines { lines.len() } else { max_lines - 1 };
    for text in &lines[..shown] {
        line(text);
    }
    if shown < lines.len() {
        line(&format!("… {} more lines", lines.len() - shown));
    }
    frame.push_str(ERASE_BELOW);
    frame.push_str(END);
    frame
}

/// Cuts a line to this width. Styles have no width.
fn cut(line: &str, columns: usize) -> String {
    let mut text = String::new();
    let (mut used, mut is_style) = (0, false);
    for c in line.chars() {
        if is_style {
            text.push(c);
            is_style = !c.is_ascii_alphabetic();
            continue;
        }
        if c == '\x1b' {
            text.push(c);
            is_style = true;
            continue;
        }
        let width = c.width().unwrap_or_default();
        if used + width > columns {
            text.push_str(PLAIN);
            return text;
        }
        used += width;
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines on a terminal after a frame, without styles. `before` are the lines before it.
    fn shown(before: &[&str], frame: &str) -> Vec<String> {
        let mut screen: Vec<String> = before.iter().map(ToString::to_string).collect();
        let mut at = 0;
        let body = frame.strip_prefix(&format!("{BEGIN}{HOME}")).unwrap().strip_suffix(END).unwrap();
        for part in body.split("\r\n") {
            if let Some(text) = part.strip_suffix(ERASE_LINE) {
                screen.resize(screen.len().max(at + 1), String::new());
                screen[at] = anstream::adapter::strip_str(text).to_string();
                at += 1;
            } else {
                assert_eq!(part, ERASE_BELOW);
                screen.truncate(at);
            }
        }
        screen
    }

    #[test]
    fn a_page_replaces_the_one_before_it() {
        let old = ["a longer line", "second", "third", "fourth"];
        assert_eq!(shown(&old, &frame("one\ntwo\n", 80, 24)), ["one", "two"]);
    }

    #[test]
    fn a_page_that_is_too_large_is_cut() {
        let page = "1\n2\n3\n4\n5\n";
        assert_eq!(shown(&[], &frame(page, 80, 6)), ["1", "2", "3", "4", "5"]);
        assert_eq!(shown(&[], &frame(page, 80, 4)), ["1", "2", "… 3 more lines"]);
        assert_eq!(shown(&[], &frame("abcdef\n日本語\n", 5, 6)), ["abcde", "日本"]);
        assert_eq!(shown(&[], &frame(page, 80, 0)), ["… 5 more lines"], "a terminal without a size");
    }

    #[test]
    fn styles_have_no_width_and_end_with_the_line() {
        assert_eq!(cut("\x1b[31mred\x1b[0m", 3), "\x1b[31mred\x1b[0m");
        assert_eq!(cut("\x1b[31mred\x1b[0m", 2), "\x1b[31mre\x1b[0m");
    }
}
