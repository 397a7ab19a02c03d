//! Real Kubernetes for tests, from binaries that are built once from the Go modules in `go/`:
//!
//! - [`ControlPlane`]: etcd, API servers and a controller manager, plain processes on loopback;
//! - [`Node`]: beside them a kubelet, containerd, CNI, kube-proxy, `CoreDNS` and an OCI registry, in namespaces of their
//!   own (needs root);
//! - [`Registry`]: an OCI registry alone, a plain process on loopback.
//!
//! What a test starts ends with it, also when it panics or is killed. Logs stay in `target/e2e/<test>/`.

#![allow(clippy::missing_panics_doc, reason = "a test harness may panic where its user could do nothing")]

pub mod binaries;
mod cluster;
mod control_plane;
mod folder;
mod helm;
mod image;
mod kubeconfig;
mod kubectl;
pub mod manifests;
mod node;
pub mod pki;
mod port;
mod process;
pub mod program;
mod proxy;
mod registry;
pub mod supervisor;
mod until;
mod webhook;

pub use cluster::{Cluster, Temporary};
pub use control_plane::{ApiServer, ControlPlane, Options, address_for_endpoints};
pub use folder::Folder;
pub use helm::Helm;
pub use image::Image;
pub use kubectl::Kubectl;
pub use node::Node;
pub use process::Process;
pub use proxy::{Fault, Proxy};
pub use registry::{Access, Registry};
pub use until::until;
pub use webhook::Webhook;

/// Says something to the person who waits, past the capture of the test runner.
pub(crate) fn say(message: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{message}");
}

fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
