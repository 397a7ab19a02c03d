//! The operator's program.

use clap::Parser as _;
use operator::config::Config;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let config = Config::parse();
    operator::log(&config)?;
    Box::pin(operator::run(config)).await
}
