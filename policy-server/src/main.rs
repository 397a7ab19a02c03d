//! `policy-server`: parses the arguments and runs.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use policy_server::config::{Arguments, Config};

fn main() -> ExitCode {
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

fn start(arguments: Arguments) -> anyhow::Result<()> {
    policy_server::logging::start(&arguments.log, arguments.log_format)
        .map_err(|error| anyhow::anyhow!("--log: {error}"))?;
    let config = Config::try_from(arguments)?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(policy_server::run(config))
}
