//! The operator's program.

use clap::Parser as _;
use operator::config::Config;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let config = Config::parse();
    operator::log(config.log_format);
    operator::run(config).await
}
