//! The title of a case.

/// Returns the title of a case: the names of the test and of the case.
pub(super) fn title(test: &str, case: &str) -> String {
    match (test, case) {
        (test, "") => test.to_owned(),
        ("", case) => case.to_owned(),
        (test, case) => format!("{test} / {case}"),
    }
}
