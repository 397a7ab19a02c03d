//! A control plane: etcd, API servers and a controller manager. It can do everything but run pods.

mod api_server;
mod etcd;
mod process_host;
mod secrets;
mod webhook_client;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client, Config};
use tokio::sync::OnceCell;

pub use api_server::ApiServer;
use etcd::Etcd;
pub(crate) use process_host::ProcessHost;
use secrets::Secrets;

use crate::binaries::Programs;
use crate::pki::Authority;
use crate::process::{Invocation, Process};
use crate::until::WAIT_TIMEOUT;
use crate::{Folder, Proxy, kubeconfig, until};

/// The options of a control plane.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Puts a fault proxy between the API servers and etcd: [`ControlPlane::etcd_link`]. Default: false.
    pub etcd_link: bool,
}

/// A network between one client and the first API server, in which a test injects faults.
#[derive(Debug)]
pub struct Link {
    pub proxy: Proxy,
    /// The kubeconfig of an administrator whose requests pass the proxy.
    pub kubeconfig: PathBuf,
}

/// Creates the links of a control plane. It may be used while the processes of the control plane are restarted.
#[derive(Debug, Clone)]
pub struct Links {
    /// The URL of the first API server.
    server: String,
    /// The kubeconfig of an administrator for that server.
    kubeconfig: PathBuf,
    folder: PathBuf,
}

impl Links {
    /// Starts a proxy to the first API server for one client. The name of the client is a part of the name of its kubeconfig.
    ///
    /// # Errors
    /// If no port is free, or a kubeconfig cannot be read or written.
    pub async fn create(&self, client: &str) -> Result<Link> {
        let proxy = Proxy::start(self.server.trim_start_matches("https://").parse()?).await?;
        let direct = std::fs::read_to_string(&self.kubeconfig)?;
        let kubeconfig = self.folder.join(format!("{client}.linked.kubeconfig"));
        std::fs::write(&kubeconfig, direct.replace(&self.server, &format!("https://{}", proxy.address())))?;
        Ok(Link { proxy, kubeconfig })
    }
}

/// A control plane. It ends when this value is dropped.
#[derive(Debug)]
pub struct ControlPlane {
    // Fields are dropped in this order: clients before their servers, so that no client logs errors.
    controller_manager: Option<Process>,
    api_servers: Vec<ApiServer>,
    etcd_link: Option<Proxy>,
    etcd: Etcd,
    secrets: Secrets,
    process_host: ProcessHost,
    programs: Programs,
    folder: Folder,
}

impl ControlPlane {
    /// Starts a control plane on loopback, and waits until it serves. Its files are in `target/e2e/<name>/`.
    ///
    /// # Errors
    /// If a program is missing and cannot be built, or a component does not start.
    pub async fn start(name: &str) -> Result<Self> {
        Self::start_with(name, Options::default()).await
    }

    /// Starts a control plane with options: see [`Self::start`].
    ///
    /// # Errors
    /// The errors of [`Self::start`].
    pub async fn start_with(name: &str, options: Options) -> Result<Self> {
        // The programs come first: a build takes minutes, and another run may use the folder until then.
        let programs = Programs::find()?;
        Self::start_in(ProcessHost::loopback(), Folder::new(name)?, programs, options).await
    }

    /// Returns the control plane that the tests of this program share. The first call starts it. Each test uses its own
    /// namespace, and does not control the processes. They end with the program.
    ///
    /// # Errors
    /// The errors of [`Self::start`].
    pub async fn shared(name: &str) -> Result<&'static Self> {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::start(name)).await
    }

    pub(crate) async fn start_in(
        process_host: ProcessHost,
        folder: Folder,
        programs: Programs,
        options: Options,
    ) -> Result<Self> {
        let secrets = Secrets::new(&folder.path().join("pki"))?;
        let etcd = Etcd::start(&process_host, &folder, &programs, &secrets).await?;
        let etcd_link = if options.etcd_link { Some(Proxy::start(etcd.address()).await?) } else { None };
        let mut control_plane = Self {
            controller_manager: None,
            api_servers: Vec::new(),
            etcd_link,
            etcd,
            secrets,
            process_host,
            programs,
            folder,
        };
        control_plane.add_api_server().await?;
        control_plane.controller_manager = control_plane.start_controller_manager()?;
        if control_plane.has_controllers() {
            control_plane.until_pods_may_be_created().await?;
        }
        Ok(control_plane)
    }

    /// Returns the folder of this run.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Returns the CA of the client certificate that API servers present to aggregated API servers.
    #[must_use]
    pub fn front_proxy(&self) -> &Authority {
        &self.secrets.front_proxy
    }

    /// Returns the CA of the client certificate that API servers present to webhooks.
    #[must_use]
    pub fn webhook_clients(&self) -> &Authority {
        &self.secrets.webhook_clients
    }

    /// Returns the kubeconfig of an administrator for the first API server.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        self.api_servers[0].kubeconfig()
    }

    /// Returns the URL of the first API server: `https://host:port`.
    #[must_use]
    pub fn url(&self) -> String {
        self.api_servers[0].url()
    }

    /// Returns a client of the first API server for an administrator.
    ///
    /// # Errors
    /// If the kubeconfig of this run cannot be read.
    pub async fn client(&self) -> Result<Client> {
        Ok(Client::try_from(self.config().await?)?)
    }

    /// Returns the configuration of [`Self::client`].
    ///
    /// # Errors
    /// If the kubeconfig of this run cannot be read.
    pub async fn config(&self) -> Result<Config> {
        kubeconfig::config(self.kubeconfig()).await
    }

    /// Returns a value that creates links of clients to the first API server.
    #[must_use]
    pub fn links(&self) -> Links {
        let folder = self.folder.path().to_owned();
        Links { server: self.url(), kubeconfig: self.kubeconfig().to_owned(), folder }
    }

    /// Returns an API server. The number of the first is 0.
    pub fn api_server(&mut self, number: usize) -> &mut ApiServer {
        &mut self.api_servers[number]
    }

    /// Returns the process of etcd, to kill, freeze and restart it. A restart keeps the data.
    pub fn etcd(&mut self) -> &mut Process {
        self.etcd.process()
    }

    /// Returns true if the control plane has a controller manager. The programs of envtest have none.
    #[must_use]
    pub fn has_controllers(&self) -> bool {
        self.controller_manager.is_some()
    }

    /// Checks that the control plane has a controller manager, for tests that need one.
    ///
    /// # Errors
    /// If it has none. The message has a remedy.
    pub fn ensure_controllers(&self) -> Result<()> {
        ensure!(
            self.has_controllers(),
            "this test needs controllers: put a kube-controller-manager into KUBEBUILDER_ASSETS, or unset that variable"
        );
        Ok(())
    }

    /// Returns the process of the controller manager; `None` with the programs of envtest.
    pub fn controller_manager(&mut self) -> Option<&mut Process> {
        self.controller_manager.as_mut()
    }

    /// Returns the proxy between the API servers and etcd.
    ///
    /// # Errors
    /// If [`Options::etcd_link`] was not set.
    pub fn etcd_link(&self) -> Result<&Proxy> {
        self.etcd_link.as_ref().context("start the control plane with the option etcd_link")
    }

    /// Starts one more API server on the same etcd, and waits until it serves. Returns its number.
    ///
    /// # Errors
    /// If the API server does not start.
    pub async fn add_api_server(&mut self) -> Result<usize> {
        let number = self.api_servers.len();
        let etcd = self.etcd_link.as_ref().map_or(self.etcd.address(), Proxy::address);
        let server =
            ApiServer::start(number, etcd, &self.process_host, &self.folder, &self.programs, &self.secrets).await?;
        self.api_servers.push(server);
        self.api_servers[number].until_ready().await?;
        Ok(number)
    }

    /// Makes every watch from an older resource version end in `410 Gone`: compacts etcd to its newest revision, and restarts the
    /// API servers, which have older revisions in their caches.
    ///
    /// # Errors
    /// If etcd refuses the compaction, or an API server does not start again.
    pub async fn expire_watches(&mut self) -> Result<()> {
        self.etcd.compact().await?;
        for server in &mut self.api_servers {
            server.process().restart()?;
            server.until_ready().await?;
        }
        Ok(())
    }

    pub(crate) fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Starts a component of the cluster with its own kubeconfig.
    pub(crate) fn start_component(
        &self,
        name: &str,
        user: &str,
        group: Option<&str>,
        invocation: impl FnOnce(&Path) -> Invocation,
    ) -> Result<Process> {
        let file = self.login(name, user, group)?;
        Process::start(name, self.process_host.run(invocation(&file)), self.folder.log(name))
    }

    /// Writes the kubeconfig of a component of the cluster, and returns its path.
    pub(crate) fn login(&self, name: &str, user: &str, group: Option<&str>) -> Result<PathBuf> {
        let identity = self.secrets.cluster.client(user, group)?;
        let file = self.folder.path().join(format!("{name}.kubeconfig"));
        kubeconfig::write(&file, &self.api_servers[0].url(), &self.secrets.cluster.certificate(), &identity)
    }

    fn start_controller_manager(&self) -> Result<Option<Process>> {
        let Some(program) = &self.programs.kube_controller_manager else { return Ok(None) };
        let name = "kube-controller-manager";
        let secrets = &self.secrets;
        let process = self.start_component(name, "system:kube-controller-manager", None, |file| {
            Invocation::new(program)
                .flag("kubeconfig", file)
                .flag("authentication-kubeconfig", file)
                .flag("authorization-kubeconfig", file)
                .flag("bind-address", "127.0.0.1")
                // The folder is created if it is missing; the default is in the host's /usr.
                .flag("flex-volume-plugin-dir", self.folder.path().join("volume-plugins"))
                // No client uses its port.
                .flag("secure-port", "0")
                .flag("leader-elect", "false")
                .flag("use-service-account-credentials", "true")
                // With the defaults of 20 and 30, its own start takes seconds.
                .flag("kube-api-qps", "1000")
                .flag("kube-api-burst", "2000")
                .flag("root-ca-file", secrets.cluster.certificate())
                .flag("client-ca-file", secrets.cluster.certificate())
                .flag("requestheader-client-ca-file", secrets.front_proxy.certificate())
                .flag("service-account-private-key-file", &secrets.service_account_key)
                .flag("cluster-signing-cert-file", secrets.cluster.certificate())
                .flag("cluster-signing-key-file", secrets.cluster.key())
                .flag("allocate-node-cidrs", "false")
                .flag("service-cluster-ip-range", ProcessHost::SERVICES)
        })?;
        Ok(Some(process))
    }

    /// Waits for the default service account, which pods need. The controller manager creates it in every namespace.
    async fn until_pods_may_be_created(&mut self) -> Result<()> {
        let accounts = Api::<ServiceAccount>::namespaced(self.client().await?, "default");
        until("the service account of the namespace default", WAIT_TIMEOUT, async || {
            if let Some(manager) = &mut self.controller_manager {
                manager.ensure_running()?;
            }
            accounts.get("default").await.map(drop).context("serviceaccount default")
        })
        .await
    }
}

/// Returns an address of this machine that is not loopback, for the endpoints of a Service, where Kubernetes refuses loopback.
/// The function sends no packet, and packets to the address do not leave the machine.
///
/// # Errors
/// If the machine has only loopback addresses.
pub fn address_for_endpoints() -> Result<IpAddr> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // The target is in TEST-NET-1 (RFC 5737). Only the source address that the kernel selects for it is used.
    socket.connect(("192.0.2.1", 9)).context("this machine has no address but loopback")?;
    Ok(socket.local_addr()?.ip())
}
