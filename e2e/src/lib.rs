//! Real Kubernetes for tests, from programs that are built once from the Go modules in `go/`:
//!
//! - [`ControlPlane`]: etcd, API servers and a controller manager, as plain processes on loopback;
//! - [`Node`]: these, and kubelet, containerd, CNI, kube-proxy, `CoreDNS` and an OCI registry, in their own namespaces
//!   (needs root);
//! - [`Registry`]: only an OCI registry, as a plain process on loopback.
//!
//! [`torture`] has the pure parts of the randomised run.
//!
//! The processes of a test end with the test, also if it panics or is killed. Logs are kept in `target/e2e/<test>/`.

#![allow(clippy::missing_panics_doc, reason = "a test harness may panic on failures that a test cannot handle")]

#[cfg(test)]
mod aip_page;
pub mod binaries;
pub mod clock;
mod cluster;
pub mod component;
#[cfg(test)]
mod configuration_page;
pub mod console;
mod control_plane;
#[cfg(test)]
mod faults_page;
mod folder;
mod helm;
mod image;
mod kubeconfig;
mod kubectl;
pub mod manifests;
mod node;
pub mod pki;
mod port;
mod previous;
mod process;
pub mod program;
mod proxy;
mod registry;
#[cfg(test)]
mod security_page;
pub mod supervisor;
pub mod torture;
mod until;
mod webhook;

pub use cluster::{Cluster, Temporary};
pub use control_plane::{ApiServer, ControlPlane, Link, Links, Options, address_for_endpoints};
pub use folder::Folder;
pub use helm::Helm;
pub use image::Image;
pub use kubectl::Kubectl;
pub use node::Node;
pub use port::Port;
pub use previous::Previous;
pub use process::{Invocation, Process};
pub use proxy::{Fault, Proxy};
pub use registry::{Access, Registry};
pub use until::{until, until_after, until_with};
pub use webhook::Webhook;

/// Prints a message to standard error. The test runner does not capture it, so that the user sees it at once.
pub(crate) fn print_message(message: &str) {
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
