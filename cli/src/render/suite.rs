//! The results of suites, as text and in the formats of CI systems.

mod junit;
mod tap;
mod title;

pub use junit::junit;
pub use tap::tap;

use std::time::Duration;

use proviso_evaluation::suite::{Counts, Outcome, SuiteReport, TestReport};

use self::title::title;
use super::page::paragraph;
use super::style::{BAD, BOLD, DIM, GOOD, PLAIN, WAITING, paint};

/// Renders the report of a suite: a line, and below it each failure, or with `is_verbose` each case.
#[must_use]
pub fn suite(report: &SuiteReport, is_verbose: bool, columns: Option<usize>) -> String {
    let counts = report.counts();
    let (word, style) = match counts {
        Counts { errors: 1.., .. } => ("ERROR", BAD),
        Counts { failed: 1.., .. } => ("FAIL", BAD),
        Counts { passed: 0, .. } => ("skip", WAITING),
        _ => ("ok", GOOD),
    };
    let file = report.file.display().to_string();
    let totals = format!("  {}, {}", cases(counts.total()), time(report.duration));
    let mut page = format!("{}  {}{}\n", paint(style, &format!("{word:5}")), paint(PLAIN, &file), paint(DIM, &totals));
    for test in &report.tests {
        for (case, outcome, _) in test.results() {
            entry(&mut page, test, case, outcome, is_verbose, columns);
        }
    }
    page
}

fn entry(
    page: &mut String,
    test: &TestReport,
    case: &str,
    outcome: &Outcome,
    is_verbose: bool,
    columns: Option<usize>,
) {
    let (word, style, message) = match outcome {
        Outcome::Failed(message) => ("FAIL ", BAD, message.as_str()),
        Outcome::Error(message) => ("ERROR", BAD, message.as_str()),
        Outcome::Passed if is_verbose => ("ok   ", GOOD, ""),
        Outcome::Skipped if is_verbose => ("skip ", WAITING, ""),
        _ => return,
    };
    let name = title(&test.name, case);
    page.extend(["  ", &paint(style, word), "  ", &paint(BOLD, &name), "\n"]);
    for line in message.lines() {
        page.push_str("         ");
        page.push_str(&paragraph(line, columns, 9, "           ", PLAIN));
    }
}

/// Renders the summary of all suites.
#[must_use]
pub fn summary(reports: &[SuiteReport], duration: Duration) -> String {
    let Counts { passed, failed, errors, skipped } = Counts::of(reports);
    let mut parts = vec![format!("{passed} passed")];
    for (count, what) in [(failed, "failed"), (errors, "could not run"), (skipped, "skipped")] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    let style = if failed + errors > 0 { BAD } else { GOOD };
    let suites = if reports.len() == 1 { "1 suite".to_owned() } else { format!("{} suites", reports.len()) };
    format!("\n{}{}\n", paint(style, &parts.join(", ")), paint(DIM, &format!("  {suites}, {}", time(duration))))
}

fn cases(count: usize) -> String {
    if count == 1 { "1 case".to_owned() } else { format!("{count} cases") }
}

fn time(duration: Duration) -> String {
    match duration.as_millis() {
        millis @ ..1000 => format!("{millis} ms"),
        millis => format!("{}.{} s", millis / 1000, millis % 1000 / 100),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::render::tests::plain;
    use proviso_evaluation::suite::CaseReport;

    pub fn report() -> SuiteReport {
        let duration = Duration::from_millis(12);
        let case = |name: &str, outcome| CaseReport { name: name.to_owned(), outcome, duration };
        let failed = "violations: expected none, found 1\n- label <owner> is missing & wanted";
        let test = |name: &str, outcome, cases| TestReport { name: name.to_owned(), outcome, cases, duration };
        SuiteReport {
            file: "library/labels/suite.yaml".into(),
            name: "labels".to_owned(),
            tests: vec![
                test(
                    "owners",
                    Outcome::OfCases,
                    vec![
                        case("allowed", Outcome::Passed),
                        case("refused", Outcome::Failed(failed.to_owned())),
                        case("later", Outcome::Skipped),
                    ],
                ),
                test("teams", Outcome::Error("template.yaml cannot be read".to_owned()), Vec::new()),
            ],
            duration: Duration::from_millis(1250),
        }
    }

    #[test]
    fn a_suite_shows_its_failures() {
        let page = plain(&suite(&report(), false, Some(60)));
        let wanted = "\
ERROR  library/labels/suite.yaml  4 cases, 1.2 s
  FAIL   owners / refused
         violations: expected none, found 1
         - label <owner> is missing & wanted
  ERROR  teams
         template.yaml cannot be read
";
        assert_eq!(page, wanted);
        let summary = plain(&summary(&[report()], Duration::from_secs(2)));
        assert_eq!(summary, "\n1 passed, 1 failed, 1 could not run, 1 skipped  1 suite, 2.0 s\n");
    }

    #[test]
    fn every_case_is_shown_on_request() {
        let page = plain(&suite(&report(), true, None));
        assert!(
            page.contains("\n  ok     owners / allowed\n") && page.contains("\n  skip   owners / later\n"),
            "{page}"
        );
        let mut good = report();
        good.tests.truncate(1);
        good.tests[0].cases.truncate(1);
        assert_eq!(plain(&suite(&good, false, None)), "ok     library/labels/suite.yaml  1 case, 1.2 s\n");
    }
}
