//! The entry point: parses the arguments and runs the server. The code is in the library and not in `main.rs`, because generic
//! code is compiled in the crate that calls it: `main.rs` would compile the generic code of the library again.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::compile::run_compile_job;
use crate::config::{Arguments, Config};
use crate::container::Container;
use crate::logging;

/// The maximum number of blocking threads in addition to those of interpreters.
const OTHER_THREADS: usize = 128;

/// Runs the program and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    // The server starts this program again to compile a module. Clap does not know that internal command.
    if let Some(code) = run_compile_job(std::env::args_os()) {
        return code;
    }
    let arguments = Arguments::parse();
    if let Some(shell) = arguments.completions {
        clap_complete::generate(shell, &mut Arguments::command(), "policy-server", &mut std::io::stdout());
        return ExitCode::SUCCESS;
    }
    match start(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Logging may not have started yet.
            #[allow(clippy::print_stderr)]
            {
                eprintln!("policy-server: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Raises the soft limit of open files, and so of connections, to the hard limit. The usual soft limit of 1024 is for programs
/// that use `select`.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "cannot raise the limit of open files: the number of connections stays limited");
    }
}

fn start(arguments: Arguments) -> anyhow::Result<()> {
    logging::start(&arguments.log, arguments.log_format).map_err(|error| anyhow::anyhow!("--log: {error}"))?;
    let config = Config::try_from(arguments)?;
    raise_open_files();
    proviso_memory::return_freed_memory();
    let container = Container::read();
    proviso_memory::set_process_limit(container.memory);
    // The places limit the interpreters. The other threads are for files and for compilations.
    let threads = config.concurrency as usize + OTHER_THREADS;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().max_blocking_threads(threads).build()?;
    let result = runtime.block_on(proviso_tasks::exit_on_panic("server", crate::run(config, container)));
    // Do not wait for an interpreter that is stuck in a policy: all requests are answered.
    runtime.shutdown_background();
    result
}
