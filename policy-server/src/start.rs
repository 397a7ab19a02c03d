//! The program: parses the arguments and runs. In `main.rs`, it would be compiled twice: generic code belongs to the crate that
//! calls it.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::compile::{Order, carry_out};
use crate::config::{Arguments, Config};
use crate::logging;

/// The whole program.
#[must_use]
pub fn main() -> ExitCode {
    // Not among the arguments of people: this program gives orders to itself.
    if let Some(order) = Order::read(std::env::args_os()) {
        return carry_out(order);
    }
    let arguments = Arguments::parse();
    if let Some(shell) = arguments.completions {
        clap_complete::generate(shell, &mut Arguments::command(), "policy-server", &mut std::io::stdout());
        return ExitCode::SUCCESS;
    }
    match start(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The log may not have been started yet, and this is the last word.
            #[allow(clippy::print_stderr)]
            {
                eprintln!("policy-server: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Lets the process open as many files, and so connections, as it may: the usual soft limit of 1024 is for programs
/// that use `select`.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "the number of connections stays limited");
    }
}

fn start(arguments: Arguments) -> anyhow::Result<()> {
    logging::start(&arguments.log, arguments.log_format).map_err(|error| anyhow::anyhow!("--log: {error}"))?;
    let config = Config::try_from(arguments)?;
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(crate::run(config));
    // An interpreter that is stuck in a policy must not keep the process: every request has its answer.
    runtime.shutdown_background();
    result
}
