//! The XML of `JUnit`, which CI systems read: a `testsuite` for each suite, a `testcase` for each case.

use std::fmt::Write as _;
use std::time::Duration;

use super::title::title;
use proviso_evaluation::suite::{Counts, Outcome, SuiteReport};

/// Returns the document.
#[must_use]
pub fn junit(reports: &[SuiteReport], duration: Duration) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let seconds = |duration: Duration| format!("{:.3}", duration.as_secs_f64());
    // Writing to a String does not fail.
    let _ = writeln!(xml, "<testsuites{} time=\"{}\">", counts(Counts::of(reports)), seconds(duration));
    for report in reports {
        let file = escape(&report.file.display().to_string());
        let _ = writeln!(
            xml,
            "  <testsuite name=\"{file}\"{} time=\"{}\">",
            counts(report.counts()),
            seconds(report.duration)
        );
        for test in &report.tests {
            for (case, outcome, duration) in test.results() {
                let (name, class) = if case.is_empty() { (&*test.name, &*file) } else { (case, &*test.name) };
                let (name, class) = (escape(name), if case.is_empty() { class.to_owned() } else { escape(class) });
                let head =
                    format!("    <testcase name=\"{name}\" classname=\"{class}\" time=\"{}\"", seconds(duration));
                let _ = match outcome {
                    Outcome::Passed | Outcome::OfCases => writeln!(xml, "{head}/>"),
                    Outcome::Skipped => writeln!(xml, "{head}><skipped/></testcase>"),
                    Outcome::Failed(message) => {
                        writeln!(xml, "{head}>{}</testcase>", failure("failure", &title(&test.name, case), message))
                    }
                    Outcome::Error(message) => {
                        writeln!(xml, "{head}>{}</testcase>", failure("error", &title(&test.name, case), message))
                    }
                };
            }
        }
        xml.push_str("  </testsuite>\n");
    }
    xml.push_str("</testsuites>\n");
    xml
}

fn counts(counts: Counts) -> String {
    let Counts { failed, errors, skipped, .. } = counts;
    format!(" tests=\"{}\" failures=\"{failed}\" errors=\"{errors}\" skipped=\"{skipped}\"", counts.total())
}

/// Returns the element `failure` or `error` with a message.
fn failure(element: &str, title: &str, message: &str) -> String {
    let first = escape(message.lines().next().unwrap_or(title));
    format!("<{element} message=\"{first}\">{}</{element}>", escape(message))
}

/// Escapes a text for attributes and content. XML 1.0 allows only three control characters: newline, tab, carriage return.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' | '\r' => out.push(character),
            other if other.is_control() || matches!(other, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    #[test]
    fn junit_has_a_suite_for_each_file_and_escapes_messages() {
        let wanted = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="4" failures="1" errors="1" skipped="1" time="2.000">
  <testsuite name="library/labels/suite.yaml" tests="4" failures="1" errors="1" skipped="1" time="1.250">
    <testcase name="allowed" classname="owners" time="0.012"/>
    <testcase name="refused" classname="owners" time="0.012"><failure message="violations: expected none, found 1">violations: expected none, found 1
- label &lt;owner&gt; is missing &amp; wanted</failure></testcase>
    <testcase name="later" classname="owners" time="0.012"><skipped/></testcase>
    <testcase name="teams" classname="library/labels/suite.yaml" time="0.012"><error message="template.yaml cannot be read">template.yaml cannot be read</error></testcase>
  </testsuite>
</testsuites>
"#;
        assert_eq!(junit(&[report()], Duration::from_secs(2)), wanted);
        assert_eq!(escape("\u{1b}[31m\"x\"\u{0}"), "\u{fffd}[31m&quot;x&quot;\u{fffd}");
    }
}
