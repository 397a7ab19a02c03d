//! `proviso`, and `kubectl-proviso`: a link to it, which kubectl runs for `kubectl proviso`.

fn main() -> std::process::ExitCode {
    proviso_cli::main()
}
