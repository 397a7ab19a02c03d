//! Policies that read a real cluster.
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use kube::config::Config;
use proviso_capabilities::{Limits, ProgramHost};
use proviso_e2e::{Cluster, ControlPlane, Fault, Kubectl, Proxy, until};
use proviso_engines::{Deadline, Host as _};
use serde_json::{Value, json};

use crate::support::{MIB, ask, ask_by, cluster, names, reading};

const PATIENCE: Duration = Duration::from_mins(1);
const MAP: (&str, &str) = ("v1", "ConfigMap");
const LIST: &str = "kubernetes/list_resources_by_namespace";
const ALL: &str = "kubernetes/list_resources_all";
const GET: &str = "kubernetes/get_resource";
const CAN_I: &str = "kubernetes/can_i";

struct Stage {
    plane: ControlPlane,
    kubectl: Kubectl,
}

impl Stage {
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

    /// A client that gives up connections as the policy server's does, through a network that can break.
    async fn behind_proxy(&self) -> Result<(Client, Proxy)> {
        let mut config: Config = self.plane.config().await?;
        let address: SocketAddr = config.cluster_url.authority().context("an address")?.as_str().parse()?;
        let proxy = Proxy::start(address).await?;
        config.cluster_url = format!("https://{}", proxy.address()).parse()?;
        config.read_timeout = Some(Duration::from_secs(3));
        Ok((Client::try_from(config)?, proxy))
    }
}

fn of(kind: (&str, &str), more: &Value) -> Value {
    let mut request = json!({"api_version": kind.0, "kind": kind.1});
    for (name, value) in more.as_object().unwrap() {
        request[name] = value.clone();
    }
    request
}

fn maps(more: &Value) -> Value {
    of(MAP, more)
}

/// The names of the ConfigMaps of a list that tests made.
fn own(list: &Value) -> Vec<&str> {
    names(list).into_iter().filter(|name| *name != "kube-root-ca.crt").collect()
}

async fn until_listed(host: &ProgramHost, namespace: &str, wanted: &[&str]) -> Result<()> {
    until("the list", PATIENCE, async || {
        let list = ask(host, LIST, maps(&json!({"namespace": namespace}))).await.map_err(anyhow::Error::msg)?;
        ensure!(own(&list) == wanted, "{:?}", own(&list));
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_read_what_is_in_the_cluster() -> Result<()> {
    let stage = Stage::start("programs-read").await?;
    stage.create_map("a", "one", "app=x").await?;
    stage.create_map("a", "two", "app=y").await?;
    stage.create_map("b", "three", "app=x").await?;
    let world = cluster(stage.plane.client().await?, Limits::of(64 * MIB));
    let host = reading(&world, &[MAP, ("v1", "Namespace"), ("v1", "Pod")], None);
    host.ready(Deadline::after(PATIENCE)).await.map_err(|(field, error)| anyhow::anyhow!("{field}: {error}"))?;

    // Lists.
    let list = ask(&host, LIST, maps(&json!({"namespace": "a"}))).await.unwrap();
    ensure!((own(&list), &list["kind"]) == (vec!["one", "two"], &json!("ConfigMapList")), "{list}");
    ensure!(list["items"][1]["kind"] == "ConfigMap" && list["items"][1]["apiVersion"] == "v1", "{list}");
    ensure!(list["items"][1]["metadata"].get("managedFields").is_none(), "{list}");
    let labelled = ask(&host, ALL, maps(&json!({"label_selector": "app in (x)"}))).await.unwrap();
    ensure!(own(&labelled) == ["one", "three"], "{labelled}");
    let named = ask(&host, ALL, maps(&json!({"field_selector": "metadata.name=two"}))).await.unwrap();
    ensure!(own(&named) == ["two"], "{named}");
    // What only the API server can select by.
    let pods = of(("v1", "Pod"), &json!({"field_selector": "spec.nodeName=n,status.phase!=Running"}));
    ensure!(names(&ask(&host, ALL, pods).await.unwrap()).is_empty());
    let wrong = ask(&host, ALL, maps(&json!({"field_selector": "data.key=value"}))).await.unwrap_err();
    ensure!(wrong.contains("is not a known field selector"), "{wrong}");
    let masks = json!({"namespace": "a", "label_selector": "app=x", "field_masks": ["metadata.name", "data"]});
    let masked = ask(&host, LIST, maps(&masks)).await.unwrap();
    let item = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"key": "value"}});
    ensure!(masked["items"] == json!([item]), "{masked}");

    // Single objects, those of the last moment included.
    let get = |name: &str, fresh: bool| maps(&json!({"namespace": "a", "name": name, "disable_cache": fresh}));
    ensure!(ask(&host, GET, get("one", false)).await.unwrap()["data"]["key"] == "value");
    stage.create_map("a", "zero", "app=x").await?;
    ensure!(ask(&host, GET, get("zero", false)).await.unwrap()["metadata"]["name"] == "zero");
    stage.kubectl.run(&["-n", "a", "patch", "configmap", "zero", "-p", r#"{"data":{"key":"new"}}"#]).await?;
    ensure!(ask(&host, GET, get("zero", true)).await.unwrap()["data"]["key"] == "new", "fresh is fresh");
    ensure!(ask(&host, GET, get("none", true)).await.unwrap_err().contains("there is no ConfigMap of v1 a/none"));

    // What changes is seen.
    until_listed(&host, "a", &["one", "two", "zero"]).await?;
    stage.kubectl.run(&["-n", "a", "delete", "configmap", "two"]).await?;
    until_listed(&host, "a", &["one", "zero"]).await?;

    // All objects, the very same until one changes.
    let deadline = Deadline::after(PATIENCE);
    let first = host.objects(deadline).await.unwrap();
    let described = &first.resources[0];
    let facts = (described.api_version.as_str(), described.kind.as_str(), described.plural.as_str());
    ensure!(facts == ("v1", "ConfigMap", "configmaps") && described.is_namespaced && !first.resources[1].is_namespaced);
    stage.create_map("b", "four", "app=x").await?;
    until("other objects", PATIENCE, async || {
        let now = host.objects(deadline).await.unwrap();
        ensure!(!Arc::ptr_eq(&first, &now));
        Ok(())
    })
    .await?;

    // Namespaces, one that was made just now included.
    stage.kubectl.run(&["create", "namespace", "c"]).await?;
    let namespace = host.namespace("c", deadline).await.unwrap().context("the namespace")?;
    ensure!(namespace["kind"] == "Namespace" && namespace["metadata"]["name"] == "c", "{namespace}");
    ensure!(host.namespace("d", deadline).await.unwrap().is_none());

    // Permissions.
    let review = |user: &str| {
        let attributes = json!({"namespace": "a", "verb": "get", "group": "", "resource": "pods"});
        json!({"subject_access_review": {"user": user, "groups": null, "resource_attributes": attributes}, "disable_cache": false})
    };
    ensure!(ask(&host, CAN_I, review("nobody")).await.unwrap()["allowed"] == false);
    ensure!(ask(&host, CAN_I, review("system:kube-controller-manager")).await.unwrap()["allowed"] == false);
    let path = json!({"subject_access_review": {"user": "u", "groups": ["system:authenticated"], "non_resource_attributes": {"path": "/version", "verb": "get"}}});
    ensure!(ask(&host, CAN_I, path).await.unwrap()["allowed"] == true);

    // A namespaced policy follows its own namespace only.
    let small = reading(&world, &[MAP], Some("a"));
    until_listed(&small, "a", &["one", "zero"]).await?;
    let only = small.objects(deadline).await.unwrap();
    ensure!(only.resources[0].objects.iter().all(|object| object["metadata"]["namespace"] == "a"));
    let nodes = reading(&world, &[("v1", "Node")], Some("a"));
    let (field, error) = nodes.ready(deadline).await.unwrap_err();
    ensure!(field == "spec.contextAwareResources[0]" && error.to_string().contains("use a ClusterPolicy"), "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_seen_last_stays_true_while_the_api_server_is_away() -> Result<()> {
    let stage = Stage::start("api-server-away").await?;
    stage.create_map("a", "one", "app=x").await?;
    let (client, proxy) = stage.behind_proxy().await?;
    let world = cluster(client, Limits::of(64 * MIB));
    let host = reading(&world, &[MAP], None);
    until_listed(&host, "a", &["one"]).await?;
    let list = maps(&json!({"namespace": "a"}));
    let fresh = maps(&json!({"namespace": "a", "name": "one", "disable_cache": true}));
    let review =
        json!({"subject_access_review": {"user": "u", "resource_attributes": {"verb": "get", "resource": "pods"}}});

    // One that hangs: what is known is told at once, the rest ends before the evaluation does.
    proxy.set(Fault::Hang);
    ensure!(own(&ask(&host, LIST, list.clone()).await.unwrap()) == ["one"]);
    for (call, request) in [(GET, &fresh), (CAN_I, &review)] {
        let deadline = Deadline::after(Duration::from_secs(2));
        let asking = ask_by(deadline, &host, call, request.clone());
        // The runtime fires its timers in the order of their times, however late it comes to that.
        let answer = tokio::time::timeout_at(deadline.instant().into(), asking).await;
        let error = answer.with_context(|| format!("{call} went on until the evaluation's end"))?.unwrap_err();
        ensure!(error.contains("no answer within"), "{call}: {error}");
    }
    let other = reading(&world, &[("v1", "Secret")], None);
    // Half a second before the host itself gives up, it says what is missing.
    let late = Deadline::after(Duration::from_secs(5));
    let late = ask_by(late, &other, ALL, of(("v1", "Secret"), &json!({}))).await;
    ensure!(late.unwrap_err().contains("have not arrived yet"));

    // One that is gone.
    proxy.set(Fault::Cut);
    ensure!(own(&ask(&host, LIST, list.clone()).await.unwrap()) == ["one"]);
    let error = ask(&host, GET, fresh.clone()).await.unwrap_err();
    ensure!(error.contains("the API server did not answer"), "{error}");

    // It comes back: nothing is lost.
    stage.create_map("a", "two", "app=x").await?;
    stage.kubectl.run(&["-n", "a", "delete", "configmap", "one"]).await?;
    proxy.set(Fault::None);
    until_listed(&host, "a", &["two"]).await?;
    ensure!(ask(&host, CAN_I, review).await.is_ok());

    // A connection that the network forgets tells nobody.
    proxy.abandon();
    stage.create_map("a", "three", "app=x").await?;
    until_listed(&host, "a", &["three", "two"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_be_read_says_who_can_change_that() -> Result<()> {
    let stage = Stage::start("may-not-be-read").await?;
    stage.create_map("a", "one", "app=x").await?;
    let account = Cluster::of(&stage.plane).await?.user("server", &["system:authenticated"])?;
    let world = cluster(account, Limits::of(64 * MIB));
    let things = ("example.com/v1", "Thing");
    let host = reading(&world, &[MAP], None);
    let (field, error) = host.ready(Deadline::after(PATIENCE)).await.unwrap_err();
    let command = "kubectl create clusterrole proviso-reads-configmaps --verb=get,list,watch --resource=configmaps && \
                   kubectl label clusterrole proviso-reads-configmaps proviso.dev/aggregate-to-policy-server=true";
    ensure!(field == "spec.contextAwareResources[0]" && error.reason() == "ContextForbidden", "{error}");
    ensure!(error.to_string().contains(command), "{error}");
    let may_not = ask(&host, CAN_I, json!({"subject_access_review": {"user": "u", "resource_attributes": {}}})).await;
    ensure!(may_not.unwrap_err().contains("cannot create resource \"subjectaccessreviews\""));
    let missing = reading(&world, &[things], None);
    let (_, error) = missing.ready(Deadline::after(PATIENCE)).await.unwrap_err();
    ensure!(error.reason() == "ContextNotServed", "{error}");

    // The commands of the message are enough, without anything being started again.
    stage.plane.ensure_controllers()?;
    let sum = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "sum"}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"proviso.dev/aggregate-to-policy-server": "true"}}]},
    });
    let _sum = Cluster::of(&stage.plane).await?.apply(serde_json::from_value(sum)?).await?;
    stage.kubectl.run(&["create", "clusterrolebinding", "sum", "--clusterrole=sum", "--user=server"]).await?;
    for command in command.split(" && ") {
        let words: Vec<&str> = command.split_whitespace().skip(1).collect();
        stage.kubectl.run(&words).await?;
    }
    until_listed(&host, "a", &["one"]).await?;
    // What may not be read any more is not told either.
    stage.kubectl.run(&["delete", "clusterrole", "proviso-reads-configmaps"]).await?;
    until("the objects to be forgotten", PATIENCE, async || {
        let error = ask(&host, ALL, maps(&json!({}))).await.err().context("still told")?;
        ensure!(error.contains("may not read configmaps"), "{error}");
        Ok(())
    })
    .await?;

    // More than there is room for is not kept.
    stage
        .kubectl
        .run(&["-n", "b", "create", "configmap", "large", &format!("--from-literal=k={}", "x".repeat(90_000))])
        .await?;
    let small = cluster(stage.plane.client().await?, Limits::of(120_000));
    let host = reading(&small, &[MAP], None);
    let (_, error) = host.ready(Deadline::after(PATIENCE)).await.unwrap_err();
    ensure!(error.reason() == "ContextTooLarge", "{error}");
    let error = ask(&host, ALL, maps(&json!({}))).await.unwrap_err();
    ensure!(error.contains("of memory, which a policy server does not keep"), "{error}");
    Ok(())
}
