//! A control plane with Proviso's CRDs, and operators that run on it.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhookConfiguration, WebhookClientConfig};
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, Config, Resource, ResourceExt as _};
use proviso_crds::fixtures::{condition, replica};
use proviso_crds::{ClusterPolicy, PolicyPhase, PolicyRevision, PolicyServer, PolicyServerStatus};
use proviso_e2e::{ControlPlane, Kubectl, address_for_endpoints, manifests, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

pub const TIMEOUT: Duration = Duration::from_mins(1);
/// The operator's namespace.
pub const NAMESPACE: &str = "proviso-system";
/// The name of the service account of the operator, and of its roles and bindings.
pub const OPERATOR: &str = "proviso-operator";
/// The Service in front of the operator.
pub const SERVICE: &str = "proviso-operator";
/// The one replica of the policy server `default`: see [`TestCluster::with_policy_server`].
pub const POD: &str = "policy-server-default-0";
/// The default image of policy servers.
pub const IMAGE: &str = "registry.example.com/policy-server:1";

/// A running operator, which is killed when this value is dropped.
pub struct Operator(pub Child);

impl Operator {
    /// Sends SIGTERM, and waits until the operator has exited.
    pub async fn terminate(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.0), Signal::TERM)?;
        let status =
            until("the operator to end", TIMEOUT, async || self.0.try_wait()?.context("the operator still runs"))
                .await?;
        ensure!(status.success(), "{status}");
        Ok(())
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The numbers of requests of the operator to the API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    pub writes: u64,
    pub lists: u64,
    pub gets: u64,
}

impl std::ops::Sub for Calls {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { writes: self.writes - other.writes, lists: self.lists - other.lists, gets: self.gets - other.gets }
    }
}

impl std::ops::Add for Calls {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { writes: self.writes + other.writes, lists: self.lists + other.lists, gets: self.gets + other.gets }
    }
}

pub struct TestCluster {
    // Fields are dropped in this order: operators first, because they would log the end of the control plane.
    pub operators: Vec<Operator>,
    /// The address of the last operator that API servers can reach.
    pub address: Option<SocketAddr>,
    pub client: Client,
    pub kubectl: Kubectl,
    pub plane: ControlPlane,
}

impl TestCluster {
    /// Starts a control plane without CRDs, namespace and operator.
    pub async fn empty(name: &str) -> Result<Self> {
        let plane = ControlPlane::start(name).await?;
        plane.ensure_controllers()?;
        let kubectl = Kubectl::new(plane.kubeconfig())?;
        let client = plane.client().await?;
        Ok(Self { operators: Vec::new(), address: None, client, kubectl, plane })
    }

    /// Starts a control plane with CRDs and namespace, without an operator.
    pub async fn start(name: &str) -> Result<Self> {
        let cluster = Self::empty(name).await?;
        manifests::apply_crds(&cluster.client, Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../crds"))).await?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        manifests::apply(&cluster.client, &namespace.to_string()).await?;
        Ok(cluster)
    }

    /// Applies a file of this repository.
    pub async fn apply_file(&self, path: &str) -> Result<()> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
        manifests::apply(&self.client, &std::fs::read_to_string(file)?).await
    }

    /// Grants the permissions of the operator's service account, as an installation does.
    pub async fn grant(&self) -> Result<()> {
        self.apply_file("config/operator/rbac.yaml").await
    }

    /// Writes the kubeconfig of an administrator who impersonates the operator's service account.
    pub fn service_account_kubeconfig(&self) -> Result<PathBuf> {
        self.kubeconfig_of(OPERATOR)
    }

    /// Writes the kubeconfig of an administrator who impersonates a service account of the operator's namespace.
    pub fn kubeconfig_of(&self, account: &str) -> Result<PathBuf> {
        let file = self.plane.folder().path().join(format!("{account}.kubeconfig"));
        std::fs::write(&file, serde_json::to_vec(&self.impersonation(account)?)?)?;
        Ok(file)
    }

    /// Returns a client that impersonates a service account of the operator's namespace.
    pub async fn client_of(&self, account: &str) -> Result<Client> {
        let kubeconfig = self.impersonation(account)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    fn impersonation(&self, account: &str) -> Result<Kubeconfig> {
        let mut kubeconfig = serde_json::to_value(Kubeconfig::read_from(self.plane.kubeconfig())?)?;
        kubeconfig["users"][0]["user"]["as"] = format!("system:serviceaccount:{NAMESPACE}:{account}").into();
        Ok(serde_json::from_value(kubeconfig)?)
    }

    /// Starts a control plane with an operator, and a policy server with one Ready replica.
    pub async fn with_policy_server(name: &str) -> Result<Self> {
        let mut cluster = Self::start(name).await?;
        cluster.start_with_policy_server().await?;
        Ok(cluster)
    }

    /// Starts an operator, and creates a policy server with one Ready replica.
    pub async fn start_with_policy_server(&mut self) -> Result<()> {
        self.start_operator(&[])?;
        self.create_policy_server().await
    }

    /// Creates a policy server with one Ready replica. An operator must run.
    pub async fn create_policy_server(&self) -> Result<()> {
        self.apply_server("default", json!({"replicas": 1})).await?;
        until("the replica", TIMEOUT, async || Ok(self.api::<Pod>().get(POD).await?)).await?;
        self.make_ready(POD).await
    }

    pub fn start_operator(&mut self, arguments: &[&str]) -> Result<()> {
        let kubeconfig = self.plane.kubeconfig().to_owned();
        self.start_operator_at("127.0.0.1".parse()?, &kubeconfig, arguments)
    }

    /// Starts an operator that API servers reach by a Service.
    pub async fn start_reachable_operator(&mut self, arguments: &[&str]) -> Result<()> {
        let host = address_for_endpoints()?;
        let kubeconfig = self.plane.kubeconfig().to_owned();
        self.start_operator_at(host, &kubeconfig, &[&["--service", SERVICE], arguments].concat())?;
        let port = until("the address of the operator", TIMEOUT, async || {
            let log = self.log()?;
            let line = log.lines().rev().find(|line| line.contains("\"listening\"")).context("not yet")?;
            let line: Value = serde_json::from_str(line)?;
            let (_, port) = line["listen"].as_str().and_then(|url| url.rsplit_once(':')).context("no address")?;
            Ok(port.parse::<u16>()?)
        })
        .await?;
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE},
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]},
        });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": SERVICE, "labels": {"kubernetes.io/service-name": SERVICE}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [host], "conditions": {"ready": true}}],
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        });
        let params = PatchParams::apply("test").force();
        self.api::<Service>().patch(SERVICE, &params, &Patch::Apply(service)).await?;
        self.api::<EndpointSlice>().patch(SERVICE, &params, &Patch::Apply(slice)).await?;
        self.address = Some(SocketAddr::new(host, port));
        Ok(())
    }

    /// Starts an operator that listens on this address, and reaches the API server by this kubeconfig.
    pub fn start_operator_at(&mut self, host: IpAddr, kubeconfig: &Path, arguments: &[&str]) -> Result<()> {
        self.start_operator_with(host, kubeconfig, arguments, &[])
    }

    /// Starts an operator as [`Self::start_operator_at`] does, with these environment variables.
    pub fn start_operator_with(
        &mut self,
        host: IpAddr,
        kubeconfig: &Path,
        arguments: &[&str],
        variables: &[(&str, String)],
    ) -> Result<()> {
        let log = std::fs::File::options().create(true).append(true).open(self.plane.folder().log("operator"))?;
        let operator = Command::new(env!("CARGO_BIN_EXE_operator"))
            .args(["--namespace", NAMESPACE, "--log-format", "json", "--policy-server-image", IMAGE])
            .args(["--listen", &format!("{host}:0"), "--admin-listen", "127.0.0.1:0", "--shutdown-delay", "0s"])
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            .envs(variables.iter().cloned())
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()?;
        self.operators.push(Operator(operator));
        Ok(())
    }

    /// Returns the log of all operators so far.
    pub fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.plane.folder().log("operator"))?)
    }

    /// Returns the metrics of the operator that was started last.
    pub async fn metrics(&self) -> Result<String> {
        let address = until("the admin port of the operator", TIMEOUT, async || {
            let log = self.log()?;
            let line = log.lines().rev().find(|line| line.contains("\"listening\"")).context("not yet")?;
            let line: Value = serde_json::from_str(line)?;
            Ok(line["admin"].as_str().context("no address")?.to_owned())
        })
        .await?;
        let client = Client::try_from(Config::new(address.parse()?))?;
        Ok(client.request_text(http::Request::get("/metrics").body(Vec::new())?).await?)
    }

    /// Returns the numbers of requests of that operator so far about policies, experiments, revisions, webhooks and
    /// pods.
    pub async fn calls(&self) -> Result<Calls> {
        let metrics = self.metrics().await?;
        let mut calls = Calls::default();
        for line in metrics.lines().filter(|line| line.starts_with("proviso_operator_api_requests_total{")) {
            let number: u64 = line.rsplit(' ').next().context("a number")?.parse()?;
            let is = |label: &str| line.contains(label);
            let resources = ["policies", "policyexperiments", "policyrevisions", "webhookconfigurations", "pods"];
            if !resources.iter().any(|resource| is(&format!("{resource}\"}}"))) {
                continue;
            }
            let verbs = |verbs: &[&str]| verbs.iter().any(|verb| is(&format!("verb=\"{verb}\"")));
            if verbs(&["create", "update", "patch", "delete"]) {
                calls.writes += number;
            } else if verbs(&["list"]) {
                calls.lists += number;
            } else if verbs(&["get"]) {
                calls.gets += number;
            }
        }
        Ok(calls)
    }

    /// Returns [`Self::calls`] when the operator has become idle.
    pub async fn calls_when_idle(&self) -> Result<Calls> {
        let mut before: Option<(String, Instant)> = None;
        until("an idle operator", 4 * TIMEOUT, async || {
            let metrics = self.metrics().await?;
            let of = |name: &str| metrics.lines().filter(|line| line.starts_with(name)).collect::<Vec<_>>();
            let waiting = of("proviso_operator_queue_depth{");
            ensure!(!waiting.is_empty() && waiting.iter().all(|line| line.ends_with(" 0")), "{waiting:?}");
            let now = of("proviso_operator_reconciles_total{").join("\n");
            // A watch may still deliver what the last reconcile wrote.
            let since = match &before {
                Some((old, since)) if *old == now => *since,
                _ => Instant::now(),
            };
            before = Some((now, since));
            ensure!(since.elapsed() >= Duration::from_secs(2), "the operator still reconciles");
            self.calls().await
        })
        .await
    }

    /// Returns the API of a kind in the operator's namespace.
    pub fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub fn servers(&self) -> Api<PolicyServer> {
        Api::all(self.client.clone())
    }

    /// Creates or updates a policy server.
    pub async fn apply_server(&self, name: &str, spec: Value) -> Result<PolicyServer> {
        let server = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyServer", "metadata": {"name": name}, "spec": spec,
        });
        Ok(self.servers().patch(name, &PatchParams::apply("owner").force(), &Patch::Apply(server)).await?)
    }

    pub async fn status(&self, server: &str) -> Result<PolicyServerStatus> {
        Ok(self.servers().get(server).await?.status.unwrap_or_default())
    }

    /// Waits until a condition has this status and reason. Returns its message.
    pub async fn until_condition(&self, server: &str, name: &str, status: &str, reason: &str) -> Result<String> {
        until(&format!("{server}: {name} {status}, {reason}"), TIMEOUT, async || {
            let current = self.status(server).await?;
            let found = current.conditions.iter().find(|condition| condition.type_ == name);
            let found = found.with_context(|| format!("{current:?}"))?;
            ensure!(found.status == status && found.reason == reason, "{found:?}");
            Ok(found.message.clone())
        })
        .await
    }

    /// Creates or updates a `ClusterPolicy`. Returns its generation.
    pub async fn apply_policy(&self, name: &str, server: &str, expression: &str) -> Result<i64> {
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name},
            "spec": {
                "policyServer": server,
                "program": {"cel": {"validations": [{"expression": expression}]}},
                "admission": {"rules": [
                    {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"]},
                ]},
            },
        });
        let api = Api::<ClusterPolicy>::all(self.client.clone());
        let written = api.patch(name, &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?;
        written.metadata.generation.context("its generation")
    }

    /// Creates or updates a `ClusterPolicy`, and makes its new generation live.
    pub async fn make_live(&self, name: &str, expression: &str) -> Result<()> {
        let generation = self.apply_policy(name, "default", expression).await?;
        self.serve(&format!("cluster.{name}-{generation}"), POD).await?;
        self.until_path(&format!("proviso-cluster.{name}"), &format!("/validate/cluster.{name}/{generation}")).await
    }

    /// Waits until the status of a policy reports this generation as live.
    pub async fn until_active(&self, name: &str, generation: i64) -> Result<()> {
        until(&format!("{name} Active"), 4 * TIMEOUT, async || {
            let policy = Api::<ClusterPolicy>::all(self.client.clone()).get(name).await?;
            let status = policy.status.context("no status")?;
            let is_live = status.phase == Some(PolicyPhase::Active) && status.live_generation == Some(generation);
            ensure!(is_live, "{status:?}");
            Ok(())
        })
        .await
    }

    /// Replaces a pod, as a rolling restart does: the new pod loads every enabled revision, and then becomes Ready.
    pub async fn replace_pod(&self, pod: &str) -> Result<()> {
        let pods = self.api::<Pod>();
        let old = pods.get(pod).await?.uid();
        pods.delete(pod, &DeleteParams::default()).await?;
        until("another pod", TIMEOUT, async || {
            ensure!(pods.get(pod).await?.uid() != old, "still the old pod");
            Ok(())
        })
        .await?;
        let revisions = self.api::<PolicyRevision>().list(&ListParams::default()).await?;
        for revision in revisions.items.iter().filter(|revision| revision.spec.enabled) {
            self.load(&revision.name_any(), pod).await?;
        }
        self.make_ready(pod).await
    }

    /// Writes the status of a Ready pod, as a kubelet would.
    pub async fn make_ready(&self, pod: &str) -> Result<()> {
        let running = json!({
            "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": null,
        });
        self.set_pod_status(pod, running).await
    }

    /// Writes the status of a pod, as a kubelet would.
    pub async fn set_pod_status(&self, pod: &str, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"status": status}));
        self.api::<Pod>().patch_status(pod, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits for a revision, and writes the status of a leader that has prepared it and of a replica that has loaded
    /// it.
    pub async fn serve(&self, revision: &str, pod: &str) -> Result<()> {
        let revisions = self.api::<PolicyRevision>();
        until(revision, TIMEOUT, async || Ok(revisions.get(revision).await?)).await?;
        let initialized = json!({"conditions": [condition("Initialized", "True", "Prepared", "", 1)]});
        self.apply_status(revision, "proviso-leader", &initialized).await?;
        self.load(revision, pod).await
    }

    /// Writes the status of a replica that has loaded the revision.
    pub async fn load(&self, revision: &str, pod: &str) -> Result<()> {
        let uid = self.api::<Pod>().get(pod).await?.uid().unwrap_or_default();
        let replica = json!({"replicas": [replica(pod, &uid, "True", "Loaded")]});
        self.apply_status(revision, pod, &replica).await
    }

    async fn apply_status(&self, revision: &str, manager: &str, status: &Value) -> Result<()> {
        let patch = json!({"apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision", "status": status});
        let params = PatchParams::apply(manager).force();
        self.api::<PolicyRevision>().patch_status(revision, &params, &Patch::Apply(patch)).await?;
        Ok(())
    }

    pub fn webhooks(&self) -> Api<ValidatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }

    /// Returns the path that this webhook calls, without the token if it is the current one.
    pub async fn path(&self, webhook: &str) -> Result<Option<String>> {
        let found = self.webhooks().get_opt(webhook).await?;
        self.without_token(found.and_then(|it| Some(it.webhooks?.pop()?.client_config))).await
    }

    /// Returns the path of this webhook without the token, if the path has the current token of the policy server. Another path is
    /// returned unchanged.
    pub async fn without_token(&self, config: Option<WebhookClientConfig>) -> Result<Option<String>> {
        let Some(service) = config.and_then(|config| config.service) else { return Ok(None) };
        let Some(path) = service.path else { return Ok(None) };
        let tokens = self.secret(&format!("{}-callers", service.name), "tokens").await?;
        let current = tokens.lines().next().context("no token")?;
        Ok(Some(path.strip_prefix(&format!("/t/{current}")).unwrap_or(&path).to_owned()))
    }

    /// Creates the Secret of caller tokens of a policy server that has no object.
    pub async fn create_caller_tokens(&self, server: &str) -> Result<()> {
        let name = format!("policy-server-{server}-callers");
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "labels": {"proviso.dev/policy-server": server}},
            "stringData": {"tokens": format!("{}\n", "0123456789abcdef".repeat(4))},
        });
        self.api::<Secret>().patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(secret)).await?;
        Ok(())
    }

    /// Waits until this webhook calls this path.
    pub async fn until_path(&self, webhook: &str, expected: &str) -> Result<()> {
        until(&format!("{webhook} at {expected}"), TIMEOUT, async || {
            let path = self.path(webhook).await?;
            ensure!(path.as_deref() == Some(expected), "{path:?}");
            Ok(())
        })
        .await
    }

    /// Returns the CA bundle of the webhook of this policy. Fails if there is no webhook.
    pub async fn published_bundle(&self, policy: &str) -> Result<String> {
        let webhook = self.webhooks().get(&format!("proviso-cluster.{policy}")).await?;
        let webhook = webhook.webhooks.context("webhooks")?.remove(0);
        Ok(String::from_utf8(webhook.client_config.ca_bundle.context("a bundle")?.0)?)
    }

    /// Returns the API of any kind, which is cluster-scoped if there is no namespace.
    pub fn dynamic(&self, api_version: &str, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Returns a value of a Secret. Fails if the value is missing.
    pub async fn secret(&self, name: &str, key: &str) -> Result<String> {
        let secret = self.api::<Secret>().get(name).await?;
        let text = secret.data.and_then(|mut data| data.remove(key)).with_context(|| format!("{name}: {key}"))?;
        Ok(String::from_utf8(text.0)?)
    }
}
