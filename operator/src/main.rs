//! The operator's program.

fn main() -> anyhow::Result<()> {
    operator::main()
}
