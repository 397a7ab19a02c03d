//! Runs suites: their tests in parallel, and tells of each suite as soon as it and those before it are done.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};

use super::{CaseReport, Filter, Outcome, Suite, SuiteReport, TestReport, Tests};
use crate::evaluate::Evaluator;

/// Runs all of these, and tells `done` of each in their order.
///
/// # Errors
/// What `done` returns.
pub async fn run<E>(
    suites: Vec<Suite>,
    filter: &Filter,
    evaluator: Arc<Evaluator>,
    mut done: impl FnMut(&SuiteReport) -> Result<(), E>,
) -> Result<Vec<SuiteReport>, E> {
    let at_once = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let running = suites.into_iter().map(|suite| {
        let (filter, evaluator, file) = (filter.clone(), Arc::clone(&evaluator), suite.file.clone());
        // A task of its own, so that it runs on another thread.
        let running = tokio::spawn(async move { suite.run(&filter, &evaluator).await });
        async move { running.await.unwrap_or_else(|stopped| stopped_report(file, &stopped.to_string())) }
    });
    let mut running = stream::iter(running).buffered(2 * at_once);
    let mut reports = Vec::new();
    while let Some(report) = running.next().await {
        done(&report)?;
        reports.push(report);
    }
    Ok(reports)
}

/// Of a suite whose task ended by itself.
fn stopped_report(file: PathBuf, why: &str) -> SuiteReport {
    let test = TestReport {
        name: String::new(),
        outcome: Outcome::Error(format!("the test stopped: {why}")),
        cases: Vec::new(),
        duration: Duration::ZERO,
    };
    SuiteReport { file, name: String::new(), tests: vec![test], duration: Duration::ZERO }
}

/// Runs a test, or passes it over. `cases` makes it ready and runs its cases; its error is what comes of the test without them.
pub(super) async fn test(
    name: &str,
    is_chosen: bool,
    cases: impl Future<Output = Result<Vec<CaseReport>, Outcome>>,
) -> TestReport {
    let start = Instant::now();
    let (outcome, cases) = if is_chosen {
        cases.await.map_or_else(|outcome| (outcome, Vec::new()), |cases| (Outcome::OfCases, cases))
    } else {
        (Outcome::Skipped, Vec::new())
    };
    TestReport { name: name.to_owned(), outcome, cases, duration: start.elapsed() }
}

/// Runs a case, or passes it over.
pub(super) async fn case(
    name: &str,
    is_chosen: bool,
    outcome: impl Future<Output = Result<Outcome, String>>,
) -> CaseReport {
    let start = Instant::now();
    let outcome = if is_chosen { outcome.await.unwrap_or_else(Outcome::Error) } else { Outcome::Skipped };
    CaseReport { name: name.to_owned(), outcome, duration: start.elapsed() }
}

impl Suite {
    /// Whether anything of it runs.
    #[must_use]
    pub fn is_chosen(&self, filter: &Filter) -> bool {
        match &self.tests {
            Tests::Skipped => false,
            Tests::Gatekeeper(tests) => tests.iter().any(|test| test.is_chosen(filter)),
            Tests::Own(tests) => tests.iter().any(|test| test.is_chosen(filter)),
        }
    }

    async fn run(self, filter: &Filter, evaluator: &Evaluator) -> SuiteReport {
        let start = Instant::now();
        let mut reports = Vec::new();
        match &self.tests {
            Tests::Skipped => {
                let name = self.name.clone();
                let (outcome, cases) = (Outcome::Skipped, Vec::new());
                reports.push(TestReport { name, outcome, cases, duration: start.elapsed() });
            }
            Tests::Gatekeeper(tests) => {
                for test in tests {
                    reports.push(test.run(&self.file, filter, evaluator).await);
                }
            }
            Tests::Own(tests) => {
                for test in tests {
                    reports.push(test.run(&self.file, filter, evaluator).await);
                }
            }
        }
        SuiteReport { file: self.file, name: self.name, tests: reports, duration: start.elapsed() }
    }
}
