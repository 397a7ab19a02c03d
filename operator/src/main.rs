//! The operator's program.

fn main() -> anyhow::Result<std::process::ExitCode> {
    operator::main()
}
