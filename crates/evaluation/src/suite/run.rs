//! Runs suites in parallel, and reports their results in order.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};

use super::definition::{Suite, Tests};
use super::filter::Filter;
use super::report::{Outcome, SuiteReport, TestReport};
use crate::evaluator::Evaluator;

/// Runs the suites on the tokio runtime, with two concurrent suites per processor. Calls `done` with the report of each suite,
/// in the order of `suites`, when the suite and all suites before it have ended.
///
/// # Errors
/// Returns the first error of `done`, which ends the run.
pub async fn run<E>(
    suites: Vec<Suite>,
    filter: &Filter,
    evaluator: Arc<Evaluator>,
    mut done: impl FnMut(&SuiteReport) -> Result<(), E>,
) -> Result<Vec<SuiteReport>, E> {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let running = suites.into_iter().map(|suite| {
        let (filter, evaluator, file) = (filter.clone(), Arc::clone(&evaluator), suite.file.clone());
        // A separate task, so that suites can use all threads of the runtime.
        let running = tokio::spawn(async move { suite.run(&filter, &evaluator).await });
        async move { running.await.unwrap_or_else(|stopped| stopped_report(file, &stopped.to_string())) }
    });
    let mut running = stream::iter(running).buffered(2 * processors);
    let mut reports = Vec::new();
    while let Some(report) = running.next().await {
        done(&report)?;
        reports.push(report);
    }
    Ok(reports)
}

/// Returns the report of a suite whose task panicked.
fn stopped_report(file: PathBuf, why: &str) -> SuiteReport {
    let test = TestReport {
        name: String::new(),
        outcome: Outcome::Error(format!("the test was aborted: {why}")),
        cases: Vec::new(),
        duration: Duration::ZERO,
    };
    SuiteReport { file, name: String::new(), tests: vec![test], duration: Duration::ZERO }
}

impl Suite {
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
