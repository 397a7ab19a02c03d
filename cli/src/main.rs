//! The executable `proviso`. The link `kubectl-proviso` to it makes `kubectl proviso` work.

fn main() -> std::process::ExitCode {
    proviso_cli::main()
}
