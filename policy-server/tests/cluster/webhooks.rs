//! Tests of the policy server as the webhook of a real API server: the policies decide about every way to change an object, and
//! the failure policy decides when the server is down.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt as _};
use proviso_e2e::pki::Authority;
use proviso_e2e::{Cluster, Temporary, Webhook, address_for_endpoints, until};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::{Folder, Server, cel, example, policy, wasm, with};

const WAIT_TIMEOUT: Duration = Duration::from_mins(1);
/// The resources of the webhooks of most tests.
const EVERYTHING: &str = "*/*";

/// A namespace of a cluster, a policy server, and its webhooks.
struct WebhookEnv {
    // The fields are dropped in this order: the objects in the cluster before the cluster.
    webhooks: Vec<Temporary>,
    server: Server,
    namespace: String,
    authority: Authority,
    client: Client,
    _namespace: Temporary,
    cluster: Cluster,
}

impl WebhookEnv {
    /// Starts a server over this folder that the cluster can reach, at `host` or, if that is `None`, at the cluster's host.
    async fn start(test: &str, folder: Folder, host: Option<IpAddr>) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let cluster = Cluster::find(test).await?;
        let host = host.unwrap_or(cluster.host()).to_string();
        // The process id makes the name unique: other tests may run in the same cluster.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("proviso-e2e-{}-{number}", std::process::id());
        let temporary = cluster.namespace(&namespace, &[]).await?;
        let authority = Authority::new("webhook", folder.root())?;
        let service = format!("policies.{namespace}.svc");
        let identity = authority.server("policy-server", &[&host, &service])?;
        let (certificate, key) = (identity.certificate.to_str().unwrap(), identity.key.to_str().unwrap());
        let listen = format!("{host}:0");
        let arguments = ["--listen", &listen, "--tls-cert", certificate, "--tls-key", key];
        let server = Server::start(folder, &arguments).await;
        let client = cluster.client()?;
        Ok(Self { webhooks: Vec::new(), server, namespace, authority, client, cluster, _namespace: temporary })
    }

    /// Returns the client configuration of a webhook of this policy.
    fn url(&self, policy: &str) -> Value {
        json!({"url": format!("https://{}/validate/cluster.{policy}", self.server.listen)})
    }

    /// Registers a webhook for a policy and these resources in the namespace of this environment.
    async fn register(&mut self, policy: &str, resources: &str, change: impl FnOnce(&mut Webhook)) -> Result<()> {
        let operations = json!(["CREATE", "UPDATE", "DELETE"]);
        let rules =
            json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": operations, "resources": [resources]}]);
        let mut webhook = Webhook {
            name: format!("{}-{policy}", self.namespace),
            client: self.url(policy),
            authority: self.authority.pem(),
            mutating: false,
            rules,
            failure_policy: "Fail",
            namespace_selector: json!({"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}),
            object_selector: json!({}),
        };
        change(&mut webhook);
        self.webhooks.push(webhook.register(&self.cluster).await?);
        Ok(())
    }

    /// Waits until an attempt to create this `ConfigMap` is refused with this text.
    async fn until_refused(&self, refused: &ConfigMap, text: &str) -> Result<()> {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        until(text, WAIT_TIMEOUT, async || refused_with(self.api().create(&dry_run, refused).await, text)).await
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

/// Returns an error unless the request was refused with this text.
fn refused_with<T>(result: kube::Result<T>, text: &str) -> Result<()> {
    let error = result.err().context("the request was accepted")?.to_string();
    ensure!(error.contains(text), "{error}");
    Ok(())
}

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn config_map(name: &str, labels: &Value) -> ConfigMap {
    object(json!({"metadata": {"name": name, "labels": labels}, "data": {"key": "value"}}))
}

fn forbidden() -> Value {
    json!({"forbidden": "true"})
}

/// Returns the manifest of a policy that denies changes of objects with the label `forbidden`, including deletions.
fn no_forbidden() -> (&'static str, String) {
    let it = "(request.operation == 'DELETE' ? oldObject : object)";
    let expression = format!("!has({it}.metadata.labels) || !('forbidden' in {it}.metadata.labels)");
    ("guard.json", policy("guard", &cel(&expression, "it is forbidden")))
}

fn folder(files: &[(&str, String)]) -> Folder {
    let folder = Folder::new();
    for (name, content) in files {
        folder.write(name, content);
    }
    folder
}

#[tokio::test]
async fn every_way_to_change_an_object_is_decided() -> Result<()> {
    let limit = cel("object.spec.replicas <= 5", "too many replicas");
    let folder = folder(&[no_forbidden(), ("limit.json", policy("limit", &limit))]);
    let mut env = WebhookEnv::start("every-way-to-change-an-object", folder, None).await?;
    env.register("limit", "deployments/scale", |_| {}).await?;
    env.register("guard", EVERYTHING, |_| {}).await?;
    env.until_refused(&config_map("a", &forbidden()), "it is forbidden").await?;
    let (post, patch) = (PostParams::default(), PatchParams::default());

    // Create, replace, and all kinds of patches.
    let maps = env.api::<ConfigMap>();
    refused_with(maps.create(&post, &config_map("a", &forbidden())).await, "it is forbidden")?;
    let mut map = maps.create(&post, &config_map("a", &json!({}))).await?;
    map.labels_mut().insert("forbidden".to_owned(), "true".to_owned());
    refused_with(maps.replace("a", &post, &map).await, "it is forbidden")?;
    let merge = json!({"metadata": {"labels": forbidden()}});
    refused_with(maps.patch("a", &patch, &Patch::Merge(&merge)).await, "it is forbidden")?;
    refused_with(maps.patch("a", &patch, &Patch::Strategic(&merge)).await, "it is forbidden")?;
    let json_patch: json_patch::Patch =
        object(json!([{"op": "add", "path": "/metadata/labels", "value": forbidden()}]));
    refused_with(maps.patch("a", &patch, &Patch::Json::<()>(json_patch)).await, "it is forbidden")?;
    let apply: DynamicObject =
        object(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": forbidden()}}));
    refused_with(maps.patch("a", &PatchParams::apply("test"), &Patch::Apply(&apply)).await, "it is forbidden")?;
    maps.patch("a", &patch, &Patch::Merge(&json!({"data": {"key": "other"}}))).await?;

    // A dry run has the same verdict, and changes nothing.
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    refused_with(maps.create(&dry_run, &config_map("b", &forbidden())).await, "it is forbidden")?;
    maps.create(&dry_run, &config_map("b", &json!({}))).await?;
    ensure!(maps.get_opt("b").await?.is_none());

    // Subresources: `kubectl scale` writes the subresource `scale`.
    let deployments = env.api::<Deployment>();
    let labels = json!({"app": "a"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let spec = json!({"replicas": 1, "selector": {"matchLabels": labels}, "template": template});
    deployments.create(&post, &object(json!({"metadata": {"name": "a"}, "spec": spec}))).await?;
    let replicas = |count: u32| json!({"spec": {"replicas": count}});
    refused_with(deployments.patch_scale("a", &patch, &Patch::Merge(&replicas(6))).await, "too many replicas")?;
    deployments.patch_scale("a", &patch, &Patch::Merge(&replicas(5))).await?;

    // Delete: the policy decides about the old object. Label the object while no webhook is registered.
    env.webhooks.clear();
    until("the API server without webhooks", WAIT_TIMEOUT, async || {
        maps.patch("a", &patch, &Patch::Merge(&merge)).await.map(drop).context("labelling it")
    })
    .await?;
    env.register("guard", EVERYTHING, |_| {}).await?;
    env.until_refused(&config_map("b", &forbidden()), "it is forbidden").await?;
    refused_with(maps.delete("a", &DeleteParams::default()).await, "it is forbidden")?;
    deployments.delete("a", &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn a_mutating_policy_changes_objects_before_they_are_stored() -> Result<()> {
    let module = wasm("safe-defaults.wasm");
    let settings =
        json!({"settings": {"labels": {"proviso.dev/safe-defaults": "v1"}}, "admission": {"mutating": true}});
    let folder = folder(&[no_forbidden(), ("safe.json", policy("safe", &with(module, &settings)))]);
    std::fs::copy(example("policies/safe-defaults/safe-defaults.wasm"), folder.manifests().join("safe-defaults.wasm"))?;
    let mut env = WebhookEnv::start("objects-are-changed", folder, None).await?;
    env.register("safe", "pods", |webhook| webhook.mutating = true).await?;
    env.register("guard", EVERYTHING, |_| {}).await?;
    env.until_refused(&config_map("a", &forbidden()), "it is forbidden").await?;
    let pods = env.api::<Pod>();
    let pod: Pod = object(json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}));
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let changed = until("a changed pod", WAIT_TIMEOUT, async || {
        let pod = pods.create(&dry_run, &pod).await?;
        ensure!(pod.labels().contains_key("proviso.dev/safe-defaults"), "not changed yet");
        Ok(())
    });
    changed.await?;
    pods.create(&PostParams::default(), &pod).await?;
    let stored = pods.get("a").await?.spec.context("its spec")?;
    ensure!(stored.security_context.and_then(|context| context.run_as_non_root) == Some(true));
    let container = stored.containers[0].security_context.clone().context("the container's")?;
    ensure!(container.allow_privilege_escalation == Some(false));
    Ok(())
}

#[tokio::test]
async fn large_and_deep_objects_are_decided() -> Result<()> {
    let folder = folder(&[no_forbidden()]);
    let mut env = WebhookEnv::start("large-and-deep-objects", folder, None).await?;
    env.register("guard", EVERYTHING, |_| {}).await?;
    env.until_refused(&config_map("a", &forbidden()), "it is forbidden").await?;

    // A ConfigMap may contain 1 MiB of data. Each quote in it takes two bytes in the review.
    let data = "\"".repeat(450 * 1024) + &"x".repeat(550 * 1024);
    let large = |labels: Value| -> ConfigMap {
        object(json!({"metadata": {"name": "large", "labels": labels}, "data": {"key": data}}))
    };
    ensure!(serde_json::to_vec(&large(json!({})))?.len() > 1_400 * 1024, "1.4 MiB as JSON");
    let maps = env.api::<ConfigMap>();
    refused_with(maps.create(&PostParams::default(), &large(forbidden())).await, "it is forbidden")?;
    maps.create(&PostParams::default(), &large(json!({}))).await?;

    let group = format!("{}.e2e.proviso.dev", env.namespace);
    let names = json!({"plural": "trees", "singular": "tree", "kind": "Tree"});
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("trees.{group}")},
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": [version]},
    });
    let _definition = env.cluster.apply(object(definition)).await?;
    let definitions = Api::<CustomResourceDefinition>::all(env.client.clone());
    until("the custom resource to be served", WAIT_TIMEOUT, async || {
        let conditions =
            definitions.get_status(&format!("trees.{group}")).await?.status.and_then(|status| status.conditions);
        ensure!(
            conditions.iter().flatten().any(|it| it.type_ == "Established" && it.status == "True"),
            "{conditions:?}"
        );
        Ok(())
    })
    .await?;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(&group, "v1", "Tree"));
    let trees = Api::<DynamicObject>::namespaced_with(env.client.clone(), &env.namespace, &kind);
    let tree = |depth: usize, labels: Value| -> DynamicObject {
        let spec = (0..depth).fold(json!({"leaf": true}), |inner, _| json!({"branches": [inner]}));
        object(
            json!({"apiVersion": format!("{group}/v1"), "kind": "Tree", "metadata": {"name": "deep", "labels": labels}, "spec": spec}),
        )
    };
    until("the API server to call the webhook for trees", WAIT_TIMEOUT, async || {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        refused_with(trees.create(&dry_run, &tree(1, forbidden())).await, "it is forbidden")
    })
    .await?;
    refused_with(trees.create(&PostParams::default(), &tree(50, forbidden())).await, "it is forbidden")?;
    // An object that is nested deeper than the limit of the policy server (256 levels; each branch has two) is refused.
    refused_with(trees.create(&PostParams::default(), &tree(150, json!({}))).await, "nested")?;
    trees.create(&PostParams::default(), &tree(50, json!({}))).await?;
    Ok(())
}

#[tokio::test]
async fn the_failure_policy_decides_when_the_server_is_down() -> Result<()> {
    let folder = folder(&[no_forbidden()]);
    let mut env = WebhookEnv::start("without-the-server", folder, None).await?;
    env.register("guard", "configmaps", |_| {}).await?;
    env.until_refused(&config_map("a", &forbidden()), "it is forbidden").await?;
    let maps = env.api::<ConfigMap>();
    env.server.signal(rustix::process::Signal::KILL);
    env.server.exit_code().await;
    refused_with(maps.create(&PostParams::default(), &config_map("a", &json!({}))).await, "failed calling webhook")?;

    env.webhooks.clear();
    env.register("guard", "configmaps", |webhook| webhook.failure_policy = "Ignore").await?;
    until("the API server to ignore the failure", WAIT_TIMEOUT, async || {
        maps.create(&PostParams::default(), &config_map("open", &forbidden())).await.map(drop).context("creating it")
    })
    .await
}

#[tokio::test]
async fn a_service_with_hand_written_endpoints_reaches_the_server() -> Result<()> {
    let folder = folder(&[no_forbidden()]);
    let host = address_for_endpoints()?;
    let mut env = WebhookEnv::start("a-service-with-endpoints", folder, Some(host)).await?;
    let port: u16 = env.server.listen.rsplit(':').next().and_then(|port| port.parse().ok()).context("its port")?;
    let service: Service = object(
        json!({"metadata": {"name": "policies"}, "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]}}),
    );
    env.api::<Service>().create(&PostParams::default(), &service).await?;
    let slice: EndpointSlice = object(json!({
        "metadata": {"name": "policies-1", "labels": {"kubernetes.io/service-name": "policies"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [host], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }));
    env.api::<EndpointSlice>().create(&PostParams::default(), &slice).await?;
    let service =
        json!({"name": "policies", "namespace": env.namespace, "port": 443, "path": "/validate/cluster.guard"});
    env.register("guard", "configmaps", |webhook| webhook.client = json!({"service": service})).await?;
    env.until_refused(&config_map("a", &forbidden()), "it is forbidden").await?;
    env.api().create(&PostParams::default(), &config_map("a", &json!({}))).await?;
    Ok(())
}

// API servers write `<` as six bytes, so the review of an object that etcd accepts is six times as large.
#[tokio::test]
async fn an_object_that_escaping_makes_large_does_not_pass_under_ignore() -> Result<()> {
    let folder = Folder::new();
    folder.write("never.json", policy("never", &cel("false", "never")));
    let mut env = WebhookEnv::start("an-object-that-escaping-makes-large", folder, None).await?;
    let deployment = |name: &str, size: usize| -> Deployment {
        let container = json!({"name": "c", "image": "a", "env": [{"name": "A", "value": "<".repeat(size)}]});
        let labels = json!({"app": "a"});
        object(json!({"metadata": {"name": name}, "spec": {
            "replicas": 0, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        }}))
    };
    let deployments = env.api::<Deployment>();
    deployments.create(&PostParams::default(), &deployment("existing", 1_400_000)).await?;
    env.register("never", EVERYTHING, |webhook| webhook.failure_policy = "Ignore").await?;
    env.until_refused(&config_map("small", &json!({})), "never").await?;
    refused_with(deployments.create(&PostParams::default(), &deployment("large", 1_300_000)).await, "never")?;
    // The review has both objects: 26 MB.
    let refused = deployments.replace("existing", &PostParams::default(), &deployment("existing", 2_900_000)).await;
    refused_with(refused, "the body is larger than 20971520 bytes (20 MiB)")
}
