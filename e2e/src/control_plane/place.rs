//! Where the processes of a cluster run: on loopback of this machine, or in the namespaces of a node.

use std::net::Ipv4Addr;

use anyhow::Result;

use crate::Proxy;
use crate::node::Network;
use crate::process::Invocation;

#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// None is that of this machine.
    network: Option<Network>,
    /// Where other machines, that is pods, reach the API server.
    address: Ipv4Addr,
}

impl Place {
    /// The addresses of Services; the first is that of the API server.
    pub const SERVICES: &str = "10.96.0.0/16";
    pub const API_SERVICE: &str = "10.96.0.1";

    pub fn loopback() -> Self {
        Self { network: None, address: Ipv4Addr::LOCALHOST }
    }

    pub fn node(network: Network, address: Ipv4Addr) -> Self {
        Self { network: Some(network), address }
    }

    pub fn run(&self, invocation: Invocation) -> Invocation {
        match &self.network {
            Some(network) => invocation.through(network.wrapper()),
            None => invocation,
        }
    }

    /// Makes a port of loopback there one of ours, for as long as the returned value lives.
    pub async fn reach(&self, port: u16) -> Result<Option<Proxy>> {
        match &self.network {
            Some(network) => Ok(Some(network.forward(port).await?)),
            None => Ok(None),
        }
    }

    pub fn address(&self) -> Ipv4Addr {
        self.address
    }
}
