//! TAP 14 (testanything.org): a line for each case, and below a failure its message as YAML.

use std::fmt::Write as _;

use super::title::title;
use proviso_evaluation::suite::{Counts, Outcome, SuiteReport};

/// Returns the document.
#[must_use]
pub fn tap(reports: &[SuiteReport]) -> String {
    let mut text = format!("TAP version 14\n1..{}\n", Counts::of(reports).total());
    let mut number = 0;
    for report in reports {
        for test in &report.tests {
            for (case, outcome, _) in test.results() {
                number += 1;
                let name = format!("{}: {}", report.file.display(), title(&test.name, case));
                // Writing to a String does not fail.
                let _ = match outcome {
                    Outcome::Passed | Outcome::OfCases => writeln!(text, "ok {number} - {}", escape(&name)),
                    Outcome::Skipped => writeln!(text, "ok {number} - {} # SKIP", escape(&name)),
                    Outcome::Failed(message) => {
                        writeln!(text, "not ok {number} - {}{}", escape(&name), diagnostics("fail", message))
                    }
                    Outcome::Error(message) => {
                        writeln!(text, "not ok {number} - {}{}", escape(&name), diagnostics("error", message))
                    }
                };
            }
        }
    }
    text
}

/// Escapes the name of a test: a `#` would begin a directive, and a line break would end the test.
fn escape(name: &str) -> String {
    name.replace('\\', "\\\\").replace('#', "\\#").replace(char::is_control, " ")
}

fn diagnostics(severity: &str, message: &str) -> String {
    let mut text = format!("\n  ---\n  severity: {severity}\n  message: |-\n");
    for line in message.lines() {
        // Writing to a String does not fail.
        let _ = writeln!(text, "    {}", line.replace(char::is_control, "\u{fffd}"));
    }
    text + "  ..."
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    #[test]
    fn tap_has_a_line_for_each_case() {
        let wanted = "\
TAP version 14
1..4
ok 1 - library/labels/suite.yaml: owners / allowed
not ok 2 - library/labels/suite.yaml: owners / refused
  ---
  severity: fail
  message: |-
    violations: expected none, found 1
    - label <owner> is missing & wanted
  ...
ok 3 - library/labels/suite.yaml: owners / later # SKIP
not ok 4 - library/labels/suite.yaml: teams
  ---
  severity: error
  message: |-
    template.yaml cannot be read
  ...
";
        assert_eq!(tap(&[report()]), wanted);
        assert_eq!(escape("a # b\n"), "a \\# b ");
    }
}
