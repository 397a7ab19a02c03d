//! The delivery of configuration policies to components: ConfigMaps and Secrets, conflicts, edits by hand, restarts, resends and
//! templates. No kubelet and no proxy of Services run here: the tests of the node notify components.

mod conflicts;

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use proviso_crds::{ClusterPolicy, PolicySubscription, PolicySubscriptionStatus, UpdateResult};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::test_cluster::{TIMEOUT, TestCluster};

/// The namespace of the subscriptions.
const TEAM: &str = "team";

/// A cluster with an operator and the namespace [`TEAM`].
struct Components {
    cluster: TestCluster,
}

impl Components {
    async fn start(name: &str) -> Result<Self> {
        let cluster = TestCluster::start(name).await?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}});
        let namespaces = Api::<Namespace>::all(cluster.client.clone());
        namespaces.patch(TEAM, &PatchParams::apply("owner").force(), &Patch::Apply(namespace)).await?;
        cluster.grant().await?;
        cluster.apply_file("config/operator/admissionpolicies.yaml").await?;
        let mut components = Self { cluster };
        components.start_operator()?;
        Ok(components)
    }

    /// Starts an operator with its own account, so that its permissions are tested too.
    fn start_operator(&mut self) -> Result<()> {
        let kubeconfig = self.cluster.service_account_kubeconfig()?;
        self.cluster.start_operator_at("127.0.0.1".parse()?, &kubeconfig, &[])
    }

    /// Creates or updates a configuration policy of the cluster. `configuration` is its section without `configName`.
    async fn apply_policy(&self, name: &str, configuration: &Value) -> Result<i64> {
        let mut section = configuration.clone();
        section["configName"] = "memory".into();
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name},
            "spec": {"configuration": section},
        });
        let api = Api::<ClusterPolicy>::all(self.cluster.client.clone());
        let written = api.patch(name, &PatchParams::apply("owner").force(), &Patch::Apply(policy)).await?;
        written.metadata.generation.context("its generation")
    }

    /// Deletes a policy, and waits until it is gone: its revisions answer for some seconds more.
    async fn delete_policy(&self, name: &str) -> Result<()> {
        let api = Api::<ClusterPolicy>::all(self.cluster.client.clone());
        api.delete(name, &DeleteParams::default()).await?;
        until(&format!("the end of {name}"), 3 * TIMEOUT, async || {
            ensure!(api.get_metadata_opt(name).await?.is_none(), "it still exists");
            Ok(())
        })
        .await
    }

    fn subscriptions(&self) -> Api<PolicySubscription> {
        Api::namespaced(self.cluster.client.clone(), TEAM)
    }

    fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.cluster.client.clone(), TEAM)
    }

    /// Creates or updates a subscription of the policies whose names begin with `prefix`, with these other fields.
    async fn subscribe(&self, name: &str, prefix: &str, fields: Value) -> Result<()> {
        let mut spec = json!({
            "policies": [{"filter": {"nameRegex": format!("cluster\\.{prefix}.*")}}],
            "delivery": {"configMap": format!("{name}-policies")},
        });
        for (key, value) in fields.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        if spec["component"].is_null() && spec["scn"].is_null() {
            spec["scn"] = name.into();
        }
        let subscription = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicySubscription",
            "metadata": {"name": name, "namespace": TEAM}, "spec": spec,
        });
        self.subscriptions().patch(name, &PatchParams::apply("owner").force(), &Patch::Apply(subscription)).await?;
        Ok(())
    }

    async fn status(&self, subscription: &str) -> Result<PolicySubscriptionStatus> {
        Ok(self.subscriptions().get(subscription).await?.status.unwrap_or_default())
    }

    /// Waits until a condition of a subscription has this status and reason. Returns its message.
    async fn until_condition(&self, subscription: &str, type_: &str, status: &str, reason: &str) -> Result<String> {
        until(&format!("{subscription}: {type_} {status}, {reason}"), 3 * TIMEOUT, async || {
            let current = self.subscriptions().get(subscription).await?;
            let generation = current.metadata.generation;
            let current = current.status.unwrap_or_default();
            let found = current.conditions.iter().find(|condition| condition.type_ == type_);
            let found = found.with_context(|| format!("{current:?}"))?;
            ensure!(found.status == status && found.reason == reason, "{current:?}");
            ensure!(found.observed_generation == generation, "{current:?}");
            Ok(found.message.clone())
        })
        .await
    }

    /// Waits until the component has exactly these policies, by name and generation, and has acknowledged all of them.
    async fn until_delivered(&self, subscription: &str, policies: &[(&str, i64)]) -> Result<PolicySubscriptionStatus> {
        let expected: BTreeMap<_, _> =
            policies.iter().map(|(name, generation)| (format!("cluster.{name}"), generation.to_string())).collect();
        until(&format!("{subscription} with {expected:?}"), 3 * TIMEOUT, async || {
            let status = self.status(subscription).await?;
            let has: BTreeMap<_, _> =
                status.policies.iter().map(|policy| (policy.id.clone(), policy.version.clone())).collect();
            ensure!(has == expected, "{status:?}");
            let is_delivered = status.conditions.iter().any(|it| it.type_ == "Delivered" && it.status == "True");
            ensure!(is_delivered && status.pending.is_empty() && status.unconfirmed.is_empty(), "{status:?}");
            Ok(status)
        })
        .await
    }

    /// Returns the data of a ConfigMap, and no data if it does not exist.
    async fn data(&self, config_map: &str) -> Result<BTreeMap<String, Value>> {
        let found = self.config_maps().get_opt(config_map).await?;
        let data = found.and_then(|found| found.data).unwrap_or_default();
        data.into_iter().map(|(key, value)| Ok((key, serde_json::from_str(&value)?))).collect()
    }

    /// Waits until a ConfigMap has no previous bodies, which are removed after the acknowledgement of an update, and returns its data.
    async fn delivered_data(&self, config_map: &str) -> Result<BTreeMap<String, Value>> {
        until("the removal of the previous bodies", TIMEOUT, async || {
            let data = self.data(config_map).await?;
            ensure!(!data.keys().any(|key| key.starts_with("previous.")), "{data:?}");
            Ok(data)
        })
        .await
    }

    async fn annotate(&self, subscription: &str, annotation: &str, value: &str) -> Result<()> {
        let patch = json!({"metadata": {"annotations": {annotation: value}}});
        self.subscriptions().patch(subscription, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Returns the number of requests of the operator for ConfigMaps with this verb.
    async fn config_map_requests(&self, verb: &str) -> Result<u64> {
        let metrics = self.cluster.metrics().await?;
        let is_counted = |line: &&str| {
            line.starts_with("proviso_operator_api_requests_total{")
                && line.contains(&format!("verb=\"{verb}\""))
                && line.contains("resource=\"configmaps\"")
        };
        let line = metrics.lines().find(is_counted);
        Ok(line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default())
    }
}

#[tokio::test]
async fn a_component_gets_each_change_of_its_policies() -> Result<()> {
    let components = Components::start("subscriptions").await?;
    components.apply_policy("memory-a", &json!({"content": {"min": 1}})).await?;
    components.apply_policy("other", &json!({"content": {}})).await?;
    components.subscribe("collector", "memory-.*", json!({})).await?;
    let status = components.until_delivered("collector", &[("memory-a", 1)]).await?;
    ensure!(status.summary.as_deref() == Some("1/1"), "{status:?}");
    let last = status.last_update.context("an update")?;
    ensure!(last.result == Some(UpdateResult::Acknowledged), "{last:?}");

    let data = components.delivered_data("collector-policies").await?;
    ensure!(data.keys().eq(["event", "items.cluster.memory-a"]), "{data:?}");
    ensure!(data["event"]["action"] == "gathered" && data["event"]["policies_count"] == 1, "{data:?}");
    ensure!(data["event"]["update_id"] == last.id.as_str(), "{data:?} {last:?}");
    let body = &data["items.cluster.memory-a"];
    ensure!(body["config"] == json!({"min": 1}) && body["policyVersion"] == "1", "{body}");
    let subscription = components.subscriptions().get("collector").await?;
    let owners = components.config_maps().get("collector-policies").await?.metadata.owner_references;
    ensure!(owners.unwrap_or_default()[0].uid == subscription.uid().unwrap_or_default());

    // A new policy, a new generation, and a policy that is disabled.
    components.apply_policy("memory-b", &json!({"content": {"min": 2}})).await?;
    components.until_delivered("collector", &[("memory-a", 1), ("memory-b", 1)]).await?;
    let generation = components.apply_policy("memory-a", &json!({"content": {"min": 3}})).await?;
    components.until_delivered("collector", &[("memory-a", generation), ("memory-b", 1)]).await?;
    let data = components.delivered_data("collector-policies").await?;
    ensure!(data["items.cluster.memory-a"]["config"] == json!({"min": 3}), "{data:?}");
    ensure!(data["event"]["action"] == "updated", "{data:?}");
    let disable = Patch::Merge(json!({"spec": {"enabled": false}}));
    let policies = Api::<ClusterPolicy>::all(components.cluster.client.clone());
    policies.patch("memory-b", &PatchParams::default(), &disable).await?;
    components.until_delivered("collector", &[("memory-a", generation)]).await?;

    // The policy is deleted and created again: its generation begins with 1, and its content is another one.
    components.delete_policy("memory-a").await?;
    components.until_delivered("collector", &[]).await?;
    let warning = components.until_condition("collector", "Resolved", "True", "NoPolicySelected").await?;
    ensure!(warning.contains("spec.policies[0]"), "{warning}");
    components.apply_policy("memory-a", &json!({"content": {"min": 4}})).await?;
    components.until_delivered("collector", &[("memory-a", 1)]).await?;
    let data = components.delivered_data("collector-policies").await?;
    ensure!(data["items.cluster.memory-a"]["config"] == json!({"min": 4}), "{data:?}");
    let events = components.cluster.kubectl.run(&["describe", "-n", TEAM, "policysubscription", "collector"]).await?;
    ensure!(events.contains("Normal  Delivered"), "{events}");

    // Kubernetes deletes the ConfigMap of a deleted subscription.
    components.subscriptions().delete("collector", &DeleteParams::default()).await?;
    until("the end of the ConfigMap", 3 * TIMEOUT, async || {
        let found = components.config_maps().get_opt("collector-policies").await?;
        ensure!(found.is_none(), "it still exists");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn edits_by_hand_are_repaired_and_a_restart_loses_nothing() -> Result<()> {
    let mut components = Components::start("subscriptions-repairs").await?;
    components.apply_policy("memory-a", &json!({"content": {"min": 1}})).await?;
    components.apply_policy("memory-b", &json!({"content": {"min": 2}})).await?;
    components.subscribe("collector", "memory-.*", json!({})).await?;
    let all = [("memory-a", 1), ("memory-b", 1)];
    let first = components.until_delivered("collector", &all).await?.last_update.context("an update")?;

    let edited = async |components: &Components, data: Value| {
        let patch = Patch::Merge(json!({"data": data}));
        components.config_maps().patch("collector-policies", &PatchParams::default(), &patch).await
    };
    let repaired = async |components: &Components, why: &str| {
        until(why, 3 * TIMEOUT, async || {
            let data = components.data("collector-policies").await?;
            ensure!(data.keys().eq(["event", "items.cluster.memory-a", "items.cluster.memory-b"]), "{data:?}");
            ensure!(data["items.cluster.memory-a"]["config"] == json!({"min": 1}), "{data:?}");
            Ok(())
        })
        .await
    };
    edited(&components, json!({"items.cluster.memory-a": "{\"policyVersion\":\"9\"}", "stray": "true"})).await?;
    repaired(&components, "the repair of an edit").await?;
    // The component may have read the edit: it gets the policy again.
    until("another update", TIMEOUT, async || {
        let last = components.status("collector").await?.last_update.context("an update")?;
        ensure!(last.id != first.id && last.result == Some(UpdateResult::Acknowledged), "{last:?}");
        Ok(())
    })
    .await?;
    components.config_maps().delete("collector-policies", &DeleteParams::default()).await?;
    repaired(&components, "the repair of a deletion").await?;

    // While no operator runs, a policy changes, another one is deleted, and somebody edits the ConfigMap.
    components.cluster.operators.clear();
    let generation = components.apply_policy("memory-a", &json!({"content": {"min": 5}})).await?;
    components.delete_policy_without_operator("memory-b").await?;
    edited(&components, json!({"items.cluster.memory-a": null})).await?;
    components.start_operator()?;
    components.until_delivered("collector", &[("memory-a", generation)]).await?;
    let data = components.delivered_data("collector-policies").await?;
    ensure!(data.keys().eq(["event", "items.cluster.memory-a"]), "{data:?}");
    ensure!(data["items.cluster.memory-a"]["config"] == json!({"min": 5}), "{data:?}");
    Ok(())
}

impl Components {
    /// Deletes a policy whose finalizer only the operator removes.
    async fn delete_policy_without_operator(&self, name: &str) -> Result<()> {
        let api = Api::<ClusterPolicy>::all(self.cluster.client.clone());
        api.delete(name, &DeleteParams::background()).await?;
        let deleted = api.get_metadata_opt(name).await?;
        ensure!(deleted.is_none_or(|found| found.metadata.deletion_timestamp.is_some()), "not deleted");
        Ok(())
    }
}

#[tokio::test]
async fn a_resend_sends_all_policies_and_a_catch_up_compares_them() -> Result<()> {
    let components = Components::start("subscriptions-resend").await?;
    components.apply_policy("memory-a", &json!({"content": {"min": 1}})).await?;
    components.subscribe("collector", "memory-.*", json!({})).await?;
    let first = components.until_delivered("collector", &[("memory-a", 1)]).await?;
    components.annotate("collector", "proviso.dev/resend", "1").await?;
    let second = until("the resend", TIMEOUT, async || {
        let status = components.status("collector").await?;
        ensure!(status.observed_resend.as_deref() == Some("1") && status.unconfirmed.is_empty(), "{status:?}");
        ensure!(status.last_update != first.last_update, "{status:?}");
        Ok(status)
    })
    .await?;
    // The operator reads the ConfigMap, and has nothing to send.
    let before = components.config_map_requests("get").await?;
    components.annotate("collector", "proviso.dev/catch-up", "1").await?;
    until("the catch-up", TIMEOUT, async || {
        ensure!(components.config_map_requests("get").await? > before, "not read again");
        Ok(())
    })
    .await?;
    components.annotate("collector", "proviso.dev/resend", "2").await?;
    let third = until("the next resend", TIMEOUT, async || {
        let status = components.status("collector").await?;
        ensure!(status.observed_resend.as_deref() == Some("2") && status.unconfirmed.is_empty(), "{status:?}");
        Ok(status)
    })
    .await?;
    ensure!(third.policies == second.policies, "{third:?}");
    // The catch-up sends nothing.
    until("the metrics", TIMEOUT, async || {
        let metrics = components.cluster.metrics().await?;
        let acknowledged = "proviso_operator_deliveries_total{result=\"acknowledged\"} 3";
        ensure!(metrics.lines().any(|line| line == acknowledged), "{metrics}");
        ensure!(metrics.lines().any(|line| line == "proviso_operator_subscriptions 1"), "{metrics}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn large_and_confidential_bodies_have_their_own_objects() -> Result<()> {
    let components = Components::start("subscriptions-parts").await?;
    for name in ["large-a", "large-b", "large-c"] {
        components.apply_policy(name, &json!({"content": {"text": "x".repeat(400 * 1024)}})).await?;
    }
    let secret = json!({"content": {"password": "hidden"}, "confidential": true, "namespaces": [TEAM]});
    components.apply_policy("large-secret", &secret).await?;
    components.subscribe("collector", "large-.*", json!({})).await?;
    let all = [("large-a", 1), ("large-b", 1), ("large-c", 1), ("large-secret", 1)];
    components.until_delivered("collector", &all).await?;
    let mut stored = Vec::new();
    for map in components.config_maps().list(&ListParams::default()).await? {
        if map.name_any().starts_with("collector-policies") {
            let data = map.data.clone().unwrap_or_default();
            ensure!(!format!("{data:?}").contains("hidden"), "a ConfigMap has a confidential body");
            stored.extend(data.into_keys().map(|key| (map.name_any(), key)));
        }
    }
    let keys: Vec<_> = stored.iter().map(|(_, key)| key.as_str()).filter(|key| key.starts_with("items.")).collect();
    ensure!(keys.len() == 3, "{stored:?}");
    let names: std::collections::BTreeSet<_> = stored.iter().map(|(name, _)| name.as_str()).collect();
    ensure!(names.contains("collector-policies") && names.contains("collector-policies-1"), "{stored:?}");
    let secrets = Api::<Secret>::namespaced(components.cluster.client.clone(), TEAM);
    let secret = secrets.get("collector-policies").await?;
    ensure!(secret.type_.as_deref() == Some("Opaque"), "{secret:?}");
    let body = secret.data.unwrap_or_default().remove("items.cluster.large-secret").context("the body")?;
    ensure!(String::from_utf8(body.0)?.contains("hidden"));

    // Objects without policies are deleted.
    for name in ["large-a", "large-b", "large-c", "large-secret"] {
        components.delete_policy(name).await?;
    }
    components.until_delivered("collector", &[]).await?;
    until("the end of the other objects", TIMEOUT, async || {
        ensure!(secrets.get_opt("collector-policies").await?.is_none(), "the Secret exists");
        ensure!(components.config_maps().get_opt("collector-policies-1").await?.is_none(), "the second part exists");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_template_follows_the_labels_of_the_workload() -> Result<()> {
    let components = Components::start("subscriptions-templates").await?;
    let template = json!({
        "template": {"cel": "{'region': component.labels['region'], 'kind': component.kind}"},
        "schema": {"type": "object", "properties": {"region": {"enum": ["east", "west"]}}},
    });
    components.apply_policy("memory-region", &template).await?;
    let component = json!({"component": {"kind": "Deployment", "name": "collector"}});
    components.subscribe("collector", "memory-.*", component).await?;
    let message = components.until_condition("collector", "Resolved", "False", "WorkloadNotFound").await?;
    ensure!(message.contains("the policy cluster.memory-region"), "{message}");

    let deployment = |region: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "collector", "namespace": TEAM, "labels": {"region": region}},
            "spec": {
                "replicas": 0, "selector": {"matchLabels": {"app": "collector"}},
                "template": {
                    "metadata": {"labels": {"app": "collector"}},
                    "spec": {"containers": [{"name": "collector", "image": "registry.example.com/collector:1"}]},
                },
            },
        })
    };
    let deployments = components.cluster.dynamic("apps/v1", "Deployment", Some(TEAM));
    let params = PatchParams::apply("owner").force();
    for region in ["east", "west"] {
        deployments.patch("collector", &params, &Patch::Apply(deployment(region))).await?;
        until(&format!("the content for {region}"), 3 * TIMEOUT, async || {
            let data = components.data("collector-policies").await?;
            let body = data.get("items.cluster.memory-region").context("no body")?;
            ensure!(body["config"] == json!({"region": region, "kind": "Deployment"}), "{body}");
            Ok(())
        })
        .await?;
    }
    // The schema refuses this content, and the component keeps the last good one.
    deployments.patch("collector", &params, &Patch::Apply(deployment("south"))).await?;
    let message = components.until_condition("collector", "Resolved", "False", "SchemaViolation").await?;
    ensure!(message.contains("The component keeps"), "{message}");
    let data = components.delivered_data("collector-policies").await?;
    ensure!(data["items.cluster.memory-region"]["config"]["region"] == "west", "{data:?}");
    Ok(())
}
