//! The sample component in a namespace of its own, and its subscriptions.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use proviso_crds::{PolicySubscription, PolicySubscriptionStatus};
use proviso_e2e::{component, until, until_after};
use serde_json::{Map, Value, json};

use crate::test_cluster::{TestCluster, WAIT_TIMEOUT, is_ready};

/// The name of the Deployment, of its container and of its Service.
const NAME: &str = "component";

/// The component of one flow.
pub struct Component<'a> {
    cluster: &'a TestCluster,
    pub namespace: String,
}

/// Returns a notification by a command of the component.
pub fn exec(command: &str, timeout: u32) -> Value {
    json!({"timeoutSeconds": timeout, "exec": {"command": ["/component", command]}})
}

/// Returns a notification by a request to the component.
pub fn http(path: &str) -> Value {
    json!({"timeoutSeconds": 10, "http": {"service": NAME, "port": 80, "path": path}})
}

impl<'a> Component<'a> {
    /// Creates the namespace of the component. The component does not run yet.
    pub async fn new(cluster: &'a TestCluster, flow: &str) -> Result<Self> {
        cluster.node.load(&component::image()?).await?;
        let namespace = format!("flow-{flow}");
        cluster.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})).await?;
        Ok(Self { cluster, namespace })
    }

    /// Starts the component in one pod, and waits until it is Ready. When it starts, it reads the `ConfigMap` of the subscription
    /// `collector`.
    pub async fn start(&self) -> Result<()> {
        self.deploy(1).await?;
        self.until_ready().await
    }

    /// Creates the Deployment and the Service of the component, or changes the number of its pods.
    pub async fn deploy(&self, replicas: usize) -> Result<()> {
        let labels = json!({"app": NAME});
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": NAME, "namespace": self.namespace},
            "spec": {
                "replicas": replicas, "selector": {"matchLabels": labels},
                "strategy": {"type": "Recreate"},
                "template": {"metadata": {"labels": labels}, "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{
                        "name": NAME, "image": component::REFERENCE, "imagePullPolicy": "Never",
                        "env": [{"name": "MEMORY_LIMIT", "value": "1024"}],
                        "ports": [{"containerPort": 8080}],
                        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
                        "volumeMounts": [{"name": "policies", "mountPath": "/etc/policies"}],
                    }],
                    "volumes": [{"name": "policies", "configMap": {"name": "collector-policies", "optional": true}}],
                }},
            },
        });
        self.cluster.apply(&deployment).await?;
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME, "namespace": self.namespace},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
        });
        self.cluster.apply(&service).await
    }

    /// Replaces the pod of the component, and waits until the new one is Ready.
    pub async fn restart(&self) -> Result<()> {
        self.pods().delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        self.until_ready().await
    }

    /// Changes the largest `min_memory` that the component accepts, which replaces its pod.
    pub async fn set_limit(&self, limit: u32) -> Result<()> {
        let deployments = Api::<Deployment>::namespaced(self.cluster.client.clone(), &self.namespace);
        let environment = json!([{"name": "MEMORY_LIMIT", "value": limit.to_string()}]);
        let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": NAME, "env": environment}]}}}});
        deployments.patch(NAME, &PatchParams::default(), &Patch::Strategic(patch)).await?;
        until("the new pod", WAIT_TIMEOUT, async || {
            let status = deployments.get(NAME).await?;
            let (generation, status) = (status.metadata.generation, status.status.context("no status")?);
            ensure!(status.observed_generation == generation && status.updated_replicas == Some(1), "{status:?}");
            Ok(())
        })
        .await?;
        self.until_ready().await
    }

    async fn until_ready(&self) -> Result<()> {
        until("one Ready pod", WAIT_TIMEOUT, async || {
            let pods = self.pods().list(&ListParams::default()).await?.items;
            ensure!(pods.len() == 1 && pods.iter().all(is_ready), "{} pods, not one Ready one", pods.len());
            Ok(())
        })
        .await
    }

    /// Creates a subscription of the component, whose `ConfigMap` is `<name>-policies`.
    pub async fn subscribe(&self, name: &str, policies: Value, notify: Value) -> Result<()> {
        self.subscribe_to(name, &format!("{name}-policies"), policies, notify).await
    }

    /// Creates a subscription of the component, with the name of its `ConfigMap`.
    pub async fn subscribe_to(&self, name: &str, config_map: &str, policies: Value, notify: Value) -> Result<()> {
        let subscription = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicySubscription",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "component": {"kind": "Deployment", "name": NAME}, "policies": policies,
                "delivery": {"configMap": config_map, "notify": notify},
            },
        });
        self.cluster.apply(&subscription).await
    }

    pub async fn status(&self, subscription: &str) -> Result<PolicySubscriptionStatus> {
        let subscriptions = Api::<PolicySubscription>::namespaced(self.cluster.client.clone(), &self.namespace);
        subscriptions.get(subscription).await?.status.context("no status")
    }

    /// Waits until the condition `Delivered` has this status and reason. Returns its message.
    pub async fn until_condition(&self, subscription: &str, status: &str, reason: &str) -> Result<String> {
        until(&format!("{subscription}: Delivered {status} {reason}"), WAIT_TIMEOUT, async || {
            let conditions = self.status(subscription).await?.conditions;
            let delivered = conditions.iter().find(|it| it.type_ == "Delivered").context("no condition")?;
            ensure!(delivered.status == status && delivered.reason == reason, "{conditions:#?}");
            Ok(delivered.message.clone())
        })
        .await
    }

    /// Waits until the component has acknowledged this number of policies, and should have no other.
    pub async fn until_delivered(&self, subscription: &str, policies: usize) -> Result<()> {
        until(&format!("{policies} policies of {subscription}"), WAIT_TIMEOUT, async || {
            let status = self.status(subscription).await?;
            let is_delivered = status.conditions.iter().any(|it| it.type_ == "Delivered" && it.status == "True");
            ensure!(is_delivered && status.policies.len() == policies && status.pending.is_empty(), "{status:#?}");
            Ok(())
        })
        .await
    }

    /// Waits until the component works with exactly these policies: their content by policy id.
    pub async fn until_configured(&self, wanted: &Value) -> Result<()> {
        until(&format!("the configuration {wanted}"), WAIT_TIMEOUT, async || {
            let found = self.configuration().await?;
            ensure!(found == *wanted, "{found}");
            Ok(())
        })
        .await
    }

    /// Returns the content of the policies that the component works with.
    async fn configuration(&self) -> Result<Value> {
        let path = format!("/api/v1/namespaces/{}/services/{NAME}:80/proxy/", self.namespace);
        let shown: Value = self.cluster.client.request(http::Request::get(path).body(Vec::new())?).await?;
        let policies = shown["policies"].as_object().with_context(|| shown.to_string())?;
        let content: Map<_, _> = policies.iter().map(|(id, policy)| (id.clone(), policy["config"].clone())).collect();
        Ok(Value::Object(content))
    }

    /// Returns the data of the `ConfigMap` of a subscription.
    pub async fn stored(&self, subscription: &str) -> Result<BTreeMap<String, String>> {
        let map = self.config_maps().get(&format!("{subscription}-policies")).await?;
        map.data.context("no data")
    }

    /// Returns the body of a policy in the `ConfigMap` of a subscription.
    pub async fn stored_body(&self, subscription: &str, policy: &str) -> Result<Value> {
        let stored = self.stored(subscription).await?;
        let body = stored.get(&format!("items.{policy}")).with_context(|| format!("{policy} is not in {stored:?}"))?;
        Ok(serde_json::from_str(body)?)
    }

    /// Returns the event in the `ConfigMap` of a subscription.
    pub async fn event(&self, subscription: &str) -> Result<Value> {
        let stored = self.stored(subscription).await?;
        Ok(serde_json::from_str(stored.get("event").context("no event")?)?)
    }

    /// Waits until a subscription that is created now is younger than this one. The API server has the time in seconds.
    pub async fn until_older(&self, subscription: &str) -> Result<()> {
        let subscriptions = Api::<PolicySubscription>::namespaced(self.cluster.client.clone(), &self.namespace);
        let created = subscriptions.get(subscription).await?.metadata.creation_timestamp.context("no time")?;
        until_after(&created).await
    }

    /// Changes a key of the `ConfigMap` of a subscription by hand.
    pub async fn edit(&self, subscription: &str, key: &str, value: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"data": {key: value}}));
        self.config_maps().patch(&format!("{subscription}-policies"), &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Deletes the component with its namespace.
    pub async fn end(self) -> Result<()> {
        let namespaces = Api::<Namespace>::all(self.cluster.client.clone());
        namespaces.delete(&self.namespace, &DeleteParams::default()).await?;
        Ok(())
    }

    fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.cluster.client.clone(), &self.namespace)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client.clone(), &self.namespace)
    }
}
