//! Programs that read the objects of a real API server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use kube::config::Config;
use proviso_capabilities::{Limits, PolicyHost};
use proviso_e2e::{Cluster, ControlPlane, Fault, Kubectl, Proxy, until};
use proviso_engines::{Deadline, Host as _};
use serde_json::{Value, json};

use crate::support::{MIB, call_host, call_host_by, cluster, host_for, names};

const TIMEOUT: Duration = Duration::from_mins(1);
const CONFIG_MAP: (&str, &str) = ("v1", "ConfigMap");
const LIST: &str = "kubernetes/list_resources_by_namespace";
const ALL: &str = "kubernetes/list_resources_all";
const GET: &str = "kubernetes/get_resource";
const CAN_I: &str = "kubernetes/can_i";

/// An API server with two namespaces, `a` and `b`.
struct Fixture {
    plane: ControlPlane,
    kubectl: Kubectl,
}

impl Fixture {
    async fn start(name: &str) -> Result<Self> {
        let plane = ControlPlane::start(name).await?;
        let kubectl = Kubectl::new(plane.kubeconfig())?;
        for namespace in ["a", "b"] {
            kubectl.run(&["create", "namespace", namespace]).await?;
        }
        Ok(Self { plane, kubectl })
    }

    async fn create_map(&self, namespace: &str, name: &str, label: &str) -> Result<()> {
        self.kubectl.run(&["-n", namespace, "create", "configmap", name, "--from-literal=key=value"]).await?;
        self.kubectl.run(&["-n", namespace, "label", "configmap", name, label]).await.map(drop)
    }

    /// Returns a client with the read timeout of the policy server, and a proxy that can interrupt its connections.
    async fn behind_proxy(&self) -> Result<(Client, Proxy)> {
        let mut config: Config = self.plane.config().await?;
        let address: SocketAddr = config.cluster_url.authority().context("an address")?.as_str().parse()?;
        let proxy = Proxy::start(address).await?;
        config.cluster_url = format!("https://{}", proxy.address()).parse()?;
        config.read_timeout = Some(Duration::from_secs(3));
        Ok((Client::try_from(config)?, proxy))
    }
}

fn request_for(kind: (&str, &str), more: &Value) -> Value {
    let mut request = json!({"api_version": kind.0, "kind": kind.1});
    for (name, value) in more.as_object().unwrap() {
        request[name] = value.clone();
    }
    request
}

fn maps(more: &Value) -> Value {
    request_for(CONFIG_MAP, more)
}

/// Returns the names of the ConfigMaps in a list that the tests created.
fn created(list: &Value) -> Vec<&str> {
    names(list).into_iter().filter(|name| *name != "kube-root-ca.crt").collect()
}

async fn until_listed(host: &PolicyHost, namespace: &str, wanted: &[&str]) -> Result<()> {
    until("the list", TIMEOUT, async || {
        let list = call_host(host, LIST, maps(&json!({"namespace": namespace}))).await.map_err(anyhow::Error::msg)?;
        ensure!(created(&list) == wanted, "{:?}", created(&list));
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_read_objects_namespaces_and_permissions() -> Result<()> {
    let fixture = Fixture::start("programs-read").await?;
    fixture.create_map("a", "one", "app=x").await?;
    fixture.create_map("a", "two", "app=y").await?;
    fixture.create_map("b", "three", "app=x").await?;
    let host_context = cluster(fixture.plane.client().await?, Limits::of(64 * MIB));
    let host = host_for(&host_context, &[CONFIG_MAP, ("v1", "Namespace"), ("v1", "Pod")], None);
    host.ready(Deadline::after(TIMEOUT)).await.map_err(|(field, error)| anyhow::anyhow!("{field}: {error}"))?;

    // Lists.
    let list = call_host(&host, LIST, maps(&json!({"namespace": "a"}))).await.unwrap();
    ensure!((created(&list), &list["kind"]) == (vec!["one", "two"], &json!("ConfigMapList")), "{list}");
    ensure!(list["items"][1]["kind"] == "ConfigMap" && list["items"][1]["apiVersion"] == "v1", "{list}");
    ensure!(list["items"][1]["metadata"].get("managedFields").is_none(), "{list}");
    let labelled = call_host(&host, ALL, maps(&json!({"label_selector": "app in (x)"}))).await.unwrap();
    ensure!(created(&labelled) == ["one", "three"], "{labelled}");
    let named = call_host(&host, ALL, maps(&json!({"field_selector": "metadata.name=two"}))).await.unwrap();
    ensure!(created(&named) == ["two"], "{named}");
    // Field selectors that only the API server can evaluate.
    let pods = request_for(("v1", "Pod"), &json!({"field_selector": "spec.nodeName=n,status.phase!=Running"}));
    ensure!(names(&call_host(&host, ALL, pods).await.unwrap()).is_empty());
    let wrong = call_host(&host, ALL, maps(&json!({"field_selector": "data.key=value"}))).await.unwrap_err();
    ensure!(wrong.contains("is not a known field selector"), "{wrong}");
    let masks = json!({"namespace": "a", "label_selector": "app=x", "field_masks": ["metadata.name", "data"]});
    let masked = call_host(&host, LIST, maps(&masks)).await.unwrap();
    let item = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"key": "value"}});
    ensure!(masked["items"] == json!([item]), "{masked}");

    // Single objects, also one that was created just now.
    let get = |name: &str, fresh: bool| maps(&json!({"namespace": "a", "name": name, "disable_cache": fresh}));
    ensure!(call_host(&host, GET, get("one", false)).await.unwrap()["data"]["key"] == "value");
    fixture.create_map("a", "zero", "app=x").await?;
    ensure!(call_host(&host, GET, get("zero", false)).await.unwrap()["metadata"]["name"] == "zero");
    fixture.kubectl.run(&["-n", "a", "patch", "configmap", "zero", "-p", r#"{"data":{"key":"new"}}"#]).await?;
    ensure!(
        call_host(&host, GET, get("zero", true)).await.unwrap()["data"]["key"] == "new",
        "disable_cache bypasses the cache"
    );
    ensure!(call_host(&host, GET, get("none", true)).await.unwrap_err().contains("there is no ConfigMap of v1 a/none"));

    // Changes arrive by the watch.
    until_listed(&host, "a", &["one", "two", "zero"]).await?;
    fixture.kubectl.run(&["-n", "a", "delete", "configmap", "two"]).await?;
    until_listed(&host, "a", &["one", "zero"]).await?;

    // The snapshot of all objects is reused until an object changes.
    let deadline = Deadline::after(TIMEOUT);
    let first = host.objects(deadline).await.unwrap();
    let config_maps = &first.resources[0];
    let facts = (config_maps.api_version.as_str(), config_maps.kind.as_str(), config_maps.plural.as_str());
    ensure!(
        facts == ("v1", "ConfigMap", "configmaps") && config_maps.is_namespaced && !first.resources[1].is_namespaced
    );
    fixture.create_map("b", "four", "app=x").await?;
    until("a new snapshot", TIMEOUT, async || {
        let now = host.objects(deadline).await.unwrap();
        ensure!(!Arc::ptr_eq(&first, &now));
        Ok(())
    })
    .await?;

    // Namespaces, also one that was created just now.
    fixture.kubectl.run(&["create", "namespace", "c"]).await?;
    let namespace = host.namespace("c", deadline).await.unwrap().context("the namespace")?;
    ensure!(namespace["kind"] == "Namespace" && namespace["metadata"]["name"] == "c", "{namespace}");
    ensure!(host.namespace("d", deadline).await.unwrap().is_none());

    // Permissions.
    let review = |user: &str| {
        let attributes = json!({"namespace": "a", "verb": "get", "group": "", "resource": "pods"});
        json!({"subject_access_review": {"user": user, "groups": null, "resource_attributes": attributes}, "disable_cache": false})
    };
    ensure!(call_host(&host, CAN_I, review("nobody")).await.unwrap()["allowed"] == false);
    ensure!(call_host(&host, CAN_I, review("system:kube-controller-manager")).await.unwrap()["allowed"] == false);
    let path = json!({"subject_access_review": {"user": "u", "groups": ["system:authenticated"], "non_resource_attributes": {"path": "/version", "verb": "get"}}});
    ensure!(call_host(&host, CAN_I, path).await.unwrap()["allowed"] == true);

    // A namespaced policy watches only its own namespace.
    let namespaced = host_for(&host_context, &[CONFIG_MAP], Some("a"));
    until_listed(&namespaced, "a", &["one", "zero"]).await?;
    let own = namespaced.objects(deadline).await.unwrap();
    ensure!(own.resources[0].objects.iter().all(|object| object["metadata"]["namespace"] == "a"));
    let nodes = host_for(&host_context, &[("v1", "Node")], Some("a"));
    let (field, error) = nodes.ready(deadline).await.unwrap_err();
    ensure!(field == "spec.contextAwareResources[0]" && error.to_string().contains("use a ClusterPolicy"), "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_known_objects_are_served_while_the_api_server_is_away() -> Result<()> {
    let fixture = Fixture::start("api-server-away").await?;
    fixture.create_map("a", "one", "app=x").await?;
    let (client, proxy) = fixture.behind_proxy().await?;
    let host_context = cluster(client, Limits::of(64 * MIB));
    let host = host_for(&host_context, &[CONFIG_MAP], None);
    until_listed(&host, "a", &["one"]).await?;
    let list = maps(&json!({"namespace": "a"}));
    let fresh = maps(&json!({"namespace": "a", "name": "one", "disable_cache": true}));
    let review =
        json!({"subject_access_review": {"user": "u", "resource_attributes": {"verb": "get", "resource": "pods"}}});

    // The API server hangs: known objects are served at once, and other calls end before the evaluation does.
    proxy.set(Fault::Hang);
    ensure!(created(&call_host(&host, LIST, list.clone()).await.unwrap()) == ["one"]);
    for (call, request) in [(GET, &fresh), (CAN_I, &review)] {
        let deadline = Deadline::after(Duration::from_secs(2));
        let answer = call_host_by(deadline, &host, call, request.clone());
        // The runtime fires timers in the order of their deadlines, even on a busy machine. So this timeout cannot win by chance.
        let answer = tokio::time::timeout_at(deadline.instant().into(), answer).await;
        let error = answer.with_context(|| format!("{call} went on until the evaluation's end"))?.unwrap_err();
        ensure!(error.contains("no answer within"), "{call}: {error}");
    }
    let other = host_for(&host_context, &[("v1", "Secret")], None);
    // The wait for the objects ends half a second before the call, and names the missing kind.
    let late = Deadline::after(Duration::from_secs(5));
    let late = call_host_by(late, &other, ALL, request_for(("v1", "Secret"), &json!({}))).await;
    ensure!(late.unwrap_err().contains("have not arrived yet"));

    // The proxy closes all connections.
    proxy.set(Fault::Cut);
    ensure!(created(&call_host(&host, LIST, list.clone()).await.unwrap()) == ["one"]);
    let error = call_host(&host, GET, fresh.clone()).await.unwrap_err();
    ensure!(error.contains("the query to the API server failed"), "{error}");

    // The API server is back: no change is lost.
    fixture.create_map("a", "two", "app=x").await?;
    fixture.kubectl.run(&["-n", "a", "delete", "configmap", "one"]).await?;
    proxy.set(Fault::None);
    until_listed(&host, "a", &["two"]).await?;
    ensure!(call_host(&host, CAN_I, review).await.is_ok());

    // The network drops connections without notice.
    proxy.abandon();
    fixture.create_map("a", "three", "app=x").await?;
    until_listed(&host, "a", &["three", "two"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forbidden_kind_names_the_command_that_allows_it() -> Result<()> {
    let fixture = Fixture::start("may-not-be-read").await?;
    fixture.create_map("a", "one", "app=x").await?;
    let account = Cluster::of(&fixture.plane).await?.user("server", &["system:authenticated"])?;
    let host_context = cluster(account, Limits::of(64 * MIB));
    let things = ("example.com/v1", "Thing");
    let host = host_for(&host_context, &[CONFIG_MAP], None);
    let (field, error) = host.ready(Deadline::after(TIMEOUT)).await.unwrap_err();
    let command = "kubectl create clusterrole proviso-reads-configmaps --verb=get,list,watch --resource=configmaps && \
                   kubectl label clusterrole proviso-reads-configmaps proviso.dev/aggregate-to-policy-server=true";
    ensure!(field == "spec.contextAwareResources[0]" && error.reason().as_str() == "ContextForbidden", "{error}");
    ensure!(error.to_string().contains(command), "{error}");
    let forbidden =
        call_host(&host, CAN_I, json!({"subject_access_review": {"user": "u", "resource_attributes": {}}})).await;
    ensure!(forbidden.unwrap_err().contains("cannot create resource \"subjectaccessreviews\""));
    let missing = host_for(&host_context, &[things], None);
    let (_, error) = missing.ready(Deadline::after(TIMEOUT)).await.unwrap_err();
    ensure!(error.reason().as_str() == "ContextNotServed", "{error}");

    // The commands in the message are sufficient; no restart is necessary.
    fixture.plane.ensure_controllers()?;
    let sum = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "sum"}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"proviso.dev/aggregate-to-policy-server": "true"}}]},
    });
    let _sum = Cluster::of(&fixture.plane).await?.apply(serde_json::from_value(sum)?).await?;
    fixture.kubectl.run(&["create", "clusterrolebinding", "sum", "--clusterrole=sum", "--user=server"]).await?;
    for command in command.split(" && ") {
        let words: Vec<&str> = command.split_whitespace().skip(1).collect();
        fixture.kubectl.run(&words).await?;
    }
    until_listed(&host, "a", &["one"]).await?;
    // Objects are not served any more when the permission is removed.
    fixture.kubectl.run(&["delete", "clusterrole", "proviso-reads-configmaps"]).await?;
    until("the objects to be forgotten", TIMEOUT, async || {
        let error = call_host(&host, ALL, maps(&json!({}))).await.err().context("the objects are still served")?;
        ensure!(error.contains("may not read configmaps"), "{error}");
        Ok(())
    })
    .await?;

    // Objects beyond the memory limit are not stored.
    fixture
        .kubectl
        .run(&["-n", "b", "create", "configmap", "large", &format!("--from-literal=k={}", "x".repeat(90_000))])
        .await?;
    let small = cluster(fixture.plane.client().await?, Limits::of(120_000));
    let host = host_for(&small, &[CONFIG_MAP], None);
    let (_, error) = host.ready(Deadline::after(TIMEOUT)).await.unwrap_err();
    ensure!(error.reason().as_str() == "ContextTooLarge", "{error}");
    let error = call_host(&host, ALL, maps(&json!({}))).await.unwrap_err();
    ensure!(error.contains("take more than the limit of"), "{error}");
    Ok(())
}
