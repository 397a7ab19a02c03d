//! Checks the page `docs/concepts/faults.md`: the tests that its tables name must exist.

use std::collections::BTreeSet;
use std::path::Path;

const PAGE: &str = "docs/concepts/faults.md";

/// Returns the tests that a cell of a table names: a file, and a function in the file.
fn tests_of(cell: &str) -> Vec<(&str, &str)> {
    let is_function = |text: &str| {
        text.contains('_') && text.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'_')
    };
    let (mut file, mut tests) = (None, Vec::new());
    // Every second part is between two backticks.
    for code in cell.split('`').skip(1).step_by(2) {
        if Path::new(code).extension().is_some_and(|extension| extension == "rs") {
            file = Some(code);
        } else if let Some(file) = file.filter(|_| is_function(code)) {
            tests.push((file, code));
        }
    }
    tests
}

/// Checks that each cell in the last columns of the tables of a page names a test, and that the named tests exist. `header` is the
/// first cell of the headers of these tables, and `columns` the number of columns with tests. Returns the number of different tests.
pub(crate) fn check(page_name: &str, header: &str, columns: usize) -> usize {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(repository.join(page_name)).unwrap();
    let header = format!("| {header} ");
    let mut is_in_table = false;
    let rows = page.lines().filter(|line| {
        let is_header = line.starts_with(&header);
        is_in_table = is_header || (is_in_table && line.starts_with('|'));
        is_in_table && !is_header && line.starts_with("| ")
    });
    let (mut named, mut missing) = (BTreeSet::new(), Vec::new());
    for row in rows {
        for cell in row.trim_end_matches('|').rsplit('|').take(columns) {
            let tests = tests_of(cell);
            assert!(!tests.is_empty(), "{page_name}: a row names no test in the cell {cell}: {row}");
            for (file, function) in tests {
                let source = std::fs::read_to_string(repository.join(file)).unwrap_or_default();
                // A test program without the test harness of Rust names its tests in strings.
                let forms = [format!("fn {function}("), format!("\"{function}\"")];
                if !forms.iter().any(|form| source.contains(form)) {
                    missing.push(format!("{file}: {function}"));
                }
                named.insert((file, function));
            }
        }
    }
    assert!(missing.is_empty(), "{page_name} names tests that do not exist: {missing:#?}");
    named.len()
}

#[test]
fn every_test_that_the_page_names_exists() {
    let named = check(PAGE, "Fault", 1);
    assert!(named > 80, "only {named} tests were found");
}
