//! Where the processes of a cluster run: on loopback of this machine, or in the namespaces of a node.

use std::net::Ipv4Addr;

use crate::process::Invocation;

#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// What runs a program there.
    wrapper: Option<Invocation>,
    /// Where other machines, that is pods, reach the API server.
    address: Ipv4Addr,
}

impl Place {
    pub fn loopback() -> Self {
        Self { wrapper: None, address: Ipv4Addr::LOCALHOST }
    }

    pub fn namespaces(wrapper: Invocation, address: Ipv4Addr) -> Self {
        Self { wrapper: Some(wrapper), address }
    }

    pub fn run(&self, invocation: Invocation) -> Invocation {
        match &self.wrapper {
            Some(wrapper) => invocation.through(wrapper.clone()),
            None => invocation,
        }
    }

    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The addresses of Services; the first is that of the API server.
    pub fn services(&self) -> &'static str {
        "10.96.0.0/16"
    }

    /// The first of [`Self::services`].
    pub fn api_service(&self) -> &'static str {
        "10.96.0.1"
    }
}
