//! `proviso test`: finds suites, runs them, and prints their reports.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use proviso_evaluation::Evaluator;
use proviso_evaluation::suite::{self, Counts, Filter};
use terminal_size::{Width, terminal_size_of};

use super::{fetcher, print};
use crate::arguments::{Test, TestForm};
use crate::error::Error;
use crate::render;

pub async fn run(arguments: &Test) -> Result<ExitCode, Error> {
    let filter = Filter::new(arguments.run.as_deref())?;
    let mut suites = suite::discover(&arguments.paths)?;
    if let Some(text) = &arguments.run {
        suites.retain(|suite| suite.is_chosen(&filter));
        if suites.is_empty() {
            return Err(Error::NoCase(text.clone()));
        }
    }
    let evaluator = Arc::new(Evaluator::new(fetcher(&arguments.registries)));
    let columns = terminal_size_of(std::io::stdout()).map(|(Width(width), _)| width.into());
    let start = Instant::now();
    let reports = suite::run(suites, &filter, evaluator, |report| match arguments.output {
        TestForm::Text => print(&render::suite(report, arguments.verbose, columns)),
        _ => Ok(()),
    })
    .await?;
    let duration = start.elapsed();
    match arguments.output {
        TestForm::Text => print(&render::suite_summary(&reports, duration))?,
        TestForm::Junit => print(&render::junit(&reports, duration))?,
        TestForm::Tap => print(&render::tap(&reports))?,
        TestForm::Json => {
            let report = serde_json::json!({"counts": Counts::of(&reports), "suites": reports});
            print(&(serde_json::to_string_pretty(&report)? + "\n"))?;
        }
    }
    Ok(match Counts::of(&reports) {
        Counts { errors: 1.., .. } => ExitCode::from(2),
        Counts { failed: 1.., .. } => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}
