//! The results of suites. `proviso test -o json` prints these types, so their JSON form is a public interface.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

/// The result of a suite.
#[derive(Debug, Serialize)]
pub struct SuiteReport {
    pub file: PathBuf,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub tests: Vec<TestReport>,
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub duration: Duration,
}

/// The result of a test, and of each of its cases.
#[derive(Debug, Serialize)]
pub struct TestReport {
    pub name: String,
    /// The outcome of the test as a whole: [`Outcome::OfCases`] if its cases ran. Otherwise the test was skipped, or ended before
    /// its first case.
    #[serde(flatten)]
    pub outcome: Outcome,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cases: Vec<CaseReport>,
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub duration: Duration,
}

/// The result of a case.
#[derive(Debug, Serialize)]
pub struct CaseReport {
    pub name: String,
    #[serde(flatten)]
    pub outcome: Outcome,
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub duration: Duration,
}

/// The outcome of a test or of a case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", content = "message", rename_all = "camelCase")]
pub enum Outcome {
    Passed,
    /// The answer differs from the expectations; with the differences, one line each.
    Failed(String),
    /// The test could not be run; with the error.
    Error(String),
    Skipped,
    /// The test has no outcome of its own; its cases have outcomes.
    #[serde(rename = "cases")]
    OfCases,
}

/// The number of results by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    pub errors: usize,
    pub skipped: usize,
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

impl TestReport {
    /// Runs a test, or skips it if it is not selected. `cases` prepares the test and runs its cases. The error of `cases` is the
    /// outcome of a test that could not be prepared.
    pub(super) async fn of(
        name: &str,
        is_chosen: bool,
        cases: impl Future<Output = Result<Vec<CaseReport>, Outcome>>,
    ) -> Self {
        let start = Instant::now();
        let (outcome, cases) = if is_chosen {
            cases.await.map_or_else(|outcome| (outcome, Vec::new()), |cases| (Outcome::OfCases, cases))
        } else {
            (Outcome::Skipped, Vec::new())
        };
        Self { name: name.to_owned(), outcome, cases, duration: start.elapsed() }
    }

    /// Returns the name, the outcome and the duration of each case. A test with an outcome of its own also has a result, with an
    /// empty name.
    pub fn results(&self) -> impl Iterator<Item = (&str, &Outcome, Duration)> {
        let own = (self.outcome != Outcome::OfCases).then_some(("", &self.outcome, self.duration));
        own.into_iter().chain(self.cases.iter().map(|case| (case.name.as_str(), &case.outcome, case.duration)))
    }
}

impl CaseReport {
    /// Runs a case, or skips it if it is not selected.
    pub(super) async fn of(
        name: &str,
        is_chosen: bool,
        outcome: impl Future<Output = Result<Outcome, String>>,
    ) -> Self {
        let start = Instant::now();
        let outcome = if is_chosen { outcome.await.unwrap_or_else(Outcome::Error) } else { Outcome::Skipped };
        Self { name: name.to_owned(), outcome, duration: start.elapsed() }
    }
}

impl SuiteReport {
    /// Counts the results of the suite.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for (_, outcome, _) in self.tests.iter().flat_map(TestReport::results) {
            match outcome {
                Outcome::Passed => counts.passed += 1,
                Outcome::Failed(_) => counts.failed += 1,
                Outcome::Error(_) => counts.errors += 1,
                Outcome::Skipped => counts.skipped += 1,
                Outcome::OfCases => {}
            }
        }
        counts
    }
}

impl Counts {
    /// Returns the number of all results.
    #[must_use]
    pub fn total(self) -> usize {
        self.passed + self.failed + self.errors + self.skipped
    }

    /// Counts the results of several suites.
    #[must_use]
    pub fn of(suites: &[SuiteReport]) -> Self {
        suites.iter().map(SuiteReport::counts).fold(Self::default(), |sum, it| Self {
            passed: sum.passed + it.passed,
            failed: sum.failed + it.failed,
            errors: sum.errors + it.errors,
            skipped: sum.skipped + it.skipped,
        })
    }
}
