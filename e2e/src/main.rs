//! The harness by hand: builds Kubernetes, and keeps a cluster running until it is told to end it.

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build what is missing of Kubernetes, and show the versions and where the programs are
    Kubernetes {
        /// Only what a control plane consists of
        #[arg(long)]
        control_plane: bool,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Kubernetes { control_plane } => proviso_e2e::binaries::show(control_plane),
    }
}
