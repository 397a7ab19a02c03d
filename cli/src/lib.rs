//! The program `proviso`, also called as `kubectl proviso`. It shows and changes policies, revisions and experiments of a
//! cluster or of a server with the REST API. Without a cluster or a server it evaluates, tests and imports policies, and reads
//! and writes modules.
//!
//! A command reads objects from the `cluster` or the `backend`, makes a `report` (pure), and prints the report as text by
//! `render` (pure), or as JSON or YAML. The crate `proviso-evaluation` evaluates policies, and `proviso-import` imports them.

mod access;
mod arguments;
mod backend;
mod changes;
mod cluster;
mod commands;
mod error;
mod experiment;
mod found;
mod gitops;
mod kinds;
mod manifest;
mod module;
mod objects;
mod policy_ref;
mod render;
mod report;
mod rollback;
mod scaffold;
mod server;
mod signatures;
mod subscription_ref;
mod terminal;

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::FromArgMatches as _;

use arguments::{Arguments, Command, Experiments, Subscriptions};
use backend::Backend;
use cluster::Cluster;
use commands::Session;
use error::Error;

/// Runs the program. If its file is called `kubectl-proviso`, its messages call it `kubectl proviso`.
#[must_use]
pub fn main() -> ExitCode {
    let program = program_name(std::env::args_os().next().as_deref());
    let matches = arguments::command(program).get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let program = arguments.command_prefix(&matches, program);
    run(&arguments, program).unwrap_or_else(|error| {
        terminal::print_error(&error, program);
        error.exit_code()
    })
}

/// Returns the name by which the user calls the program. `file` is the path of the program (`argv[0]`).
fn program_name(file: Option<&OsStr>) -> &'static str {
    match file.and_then(|file| Path::new(file).file_stem()) {
        Some(name) if name == "kubectl-proviso" => "kubectl proviso",
        _ => "proviso",
    }
}

fn run(arguments: &Arguments, program: &'static str) -> Result<ExitCode, Error> {
    if let Command::Completions { shell } = arguments.command {
        std::io::stdout().write_all(&completions(shell, program))?;
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = match &arguments.command {
        // Tests use all processors.
        Command::Test(_) => tokio::runtime::Builder::new_multi_thread().enable_all().build()?,
        _ => tokio::runtime::Builder::new_current_thread().enable_all().build()?,
    };
    let cluster = async || Ok::<_, Error>(Session { backend: Cluster::connect(&arguments.connection).await?, program });
    runtime.block_on(async {
        match &arguments.command {
            Command::Status(arguments) => commands::status::run(&cluster().await?, arguments).await,
            Command::Revisions(command) => commands::revisions::run(&cluster().await?, command).await,
            Command::Rollback(arguments) => commands::rollback::run(&cluster().await?, arguments).await,
            Command::Experiment(Experiments { server, command }) => {
                let session = Session { backend: Backend::connect(&arguments.connection, server).await?, program };
                commands::experiment::run(&session, command).await
            }
            Command::Subscriptions(Subscriptions { server, command }) => {
                let session = Session { backend: Backend::connect(&arguments.connection, server).await?, program };
                commands::subscriptions::run(&session, command).await
            }
            Command::Test(arguments) => commands::test::run(arguments).await,
            Command::Run(command) => {
                let session = Session { backend: (), program };
                commands::run::run(&session, command, arguments.connection.namespace.as_deref()).await
            }
            Command::Evaluate(arguments) => commands::evaluate::run(&Session { backend: (), program }, arguments).await,
            Command::Inspect(arguments) => {
                commands::modules::inspect(&Session { backend: (), program }, arguments).await
            }
            Command::Digest(arguments) => commands::modules::digest(arguments).await,
            Command::Verify(arguments) => commands::modules::verify(arguments).await,
            Command::Pull(arguments) => commands::modules::pull(arguments).await,
            Command::Push(arguments) => commands::modules::push(arguments).await,
            Command::Annotate(arguments) => commands::modules::annotate(arguments),
            Command::New(arguments) => commands::new::run(arguments, program),
            Command::Man { folder } => commands::man::run(folder, program),
            Command::Import(arguments) => commands::import::run(arguments),
            Command::Completions { .. } => Ok(ExitCode::SUCCESS),
        }
    })
}

/// Returns the completion script. The script is for the executable file, such as `kubectl-proviso`.
fn completions(shell: clap_complete::Shell, program: &'static str) -> Vec<u8> {
    let installed = program.replace(' ', "-");
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut arguments::command(program), installed, &mut script);
    script
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use clap::ValueEnum as _;
    use clap_complete::Shell;

    #[test]
    fn the_file_name_decides_the_program_name() {
        for (file, program) in [
            (Some("kubectl-proviso"), "kubectl proviso"),
            (Some("/usr/local/bin/kubectl-proviso"), "kubectl proviso"),
            (Some("kubectl-proviso.exe"), "kubectl proviso"),
            (Some("/opt/kubectl-proviso/proviso"), "proviso"),
            (Some("proviso"), "proviso"),
            (None, "proviso"),
        ] {
            assert_eq!(super::program_name(file.map(OsStr::new)), program, "{file:?}");
        }
    }

    #[test]
    fn every_shell_has_completions_for_the_executable_file() {
        for shell in Shell::value_variants() {
            for (program, installed) in [("proviso", "proviso"), ("kubectl proviso", "kubectl-proviso")] {
                let script = String::from_utf8(super::completions(*shell, program)).unwrap();
                assert!(
                    script.contains(installed)
                        && ["rollback", "commit", "import", "annotate"].iter().all(|it| script.contains(it)),
                    "{shell}: {script}"
                );
            }
        }
    }
}
