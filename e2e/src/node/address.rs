//! The name and the addresses of a node.

use std::net::Ipv4Addr;

/// The name of the node in Kubernetes, and its host name.
pub(super) const NAME: &str = "node";
/// The address of the node in its network. Every node has the same address, because each node has its own network.
pub(super) const ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 2);
/// The address of the Service of `CoreDNS`: one of [`crate::control_plane::ProcessHost::SERVICES`].
pub(super) const DNS: &str = "10.96.0.10";
