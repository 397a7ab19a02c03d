//! The harness by hand: builds Kubernetes, and keeps a cluster running until it is told to end it.

use std::io::Write as _;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use proviso_e2e::supervisor::{self, Kind};

/// Real Kubernetes on this machine, built from source, up in seconds.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build what is missing of Kubernetes, and show the versions and where the programs are
    ///
    /// The programs are built once, into `PROVISO_E2E_CACHE` (default: `~/.cache/proviso-e2e`); that needs Go.
    Kubernetes {
        #[command(flatten)]
        kind: Only,
    },
    /// Start a cluster that goes on running, and print how to use it
    ///
    /// A full node runs pods, and needs root, containerd, runc, CNI plugins and iptables. What is printed to stdout is for
    /// a shell: `eval "$(proviso-e2e up)"`.
    Up {
        #[command(flatten)]
        kind: Only,
        #[command(flatten)]
        name: Name,
    },
    /// End it
    Down {
        #[command(flatten)]
        name: Name,
    },
    /// Print the Debian packages that a full node needs and this machine lacks
    Packages,
    /// Be the process that keeps a cluster
    #[command(hide = true)]
    Supervise {
        #[command(flatten)]
        kind: Only,
        #[command(flatten)]
        name: Name,
    },
}

#[derive(Args)]
struct Only {
    /// Only a control plane (etcd, API server, controller manager): needs no root, runs no pods
    #[arg(long)]
    control_plane: bool,
}

impl Only {
    fn kind(&self) -> Kind {
        if self.control_plane { Kind::ControlPlane } else { Kind::Node }
    }
}

#[derive(Args)]
struct Name {
    /// Its files and logs are in target/e2e/<NAME>
    #[arg(long, default_value = "cluster")]
    name: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Kubernetes { kind } => proviso_e2e::binaries::show(kind.control_plane),
        Command::Up { kind, name } => supervisor::up(&name.name, kind.kind()).await,
        Command::Down { name } => supervisor::down(&name.name).await,
        Command::Packages => Ok(writeln!(std::io::stdout(), "{}", proviso_e2e::Node::missing_packages().join(" "))?),
        Command::Supervise { kind, name } => supervisor::supervise(&name.name, kind.kind()).await,
    }
}
