//! A cluster to use by hand: a process of its own keeps it until it is told to end.

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
use crate::{ControlPlane, Folder, Node, say, until};

/// A start waits for several things, each within bounds of its own.
const START: Duration = Duration::from_mins(10);
const END: Duration = Duration::from_mins(1);

/// What to keep.
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

/// Starts a cluster that outlives this program, and prints how to use it, for a shell to evaluate.
///
/// # Errors
/// If it does not come up.
pub async fn up(name: &str, kind: Kind) -> Result<()> {
    // Here, so that the progress is seen and Ctrl-C ends it.
    match kind {
        Kind::Node => Node::prepare()?,
        Kind::ControlPlane => drop(Programs::find()?),
    }
    if let Some(process) = Folder::user(name)? {
        say(&format!("{name} is already running: process {process}"));
        return show(name);
    }
    let _ = std::fs::remove_file(usage(name)?);
    let log = Folder::root()?.join(format!("{name}.log"));
    let output = File::create(&log)?;
    say(&format!("starting {name}; the log of what keeps it: {}", log.display()));
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
            // It tears down what there is.
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
    until("the cluster", START, async || {
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

/// Ends it and waits until it is gone.
///
/// # Errors
/// If it does not end.
pub async fn down(name: &str) -> Result<()> {
    let Some(process) = Folder::user(name)? else {
        say(&format!("{name} is not running"));
        return Ok(());
    };
    let supervisor = Pid::from_raw(process.try_into()?).context("a process has a number")?;
    kill_process(supervisor, Signal::TERM).with_context(|| format!("ending process {process}"))?;
    until("the end of the cluster", END, async || {
        ensure!(Folder::user(name)?.is_none(), "process {process} goes on");
        Ok(())
    })
    .await?;
    say(&format!("{name} is gone; its logs: {}", Folder::root()?.join(name).join("logs").display()));
    Ok(())
}

/// Keeps a cluster until SIGTERM or SIGINT. [`up`] runs this in a process of its own.
///
/// # Errors
/// If it does not come up.
pub async fn supervise(name: &str, kind: Kind) -> Result<()> {
    // The terminal and the shell that started it may go.
    setsid()?;
    let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let keep = async {
        let cluster = Cluster::start(name, kind).await?;
        // Under its final name it is whole.
        let (usage, unfinished) = (usage(name)?, Folder::root()?.join(name).join("usage.unfinished"));
        std::fs::write(&unfinished, cluster.usage()?)?;
        std::fs::rename(unfinished, usage)?;
        std::future::pending::<()>().await;
        drop(cluster);
        Ok(())
    };
    // What was started ends with the future in which it lives.
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

    /// Lines of shell.
    fn usage(&self) -> Result<String> {
        let (kubeconfig, more) = match self {
            Self::Node(node) => (node.kubeconfig(), Some(node)),
            Self::ControlPlane(plane) => (plane.kubeconfig(), None),
        };
        let kubectl = Programs::assets().filter(|_| more.is_none()).map_or_else(|| Tier::ControlPlane.folder(), Ok)?;
        let mut folders = vec![kubectl.display().to_string()];
        if more.is_some() {
            folders.push(Tier::Node.folder()?.display().to_string());
        }
        let mut usage =
            format!("export KUBECONFIG={}\nexport PATH={}:$PATH\n", kubeconfig.display(), folders.join(":"));
        if let Some(node) = more {
            writeln!(usage, "# images: push to {0}/…, use {0}/… in pods", node.registry())?;
            writeln!(usage, "# inside: nsenter --target {} --all", node.process())?;
        }
        Ok(usage)
    }
}

/// The file that says how to use the cluster, and by being there that it is up.
fn usage(name: &str) -> Result<PathBuf> {
    Ok(Folder::root()?.join(name).join("usage.sh"))
}

fn show(name: &str) -> Result<()> {
    let usage = std::fs::read(usage(name)?).context("it is still coming up, or not started by `up`")?;
    Ok(std::io::stdout().write_all(&usage)?)
}
