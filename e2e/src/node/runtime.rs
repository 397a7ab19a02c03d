//! containerd of a node: its configuration, the pod network, and the import of images.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::host::Host;
use crate::Folder;
use crate::process::Invocation;

/// The image of the container that holds the namespaces of a pod; see `go/pod`.
pub(super) const PAUSE: &str = "localhost/pod:1";
pub(super) const SOCKET: &str = "/run/containerd/containerd.sock";
/// The range of the addresses of pods.
pub(super) const PODS: &str = "10.244.0.0/24";

/// Writes the configuration of containerd, and returns its invocation.
pub(super) fn containerd(host: &Host, folder: &Folder) -> Result<Invocation> {
    let network = folder.path().join("cni");
    std::fs::create_dir_all(&network)?;
    std::fs::write(network.join("10-pods.conflist"), serde_json::to_vec_pretty(&pod_network())?)?;
    let file = folder.path().join("containerd.toml");
    std::fs::write(&file, configuration(host, &network, snapshotter(folder.path())?))?;
    Ok(Invocation::new(&host.containerd).flag("config", file))
}

/// Returns the configuration in version 2, which containerd 1.4 and later reads. containerd 2 converts it.
fn configuration(host: &Host, network: &Path, snapshotter: &str) -> String {
    let (runc, plugins, network) = (host.runc.display(), host.cni.display(), network.display());
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
# The first creates folders in the host's /opt; the others look for services that do not exist here.
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
# Root in a container may not lower the OOM score without CAP_SYS_RESOURCE.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "runc"
snapshotter = "{snapshotter}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{network}"
"#
    )
}

/// Returns the configuration of the pod network. Each pod has a link to the node, so that all packets are routed and the rules
/// of kube-proxy apply. A bridge would need the kernel module `br_netfilter`, whose settings apply to the whole machine.
fn pod_network() -> serde_json::Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni",
                    "ranges": [[{"subnet": PODS}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
        ],
    })
}

/// Returns the snapshotter: `overlayfs`, or `native` if the folder is on overlayfs, as in a container. overlayfs cannot be
/// stacked on itself.
fn snapshotter(folder: &Path) -> Result<&'static str> {
    // The value of OVERLAYFS_SUPER_MAGIC in linux/magic.h.
    const OVERLAY: i64 = 0x794c_7630;
    Ok(if rustix::fs::statfs(folder)?.f_type == OVERLAY { "native" } else { "overlayfs" })
}

/// Returns the invocation that imports the images of a tar file. It waits for a containerd that is still starting.
pub(super) fn import(host: &Host, tar: &Path) -> Invocation {
    let arguments = ["--address", SOCKET, "--connect-timeout", "1m", "--namespace", "k8s.io", "images", "import"];
    Invocation::new(&host.ctr).arguments(arguments).argument(tar)
}
