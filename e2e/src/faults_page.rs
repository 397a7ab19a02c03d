//! Checks the page `docs/concepts/faults.md`: the tests that its tables name must exist.

use std::collections::BTreeSet;
use std::path::Path;

const PAGE: &str = "docs/concepts/faults.md";

/// Returns the tests that a row of a table names: a file, and a function in the file.
fn tests_of(row: &str) -> Vec<(&str, &str)> {
    let is_function = |text: &str| {
        text.contains('_') && text.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'_')
    };
    let (mut file, mut tests) = (None, Vec::new());
    // Every second part is between two backticks.
    for code in row.split('`').skip(1).step_by(2) {
        if Path::new(code).extension().is_some_and(|extension| extension == "rs") {
            file = Some(code);
        } else if let Some(file) = file.filter(|_| is_function(code)) {
            tests.push((file, code));
        }
    }
    tests
}

#[test]
fn every_test_that_the_page_names_exists() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(repository.join(PAGE)).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Fault "));
    let (mut named, mut missing) = (BTreeSet::new(), Vec::new());
    for row in rows {
        let tests = tests_of(row);
        assert!(!tests.is_empty(), "{PAGE}: a row names no test: {row}");
        for (file, function) in tests {
            let source = std::fs::read_to_string(repository.join(file)).unwrap_or_default();
            if !source.contains(&format!("fn {function}(")) {
                missing.push(format!("{file}: {function}"));
            }
            named.insert((file, function));
        }
    }
    assert!(missing.is_empty(), "{PAGE} names tests that do not exist: {missing:#?}");
    assert!(named.len() > 80, "only {} tests were found", named.len());
}
