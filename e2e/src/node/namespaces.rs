//! The namespaces of a node. Its PID 1 holds them: if PID 1 is killed, every process in them ends.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::net::TcpSocket;
use tokio::sync::oneshot;

use super::address::ADDRESS;
use super::cgroups::Cgroups;
use super::host::Host;
use crate::process::{Invocation, Process};
use crate::proxy::{Connect, Proxy};
use crate::until::WAIT_TIMEOUT;
use crate::{Folder, until};

/// PID 1 of a node. When this value is dropped, PID 1 and all processes in the namespaces end.
#[derive(Debug)]
pub(super) struct Namespaces {
    process: Process,
    /// The number of PID 1 in the PID namespace of this machine.
    init_pid: u32,
    files: PathBuf,
}

impl Namespaces {
    /// Creates the namespaces, and waits until their mounts and network are ready.
    pub async fn start(host: &Host, folder: &Folder, cgroups: &Cgroups, program: &Path) -> Result<Self> {
        let files = folder.path().join("node");
        std::fs::create_dir_all(&files)?;
        let init = Invocation::new("unshare")
            .arguments(["--cgroup", "--", "sh", "-c", include_str!("init.sh"), "init.sh"])
            .arguments([files.as_os_str(), ADDRESS.to_string().as_ref(), program.as_os_str()])
            .variable("PATH", host.path());
        let unshare = Invocation::new("unshare")
            .arguments(["--mount", "--net", "--pid", "--ipc", "--uts", "--propagation", "private"])
            .arguments(["--fork", "--kill-child", "--"])
            .forking();
        let process = Process::start("init", cgroups.run_first(init).through(unshare), folder.log("init"))?;
        let mut namespaces = Self { process, init_pid: 0, files };
        until("the namespaces of a node", WAIT_TIMEOUT, async || {
            namespaces.process.ensure_running()?;
            ensure!(namespaces.files.join("ready").exists(), "its log: {}", namespaces.process.log().display());
            Ok(())
        })
        .await?;
        namespaces.init_pid = namespaces.process.program()?;
        Ok(namespaces)
    }

    /// Returns the number of PID 1 in the PID namespace of this machine.
    pub fn init_pid(&self) -> u32 {
        self.init_pid
    }

    /// Returns an invocation that runs in all namespaces and in the cgroups.
    pub fn enter(&self, cgroups: &Cgroups, invocation: Invocation) -> Invocation {
        let all = ["--mount", "--net", "--pid", "--ipc", "--uts", "--cgroup", "--"];
        let target = format!("--target={}", self.init_pid);
        cgroups.enter(invocation.through(Invocation::new("nsenter").argument(target).arguments(all).forking()))
    }

    pub fn network(&self) -> Network {
        Network { init_pid: self.init_pid }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        self.process.kill();
        // Images and volumes are large, and contain no logs.
        let _ = std::fs::remove_dir_all(self.files.join("var/lib"));
    }
}

/// The network namespace of a node.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    /// The number of PID 1 in the PID namespace of this machine.
    init_pid: u32,
}

impl Network {
    /// Returns a wrapper that runs a program in this network, and otherwise in the namespaces of this program.
    pub fn wrapper(&self) -> Invocation {
        Invocation::new("nsenter").argument(format!("--net={}", self.path())).argument("--")
    }

    /// Forwards the same port of this machine's loopback to a port of the node's loopback.
    pub async fn forward(&self, port: u16) -> Result<Proxy> {
        let network = self.clone();
        let connect: Connect = Arc::new(move || {
            let network = network.clone();
            Box::pin(async move { network.socket().await?.connect((Ipv4Addr::LOCALHOST, port).into()).await })
        });
        Proxy::listen(&format!("127.0.0.1:{port}"), connect).await
    }

    /// Creates a socket in this network. A socket belongs to the network of the thread that creates it, so a new thread moves
    /// into the network, creates the socket, and ends.
    async fn socket(&self) -> io::Result<TcpSocket> {
        let (sender, socket) = oneshot::channel();
        let path = self.path();
        std::thread::spawn(move || {
            let make = || {
                let network = std::fs::File::open(path)?;
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
                TcpSocket::new_v4()
            };
            let _ = sender.send(make());
        });
        socket.await.map_err(io::Error::other)?
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.init_pid)
    }
}
