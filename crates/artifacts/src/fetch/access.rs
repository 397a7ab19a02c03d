//! The credentials that a fetch may use, and the addresses that it may connect to. A fetch for the policy of a namespace is limited:
//! its author chooses the server, and must not learn what listens in the network of the policy server (docs/adr/0021).

use std::net::IpAddr;

use super::address;
use crate::reference::Host;

/// The limits of fetches for namespaced policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantLimits {
    /// The names of the Secrets whose credentials may be used.
    pub pull_secrets: Vec<String>,
    /// The servers that may have a loopback or private address.
    pub private_servers: Vec<Host>,
}

/// The permissions of one fetch. The default permits all Secrets and all addresses that are not reserved.
#[derive(Clone, Copy, Debug, Default)]
pub struct FetchAccess<'a> {
    /// The names of the Secrets whose credentials may be used; empty means all that `tenant` permits.
    pub pull_secrets: &'a [String],
    /// The limits of a namespaced policy; `None` if there are none.
    pub tenant: Option<&'a TenantLimits>,
}

impl FetchAccess<'_> {
    /// Returns the names of the Secrets to read: `Some` with the names, or `None` for all Secrets.
    pub(super) fn secrets(&self) -> Option<Vec<String>> {
        let named = Some(self.pull_secrets.to_vec()).filter(|names| !names.is_empty());
        match (self.tenant, named) {
            (None, named) => named,
            (Some(tenant), None) => Some(tenant.pull_secrets.clone()),
            (Some(tenant), Some(named)) => {
                Some(named.into_iter().filter(|name| tenant.pull_secrets.contains(name)).collect())
            }
        }
    }
}

impl TenantLimits {
    /// Returns true if a fetch from `host` may connect to this address. `is_configured` is true if an administrator has configured
    /// the server.
    pub(super) fn allow(&self, host: &Host, address: IpAddr, is_configured: bool) -> bool {
        is_configured || self.private_servers.contains(host) || address::is_public(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_uses_only_permitted_secrets() {
        let texts = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let tenant = |names: &[&str]| TenantLimits { pull_secrets: texts(names), ..TenantLimits::default() };
        for (named, permitted, expected) in [
            (vec![], None, None),
            (vec!["a"], None, Some(vec!["a"])),
            (vec![], Some(vec![]), Some(vec![])),
            (vec![], Some(vec!["b"]), Some(vec!["b"])),
            (vec!["a"], Some(vec!["b"]), Some(vec![])),
            (vec!["a", "b"], Some(vec!["b"]), Some(vec!["b"])),
        ] {
            let (named, permitted) = (texts(&named), permitted.map(|names| tenant(&names)));
            let access = FetchAccess { pull_secrets: &named, tenant: permitted.as_ref() };
            assert_eq!(access.secrets(), expected.map(|names| texts(&names)), "{named:?} {permitted:?}");
        }
    }
}
