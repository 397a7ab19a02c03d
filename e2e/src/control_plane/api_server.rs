//! One API server of a control plane.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use kube::Client;

use super::process_host::ProcessHost;
use super::secrets::Secrets;
use super::webhook_client::admission_configuration;
use crate::binaries::Programs;
use crate::port::Port;
use crate::process::{Invocation, Process};
use crate::until::WAIT_TIMEOUT;
use crate::{Folder, Proxy, kubeconfig, until};

/// A kube-apiserver. Several can use one etcd.
#[derive(Debug)]
pub struct ApiServer {
    process: Process,
    port: Port,
    /// The forwarded port, if the server runs in the network of a node.
    _forward: Option<Proxy>,
    kubeconfig: PathBuf,
}

impl ApiServer {
    pub(super) async fn start(
        number: usize,
        etcd: SocketAddr,
        process_host: &ProcessHost,
        folder: &Folder,
        programs: &Programs,
        secrets: &Secrets,
    ) -> Result<Self> {
        let name = if number == 0 { "kube-apiserver".to_owned() } else { format!("kube-apiserver-{number}") };
        let port = Port::reserve()?;
        let address = process_host.address().to_string();
        let names =
            ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];
        let names = [&names[..], &["localhost", "127.0.0.1", ProcessHost::API_SERVICE, &address]].concat();
        let server = secrets.cluster.server(&name, &names)?;
        let etcd_client = secrets.etcd.client(&name, None)?;
        let kubelet_client = secrets.cluster.client("kube-apiserver-kubelet-client", Some("system:masters"))?;
        let front_proxy_client = secrets.front_proxy.client("front-proxy-client", None)?;
        let admission_folder = folder.path().join(format!("{name}-admission"));
        let webhook_client = secrets.webhook_clients.client(&name, None)?;
        let mut invocation = Invocation::new(&programs.kube_apiserver)
            .flag("bind-address", if process_host.address().is_loopback() { "127.0.0.1" } else { "0.0.0.0" })
            .flag("secure-port", port.number().to_string())
            .flag("advertise-address", address)
            .flag("etcd-servers", format!("https://{etcd}"))
            .flag("etcd-cafile", secrets.etcd.certificate())
            .flag("etcd-certfile", &etcd_client.certificate)
            .flag("etcd-keyfile", &etcd_client.key)
            .flag("tls-cert-file", &server.certificate)
            .flag("tls-private-key-file", &server.key)
            .flag("client-ca-file", secrets.cluster.certificate())
            .flag("kubelet-client-certificate", &kubelet_client.certificate)
            .flag("kubelet-client-key", &kubelet_client.key)
            .flag("kubelet-certificate-authority", secrets.cluster.certificate())
            .flag("kubelet-preferred-address-types", "InternalIP,Hostname")
            .flag("service-account-issuer", "https://kubernetes.default.svc.cluster.local")
            .flag("service-account-key-file", &secrets.service_account_public_key)
            .flag("service-account-signing-key-file", &secrets.service_account_key)
            .flag("service-cluster-ip-range", ProcessHost::SERVICES)
            .flag("authorization-mode", "Node,RBAC")
            .flag("enable-admission-plugins", "NodeRestriction")
            .flag("admission-control-config-file", admission_configuration(&admission_folder, &webhook_client)?)
            .flag("allow-privileged", "true")
            // Sends requests for a Service directly to its endpoints, because there may be no kube-proxy for its address.
            .flag("enable-aggregator-routing", "true")
            .flag("requestheader-client-ca-file", secrets.front_proxy.certificate())
            .flag("requestheader-allowed-names", "front-proxy-client")
            .flag("requestheader-username-headers", "X-Remote-User")
            .flag("requestheader-group-headers", "X-Remote-Group")
            .flag("requestheader-extra-headers-prefix", "X-Remote-Extra-")
            .flag("proxy-client-cert-file", &front_proxy_client.certificate)
            .flag("proxy-client-key-file", &front_proxy_client.key)
            // Saves 20 % of the CPU time of the start, and takes 120 MB more memory.
            .variable("GOGC", "400");
        if process_host.address().is_loopback() {
            // An endpoint of the Service `kubernetes` cannot be on loopback, and no pod needs it.
            invocation = invocation.flag("endpoint-reconciler-type", "none");
        }
        if programs.kube_controller_manager.is_none() {
            // This plugin refuses pods without a service account, and no controller creates service accounts.
            invocation = invocation.flag("disable-admission-plugins", "ServiceAccount");
        }
        let url = format!("https://127.0.0.1:{}", port.number());
        let file = folder.path().join(format!("{name}.kubeconfig"));
        let kubeconfig = kubeconfig::write(&file, &url, &secrets.cluster.certificate(), &secrets.admin)?;
        let process = Process::start(&name, process_host.run(invocation), folder.log(&name))?;
        let forward = process_host.forward_port(port.number()).await?;
        Ok(Self { process, port, _forward: forward, kubeconfig })
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port.number())
    }

    /// Returns the kubeconfig of an administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns a client of this server for an administrator.
    ///
    /// # Errors
    /// If the kubeconfig of this run cannot be read.
    pub async fn client(&self) -> Result<Client> {
        Ok(Client::try_from(kubeconfig::config(&self.kubeconfig).await?)?)
    }

    /// Returns the process, to kill, freeze and restart it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Waits until the server reports that it is ready.
    ///
    /// # Errors
    /// If the process ends, or is not ready in time.
    pub async fn until_ready(&mut self) -> Result<()> {
        let client = self.client().await?;
        until("a ready API server", WAIT_TIMEOUT, async || {
            self.process.ensure_running()?;
            let answer = client.request_text(http::Request::get("/readyz").body(Vec::new())?).await;
            let text = answer.with_context(|| format!("its log: {}", self.process.log().display()))?;
            ensure!(text == "ok", "{text}");
            Ok(())
        })
        .await
    }
}
