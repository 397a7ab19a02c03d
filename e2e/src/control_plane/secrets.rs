//! The certificates and keys of a cluster.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::pki::{Authority, Identity};

/// The certificates and keys of a cluster.
#[derive(Debug)]
pub(crate) struct Secrets {
    /// The CA of users, components and API servers.
    pub cluster: Authority,
    /// The CA of etcd and its clients.
    pub etcd: Authority,
    /// The CA of the client certificate that API servers present to aggregated API servers.
    pub front_proxy: Authority,
    /// The CA of the client certificate that API servers present to webhooks.
    pub webhook_clients: Authority,
    /// The certificate of an administrator.
    pub admin: Identity,
    /// The private key that signs the tokens of service accounts.
    pub service_account_key: PathBuf,
    /// The public key of `service_account_key`.
    pub service_account_public_key: PathBuf,
}

impl Secrets {
    pub fn new(folder: &Path) -> Result<Self> {
        let cluster = Authority::new("cluster", folder)?;
        let admin = cluster.client("kubernetes-admin", Some("system:masters"))?;
        let key = rcgen::KeyPair::generate()?;
        let service_account_key = folder.join("service-accounts.key");
        let service_account_public_key = folder.join("service-accounts.pub");
        std::fs::write(&service_account_key, key.serialize_pem())?;
        std::fs::write(&service_account_public_key, key.public_key_pem())?;
        let (etcd, front_proxy) = (Authority::new("etcd", folder)?, Authority::new("front-proxy", folder)?);
        let webhook_clients = Authority::new("webhook-clients", folder)?;
        Ok(Self { cluster, etcd, front_proxy, webhook_clients, admin, service_account_key, service_account_public_key })
    }
}
