//! The policy server's program.

fn main() -> std::process::ExitCode {
    policy_server::main()
}
