//! Committed files that tests compare with what the code makes. With `PROVISO_RECORD=1` the tests write them instead.

#![allow(clippy::panic, reason = "a test that fails says so")]

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The hint of every test that finds another content than the committed one.
pub const HINT: &str = "`make record`, or this test with PROVISO_RECORD=1, writes the file: look at the difference";

/// Compares a file, named relative to the repository, with what the code makes; or records it.
///
/// # Panics
/// If they differ, or if the file cannot be written.
#[track_caller]
pub fn check(file: &str, made: &str) {
    if !record(file, made) {
        compare(file, made);
    }
}

#[track_caller]
fn compare(file: &str, made: &str) {
    let committed = read(file);
    if let Some(line) = first_difference(&committed, made) {
        let [committed, made] =
            [&committed, made].map(|text| text.lines().nth(line).unwrap_or("(the end of the file)").trim());
        panic!("{file}:{} is not what the code makes.\n  file: {committed}\n  code: {made}\n{HINT}", line + 1);
    }
}

/// Writes a file, named relative to the repository, if `PROVISO_RECORD=1` asks for it: true if so.
///
/// # Panics
/// If the file cannot be written.
#[must_use]
#[track_caller]
pub fn record(file: &str, made: &str) -> bool {
    if std::env::var_os("PROVISO_RECORD").is_none_or(|value| value != "1") {
        return false;
    }
    let mut outcome = "unchanged";
    // A file that stays the same keeps its time: what includes it is not compiled again.
    if read(file) != made {
        if let Err(error) = std::fs::write(path(file), made) {
            panic!("{file} cannot be written: {error}");
        }
        outcome = "recorded";
    }
    // Past the capture of the test runner, which shows only tests that fail.
    let _ = writeln!(std::io::stderr(), "{outcome}: {file}");
    true
}

/// A file that is not there differs from everything.
fn read(file: &str) -> String {
    std::fs::read_to_string(path(file)).unwrap_or_default()
}

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}

/// The index of the first line that differs, which may be one that only one of them has.
fn first_difference(committed: &str, made: &str) -> Option<usize> {
    let same = committed.split('\n').zip(made.split('\n')).take_while(|(committed, made)| committed == made).count();
    (committed != made).then_some(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_differs_is_found() {
        for (committed, made, line) in [
            ("a\nb\n", "a\nb\n", None),
            ("a\nb\n", "a\nc\n", Some(1)),
            ("a\n", "a\nb\n", Some(1)),
            ("a\nb\n", "a\n", Some(1)),
            ("a", "a\n", Some(1)),
            ("", "a\n", Some(0)),
        ] {
            assert_eq!(first_difference(committed, made), line, "{committed:?} {made:?}");
        }
    }

    #[test]
    #[should_panic(
        expected = "LICENSE:1 is not what the code makes.\n  file: Apache License\n  code: none\n`make record`"
    )]
    fn a_difference_is_named_with_its_place_and_the_remedy() {
        compare("LICENSE", "none\n");
    }
}
