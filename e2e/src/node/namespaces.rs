//! The namespaces of a node, held by its PID 1: whoever kills that ends every process in them.

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
use crate::until::PATIENCE;
use crate::{Folder, until};

/// PID 1 of a node. Ends with this value, and all that runs in the namespaces with it.
#[derive(Debug)]
pub(super) struct Namespaces {
    process: Process,
    first: u32,
    files: PathBuf,
}

impl Namespaces {
    /// Makes them and waits until their mounts and network are there.
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
        let process = Process::start("init", cgroups.found(init).through(unshare), folder.log("init"))?;
        let mut namespaces = Self { process, first: 0, files };
        until("the namespaces of a node", PATIENCE, async || {
            namespaces.process.ensure_running()?;
            ensure!(namespaces.files.join("ready").exists(), "its log: {}", namespaces.process.log().display());
            Ok(())
        })
        .await?;
        namespaces.first = namespaces.process.program()?;
        Ok(namespaces)
    }

    /// The number of PID 1 outside.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Runs something in all of them and in the cgroups.
    pub fn enter(&self, cgroups: &Cgroups, invocation: Invocation) -> Invocation {
        let all = ["--mount", "--net", "--pid", "--ipc", "--uts", "--cgroup", "--"];
        let target = format!("--target={}", self.first);
        cgroups.enter(invocation.through(Invocation::new("nsenter").argument(target).arguments(all).forking()))
    }

    pub fn network(&self) -> Network {
        Network { first: self.first }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        self.process.kill();
        // Images and volumes: large, and no logs are among them.
        let _ = std::fs::remove_dir_all(self.files.join("var/lib"));
    }
}

/// The network of a node, seen from outside.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    first: u32,
}

impl Network {
    /// What runs a program in it, and for the rest where we are: such a program can be a plain process of ours.
    pub fn wrapper(&self) -> Invocation {
        Invocation::new("nsenter").argument(format!("--net={}", self.path())).argument("--")
    }

    /// Makes a port of its loopback one of ours.
    pub async fn forward(&self, port: u16) -> Result<Proxy> {
        let network = self.clone();
        let connect: Connect = Arc::new(move || {
            let network = network.clone();
            Box::pin(async move { network.socket().await?.connect((Ipv4Addr::LOCALHOST, port).into()).await })
        });
        Proxy::listen(&format!("127.0.0.1:{port}"), connect).await
    }

    /// A socket belongs to the network in which it was made, so a thread that ends with that makes it there.
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
        format!("/proc/{}/ns/net", self.first)
    }
}
