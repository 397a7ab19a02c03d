//! Recorded files: committed files that tests compare with the output of the code. With `PROVISO_RECORD=1` the tests write the
//! files instead.

#![allow(clippy::panic, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The hint in the message of every test whose output differs from the committed file.
pub const HINT: &str = "`make record`, or this test with PROVISO_RECORD=1, writes the file: review the difference";

/// Compares a file with the output of the code, or writes the file if `PROVISO_RECORD=1` is set. `file` is a path relative to
/// the repository.
///
/// # Panics
/// Panics if the file differs from `made`, or if it cannot be written.
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
        panic!("{file}:{} differs from the output of the code.\n  file: {committed}\n  code: {made}\n{HINT}", line + 1);
    }
}

/// Writes a file if `PROVISO_RECORD=1` is set, and returns true; otherwise returns false. `file` is a path relative to the
/// repository.
///
/// # Panics
/// Panics if the file cannot be written.
#[must_use]
#[track_caller]
pub fn record(file: &str, made: &str) -> bool {
    if std::env::var_os("PROVISO_RECORD").is_none_or(|value| value != "1") {
        return false;
    }
    let mut outcome = "unchanged";
    // An unchanged file keeps its modification time, so that cargo does not compile the crates that include it again.
    if read(file) != made {
        if let Err(error) = std::fs::write(path(file), made) {
            panic!("{file} cannot be written: {error}");
        }
        outcome = "recorded";
    }
    // The test runner captures `eprintln!` and shows it only for tests that fail.
    let _ = writeln!(std::io::stderr(), "{outcome}: {file}");
    true
}

/// Reads a file. A missing file is empty.
fn read(file: &str) -> String {
    std::fs::read_to_string(path(file)).unwrap_or_default()
}

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}

/// Returns the index of the first line that differs, or that only one of the texts has; `None` if the texts are equal.
fn first_difference(committed: &str, made: &str) -> Option<usize> {
    let same = committed.split('\n').zip(made.split('\n')).take_while(|(committed, made)| committed == made).count();
    (committed != made).then_some(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_different_line_is_found() {
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
        expected = "LICENSE:1 differs from the output of the code.\n  file: Apache License\n  code: none\n`make record`"
    )]
    fn the_message_names_the_line_and_the_hint() {
        compare("LICENSE", "none\n");
    }
}
