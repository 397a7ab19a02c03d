//! A cluster to use by hand. A separate process, the supervisor, keeps it running until `down`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, setsid};
use tokio::signal::unix::{SignalKind, signal};

use crate::binaries::{Programs, Tier};
use crate::{ControlPlane, Folder, Node, print_message, until};

/// The time limit of a start, which has several steps with their own time limits.
const START_TIMEOUT: Duration = Duration::from_mins(10);
const END_TIMEOUT: Duration = Duration::from_mins(1);

/// The kind of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Node,
    ControlPlane,
}

impl Kind {
    const CONTROL_PLANE: &str = "--control-plane";

    fn argument(self) -> Option<&'static str> {
        (self == Self::ControlPlane).then_some(Self::CONTROL_PLANE)
    }
}

/// Starts a cluster that outlives this program, and prints shell commands for using it.
///
/// # Errors
/// If the cluster does not start.
pub async fn up(name: &str, kind: Kind) -> Result<()> {
    // This process builds the programs, so that the user sees the progress and can end it with Ctrl-C.
    match kind {
        Kind::Node => Node::prepare()?,
        Kind::ControlPlane => drop(Programs::find()?),
    }
    if let Some(process) = Folder::user(name)? {
        print_message(&format!("{name} is already running: process {process}"));
        return show(name);
    }
    let _ = std::fs::remove_file(usage(name)?);
    let log = Folder::root()?.join(format!("{name}.log"));
    let output = File::create(&log)?;
    print_message(&format!("starting {name}; the log of its supervisor: {}", log.display()));
    let mut supervisor = Command::new(std::env::current_exe()?)
        .args(["supervise", "--name", name])
        .args(kind.argument())
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()?;
    tokio::select! {
        started = until_up(name, &mut supervisor, &log) => started?,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            // On SIGTERM the supervisor ends the cluster.
            kill_process(Pid::from_child(&supervisor), Signal::TERM)?;
            supervisor.wait()?;
            bail!("interrupted");
        }
    }
    show(name)
}

async fn until_up(name: &str, supervisor: &mut Child, log: &Path) -> Result<()> {
    let usage = usage(name)?;
    let mut ended = None;
    until("the cluster", START_TIMEOUT, async || {
        ended = supervisor.try_wait()?;
        ensure!(ended.is_some() || usage.exists(), "it is not up yet");
        Ok(())
    })
    .await?;
    match ended {
        Some(_) => bail!("{}", std::fs::read_to_string(log)?),
        None => Ok(()),
    }
}

/// Ends a cluster, and waits until it has ended.
///
/// # Errors
/// If the cluster does not end in time.
pub async fn down(name: &str) -> Result<()> {
    let Some(process) = Folder::user(name)? else {
        print_message(&format!("{name} is not running"));
        return Ok(());
    };
    let supervisor = Pid::from_raw(process.try_into()?).context("a process has a number")?;
    kill_process(supervisor, Signal::TERM).with_context(|| format!("ending process {process}"))?;
    until("the end of the cluster", END_TIMEOUT, async || {
        ensure!(Folder::user(name)?.is_none(), "process {process} still runs");
        Ok(())
    })
    .await?;
    print_message(&format!("{name} has ended; its logs: {}", Folder::root()?.join(name).join("logs").display()));
    Ok(())
}

/// Starts a cluster, and keeps it running until SIGTERM or SIGINT. [`up`] runs this in a separate process.
///
/// # Errors
/// If the cluster does not start.
pub async fn supervise(name: &str, kind: Kind) -> Result<()> {
    // A new session, so that the process keeps running after the terminal and its shell end.
    setsid()?;
    let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let keep = async {
        let cluster = Cluster::start(name, kind).await?;
        // The file gets its final name when it is complete.
        let (usage, unfinished) = (usage(name)?, Folder::root()?.join(name).join("usage.unfinished"));
        std::fs::write(&unfinished, cluster.usage()?)?;
        std::fs::rename(unfinished, usage)?;
        std::future::pending::<()>().await;
        drop(cluster);
        Ok(())
    };
    // The cluster ends when this future is dropped.
    tokio::select! {
        failed = keep => failed,
        _ = terminated.recv() => Ok(()),
        _ = interrupted.recv() => Ok(()),
    }
}

enum Cluster {
    Node(Box<Node>),
    ControlPlane(Box<ControlPlane>),
}

impl Cluster {
    async fn start(name: &str, kind: Kind) -> Result<Self> {
        Ok(match kind {
            Kind::Node => {
                let node = Box::new(Node::start(name).await?);
                node.until_dns().await?;
                Self::Node(node)
            }
            Kind::ControlPlane => Self::ControlPlane(Box::new(ControlPlane::start(name).await?)),
        })
    }

    /// Returns the shell commands for using the cluster.
    fn usage(&self) -> Result<String> {
        let (kubeconfig, node) = match self {
            Self::Node(node) => (node.kubeconfig(), Some(node)),
            Self::ControlPlane(plane) => (plane.kubeconfig(), None),
        };
        let kubectl = Programs::assets().filter(|_| node.is_none()).map_or_else(|| Tier::ControlPlane.folder(), Ok)?;
        let mut folders = vec![kubectl.display().to_string()];
        if node.is_some() {
            folders.push(Tier::Node.folder()?.display().to_string());
        }
        let mut usage =
            format!("export KUBECONFIG={}\nexport PATH={}:$PATH\n", kubeconfig.display(), folders.join(":"));
        if let Some(node) = node {
            writeln!(usage, "# images: push to {0}/…, use {0}/… in pods", node.registry())?;
            writeln!(usage, "# inside: nsenter --target {} --all", node.process())?;
        }
        Ok(usage)
    }
}

/// Returns the path of the file with the shell commands for using the cluster. The file exists while the cluster is up.
fn usage(name: &str) -> Result<PathBuf> {
    Ok(Folder::root()?.join(name).join("usage.sh"))
}

fn show(name: &str) -> Result<()> {
    let usage = std::fs::read(usage(name)?).context("the cluster is still starting, or was not started by `up`")?;
    Ok(std::io::stdout().write_all(&usage)?)
}
