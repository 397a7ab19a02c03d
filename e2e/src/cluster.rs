//! The cluster of tests that do not care whose it is: a control plane of their own, or one that the user names.
//!
//! - `PROVISO_E2E_KUBECONFIG`: the kubeconfig file of an existing cluster (kind, k3d, a real one), for an administrator.
//! - `PROVISO_E2E_HOST`: with it, the address of this machine as that cluster's API server reaches it. With kind that is
//!   the gateway of its network, with everything on one machine `127.0.0.1`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, TypeMeta};
use kube::{Client, Config, ResourceExt as _};
use serde_json::json;

use crate::{ControlPlane, Kubectl, kubeconfig, until};

/// A cluster to send requests to, with webhooks on this machine.
#[derive(Debug)]
pub struct Cluster {
    config: Config,
    kubeconfig: PathBuf,
    host: IpAddr,
    /// Whether somebody makes the service accounts without which there are no pods.
    has_controllers: bool,
    /// Ends with this value.
    _control_plane: Option<ControlPlane>,
}

impl Cluster {
    /// The user's cluster, else a control plane of this name.
    ///
    /// # Errors
    /// If neither is to be had.
    pub async fn find(name: &str) -> Result<Self> {
        let Some(file) = std::env::var_os("PROVISO_E2E_KUBECONFIG").filter(|value| !value.is_empty()) else {
            let control_plane = ControlPlane::start(name).await?;
            let cluster = Self::of(&control_plane).await?;
            return Ok(Self { _control_plane: Some(control_plane), ..cluster });
        };
        let host = std::env::var("PROVISO_E2E_HOST").ok().and_then(|value| value.parse().ok());
        let host = host.context(
            "PROVISO_E2E_HOST: with PROVISO_E2E_KUBECONFIG, set it to the IP address at which the API server of that \
             cluster reaches this machine (127.0.0.1 if it runs here; for kind the gateway of its network)",
        )?;
        let kubeconfig = PathBuf::from(file);
        let config = kubeconfig::config(&kubeconfig).await.context("PROVISO_E2E_KUBECONFIG")?;
        Ok(Self { config, kubeconfig, host, has_controllers: true, _control_plane: None })
    }

    /// The cluster of a control plane, for tests that do things to its processes, or need an empty one.
    ///
    /// # Errors
    /// If the files of its run are gone.
    pub async fn of(control_plane: &ControlPlane) -> Result<Self> {
        let kubeconfig = control_plane.kubeconfig().to_owned();
        let config = control_plane.config().await?;
        let has_controllers = control_plane.has_controllers();
        Ok(Self { config, kubeconfig, host: Ipv4Addr::LOCALHOST.into(), has_controllers, _control_plane: None })
    }

    /// kubectl of an administrator.
    ///
    /// # Errors
    /// If it is missing and cannot be built.
    pub fn kubectl(&self) -> Result<Kubectl> {
        Kubectl::new(&self.kubeconfig)
    }

    /// Where servers under test listen: there the API server reaches them.
    #[must_use]
    pub fn host(&self) -> IpAddr {
        self.host
    }

    /// An administrator's client.
    ///
    /// # Errors
    /// If the configuration is not usable.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::try_from(self.config.clone())?)
    }

    /// A client of somebody else, by impersonation.
    ///
    /// # Errors
    /// As [`Self::client`].
    pub fn user(&self, name: &str, groups: &[&str]) -> Result<Client> {
        kubeconfig::impersonate(self.config.clone(), name, groups)
    }

    /// Creates a namespace with these labels and waits until pods may be created in it.
    ///
    /// # Errors
    /// If the API server refuses.
    pub async fn namespace(&self, name: &str, labels: &[(&str, &str)]) -> Result<Temporary> {
        let labels: serde_json::Map<_, _> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        let temporary = self.apply(serde_json::from_value(namespace)?).await?;
        if !self.has_controllers {
            return Ok(temporary);
        }
        let accounts = Api::<ServiceAccount>::namespaced(self.client()?, name);
        let what = format!("the service account of the namespace {name}");
        until(&what, Duration::from_mins(1), async || Ok(accounts.get("default").await.map(drop)?)).await?;
        Ok(temporary)
    }

    /// Creates or replaces a cluster-scoped object; it is deleted with the returned value.
    ///
    /// # Errors
    /// If the object says not what it is, or the API server refuses it.
    pub async fn apply(&self, object: DynamicObject) -> Result<Temporary> {
        let types = object.types.clone().context("an object with its apiVersion and kind")?;
        let (name, kind) = (object.name_any(), api_resource(&types)?);
        let api = Api::<DynamicObject>::all_with(self.client()?, &kind);
        api.patch(&name, &PatchParams::apply("proviso-e2e").force(), &Patch::Apply(&object)).await?;
        Ok(Temporary { config: self.config.clone(), kind, name })
    }
}

fn api_resource(types: &TypeMeta) -> Result<ApiResource> {
    Ok(ApiResource::from_gvk(&types.try_into()?))
}

/// A cluster-scoped object that is deleted with this value, so that a cluster of the user's is left as it was.
#[derive(Debug)]
#[must_use = "the object is deleted with this value"]
pub struct Temporary {
    config: Config,
    kind: ApiResource,
    name: String,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let (config, kind, name) = (self.config.clone(), self.kind.clone(), self.name.clone());
        // A runtime of its own: this may run in one that must not block.
        let delete = std::thread::spawn(move || -> Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let api = Api::<DynamicObject>::all_with(Client::try_from(config)?, &kind);
                let background = DeleteParams::background();
                tokio::time::timeout(Duration::from_secs(5), api.delete(&name, &background)).await??;
                Ok(())
            })
        });
        if let Ok(Err(error)) = delete.join() {
            crate::say(&format!("{} {} is left over: {error:#}", self.kind.kind, self.name));
        }
    }
}
