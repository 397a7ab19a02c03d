//! `kubectl-proviso`: what kubectl runs for `kubectl proviso`.

fn main() -> std::process::ExitCode {
    proviso_cli::main("kubectl proviso")
}
