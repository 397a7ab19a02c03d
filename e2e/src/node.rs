//! A full node: a cluster that runs pods, in namespaces of its own.

mod address;
mod cgroups;
mod dns;
mod host;
mod inside;
mod kubelet;
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
use inside::Inside;
use namespaces::Namespaces;

use crate::binaries::{Programs, Tier};
use crate::control_plane::{ControlPlane, Options, Place};
use crate::process::Process;
use crate::registry::{Access, Registry};
use crate::until::PATIENCE;
use crate::{Folder, Image, Kubectl, until};

/// A cluster of one node. Ends with this value, and with this program even if that is killed.
///
/// Its API server and its registry are reached at the same addresses of loopback from this machine and from the node.
#[derive(Debug)]
pub struct Node {
    // Fields are dropped in this order: with the namespaces ends all that runs in them; then their cgroups can go.
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
    /// Whether there can be nodes here at all, for tests that are passed by where there cannot.
    #[must_use]
    pub fn is_possible() -> bool {
        host::is_root()
    }

    /// The packages of Debian that have what nodes need and this machine lacks.
    #[must_use]
    pub fn missing_packages() -> Vec<&'static str> {
        host::missing_packages()
    }

    /// Builds what is missing and looks for what the machine must have.
    ///
    /// # Errors
    /// If this is not root, a program is missing and named, or a build fails.
    pub fn prepare() -> Result<()> {
        Host::find()?;
        Tier::ALL.into_iter().try_for_each(|tier| tier.folder().map(drop))
    }

    /// Starts one and waits until it is Ready; its files are in `target/e2e/<name>/`.
    ///
    /// # Errors
    /// If this is not root, a program is missing, or a component does not come up.
    pub async fn start(name: &str) -> Result<Self> {
        let host = Host::find()?;
        // Building them takes minutes: first, before anything waits for anything else.
        let programs = Programs::build()?;
        let tier = Tier::Node.folder()?;
        let pod = tier.join("pod");
        let images = [Image::new(runtime::PAUSE).file(&pod, "/pod").entrypoint(["/pod"]), dns::image()?];
        Tier::Registry.folder()?;

        let folder = Folder::new(name)?;
        let cgroups = Cgroups::new(folder.path())?;
        let namespaces = Namespaces::start(&host, &folder, &cgroups, &pod).await?;
        let place = Place::node(namespaces.network(), ADDRESS);
        let inside = Inside { host: &host, namespaces: &namespaces, cgroups: &cgroups };
        let containerd = inside.start("containerd", runtime::containerd(&host, &folder)?, &folder)?;
        let mut registry = Registry::start_in(&place, Ipv4Addr::UNSPECIFIED, &folder, Access::default()).await?;
        let (tars, log) = (folder.path().join("images"), folder.log("images"));
        let whole = async {
            let control_plane = ControlPlane::start_in(place, folder, programs, Options::default()).await?;
            let mut processes = inside.start_all(&tier, &control_plane)?;
            until_ready(&control_plane, &mut processes).await?;
            Ok((control_plane, processes))
        };
        let ((control_plane, processes), ()) = tokio::try_join!(whole, inside.load(&images, &tars, &log))?;
        // Not before its image is there: kubelet would look for it in vain, and again only after a while.
        dns::install(&control_plane.client().await?).await?;
        registry.until_ready().await?;
        Ok(Self { namespaces, _containerd: containerd, processes, cgroups, registry, control_plane, host })
    }

    #[must_use]
    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// An administrator's client.
    ///
    /// # Errors
    /// If the files of this run are gone.
    pub async fn client(&self) -> Result<Client> {
        self.control_plane.client().await
    }

    /// For an administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        self.control_plane.kubeconfig()
    }

    /// kubectl of an administrator.
    ///
    /// # Errors
    /// If it is missing and cannot be built.
    pub fn kubectl(&self) -> Result<Kubectl> {
        Kubectl::new(self.kubeconfig())
    }

    /// `host:port` of the registry, in names of images too.
    #[must_use]
    pub fn registry(&self) -> String {
        self.registry.address()
    }

    /// `host:port` of the registry for programs in pods, whose loopback is their own.
    #[must_use]
    pub fn registry_in_pods(&self) -> String {
        format!("{ADDRESS}:{}", self.registry.port())
    }

    /// Pushes an artifact of one layer to the registry: see [`Registry::push`].
    ///
    /// # Errors
    /// If the registry does not take it.
    pub async fn push(&self, repository: &str, tag: &str, media_type: &str, content: &[u8]) -> Result<String> {
        self.registry.push(repository, tag, media_type, content).await
    }

    /// The image that every node has: `/pod` of `go/pod`, which waits, serves HTTP or asks for a URL.
    #[must_use]
    pub fn pod_image() -> &'static str {
        runtime::PAUSE
    }

    /// The process of kubelet, to kill, freeze and restart; its pods go on.
    pub fn kubelet(&mut self) -> &mut Process {
        &mut self.processes[0]
    }

    /// The process whose namespaces are the node's: `nsenter --target <it> --net` for a look around.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.namespaces.first()
    }

    /// Gives containerd an image, so that pods need no registry for it.
    ///
    /// # Errors
    /// If a file of the image cannot be read, or containerd refuses it.
    pub async fn load(&self, image: &Image) -> Result<()> {
        let inside = Inside { host: &self.host, namespaces: &self.namespaces, cgroups: &self.cgroups };
        let folder = self.control_plane.folder();
        inside.load(std::slice::from_ref(image), &folder.path().join("images"), &folder.log("images")).await
    }

    /// Waits until names of Services are answered.
    ///
    /// # Errors
    /// If that takes too long.
    pub async fn until_dns(&self) -> Result<()> {
        dns::until_ready(&self.client().await?).await
    }
}

/// Of the Node, as kubelet reports it.
async fn until_ready(control_plane: &ControlPlane, processes: &mut [Process]) -> Result<()> {
    let nodes = Api::<NodeObject>::all(control_plane.client().await?);
    until("a Ready node", PATIENCE, async || {
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
