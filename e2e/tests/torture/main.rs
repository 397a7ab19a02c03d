//! A randomised run over a real control plane with several operators and replicas: edits, rollbacks, experiments, kills, freezes,
//! partitions and other faults, while clients request admission. A checker judges the recorded history. See `e2e/README.md`.

#![allow(clippy::print_stderr, reason = "prints the steps and the result for the user")]

mod clients;
mod kubelet;
mod objects;
mod observer;
mod recorder;
mod specs;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use proviso_e2e::torture::checker::{Limits, Violation, check};
use proviso_e2e::torture::plan::Plan;
use proviso_e2e::torture::report::{excerpt, summary};
use proviso_e2e::{Previous, clock};
use tokio::runtime::Runtime;

use recorder::Recorder;
use world::{OtherPrograms, RETIRE_AFTER, World};

/// The times that the checks allow for. The propagation is generous, because API servers learn of a change by a watch.
const LIMITS: Limits =
    Limits { grace: RETIRE_AFTER, propagation: Duration::from_secs(5), recovery: Duration::from_secs(3) };
/// The largest number of violations that are printed with an excerpt of the history.
const MAX_EXCERPTS: usize = 5;

/// Runs random steps over a control plane with Proviso, and checks the answers.
#[derive(Debug, Parser)]
struct Arguments {
    /// The seed of the steps
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// The duration of the steps, in minutes
    #[arg(long, default_value_t = 3)]
    minutes: u64,

    /// The largest number of steps. Default: no limit. A smaller number finds the step that causes a failure
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    steps: usize,

    /// A policy server of another version, with which this version is mixed. Default: that of the previous version
    #[arg(long)]
    other_server: Option<PathBuf>,

    /// An operator of another version, with which this version is mixed. Default: that of the previous version
    #[arg(long)]
    other_operator: Option<PathBuf>,

    /// Prints the first 100 steps, or those of --steps, and ends
    #[arg(long)]
    plan: bool,
}

impl Arguments {
    /// Returns the programs of the other version.
    fn other_programs(&self) -> Result<OtherPrograms> {
        if let (Some(operator), Some(server)) = (&self.other_operator, &self.other_server) {
            return Ok(OtherPrograms { operator: operator.clone(), server: server.clone() });
        }
        let previous = Previous::find()?;
        Ok(OtherPrograms {
            operator: self.other_operator.clone().unwrap_or(previous.operator),
            server: self.other_server.clone().unwrap_or(previous.policy_server),
        })
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.plan {
        for planned in Plan::new(arguments.seed).take(arguments.steps.min(100)) {
            eprintln!("{planned}");
        }
        return ExitCode::SUCCESS;
    }
    let recorder = Arc::new(Recorder::new());
    let result = Runtime::new().map_err(Into::into).and_then(|runtime| runtime.block_on(run(&arguments, &recorder)));
    report(&arguments, &recorder, result)
}

/// Runs the steps and the checks of the state. Returns the violations that the state shows.
async fn run(arguments: &Arguments, recorder: &Arc<Recorder>) -> Result<Vec<Violation>> {
    let must_shift_clocks = std::env::var("CI").is_ok_and(|value| value == "true");
    ensure!(!must_shift_clocks || clock::shifted("+0s").is_some(), "faketime is not installed: make tools");
    recorder.note(format!("seed {}, {} minutes", arguments.seed, arguments.minutes));
    let mut world = Box::pin(World::start(Arc::clone(recorder), arguments.other_programs()?)).await?;
    let time = Duration::from_secs(60 * arguments.minutes);
    Box::pin(world.run(Plan::new(arguments.seed), arguments.steps, time)).await?;
    Box::pin(world.quiet()).await?;
    Ok(std::mem::take(&mut world.violations))
}

/// Checks the history, and prints the result.
fn report(arguments: &Arguments, recorder: &Recorder, result: Result<Vec<Violation>>) -> ExitCode {
    let history = recorder.with(|history| history.clone());
    let mut violations = check(&history, LIMITS);
    let error = match result {
        Ok(found) => {
            violations.extend(found);
            None
        }
        Err(error) => Some(error),
    };
    for (number, violation) in violations.iter().enumerate() {
        eprintln!("\n{violation}");
        if number < MAX_EXCERPTS {
            eprintln!("{}", excerpt(&history, violation.at));
        }
    }
    eprintln!("\n{}", summary(&history, LIMITS));
    if let Some(error) = &error {
        eprintln!("the run failed: {error:?}");
    }
    // `.ci/times` reads this line.
    eprintln!("flow torture took {:.1} s", recorder.now().as_secs_f64());
    let seed = arguments.seed;
    if violations.is_empty() && error.is_none() {
        eprintln!("seed {seed}: no violation");
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "seed {seed}: {} violations. To repeat the steps: make torture SEED={seed} MINUTES={}",
        violations.len(),
        arguments.minutes
    );
    ExitCode::FAILURE
}
