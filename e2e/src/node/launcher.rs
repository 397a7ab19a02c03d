//! Starts the processes of a node after its PID 1.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::cgroups::Cgroups;
use super::host::Host;
use super::namespaces::Namespaces;
use super::{kubelet, runtime};
use crate::control_plane::ControlPlane;
use crate::process::{Invocation, Process};
use crate::until::WAIT_TIMEOUT;
use crate::{Folder, Image};

/// Starts processes in the namespaces and cgroups of a node.
pub(super) struct Launcher<'a> {
    pub host: &'a Host,
    pub namespaces: &'a Namespaces,
    pub cgroups: &'a Cgroups,
}

impl Launcher<'_> {
    pub fn start(&self, name: &str, invocation: Invocation, folder: &Folder) -> Result<Process> {
        self.start_with_log(name, invocation, folder.log(name))
    }

    /// Starts kubelet, kube-proxy and kube-scheduler, which make a control plane a full node.
    pub fn start_all(&self, programs: &Path, control_plane: &ControlPlane) -> Result<[Process; 3]> {
        let folder = control_plane.folder();
        let kubelet = self.start("kubelet", kubelet::kubelet(programs, control_plane)?, folder)?;
        let kube_proxy = self.start("kube-proxy", kubelet::kube_proxy(programs, control_plane)?, folder)?;
        // The scheduler needs only the network of the node, and not its other namespaces.
        let scheduler = control_plane.start_component("kube-scheduler", "system:kube-scheduler", None, |login| {
            Invocation::new(programs.join("kube-scheduler"))
                .flag("kubeconfig", login)
                .flag("authentication-kubeconfig", login)
                .flag("authorization-kubeconfig", login)
                .flag("bind-address", "127.0.0.1")
                .flag("leader-elect", "false")
        })?;
        Ok([kubelet, kube_proxy, scheduler])
    }

    /// Writes images, and loads them into containerd, which may still be starting.
    pub async fn load(&self, images: &[Image], folder: &Path, log: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        for image in images {
            // Several tests may load the same image at the same time, so each load has a file of its own.
            let tar = tempfile::Builder::new().suffix(".tar").tempfile_in(folder)?.into_temp_path();
            let (image, file) = (image.clone(), tar.to_path_buf());
            tokio::task::spawn_blocking(move || image.write(&file)).await??;
            let import = runtime::import(self.host, &tar);
            self.start_with_log("ctr", import, log.to_owned())?.until_done(WAIT_TIMEOUT).await?;
            tar.close()?;
        }
        Ok(())
    }

    fn start_with_log(&self, name: &str, invocation: Invocation, log: PathBuf) -> Result<Process> {
        let invocation = invocation.variable("PATH", self.host.path());
        Process::start(name, self.namespaces.enter(self.cgroups, invocation), log)
    }
}
