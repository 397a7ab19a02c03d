//! One API server of a control plane.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use kube::Client;

use super::place::Place;
use super::secrets::Secrets;
use crate::binaries::Programs;
use crate::port::Port;
use crate::process::{Invocation, Process};
use crate::until::PATIENCE;
use crate::{Folder, Proxy, kubeconfig, until};

/// A kube-apiserver. There can be several on one etcd.
#[derive(Debug)]
pub struct ApiServer {
    process: Process,
    port: Port,
    /// From a node's network.
    _forward: Option<Proxy>,
    kubeconfig: PathBuf,
}

impl ApiServer {
    pub(super) async fn start(
        number: usize,
        etcd: SocketAddr,
        place: &Place,
        folder: &Folder,
        programs: &Programs,
        secrets: &Secrets,
    ) -> Result<Self> {
        let name = if number == 0 { "kube-apiserver".to_owned() } else { format!("kube-apiserver-{number}") };
        let port = Port::reserve()?;
        let address = place.address().to_string();
        let names =
            ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];
        let names = [&names[..], &["localhost", "127.0.0.1", Place::API_SERVICE, &address]].concat();
        let server = secrets.cluster.server(&name, &names)?;
        let etcd_client = secrets.etcd.client(&name, None)?;
        let kubelet_client = secrets.cluster.client("kube-apiserver-kubelet-client", Some("system:masters"))?;
        let front_proxy_client = secrets.front_proxy.client("front-proxy-client", None)?;
        let mut invocation = Invocation::new(&programs.kube_apiserver)
            .flag("bind-address", if place.address().is_loopback() { "127.0.0.1" } else { "0.0.0.0" })
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
            .flag("service-cluster-ip-range", Place::SERVICES)
            .flag("authorization-mode", "Node,RBAC")
            .flag("enable-admission-plugins", "NodeRestriction")
            .flag("allow-privileged", "true")
            // Requests to a Service go straight to its endpoints: without kube-proxy nobody translates its address.
            .flag("enable-aggregator-routing", "true")
            .flag("requestheader-client-ca-file", secrets.front_proxy.certificate())
            .flag("requestheader-allowed-names", "front-proxy-client")
            .flag("requestheader-username-headers", "X-Remote-User")
            .flag("requestheader-group-headers", "X-Remote-Group")
            .flag("requestheader-extra-headers-prefix", "X-Remote-Extra-")
            .flag("proxy-client-cert-file", &front_proxy_client.certificate)
            .flag("proxy-client-key-file", &front_proxy_client.key)
            // A fifth less CPU time until it serves, for 120 MB more memory.
            .variable("GOGC", "400");
        if place.address().is_loopback() {
            // Nobody but us needs an endpoint of the Service `kubernetes`, and loopback may not be one.
            invocation = invocation.flag("endpoint-reconciler-type", "none");
        }
        if programs.kube_controller_manager.is_none() {
            // Nobody makes the service account without which pods are refused.
            invocation = invocation.flag("disable-admission-plugins", "ServiceAccount");
        }
        let url = format!("https://127.0.0.1:{}", port.number());
        let file = folder.path().join(format!("{name}.kubeconfig"));
        let kubeconfig = kubeconfig::write(&file, &url, &secrets.cluster.certificate(), &secrets.admin)?;
        let process = Process::start(&name, place.run(invocation), folder.log(&name))?;
        let forward = place.reach(port.number()).await?;
        Ok(Self { process, port, _forward: forward, kubeconfig })
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port.number())
    }

    /// For an administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// An administrator's client of this server.
    ///
    /// # Errors
    /// If the files of this run are gone.
    pub async fn client(&self) -> Result<Client> {
        Ok(Client::try_from(kubeconfig::config(&self.kubeconfig).await?)?)
    }

    /// The process, to kill, freeze and restart.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Waits until it says that it serves.
    ///
    /// # Errors
    /// If it ends, or does not say so in time.
    pub async fn until_ready(&mut self) -> Result<()> {
        let client = self.client().await?;
        until("a ready API server", PATIENCE, async || {
            self.process.ensure_running()?;
            let answer = client.request_text(http::Request::get("/readyz").body(Vec::new())?).await;
            let text = answer.with_context(|| format!("its log: {}", self.process.log().display()))?;
            ensure!(text == "ok", "{text}");
            Ok(())
        })
        .await
    }
}
