//! What the operator makes of a `PolicyServer`, with a real API server and the operator's real program. The controllers of
//! Kubernetes make pods; nobody runs them, so the test says what a kubelet would say.

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

use crate::stage::{IMAGE, NAMESPACE, PATIENCE, Stage};

/// Everything of the policy server `default`, but its pods: version, kind, name, whether it is in a namespace.
const OBJECTS: [(&str, &str, &str, bool); 14] = [
    ("v1", "ServiceAccount", "policy-server-default", true),
    ("rbac.authorization.k8s.io/v1", "Role", "policy-server-default", true),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", "policy-server-default", true),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "proviso-policy-server-default", false),
    ("v1", "ConfigMap", "policy-server-default-sources", true),
    ("v1", "Secret", "policy-server-default-tls", true),
    ("v1", "Secret", "policy-server-default-signing", true),
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

impl Stage {
    async fn started(name: &str) -> Result<Self> {
        let mut stage = Self::start(name).await?;
        stage.start_operator(&[])?;
        Ok(stage)
    }

    /// Each of the objects that is there, and its uid.
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
        until("everything", PATIENCE, async || {
            let found = self.found().await?;
            ensure!(found.len() == OBJECTS.len(), "{found:?}");
            Ok(found)
        })
        .await
    }

    async fn stateful_set(&self) -> Result<StatefulSet> {
        Ok(self.api::<StatefulSet>().get("policy-server-default").await?)
    }

    /// Waits until the pods of the policy server are these.
    async fn until_pods(&self, server: &str, names: &[&str]) -> Result<()> {
        let label = format!("proviso.dev/policy-server={server}");
        until(&format!("the pods {names:?}"), PATIENCE, async || {
            let pods = self.api::<Pod>().list(&ListParams::default().labels(&label)).await?;
            let found: Vec<_> = pods.iter().map(kube::ResourceExt::name_any).collect();
            ensure!(found == names, "{found:?}");
            Ok(())
        })
        .await
    }
}

#[tokio::test]
async fn everything_that_a_policy_server_needs_appears_and_says_how_it_is() -> Result<()> {
    let stage = Stage::started("servers-appear").await?;
    stage.server("default", json!({"replicas": 2, "cache": {"persistentVolumeClaim": {"size": "1Gi"}}})).await?;
    stage.until_complete().await?;
    stage.until_pods("default", &["policy-server-default-0", "policy-server-default-1"]).await?;
    let pod = stage.api::<Pod>().get("policy-server-default-0").await?;
    let container = &pod.spec.as_ref().context("spec")?.containers[0];
    ensure!(container.image.as_deref() == Some(IMAGE), "{container:?}");
    ensure!(pod.labels()["proviso.dev/policy-server"] == "default", "{pod:?}");

    // Ready is what the replicas are, and it says what is wrong with them.
    let message = stage.until_condition("default", "Ready", "False", "ReplicasNotReady").await?;
    ensure!(message.contains("0 of 2"), "{message}");
    let crash = json!({"containerStatuses": [{
        "name": "policy-server", "image": IMAGE, "imageID": "", "ready": false, "restartCount": 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
    }]});
    stage.say_of_pod("policy-server-default-1", crash).await?;
    until("the cause", PATIENCE, async || {
        let message = stage.until_condition("default", "Ready", "False", "ReplicasNotReady").await?;
        ensure!(message.contains("policy-server-default-1: CrashLoopBackOff, before: OOMKilled"), "{message}");
        Ok(())
    })
    .await?;
    for pod in ["policy-server-default-0", "policy-server-default-1"] {
        stage.ready(pod).await?;
    }
    stage.until_condition("default", "Ready", "True", "AllReplicasReady").await?;
    stage.until_condition("default", "CertificateValid", "True", "Issued").await?;
    let shown = stage.kubectl.run(&["get", "pvs", "default"]).await?;
    ensure!(shown.contains("REPLICAS") && shown.contains("LEADER"), "{shown}");
    ensure!(stage.status("default").await?.ready_replicas == Some(2));

    // What its replicas may do, and not more.
    let may = async |verb: &str, what: &str| {
        let account = format!("--as=system:serviceaccount:{NAMESPACE}:policy-server-default");
        let (resource, status) = what.strip_suffix("/status").map_or((what, ""), |resource| (resource, "status"));
        let subresource = format!("--subresource={status}");
        let asked = ["auth", "can-i", verb, resource, &subresource, "--namespace", NAMESPACE, &account];
        stage.kubectl.run(&asked).await.is_ok_and(|said| said.trim() == "yes")
    };
    for (verb, what, expected) in [
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
        ("list", "pods", false),
    ] {
        ensure!(may(verb, what).await == expected, "{verb} {what}");
    }
    let binding = Api::<ClusterRoleBinding>::all(stage.client.clone()).get("proviso-policy-server-default").await?;
    ensure!(binding.role_ref.name == "proviso-policy-server", "{binding:?}");

    // Nothing more is written once all is said: whatever else brings the policy server up again.
    let before = stage.stateful_set().await?.resource_version();
    stage.kubectl.run(&["label", "pvs", "default", "look=again"]).await?;
    stage.server("other", json!({"replicas": 0})).await?;
    stage.until_condition("other", "Ready", "False", "NoReplicas").await?;
    ensure!(stage.stateful_set().await?.resource_version() == before);

    // Who wants no replicas yet has all the rest.
    for (secret, key) in [
        ("policy-server-other-tls", "tls.crt"),
        ("policy-server-other-tls", "tls.key"),
        ("policy-server-other-tls", "ca.crt"),
        ("policy-server-other-signing", "signing.key"),
    ] {
        ensure!(stage.secret(secret, key).await?.contains("-----BEGIN "), "{secret}: {key}");
    }
    ensure!(stage.secret("policy-server-other-tls", "ca.crt").await? == stage.secret("proviso-ca", "ca.crt").await?);
    // The longest name is short enough for all that Kubernetes makes of it.
    let longest = "a".repeat(38);
    stage.server(&longest, json!({})).await?;
    stage.until_pods(&longest, &[&format!("policy-server-{longest}-0")]).await
}

#[tokio::test]
async fn who_leads_is_told_and_that_nobody_does() -> Result<()> {
    let stage = Stage::started("servers-leader").await?;
    stage.server("default", json!({})).await?;
    let message = stage.until_condition("default", "LeaderElected", "False", "NoLeader").await?;
    ensure!(message.contains("go on"), "{message}");
    let leases = stage.api::<Lease>();
    let renew = async |holder: &str| {
        let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(jiff::Timestamp::now());
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 2, "renewTime": time});
        let patch = Patch::Apply(json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}));
        leases.patch("policy-server-default", &PatchParams::apply("election").force(), &patch).await
    };
    renew("policy-server-default-0").await?;
    stage.until_condition("default", "LeaderElected", "True", "Elected").await?;
    ensure!(stage.status("default").await?.leader.as_deref() == Some("policy-server-default-0"));
    // It is not heard of any more.
    let message = stage.until_condition("default", "LeaderElected", "False", "LeaseExpired").await?;
    ensure!(message.contains("nobody leads since"), "{message}");
    ensure!(stage.status("default").await?.leader.is_none());
    renew("policy-server-default-1").await?;
    stage.until_condition("default", "LeaderElected", "True", "Elected").await?;
    // A Lease that somebody deleted is there again, for the replicas to elect anew.
    leases.delete("policy-server-default", &DeleteParams::default()).await?;
    stage.until_condition("default", "LeaderElected", "False", "NoLeader").await?;
    ensure!(leases.get("policy-server-default").await?.spec.is_some_and(|spec| spec.holder_identity.is_none()));
    until("the events", PATIENCE, async || {
        let described = stage.kubectl.run(&["describe", "pvs", "default"]).await?;
        ensure!(described.contains("LeaseExpired") && described.contains("Elected"), "{described}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_was_changed_or_deleted_by_hand_is_restored() -> Result<()> {
    let stage = Stage::started("servers-by-hand").await?;
    stage.server("default", claimed()).await?;
    let before = stage.until_complete().await?;
    let uid = stage.stateful_set().await?.uid();
    for (version, kind, name, change) in [
        ("apps/v1", "StatefulSet", "policy-server-default", json!({"spec": {"replicas": 7}})),
        ("v1", "Service", "policy-server-default", json!({"spec": {"selector": {"app": "mine"}}})),
        ("v1", "ConfigMap", "policy-server-default-sources", json!({"data": {"sources.yaml": "?"}})),
        ("rbac.authorization.k8s.io/v1", "Role", "policy-server-default", json!({"rules": []})),
        ("policy/v1", "PodDisruptionBudget", "policy-server-default", json!({"spec": {"maxUnavailable": 5}})),
        ("v1", "Secret", "policy-server-default-tls", json!({"data": {"tls.key": "bm9uc2Vuc2U="}})),
        ("v1", "Secret", "policy-server-default-tls", json!({"data": {"tls.crt": "bm9uc2Vuc2U="}})),
        ("v1", "Secret", "policy-server-default-signing", json!({"data": {"signing.key": ""}})),
        ("v1", "Secret", "proviso-ca", json!({"data": {"bundle.crt": "bm9uc2Vuc2U="}})),
        (
            "v1",
            "ServiceAccount",
            "policy-server-default",
            json!({"metadata": {"labels": {"app.kubernetes.io/part-of": "mine"}}}),
        ),
    ] {
        let api = stage.dynamic(version, kind, Some(NAMESPACE));
        let settled = |object: &kube::api::DynamicObject| {
            let mut data = object.data.clone();
            data.as_object_mut().unwrap().remove("status");
            (data, object.metadata.labels.clone())
        };
        let was = settled(&api.get(name).await?);
        api.patch(name, &PatchParams::default(), &Patch::Merge(&change)).await?;
        let is_secret = kind == "Secret" && name != "proviso-ca";
        until(&format!("{kind} {name} after {change}"), PATIENCE, async || {
            let found = settled(&api.get(name).await?);
            if is_secret {
                // Another certificate, another key: complete again is what counts.
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
        let api = stage.dynamic(version, kind, is_namespaced.then_some(NAMESPACE));
        api.delete(name, &DeleteParams::default()).await?;
    }
    let after = until("everything anew", PATIENCE, async || {
        let after = stage.found().await?;
        ensure!(after.len() == OBJECTS.len(), "{after:?}");
        let kept: Vec<_> = after.iter().filter(|object| before.contains(object)).collect();
        ensure!(kept.len() == 3, "{kept:?}");
        Ok(after)
    })
    .await?;
    ensure!(stage.stateful_set().await?.uid() == uid, "{after:?}");
    // An authority that was lost is trusted until nothing that it signed is in use.
    let lost = stage.secret("proviso-ca", "ca.crt").await?;
    stage.api::<Secret>().delete("proviso-ca", &DeleteParams::default()).await?;
    until("another authority", PATIENCE, async || {
        let bundle = stage.secret("proviso-ca", "bundle.crt").await?;
        let previous = stage.secret("proviso-ca", "previous.crt").await?;
        ensure!(previous == lost && bundle.contains(&lost) && bundle.len() > lost.len(), "{previous}{bundle}");
        let moved = stage.secret("policy-server-default-tls", "ca.crt").await?;
        ensure!(moved == stage.secret("proviso-ca", "ca.crt").await? && moved != lost, "still the old one");
        Ok(())
    })
    .await?;
    // Somebody binds others under the name of ours.
    let bindings = stage.dynamic("rbac.authorization.k8s.io/v1", "RoleBinding", Some(NAMESPACE));
    bindings.delete("policy-server-default", &DeleteParams::default()).await?;
    let name = "rolebinding/policy-server-default";
    let theirs = ["create", "rolebinding", "policy-server-default", "--role=mine", "--group=us", "-n", NAMESPACE];
    // Ours may be back already: then there is nothing to put right.
    let _ = stage.kubectl.run(&theirs).await;
    until("our binding", PATIENCE, async || {
        let role = stage.kubectl.run(&["get", name, "-n", NAMESPACE, "-o", "jsonpath={.roleRef.name}"]).await?;
        ensure!(role == "policy-server-default", "{role}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_edit_reaches_what_it_is_about_and_nothing_else() -> Result<()> {
    let stage = Stage::started("servers-edits").await?;
    stage.server("default", json!({})).await?;
    stage.until_pods("default", &["policy-server-default-0"]).await?;
    let template = async || anyhow::Ok(stage.stateful_set().await?.spec.context("spec")?.template);
    let (before, generation) = (template().await?, stage.stateful_set().await?.metadata.generation);

    // Edits of a policy restart nobody.
    for generation in 1..=5 {
        ensure!(stage.policy("a", "default", &format!("{generation} > 0")).await? == generation);
        let revision = format!("cluster.a-{generation}");
        until(&revision, PATIENCE, async || Ok(stage.api::<PolicyRevision>().get(&revision).await?)).await?;
    }
    // Nor do sources, which replicas read again.
    stage.server("default", json!({"sources": {"insecure": ["localhost:5000"]}, "minAvailable": 1})).await?;
    until("the sources", PATIENCE, async || {
        let map = stage.api::<ConfigMap>().get("policy-server-default-sources").await?;
        ensure!(map.data.context("data")?["sources.yaml"].contains("localhost:5000"));
        let budget = stage.api::<PodDisruptionBudget>().get("policy-server-default").await?.spec.context("spec")?;
        ensure!(budget.min_available.is_some() && budget.max_unavailable.is_none(), "{budget:?}");
        Ok(())
    })
    .await?;
    ensure!(stage.stateful_set().await?.metadata.generation == generation, "policies or sources changed pods");

    // More replicas are the same replicas.
    stage.kubectl.run(&["scale", "pvs", "default", "--replicas=3"]).await?;
    let names = ["policy-server-default-0", "policy-server-default-1", "policy-server-default-2"];
    stage.until_pods("default", &names).await?;
    ensure!(template().await? == before, "scaling changed pods");
    stage.kubectl.run(&["scale", "pvs", "default", "--replicas=1"]).await?;
    stage.until_pods("default", &names[..1]).await?;

    // Another image is another pod.
    let image = "registry.example.com/policy-server:2";
    stage.server("default", json!({"image": image, "cache": {"persistentVolumeClaim": {"size": "1Gi"}}})).await?;
    until("the image", PATIENCE, async || {
        let spec = template().await?.spec.context("spec")?;
        ensure!(spec.containers[0].image.as_deref() == Some(image), "{spec:?}");
        let claims: Vec<_> =
            spec.volumes.iter().flatten().filter_map(|it| it.persistent_volume_claim.as_ref()).collect();
        ensure!(claims.len() == 1 && claims[0].claim_name == "policy-server-default-cache", "{claims:?}");
        Ok(())
    })
    .await?;
    let claims = stage.api::<PersistentVolumeClaim>();
    until("the claim", PATIENCE, async || Ok(claims.get("policy-server-default-cache").await?)).await?;
    // A claim that nobody wants any more goes, one of somebody else's does not.
    stage.server("default", json!({"image": image, "cache": {"existingClaim": "mine"}})).await?;
    until("the claim to go", PATIENCE, async || {
        ensure!(claims.get_opt("policy-server-default-cache").await?.is_none());
        Ok(())
    })
    .await?;
    // What cannot be applied is told where the policy server is.
    stage.server("default", json!({"env": [{"name": "no name"}, {"name": ""}]})).await?;
    until("the refusal", PATIENCE, async || {
        let described = stage.kubectl.run(&["describe", "pvs", "default"]).await?;
        ensure!(described.contains("ApplyFailed") && described.contains("env[3].name: Required value"), "{described}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_policy_server_stays_until_no_policy_needs_it() -> Result<()> {
    let mut stage = Stage::started("servers-deleted").await?;
    stage.server("default", claimed()).await?;
    stage.until_complete().await?;
    stage.policy("a", "default", "true").await?;
    stage.policy("b", "default", "true").await?;
    let pod = "policy-server-default-0";
    stage.until_pods("default", &[pod]).await?;
    stage.ready(pod).await?;
    for policy in ["a", "b"] {
        stage.serve(&format!("cluster.{policy}-1"), pod).await?;
        until("a live policy", PATIENCE, async || stage.published(policy).await).await?;
    }
    let uids = stage.found().await?;
    // Also who waits for its parts to go first does not take them from under the policies. Kubernetes' garbage collector looks
    // for new kinds every 30 s.
    stage.kubectl.run(&["delete", "pvs", "default", "--cascade=foreground", "--wait=false"]).await?;
    until("the garbage collector", 4 * PATIENCE, async || {
        let finalizers = stage.servers().get("default").await?.metadata.finalizers.unwrap_or_default();
        ensure!(!finalizers.iter().any(|finalizer| finalizer == "foregroundDeletion"), "{finalizers:?}");
        Ok(())
    })
    .await?;
    let message = stage.until_condition("default", "Terminating", "True", "PoliciesRemain").await?;
    ensure!(message.contains("cluster.a, cluster.b"), "{message}");
    let described = stage.kubectl.run(&["describe", "pvs", "default"]).await?;
    ensure!(described.contains("PoliciesRemain"), "{described}");
    // Everything goes on, and is kept up.
    let services = stage.api::<Service>();
    services.delete("policy-server-default", &DeleteParams::default()).await?;
    until("the service", PATIENCE, async || Ok(services.get("policy-server-default").await?)).await?;

    // An operator that was away meanwhile knows what it waits for.
    stage.operators.clear();
    let policies = Api::<ClusterPolicy>::all(stage.client.clone());
    policies.delete("b", &DeleteParams::default()).await?;
    stage.start_operator(&[])?;
    until("one policy", PATIENCE, async || {
        let message = stage.until_condition("default", "Terminating", "True", "PoliciesRemain").await?;
        ensure!(message.contains("cluster.a;"), "{message}");
        Ok(())
    })
    .await?;
    // One that has moved on is served here until it is served there.
    stage.policy("a", "elsewhere", "true").await?;
    let next = stage.api::<PolicyRevision>();
    until("the next revision", PATIENCE, async || Ok(next.get("cluster.a-2").await?)).await?;
    stage.kubectl.run(&["label", "pvs", "default", "look=again"]).await?;
    let message = stage.until_condition("default", "Terminating", "True", "PoliciesRemain").await?;
    ensure!(message.contains("cluster.a;"), "{message}");
    let now = stage.found().await?;
    let kept = uids.iter().filter(|object| now.contains(object)).count();
    ensure!(kept == OBJECTS.len() - 1, "{now:?} of {uids:?}");
    policies.delete("a", &DeleteParams::default()).await?;
    until("the end of the policy server", PATIENCE, async || {
        ensure!(stage.servers().get_opt("default").await?.is_none());
        // The authority is the operator's.
        let found = stage.found().await?;
        ensure!(found.len() == 1 && found[0].0 == "Secret proviso-ca", "{found:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_operator_that_is_killed_anywhere_goes_on_where_it_was() -> Result<()> {
    let mut stage = Stage::start("servers-killed").await?;
    stage.server("default", claimed()).await?;
    // Killed as soon as there is one object more.
    let mut count = 0;
    for _ in 0..OBJECTS.len() {
        stage.start_operator(&[])?;
        count = until("progress", PATIENCE, async || {
            let found = stage.found().await?.len();
            ensure!(found > count || found == OBJECTS.len(), "{found}");
            Ok(found)
        })
        .await?;
        stage.operators.clear();
    }
    let authority = async || stage.secret("proviso-ca", "ca.crt").await;
    let certificate = async || stage.secret("policy-server-default-tls", "tls.crt").await;
    let (was, had) = (authority().await?, certificate().await?);
    // Two at a time do no harm to each other.
    stage.start_operator(&[])?;
    stage.start_operator(&[])?;
    let found = stage.until_complete().await?;
    stage.until_condition("default", "CertificateValid", "True", "Issued").await?;
    ensure!(stage.secret("proviso-ca", "ca.crt").await? == was, "another authority");
    ensure!(stage.secret("policy-server-default-tls", "tls.crt").await? == had, "another certificate");
    ensure!(stage.found().await? == found);
    let secrets = stage.api::<Secret>().list(&ListParams::default()).await?.items.len();
    let roles = stage.api::<Role>().list(&ListParams::default()).await?.items.len();
    ensure!((secrets, roles) == (3, 1), "{secrets} Secrets, {roles} Roles");
    Ok(())
}
