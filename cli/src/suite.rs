//! Suites of tests for policies: found, read, run in parallel, and what came of them.

mod discover;
mod expect;
mod filter;
mod gatekeeper;
mod own;
mod run;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

pub use discover::{SuiteError, discover};
pub use expect::patched;
pub use filter::{Filter, FilterError};
pub use run::run;

/// A suite, read.
#[derive(Debug)]
pub struct Suite {
    pub file: PathBuf,
    pub name: String,
    pub tests: Tests,
}

/// The tests of a suite, in the form of its file.
#[derive(Debug)]
pub enum Tests {
    /// `skip` of the whole suite.
    Skipped,
    Gatekeeper(Vec<gatekeeper::Test>),
    Own(Vec<own::Test>),
}

/// What came of a suite.
#[derive(Debug, Serialize)]
pub struct SuiteReport {
    pub file: PathBuf,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub tests: Vec<TestReport>,
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub duration: Duration,
}

/// What came of a test: of its policy, and of each case.
#[derive(Debug, Serialize)]
pub struct TestReport {
    pub name: String,
    /// Of the test as a whole: an error before its first case, or the only result where it has none.
    #[serde(flatten)]
    pub outcome: Outcome,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cases: Vec<CaseReport>,
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub duration: Duration,
}

/// What came of a case.
#[derive(Debug, Serialize)]
pub struct CaseReport {
    pub name: String,
    #[serde(flatten)]
    pub outcome: Outcome,
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub duration: Duration,
}

/// How something ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", content = "message", rename_all = "camelCase")]
pub enum Outcome {
    Passed,
    /// The policy does something else than is expected.
    Failed(String),
    /// It could not be found out.
    Error(String),
    Skipped,
    /// Its cases say it.
    #[serde(rename = "cases")]
    OfCases,
}

/// How many ended how.
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
    /// Everything in it that has a result of its own: its cases, and itself where they do not say it.
    pub fn results(&self) -> impl Iterator<Item = (&str, &Outcome, Duration)> {
        let own = (self.outcome != Outcome::OfCases).then_some(("", &self.outcome, self.duration));
        own.into_iter().chain(self.cases.iter().map(|case| (case.name.as_str(), &case.outcome, case.duration)))
    }
}

impl SuiteReport {
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
    #[must_use]
    pub fn total(self) -> usize {
        self.passed + self.failed + self.errors + self.skipped
    }

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
