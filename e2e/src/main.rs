//! The program for using the harness by hand: builds Kubernetes, and keeps a cluster running until `down`.

use std::io::Write as _;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use proviso_e2e::supervisor::{self, Kind};

/// Run real Kubernetes on this machine, built from source.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build missing programs of Kubernetes, and show the versions and the folders
    ///
    /// The programs are built once, into `PROVISO_E2E_CACHE` (default: `~/.cache/proviso-e2e`). The build needs Go.
    Kubernetes {
        #[command(flatten)]
        kind: Only,
    },
    /// Start a cluster that keeps running, and print how to use it
    ///
    /// A full node runs pods, and needs root, containerd, runc, CNI plugins and iptables. The output is for a shell:
    /// `eval "$(proviso-e2e up)"`.
    Up {
        #[command(flatten)]
        kind: Only,
        #[command(flatten)]
        name: Name,
    },
    /// End a cluster
    Down {
        #[command(flatten)]
        name: Name,
    },
    /// Print the Debian packages that a full node needs and this machine lacks
    Packages,
    /// Keep a cluster running; `up` starts this process
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
    /// Only a control plane (etcd, API server, controller manager), which needs no root and runs no pods
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
    /// Name of the cluster; its files and logs are in target/e2e/<NAME>
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
