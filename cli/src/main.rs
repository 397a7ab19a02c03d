//! `proviso`.

fn main() -> std::process::ExitCode {
    proviso_cli::main("proviso")
}
