//! The limits of the service accounts of an installation: the operator writes objects with its own names only, and a policy server
//! writes the status of its own revisions only.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use proviso_crds::{ClusterPolicy, PolicyRevision};
use proviso_e2e::{Kubectl, until};
use serde_json::{Value, json};

use crate::test_cluster::{NAMESPACE, OPERATOR, TIMEOUT, TestCluster};

impl TestCluster {
    /// Returns kubectl for a service account of the operator's namespace.
    fn kubectl_of(&self, account: &str) -> Kubectl {
        let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{NAMESPACE}"), "system:authenticated"];
        self.kubectl.by(&format!("system:serviceaccount:{NAMESPACE}:{account}"), &groups)
    }

    /// Applies an object as this user, server-side as the operator does. The API server stores nothing.
    async fn dry_run(&self, user: &Kubectl, object: &Value) -> Result<()> {
        let file = self.plane.folder().path().join("object.json");
        std::fs::write(&file, object.to_string())?;
        let file = file.to_str().context("its path")?;
        user.run(&["apply", "--server-side", "--dry-run=server", "--validate=false", "-f", file]).await.map(drop)
    }

    /// Waits until the API server refuses an object of this user, with this text in the message.
    async fn until_refused(&self, user: &Kubectl, object: &Value, expected: &str) -> Result<()> {
        until(&format!("the refusal of {}", object["metadata"]["name"]), TIMEOUT, async || {
            let refusal = self.dry_run(user, object).await.err().context("the object was accepted")?.to_string();
            ensure!(refusal.contains(expected), "{refusal}");
            Ok(())
        })
        .await
    }
}

fn binding(name: &str, role: &str, namespace: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    })
}

fn webhook(kind: &str, name: &str, client_config: &Value) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name},
        "webhooks": [{
            "name": "a.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": client_config,
        }],
    })
}

fn service(namespace: &str) -> Value {
    json!({"service": {"namespace": namespace, "name": "a"}})
}

fn api_service(name: &str, group: &str) -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name},
        "spec": {
            "group": group, "version": "v1alpha1", "groupPriorityMinimum": 100, "versionPriority": 10,
            "service": {"namespace": NAMESPACE, "name": "proviso-operator", "port": 443}, "insecureSkipTLSVerify": true,
        },
    })
}

#[tokio::test]
async fn the_account_of_the_operator_writes_only_objects_with_its_own_names() -> Result<()> {
    const ROLE: &str = "proviso-policy-server";
    let cluster = TestCluster::start("trust-operator").await?;
    cluster.grant().await?;
    cluster.apply_file("config/operator/admissionpolicies.yaml").await?;
    let operator = cluster.kubectl_of(OPERATOR);
    let (validating, mutating) = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration");
    for (object, expected) in [
        // RBAC does not stop the first two: the operator may bind this role.
        (binding("of-an-attacker", ROLE, NAMESPACE), "names begin with proviso-policy-server-"),
        (binding("proviso-policy-server-a", ROLE, "default"), "ServiceAccounts of its own namespace"),
        (binding("proviso-policy-server-a", "cluster-admin", NAMESPACE), "attempting to grant RBAC permissions"),
        (webhook(validating, "of-an-attacker", &service(NAMESPACE)), "names begin with proviso-"),
        (webhook(mutating, "of-an-attacker", &service(NAMESPACE)), "names begin with proviso-"),
        (webhook(mutating, "proviso-cluster.a", &service("default")), "Services of its own namespace"),
        (
            webhook(mutating, "proviso-cluster.a", &json!({"url": "https://192.0.2.1/"})),
            "Services of its own namespace",
        ),
        (api_service("v1alpha1.metrics.example.com", "metrics.example.com"), "cannot patch resource"),
    ] {
        cluster.until_refused(&operator, &object, expected).await.with_context(|| format!("{object}"))?;
    }
    for object in [
        binding("proviso-policy-server-a", ROLE, NAMESPACE),
        webhook(validating, "proviso-cluster.a", &service(NAMESPACE)),
        webhook(mutating, "proviso-ns.team.a", &service(NAMESPACE)),
        api_service("v1alpha1.actions.proviso.dev", "actions.proviso.dev"),
    ] {
        cluster.dry_run(&operator, &object).await.with_context(|| format!("{object}"))?;
    }

    // The operator cannot delete the objects of others either. An administrator is not limited.
    let other = webhook(validating, "of-another-program", &service("default"));
    let file = cluster.plane.folder().path().join("other.json");
    std::fs::write(&file, other.to_string())?;
    cluster.kubectl.run(&["create", "-f", file.to_str().context("its path")?]).await?;
    let refusal = operator.run(&["delete", validating, "of-another-program"]).await.err().context("it was deleted")?;
    ensure!(refusal.to_string().contains("names begin with proviso-"), "{refusal}");
    cluster.kubectl.run(&["delete", validating, "of-another-program"]).await.map(drop)
}

/// Returns an object whose owner is a `PolicySubscription`.
fn of_subscription(mut object: Value) -> Value {
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicySubscription", "name": "a", "uid": "a", "controller": true,
    }]);
    object
}

#[tokio::test]
async fn the_account_of_the_operator_writes_only_config_maps_and_secrets_of_subscriptions() -> Result<()> {
    let cluster = TestCluster::start("trust-subscriptions").await?;
    cluster.grant().await?;
    cluster.apply_file("config/operator/admissionpolicies.yaml").await?;
    let operator = cluster.client_of(OPERATOR).await?;
    let (config_maps, secrets) =
        (Api::<ConfigMap>::namespaced(operator.clone(), "default"), Api::<Secret>::namespaced(operator, "default"));
    let object = |kind: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "policies"}});
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let config_map: ConfigMap = serde_json::from_value(object("ConfigMap"))?;
    until("the refusal of a ConfigMap without an owner", TIMEOUT, async || {
        let refusal = config_maps.create(&dry_run, &config_map).await.err().context("it was created")?.to_string();
        ensure!(refusal.contains("PolicySubscriptions only"), "{refusal}");
        Ok(())
    })
    .await?;
    let secret: Secret = serde_json::from_value(object("Secret"))?;
    let refusal = secrets.create(&dry_run, &secret).await.err().context("it was created")?.to_string();
    ensure!(refusal.contains("PolicySubscriptions only"), "{refusal}");
    // Kubernetes would issue a token of the ServiceAccount.
    let mut token = of_subscription(object("Secret"));
    token["type"] = "kubernetes.io/service-account-token".into();
    token["metadata"]["annotations"] = json!({"kubernetes.io/service-account.name": "default"});
    let token: Secret = serde_json::from_value(token)?;
    let refusal = secrets.create(&dry_run, &token).await.err().context("it was created")?.to_string();
    ensure!(refusal.contains("type Opaque only"), "{refusal}");
    // A ConfigMap of others.
    let refusal = config_maps.delete("kube-root-ca.crt", &DeleteParams::default()).await;
    let refusal = refusal.err().context("it was deleted")?.to_string();
    ensure!(refusal.contains("PolicySubscriptions only"), "{refusal}");

    config_maps.create(&dry_run, &serde_json::from_value(of_subscription(object("ConfigMap")))?).await?;
    secrets.create(&dry_run, &serde_json::from_value(of_subscription(object("Secret")))?).await?;
    Ok(())
}

#[tokio::test]
async fn a_policy_server_cannot_write_the_status_of_the_revisions_of_another_one() -> Result<()> {
    let mut cluster = TestCluster::start("trust-servers").await?;
    cluster.grant().await?;
    cluster.apply_file("config/operator/admissionpolicies.yaml").await?;
    // The operator has its own account, so that its permissions are tested too.
    let kubeconfig = cluster.service_account_kubeconfig()?;
    cluster.start_operator_at("127.0.0.1".parse()?, &kubeconfig, &[])?;
    cluster.apply_server("a", json!({"replicas": 0})).await?;
    cluster.apply_server("b", json!({"replicas": 0, "serviceAccountName": "mine"})).await?;
    let mut revisions = Vec::new();
    for server in ["a", "b"] {
        let name = format!("of-{server}");
        let generation = cluster.apply_policy(&name, server, "true").await?;
        let name = format!("cluster.{name}-{generation}");
        until(&name, TIMEOUT, async || Ok(cluster.api::<PolicyRevision>().get(&name).await?)).await?;
        let binding = format!("policy-server-{server}");
        until(&binding, TIMEOUT, async || Ok(cluster.api::<RoleBinding>().get(&binding).await?.name_any())).await?;
        revisions.push(name);
    }
    let cluster = &cluster;
    let report = |account: &'static str, revision: &str| {
        let status = json!({"status": {"replicas": [{
            "name": "policy-server-a-0", "podUID": "u", "ready": "True", "reason": "Loaded", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "serverVersion": "1",
        }]}});
        let revision = revision.to_owned();
        async move {
            // kubectl would read the object first, which policy servers may not do for the status.
            let revisions = Api::<PolicyRevision>::namespaced(cluster.client_of(account).await?, NAMESPACE);
            revisions.patch_status(&revision, &PatchParams::default(), &Patch::Merge(status)).await?;
            anyhow::Ok(())
        }
    };
    let [of_a, of_b] = &revisions[..] else { panic!("{revisions:?}") };
    for (account, revision) in [("policy-server-a", of_b), ("policy-server-b", of_a), ("mine", of_a)] {
        until(&format!("the refusal of {account}"), TIMEOUT, async || {
            let refusal = report(account, revision).await.err().context("the status was written")?.to_string();
            ensure!(refusal.contains("does not belong to the PolicyServer"), "{refusal}");
            Ok(())
        })
        .await?;
    }
    for (account, revision) in [("policy-server-a", of_a), ("policy-server-b", of_b), ("mine", of_b)] {
        report(account, revision).await.with_context(|| account.to_owned())?;
    }
    // No policy server has a configuration policy.
    let configuration = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "memory"},
        "spec": {"configuration": {"configName": "memory", "content": {}}},
    });
    let policies = Api::<ClusterPolicy>::all(cluster.client.clone());
    policies.patch("memory", &PatchParams::apply("owner").force(), &Patch::Apply(configuration)).await?;
    let revision = "cluster.memory-1";
    until(revision, TIMEOUT, async || Ok(cluster.api::<PolicyRevision>().get(revision).await?)).await?;
    until("the refusal of a configuration policy", TIMEOUT, async || {
        let refusal = report("policy-server-a", revision).await.err().context("the status was written")?.to_string();
        ensure!(refusal.contains("a PolicyRevision that configures components"), "{refusal}");
        Ok(())
    })
    .await
}
