//! The width and the lines of text without styles, and the format of ages.

use std::borrow::Cow;

use jiff::SignedDuration;
use unicode_width::UnicodeWidthStr as _;

/// Returns the number of columns of a text on a terminal.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

/// Replaces control characters, which could control the terminal: messages come from the authors of policies.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_unsafe = |c: char| c.is_control() && c != '\n';
    if text.contains(is_unsafe) { text.replace(is_unsafe, "\u{fffd}").into() } else { text.into() }
}

/// Breaks a text between words into lines. The first line has at most the width `first`, the others at most `rest`. A wider
/// word stays whole, so that the user can copy it.
pub(super) fn wrap(text: &str, first: usize, rest: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            let max_width = if lines.is_empty() { first } else { rest };
            if !line.is_empty() && width(&line) + 1 + width(word) > max_width {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    if lines.is_empty() { vec![String::new()] } else { lines }
}

/// Returns a duration in the format of kubectl: with two units if one unit is too coarse.
pub(super) fn age(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let two = |first: i64, unit: char, second: i64, smaller: char| match second {
        0 => format!("{first}{unit}"),
        _ => format!("{first}{unit}{second}{smaller}"),
    };
    match seconds {
        ..120 => format!("{seconds}s"),
        120..600 => two(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, 'd', hours % 24, 'h'),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_the_format_of_kubectl() {
        for (seconds, wanted) in [
            (-5, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (2400, "40m"),
            (10_800, "3h"),
            (12_000, "3h20m"),
            (100_000, "27h"),
            (180_000, "2d2h"),
            (1_036_800, "12d"),
        ] {
            assert_eq!(age(SignedDuration::from_secs(seconds)), wanted);
        }
    }

    #[test]
    fn lines_break_between_words_and_long_words_stay_whole() {
        assert_eq!(wrap("one two three", 7, 5), ["one two", "three"]);
        assert_eq!(wrap("a registry://host/repo:tag b", 10, 10), ["a", "registry://host/repo:tag", "b"]);
        assert_eq!(wrap("one\ntwo", 80, 80), ["one", "two"]);
        assert_eq!(wrap("日本語 日本語", 7, 7), ["日本語", "日本語"]);
        assert_eq!(wrap("", 80, 80), [""]);
    }

    #[test]
    fn a_message_cannot_control_the_terminal() {
        assert_eq!(printable("no \u{1b}[31mred\u{7} and\nlines"), "no \u{fffd}[31mred\u{fffd} and\nlines");
    }
}
