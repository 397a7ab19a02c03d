//! A full node: a cluster that runs pods, in its own Linux namespaces.

mod address;
mod cgroups;
mod dns;
mod host;
mod kubelet;
mod launcher;
mod namespaces;
mod runtime;

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::{Api, Client};

pub(crate) use namespaces::Network;

use address::{ADDRESS, NAME};
use cgroups::Cgroups;
use host::Host;
use launcher::Launcher;
use namespaces::Namespaces;

use crate::binaries::{Programs, Tier};
use crate::control_plane::{ControlPlane, Options, ProcessHost};
use crate::process::Process;
use crate::registry::{Access, Registry};
use crate::until::WAIT_TIMEOUT;
use crate::{Folder, Image, Kubectl, until};

/// A cluster of one node. It ends when this value is dropped, and when this program ends or is killed.
///
/// The API server and the registry have the same loopback addresses on this machine and in the node.
#[derive(Debug)]
pub struct Node {
    // Fields are dropped in this order: the end of the namespaces ends all their processes; then their cgroups can be removed.
    namespaces: Namespaces,
    /// kubelet, kube-proxy and kube-scheduler
    processes: [Process; 3],
    _containerd: Process,
    cgroups: Cgroups,
    registry: Registry,
    control_plane: ControlPlane,
    host: Host,
}

impl Node {
    /// Returns true if this program can start nodes. Tests that need a node are skipped otherwise.
    #[must_use]
    pub fn is_possible() -> bool {
        host::is_root()
    }

    /// Returns the Debian packages with the programs that nodes need and this machine lacks.
    #[must_use]
    pub fn missing_packages() -> Vec<&'static str> {
        host::missing_packages()
    }

    /// Builds missing programs, and checks the requirements on the machine.
    ///
    /// # Errors
    /// If the user is not root, a program of the machine is missing, or a build fails.
    pub fn prepare() -> Result<()> {
        Host::find()?;
        Tier::ALL.into_iter().try_for_each(|tier| tier.folder().map(drop))
    }

    /// Starts a node, and waits until it is Ready. Its files are in `target/e2e/<name>/`.
    ///
    /// # Errors
    /// If the user is not root, a program is missing, or a component does not start.
    pub async fn start(name: &str) -> Result<Self> {
        let host = Host::find()?;
        // A build takes minutes, so all builds come before the waits with time limits.
        let programs = Programs::build()?;
        let tier = Tier::Node.folder()?;
        let pod = tier.join("pod");
        let images = [Image::new(runtime::PAUSE).file(&pod, "/pod").entrypoint(["/pod"]), dns::image()?];
        Tier::Registry.folder()?;

        let folder = Folder::new(name)?;
        let cgroups = Cgroups::new(folder.path())?;
        let namespaces = Namespaces::start(&host, &folder, &cgroups, &pod).await?;
        let process_host = ProcessHost::node(namespaces.network(), ADDRESS);
        let launcher = Launcher { host: &host, namespaces: &namespaces, cgroups: &cgroups };
        let containerd = launcher.start("containerd", runtime::containerd(&host, &folder)?, &folder)?;
        let mut registry = Registry::start_in(&process_host, Ipv4Addr::UNSPECIFIED, &folder, Access::default()).await?;
        let (tars, log) = (folder.path().join("images"), folder.log("images"));
        let components = async {
            let control_plane = ControlPlane::start_in(process_host, folder, programs, Options::default()).await?;
            let mut processes = launcher.start_all(&tier, &control_plane)?;
            until_ready(&control_plane, &mut processes).await?;
            Ok((control_plane, processes))
        };
        let ((control_plane, processes), ()) = tokio::try_join!(components, launcher.load(&images, &tars, &log))?;
        // CoreDNS needs its image first: kubelet would not find it, and would try again only later.
        dns::install(&control_plane.client().await?).await?;
        registry.until_ready().await?;
        Ok(Self { namespaces, _containerd: containerd, processes, cgroups, registry, control_plane, host })
    }

    #[must_use]
    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// Returns a client for an administrator.
    ///
    /// # Errors
    /// If the kubeconfig of this run cannot be read.
    pub async fn client(&self) -> Result<Client> {
        self.control_plane.client().await
    }

    /// Returns the kubeconfig of an administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        self.control_plane.kubeconfig()
    }

    /// Returns kubectl for an administrator.
    ///
    /// # Errors
    /// If kubectl is missing and cannot be built.
    pub fn kubectl(&self) -> Result<Kubectl> {
        Kubectl::new(self.kubeconfig())
    }

    /// Returns `host:port` of the registry, also for the names of images.
    #[must_use]
    pub fn registry(&self) -> String {
        self.registry.address()
    }

    /// Returns `host:port` of the registry for programs in pods, which have their own loopback.
    #[must_use]
    pub fn registry_in_pods(&self) -> String {
        format!("{ADDRESS}:{}", self.registry.port())
    }

    /// Pushes an artifact with one layer to the registry: see [`Registry::push`].
    ///
    /// # Errors
    /// If the registry refuses the artifact.
    pub async fn push(&self, repository: &str, tag: &str, media_type: &str, content: &[u8]) -> Result<String> {
        self.registry.push(repository, tag, media_type, content).await
    }

    /// Returns the name of the image that every node has: the program `go/pod`, which waits, serves HTTP or requests a URL.
    #[must_use]
    pub fn pod_image() -> &'static str {
        runtime::PAUSE
    }

    /// Returns the process of kubelet, to kill, freeze and restart it. The pods keep running.
    pub fn kubelet(&mut self) -> &mut Process {
        &mut self.processes[0]
    }

    /// Returns the number of the process that holds the namespaces of the node, for `nsenter --target <number> --all`.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.namespaces.init_pid()
    }

    /// Loads an image into containerd, so that pods need no registry for it.
    ///
    /// # Errors
    /// If a file of the image cannot be read, or containerd refuses it.
    pub async fn load(&self, image: &Image) -> Result<()> {
        let launcher = Launcher { host: &self.host, namespaces: &self.namespaces, cgroups: &self.cgroups };
        let folder = self.control_plane.folder();
        launcher.load(std::slice::from_ref(image), &folder.path().join("images"), &folder.log("images")).await
    }

    /// Waits until `CoreDNS` resolves the names of Services.
    ///
    /// # Errors
    /// If `CoreDNS` is not ready in time.
    pub async fn until_dns(&self) -> Result<()> {
        dns::until_ready(&self.client().await?).await
    }
}

/// Waits until kubelet reports that the node is Ready.
async fn until_ready(control_plane: &ControlPlane, processes: &mut [Process]) -> Result<()> {
    let nodes = Api::<NodeObject>::all(control_plane.client().await?);
    until("a Ready node", WAIT_TIMEOUT, async || {
        processes.iter_mut().try_for_each(Process::ensure_running)?;
        let status = nodes.get(NAME).await?.status.context("no status yet")?;
        let conditions = status.conditions.unwrap_or_default();
        match conditions.iter().find(|condition| condition.type_ == "Ready") {
            Some(condition) if condition.status == "True" => Ok(()),
            other => bail!("{}", other.and_then(|ready| ready.message.as_deref()).unwrap_or("no condition yet")),
        }
    })
    .await
}
