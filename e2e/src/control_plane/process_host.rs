//! The place of a cluster's processes: on loopback of this machine, or in the namespaces of a node.

use std::net::Ipv4Addr;

use anyhow::Result;

use crate::Proxy;
use crate::node::Network;
use crate::process::Invocation;

/// The place of a cluster's processes.
#[derive(Debug, Clone)]
pub(crate) struct ProcessHost {
    /// The network of a node; `None` for the network of this machine.
    network: Option<Network>,
    /// The address at which pods reach the API server.
    address: Ipv4Addr,
}

impl ProcessHost {
    /// The range of the addresses of Services. The first address is that of the API server.
    pub const SERVICES: &str = "10.96.0.0/16";
    pub const API_SERVICE: &str = "10.96.0.1";

    pub fn loopback() -> Self {
        Self { network: None, address: Ipv4Addr::LOCALHOST }
    }

    pub fn node(network: Network, address: Ipv4Addr) -> Self {
        Self { network: Some(network), address }
    }

    /// Returns the invocation on this host.
    pub fn run(&self, invocation: Invocation) -> Invocation {
        match &self.network {
            Some(network) => invocation.through(network.wrapper()),
            None => invocation,
        }
    }

    /// Forwards the same port of this machine's loopback to a port of the place's loopback, until the returned value is dropped.
    /// Returns `None` if the place is this machine.
    pub async fn forward_port(&self, port: u16) -> Result<Option<Proxy>> {
        match &self.network {
            Some(network) => Ok(Some(network.forward(port).await?)),
            None => Ok(None),
        }
    }

    pub fn address(&self) -> Ipv4Addr {
        self.address
    }
}
