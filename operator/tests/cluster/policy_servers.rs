//! The objects of a `PolicyServer`, with a real API server and the operator's binary. The controllers of Kubernetes
//! create pods, which no kubelet runs, so the tests write the status of the pods.

mod failures;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, Role};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use proviso_crds::{ClusterPolicy, PolicyRevision};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::test_cluster::{IMAGE, NAMESPACE, TIMEOUT, TestCluster};

/// All objects of the policy server `default`, except its pods: version, kind, name, and true if the kind is
/// namespaced.
const OBJECTS: [(&str, &str, &str, bool); 15] = [
    ("v1", "ServiceAccount", "policy-server-default", true),
    ("rbac.authorization.k8s.io/v1", "Role", "policy-server-default", true),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", "policy-server-default", true),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "proviso-policy-server-default", false),
    ("v1", "ConfigMap", "policy-server-default-sources", true),
    ("v1", "Secret", "policy-server-default-tls", true),
    ("v1", "Secret", "policy-server-default-signing", true),
    ("v1", "Secret", "policy-server-default-callers", true),
    ("v1", "PersistentVolumeClaim", "policy-server-default-cache", true),
    ("v1", "Service", "policy-server-default-replicas", true),
    ("v1", "Service", "policy-server-default", true),
    ("policy/v1", "PodDisruptionBudget", "policy-server-default", true),
    ("coordination.k8s.io/v1", "Lease", "policy-server-default", true),
    ("apps/v1", "StatefulSet", "policy-server-default", true),
    ("v1", "Secret", "proviso-ca", true),
];

fn claimed() -> Value {
    json!({"cache": {"persistentVolumeClaim": {"size": "1Gi"}}})
}

impl TestCluster {
    async fn started(name: &str) -> Result<Self> {
        let mut cluster = Self::start(name).await?;
        cluster.start_operator(&[])?;
        Ok(cluster)
    }

    /// Returns the objects that exist, each with its uid.
    async fn found(&self) -> Result<Vec<(String, String)>> {
        let mut found = Vec::new();
        for (version, kind, name, is_namespaced) in OBJECTS {
            let api = self.dynamic(version, kind, is_namespaced.then_some(NAMESPACE));
            if let Some(object) = api.get_opt(name).await? {
                found.push((format!("{kind} {name}"), object.uid().unwrap_or_default()));
            }
        }
        Ok(found)
    }

    async fn until_complete(&self) -> Result<Vec<(String, String)>> {
        until("all objects", TIMEOUT, async || {
            let found = self.found().await?;
            ensure!(found.len() == OBJECTS.len(), "{found:?}");
            Ok(found)
        })
        .await
    }

    async fn stateful_set(&self) -> Result<StatefulSet> {
        Ok(self.api::<StatefulSet>().get("policy-server-default").await?)
    }

    /// Waits until the policy server has exactly these pods.
    async fn until_pods(&self, server: &str, names: &[&str]) -> Result<()> {
        let label = format!("proviso.dev/policy-server={server}");
        until(&format!("the pods {names:?}"), TIMEOUT, async || {
            let pods = self.api::<Pod>().list(&ListParams::default().labels(&label)).await?;
            let found: Vec<_> = pods.iter().map(kube::ResourceExt::name_any).collect();
            ensure!(found == names, "{found:?}");
            Ok(())
        })
        .await
    }
}

#[tokio::test]
async fn a_policy_server_gets_all_its_objects_and_a_status() -> Result<()> {
    let cluster = TestCluster::started("servers-appear").await?;
    cluster
        .apply_server("default", json!({"replicas": 2, "cache": {"persistentVolumeClaim": {"size": "1Gi"}}}))
        .await?;
    cluster.until_complete().await?;
    cluster.until_pods("default", &["policy-server-default-0", "policy-server-default-1"]).await?;
    let pod = cluster.api::<Pod>().get("policy-server-default-0").await?;
    let container = &pod.spec.as_ref().context("spec")?.containers[0];
    ensure!(container.image.as_deref() == Some(IMAGE), "{container:?}");
    ensure!(pod.labels()["proviso.dev/policy-server"] == "default", "{pod:?}");

    // The condition Ready follows the replicas, and its message has the cause of a failure.
    let message = cluster.until_condition("default", "Ready", "False", "ReplicasNotReady").await?;
    ensure!(message.contains("0 of 2"), "{message}");
    let crash = json!({"containerStatuses": [{
        "name": "policy-server", "image": IMAGE, "imageID": "", "ready": false, "restartCount": 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
    }]});
    cluster.set_pod_status("policy-server-default-1", crash).await?;
    until("the cause", TIMEOUT, async || {
        let message = cluster.until_condition("default", "Ready", "False", "ReplicasNotReady").await?;
        ensure!(message.contains("policy-server-default-1: CrashLoopBackOff, before: OOMKilled"), "{message}");
        Ok(())
    })
    .await?;
    for pod in ["policy-server-default-0", "policy-server-default-1"] {
        cluster.make_ready(pod).await?;
    }
    cluster.until_condition("default", "Ready", "True", "AllReplicasReady").await?;
    cluster.until_condition("default", "CertificateValid", "True", "Issued").await?;
    let shown = cluster.kubectl.run(&["get", "pvs", "default"]).await?;
    ensure!(shown.contains("REPLICAS") && shown.contains("LEADER"), "{shown}");
    ensure!(cluster.status("default").await?.ready_replicas == Some(2));

    // The replicas have exactly these permissions.
    let can_i = async |verb: &str, target: &str| {
        let account = format!("--as=system:serviceaccount:{NAMESPACE}:policy-server-default");
        let (resource, status) = target.strip_suffix("/status").map_or((target, ""), |resource| (resource, "status"));
        let subresource = format!("--subresource={status}");
        let asked = ["auth", "can-i", verb, resource, &subresource, "--namespace", NAMESPACE, &account];
        cluster.kubectl.run(&asked).await.is_ok_and(|answer| answer.trim() == "yes")
    };
    for (verb, target, expected) in [
        ("list", "policyrevisions.proviso.dev", true),
        ("watch", "policyrevisions.proviso.dev", true),
        ("patch", "policyrevisions.proviso.dev/status", true),
        ("patch", "leases.coordination.k8s.io/policy-server-default", true),
        ("get", "leases.coordination.k8s.io/policy-server-default", true),
        ("patch", "leases.coordination.k8s.io/policy-server-other", false),
        ("create", "leases.coordination.k8s.io", false),
        ("patch", "policyrevisions.proviso.dev", false),
        ("delete", "policyrevisions.proviso.dev", false),
        ("get", "secrets", false),
        ("list", "pods", true),
        ("watch", "pods", true),
        ("delete", "pods", false),
    ] {
        ensure!(can_i(verb, target).await == expected, "{verb} {target}");
    }
    let binding = Api::<ClusterRoleBinding>::all(cluster.client.clone()).get("proviso-policy-server-default").await?;
    ensure!(binding.role_ref.name == "proviso-policy-server", "{binding:?}");

    // A settled policy server is not written again, even after another reconcile.
    let before = cluster.stateful_set().await?.resource_version();
    cluster.kubectl.run(&["label", "pvs", "default", "look=again"]).await?;
    cluster.apply_server("other", json!({"replicas": 0})).await?;
    cluster.until_condition("other", "Ready", "False", "NoReplicas").await?;
    ensure!(cluster.stateful_set().await?.resource_version() == before);

    // A policy server without replicas has all other objects.
    for (secret, key) in [
        ("policy-server-other-tls", "tls.crt"),
        ("policy-server-other-tls", "tls.key"),
        ("policy-server-other-tls", "ca.crt"),
        ("policy-server-other-signing", "signing.key"),
    ] {
        ensure!(cluster.secret(secret, key).await?.contains("-----BEGIN "), "{secret}: {key}");
    }
    ensure!(
        cluster.secret("policy-server-other-tls", "ca.crt").await? == cluster.secret("proviso-ca", "ca.crt").await?
    );
    // The longest name is short enough for all names that Kubernetes derives from it.
    let longest = "a".repeat(38);
    cluster.apply_server(&longest, json!({})).await?;
    cluster.until_pods(&longest, &[&format!("policy-server-{longest}-0")]).await
}

#[tokio::test]
async fn the_status_reports_the_leader_and_a_missing_leader() -> Result<()> {
    let cluster = TestCluster::started("servers-leader").await?;
    cluster.apply_server("default", json!({})).await?;
    let message = cluster.until_condition("default", "LeaderElected", "False", "NoLeader").await?;
    ensure!(message.contains("keep answering"), "{message}");
    let leases = cluster.api::<Lease>();
    let renew = async |holder: &str| {
        let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(jiff::Timestamp::now());
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 10, "renewTime": time});
        let patch = Patch::Apply(json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}));
        leases.patch("policy-server-default", &PatchParams::apply("election").force(), &patch).await
    };
    renew("policy-server-default-0").await?;
    cluster.until_condition("default", "LeaderElected", "True", "Elected").await?;
    ensure!(cluster.status("default").await?.leader.as_deref() == Some("policy-server-default-0"));
    // The leader no longer renews its Lease.
    let message = cluster.until_condition("default", "LeaderElected", "False", "LeaseExpired").await?;
    ensure!(message.contains("no replica leads since"), "{message}");
    ensure!(cluster.status("default").await?.leader.is_none());
    renew("policy-server-default-1").await?;
    cluster.until_condition("default", "LeaderElected", "True", "Elected").await?;
    // A deleted Lease is created again, so that the replicas elect a new leader.
    leases.delete("policy-server-default", &DeleteParams::default()).await?;
    cluster.until_condition("default", "LeaderElected", "False", "NoLeader").await?;
    ensure!(leases.get("policy-server-default").await?.spec.is_some_and(|spec| spec.holder_identity.is_none()));
    until("the events", TIMEOUT, async || {
        let described = cluster.kubectl.run(&["describe", "pvs", "default"]).await?;
        ensure!(described.contains("LeaseExpired") && described.contains("Elected"), "{described}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn objects_changed_or_deleted_by_hand_are_restored() -> Result<()> {
    let cluster = TestCluster::started("servers-by-hand").await?;
    cluster.apply_server("default", claimed()).await?;
    let before = cluster.until_complete().await?;
    let uid = cluster.stateful_set().await?.uid();
    for (version, kind, name, change) in [
        ("apps/v1", "StatefulSet", "policy-server-default", json!({"spec": {"replicas": 7}})),
        ("v1", "Service", "policy-server-default", json!({"spec": {"selector": {"app": "mine"}}})),
        ("v1", "ConfigMap", "policy-server-default-sources", json!({"data": {"sources.yaml": "?"}})),
        ("rbac.authorization.k8s.io/v1", "Role", "policy-server-default", json!({"rules": []})),
        ("policy/v1", "PodDisruptionBudget", "policy-server-default", json!({"spec": {"maxUnavailable": 5}})),
        ("v1", "Secret", "policy-server-default-tls", json!({"data": {"tls.key": "bm9uc2Vuc2U="}})),
        ("v1", "Secret", "policy-server-default-tls", json!({"data": {"tls.crt": "bm9uc2Vuc2U="}})),
        ("v1", "Secret", "policy-server-default-signing", json!({"data": {"signing.key": ""}})),
        ("v1", "Secret", "policy-server-default-callers", json!({"data": {"tokens": ""}})),
        ("v1", "Secret", "proviso-ca", json!({"data": {"bundle.crt": "bm9uc2Vuc2U="}})),
        (
            "v1",
            "ServiceAccount",
            "policy-server-default",
            json!({"metadata": {"labels": {"app.kubernetes.io/part-of": "mine"}}}),
        ),
    ] {
        let api = cluster.dynamic(version, kind, Some(NAMESPACE));
        let settled = |object: &kube::api::DynamicObject| {
            let mut data = object.data.clone();
            data.as_object_mut().unwrap().remove("status");
            (data, object.metadata.labels.clone())
        };
        let was = settled(&api.get(name).await?);
        api.patch(name, &PatchParams::default(), &Patch::Merge(&change)).await?;
        let is_secret = kind == "Secret" && name != "proviso-ca";
        until(&format!("{kind} {name} after {change}"), TIMEOUT, async || {
            let found = settled(&api.get(name).await?);
            if is_secret {
                // The certificate or key may differ; the Secret has to be complete again.
                let keys = |data: &Value| data["data"].as_object().map(|data| data.keys().cloned().collect::<Vec<_>>());
                ensure!(keys(&found.0) == keys(&was.0) && !found.0.to_string().contains("bm9uc2Vuc2U="), "{found:?}");
                ensure!(!found.0["data"].as_object().unwrap().values().any(|value| value == ""), "{found:?}");
            } else {
                ensure!(found == was, "{found:?}");
            }
            Ok(())
        })
        .await?;
    }
    for (version, kind, name, is_namespaced) in OBJECTS {
        if kind == "StatefulSet" || kind == "PersistentVolumeClaim" || name == "proviso-ca" {
            continue;
        }
        let api = cluster.dynamic(version, kind, is_namespaced.then_some(NAMESPACE));
        api.delete(name, &DeleteParams::default()).await?;
    }
    let after = until("all objects after the deletion", TIMEOUT, async || {
        let after = cluster.found().await?;
        ensure!(after.len() == OBJECTS.len(), "{after:?}");
        let unchanged: Vec<_> = after.iter().filter(|object| before.contains(object)).collect();
        ensure!(unchanged.len() == 3, "{unchanged:?}");
        Ok(after)
    })
    .await?;
    ensure!(cluster.stateful_set().await?.uid() == uid, "{after:?}");
    // A lost CA is trusted until no certificate of it is in use.
    let lost = cluster.secret("proviso-ca", "ca.crt").await?;
    cluster.api::<Secret>().delete("proviso-ca", &DeleteParams::default()).await?;
    until("another CA", TIMEOUT, async || {
        let bundle = cluster.secret("proviso-ca", "bundle.crt").await?;
        let previous = cluster.secret("proviso-ca", "previous.crt").await?;
        ensure!(previous == lost && bundle.contains(&lost) && bundle.len() > lost.len(), "{previous}{bundle}");
        let moved = cluster.secret("policy-server-default-tls", "ca.crt").await?;
        ensure!(moved == cluster.secret("proviso-ca", "ca.crt").await? && moved != lost, "still the old one");
        Ok(())
    })
    .await?;
    // Another client creates a binding with the name of the operator's binding.
    let bindings = cluster.dynamic("rbac.authorization.k8s.io/v1", "RoleBinding", Some(NAMESPACE));
    bindings.delete("policy-server-default", &DeleteParams::default()).await?;
    let name = "rolebinding/policy-server-default";
    let theirs = ["create", "rolebinding", "policy-server-default", "--role=mine", "--group=us", "-n", NAMESPACE];
    // The command fails if the operator has already restored its binding.
    let _ = cluster.kubectl.run(&theirs).await;
    until("our binding", TIMEOUT, async || {
        let role = cluster.kubectl.run(&["get", name, "-n", NAMESPACE, "-o", "jsonpath={.roleRef.name}"]).await?;
        ensure!(role == "policy-server-default", "{role}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_edit_changes_only_the_objects_that_it_concerns() -> Result<()> {
    let cluster = TestCluster::started("servers-edits").await?;
    cluster.apply_server("default", json!({})).await?;
    cluster.until_pods("default", &["policy-server-default-0"]).await?;
    let template = async || anyhow::Ok(cluster.stateful_set().await?.spec.context("spec")?.template);
    let (before, generation) = (template().await?, cluster.stateful_set().await?.metadata.generation);

    // Edits of a policy restart no pod.
    for generation in 1..=5 {
        ensure!(cluster.apply_policy("a", "default", &format!("{generation} > 0")).await? == generation);
        let revision = format!("cluster.a-{generation}");
        until(&revision, TIMEOUT, async || Ok(cluster.api::<PolicyRevision>().get(&revision).await?)).await?;
    }
    // A change of the sources restarts no pod, because replicas reload them.
    cluster.apply_server("default", json!({"sources": {"insecure": ["localhost:5000"]}, "minAvailable": 1})).await?;
    until("the sources", TIMEOUT, async || {
        let map = cluster.api::<ConfigMap>().get("policy-server-default-sources").await?;
        ensure!(map.data.context("data")?["sources.yaml"].contains("localhost:5000"));
        let budget = cluster.api::<PodDisruptionBudget>().get("policy-server-default").await?.spec.context("spec")?;
        ensure!(budget.min_available.is_some() && budget.max_unavailable.is_none(), "{budget:?}");
        Ok(())
    })
    .await?;
    ensure!(cluster.stateful_set().await?.metadata.generation == generation, "policies or sources changed pods");

    // A change of the number of replicas does not change the pod template.
    cluster.kubectl.run(&["scale", "pvs", "default", "--replicas=3"]).await?;
    let names = ["policy-server-default-0", "policy-server-default-1", "policy-server-default-2"];
    cluster.until_pods("default", &names).await?;
    ensure!(template().await? == before, "scaling changed pods");
    cluster.kubectl.run(&["scale", "pvs", "default", "--replicas=1"]).await?;
    cluster.until_pods("default", &names[..1]).await?;

    // Another image changes the pod template.
    let image = "registry.example.com/policy-server:2";
    cluster
        .apply_server("default", json!({"image": image, "cache": {"persistentVolumeClaim": {"size": "1Gi"}}}))
        .await?;
    until("the image", TIMEOUT, async || {
        let spec = template().await?.spec.context("spec")?;
        ensure!(spec.containers[0].image.as_deref() == Some(image), "{spec:?}");
        let claims: Vec<_> =
            spec.volumes.iter().flatten().filter_map(|it| it.persistent_volume_claim.as_ref()).collect();
        ensure!(claims.len() == 1 && claims[0].claim_name == "policy-server-default-cache", "{claims:?}");
        Ok(())
    })
    .await?;
    let claims = cluster.api::<PersistentVolumeClaim>();
    until("the claim", TIMEOUT, async || Ok(claims.get("policy-server-default-cache").await?)).await?;
    // A claim that the operator created is deleted when the spec names an existing claim.
    cluster.apply_server("default", json!({"image": image, "cache": {"existingClaim": "mine"}})).await?;
    until("the claim to go", TIMEOUT, async || {
        ensure!(claims.get_opt("policy-server-default-cache").await?.is_none());
        Ok(())
    })
    .await?;
    // An Event of the policy server reports a failed apply.
    cluster.apply_server("default", json!({"env": [{"name": "no name"}, {"name": ""}]})).await?;
    until("the refusal", TIMEOUT, async || {
        let described = cluster.kubectl.run(&["describe", "pvs", "default"]).await?;
        ensure!(described.contains("ApplyFailed") && described.contains("env[3].name: Required value"), "{described}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_policy_server_stays_until_no_policy_needs_it() -> Result<()> {
    let mut cluster = TestCluster::started("servers-deleted").await?;
    cluster.apply_server("default", claimed()).await?;
    cluster.until_complete().await?;
    cluster.apply_policy("a", "default", "true").await?;
    cluster.apply_policy("b", "default", "true").await?;
    let pod = "policy-server-default-0";
    cluster.until_pods("default", &[pod]).await?;
    cluster.make_ready(pod).await?;
    for policy in ["a", "b"] {
        cluster.serve(&format!("cluster.{policy}-1"), pod).await?;
        until("a live policy", TIMEOUT, async || cluster.published_bundle(policy).await).await?;
    }
    let uids = cluster.found().await?;
    // A deletion in the foreground does not delete the objects while policies need them. The garbage collector of
    // Kubernetes looks for new kinds every 30 s.
    cluster.kubectl.run(&["delete", "pvs", "default", "--cascade=foreground", "--wait=false"]).await?;
    until("the garbage collector", 4 * TIMEOUT, async || {
        let finalizers = cluster.servers().get("default").await?.metadata.finalizers.unwrap_or_default();
        ensure!(!finalizers.iter().any(|finalizer| finalizer == "foregroundDeletion"), "{finalizers:?}");
        Ok(())
    })
    .await?;
    let message = cluster.until_condition("default", "Terminating", "True", "PoliciesRemain").await?;
    ensure!(message.contains("cluster.a, cluster.b"), "{message}");
    let described = cluster.kubectl.run(&["describe", "pvs", "default"]).await?;
    ensure!(described.contains("PoliciesRemain"), "{described}");
    // All objects stay, and are restored.
    let services = cluster.api::<Service>();
    services.delete("policy-server-default", &DeleteParams::default()).await?;
    until("the service", TIMEOUT, async || Ok(services.get("policy-server-default").await?)).await?;

    // A restarted operator knows the remaining policies.
    cluster.operators.clear();
    let policies = Api::<ClusterPolicy>::all(cluster.client.clone());
    policies.delete("b", &DeleteParams::default()).await?;
    cluster.start_operator(&[])?;
    until("one policy", TIMEOUT, async || {
        let message = cluster.until_condition("default", "Terminating", "True", "PoliciesRemain").await?;
        ensure!(message.contains("cluster.a;"), "{message}");
        Ok(())
    })
    .await?;
    // A policy that has moved to another policy server is served here until the other one serves it.
    cluster.apply_policy("a", "elsewhere", "true").await?;
    let next = cluster.api::<PolicyRevision>();
    until("the next revision", TIMEOUT, async || Ok(next.get("cluster.a-2").await?)).await?;
    cluster.kubectl.run(&["label", "pvs", "default", "look=again"]).await?;
    let message = cluster.until_condition("default", "Terminating", "True", "PoliciesRemain").await?;
    ensure!(message.contains("cluster.a;"), "{message}");
    let now = cluster.found().await?;
    let unchanged = uids.iter().filter(|object| now.contains(object)).count();
    ensure!(unchanged == OBJECTS.len() - 1, "{now:?} of {uids:?}");
    policies.delete("a", &DeleteParams::default()).await?;
    until("the end of the policy server", TIMEOUT, async || {
        ensure!(cluster.servers().get_opt("default").await?.is_none());
        // The CA belongs to the operator, and stays.
        let found = cluster.found().await?;
        ensure!(found.len() == 1 && found[0].0 == "Secret proviso-ca", "{found:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_operator_killed_at_any_point_continues_after_a_restart() -> Result<()> {
    let mut cluster = TestCluster::start("servers-killed").await?;
    cluster.apply_server("default", claimed()).await?;
    // Kills the operator whenever one more object exists.
    let mut count = 0;
    for _ in 0..OBJECTS.len() {
        cluster.start_operator(&[])?;
        count = until("progress", TIMEOUT, async || {
            let found = cluster.found().await?.len();
            ensure!(found > count || found == OBJECTS.len(), "{found}");
            Ok(found)
        })
        .await?;
        cluster.operators.clear();
    }
    let authority = async || cluster.secret("proviso-ca", "ca.crt").await;
    let certificate = async || cluster.secret("policy-server-default-tls", "tls.crt").await;
    let (was, had) = (authority().await?, certificate().await?);
    // Two operators at the same time do not conflict.
    cluster.start_operator(&[])?;
    cluster.start_operator(&[])?;
    let found = cluster.until_complete().await?;
    cluster.until_condition("default", "CertificateValid", "True", "Issued").await?;
    ensure!(cluster.secret("proviso-ca", "ca.crt").await? == was, "another CA");
    ensure!(cluster.secret("policy-server-default-tls", "tls.crt").await? == had, "another certificate");
    ensure!(cluster.found().await? == found);
    let secrets = cluster.api::<Secret>().list(&ListParams::default()).await?.items.len();
    let roles = cluster.api::<Role>().list(&ListParams::default()).await?.items.len();
    ensure!((secrets, roles) == (4, 1), "{secrets} Secrets, {roles} Roles");
    Ok(())
}
