//! The cluster of tests that work with any cluster: a new control plane, or an existing cluster that the user names.
//!
//! - `PROVISO_E2E_KUBECONFIG`: the kubeconfig file of an administrator of an existing cluster (kind, k3d, a real one).
//! - `PROVISO_E2E_HOST`: required with it, the address at which the API server of that cluster reaches this machine. For kind
//!   it is the gateway of its network; if everything runs on one machine, it is `127.0.0.1`.

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

/// A cluster whose API server can call webhooks on this machine.
#[derive(Debug)]
pub struct Cluster {
    config: Config,
    kubeconfig: PathBuf,
    host: IpAddr,
    /// True if a controller manager creates the service accounts that pods need.
    has_controllers: bool,
    /// The control plane, which ends when this value is dropped.
    _control_plane: Option<ControlPlane>,
}

impl Cluster {
    /// Returns the user's cluster, or else a new control plane with this name.
    ///
    /// # Errors
    /// If the variables of the user are invalid, or the control plane does not start.
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

    /// Returns the cluster of a control plane, for tests that control its processes, or need an empty cluster.
    ///
    /// # Errors
    /// If the kubeconfig of the run cannot be read.
    pub async fn of(control_plane: &ControlPlane) -> Result<Self> {
        let kubeconfig = control_plane.kubeconfig().to_owned();
        let config = control_plane.config().await?;
        let has_controllers = control_plane.has_controllers();
        Ok(Self { config, kubeconfig, host: Ipv4Addr::LOCALHOST.into(), has_controllers, _control_plane: None })
    }

    /// Returns kubectl for an administrator.
    ///
    /// # Errors
    /// If kubectl is missing and cannot be built.
    pub fn kubectl(&self) -> Result<Kubectl> {
        Kubectl::new(&self.kubeconfig)
    }

    /// Returns the address at which the API server reaches servers on this machine.
    #[must_use]
    pub fn host(&self) -> IpAddr {
        self.host
    }

    /// Returns a client for an administrator.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::try_from(self.config.clone())?)
    }

    /// Returns a client for another user, by impersonation.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn user(&self, name: &str, groups: &[&str]) -> Result<Client> {
        kubeconfig::impersonate(self.config.clone(), name, groups)
    }

    /// Creates a namespace with these labels, and waits until pods can be created in it.
    ///
    /// # Errors
    /// If the API server refuses the namespace, or its service account does not come.
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

    /// Creates or replaces a cluster-scoped object. The object is deleted when the returned value is dropped.
    ///
    /// # Errors
    /// If the object has no `apiVersion` or `kind`, or the API server refuses it.
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

/// A cluster-scoped object that is deleted when this value is dropped, so that a cluster of the user is left unchanged.
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
        // This may run inside of a runtime that must not block, so the deletion has its own runtime.
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
            crate::print_message(&format!("{} {} is left over: {error:#}", self.kind.kind, self.name));
        }
    }
}
