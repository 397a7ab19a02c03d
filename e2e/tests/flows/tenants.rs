//! Two tenants and an outsider try to change what belongs to the platform or to the other tenant (docs/concepts/security.md).

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::ListParams;
use proviso_e2e::{Kubectl, until};
use serde_json::{Value, json};

use crate::test_cluster::{NAMESPACE, OPERATORS, TestCluster, WAIT_TIMEOUT};

/// A comprehension with nine million elements.
const GREEDY: &str = "package greedy\nviolation[{\"msg\": \"greedy\"}] {\n  numbers := numbers.range(1, 3000)\n  \
                      pairs := [[x, y] | x := numbers[_]; y := numbers[_]]\n  count(pairs) == 0\n}\n";

struct Tenant {
    name: &'static str,
    kubectl: Kubectl,
}

impl Tenant {
    /// Creates the namespace of a tenant, who is its administrator and may write policies.
    async fn create(cluster: &TestCluster, name: &'static str) -> Result<Self> {
        cluster.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await?;
        for role in ["admin", "proviso-policies-edit"] {
            let binding = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
                "metadata": {"name": role, "namespace": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "User", "name": name}],
            });
            cluster.apply(&binding).await?;
        }
        let kubectl = cluster.kubectl.by(name, &[]);
        kubectl.until_permitted("create", "configmaps", name).await?;
        kubectl.until_permitted("create", "policies.proviso.dev", name).await?;
        Ok(Self { name, kubectl })
    }

    /// Applies a Policy. It selects the ConfigMaps of the namespace, unless `admission` says otherwise.
    async fn apply(&self, cluster: &TestCluster, name: &str, program: &Value, admission: Value) -> Result<String> {
        self.apply_in(cluster, self.name, name, program, admission).await
    }

    async fn apply_in(
        &self,
        cluster: &TestCluster,
        namespace: &str,
        name: &str,
        program: &Value,
        admission: Value,
    ) -> Result<String> {
        let mut spec = json!({
            "program": program,
            "admission": {"rules": [
                {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]},
            ]},
        });
        for (field, value) in admission.as_object().into_iter().flatten() {
            spec["admission"][field] = value.clone();
        }
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy",
            "metadata": {"name": name, "namespace": namespace}, "spec": spec,
        });
        let file = cluster.node.control_plane().folder().path().join(format!("{}-{name}.json", self.name));
        std::fs::write(&file, policy.to_string())?;
        let file = file.to_str().context("its path")?.to_owned();
        // A busy machine may exceed the 10 s that the API server waits for the operator.
        until(&format!("an answer about {name}"), WAIT_TIMEOUT, async || {
            match self.kubectl.run(&["apply", "-f", &file]).await {
                Err(error) if error.to_string().contains("context deadline exceeded") => Err(error),
                answer => Ok(answer),
            }
        })
        .await?
    }

    async fn refusal(&self, cluster: &TestCluster, name: &str, program: &Value, admission: Value) -> Result<String> {
        let refused = self.apply(cluster, name, program, admission).await.err();
        Ok(refused.with_context(|| format!("{name} was admitted"))?.to_string())
    }

    /// Creates a ConfigMap as a dry run. Returns the message of the API server if it is refused.
    async fn denial(&self) -> Option<String> {
        let create = ["create", "configmap", "asked", "-n", self.name, "--dry-run=server"];
        self.kubectl.run(&create).await.err().map(|error| error.to_string())
    }

    async fn until_denied(&self, message: &str) -> Result<()> {
        until(&format!("{message:?} in {}", self.name), WAIT_TIMEOUT, async || {
            let denial = self.denial().await.context("the request was allowed")?;
            ensure!(denial.contains(message), "{denial}");
            Ok(())
        })
        .await
    }
}

fn cel(expression: &str, message: &str) -> Value {
    json!({"cel": {"validations": [{"expression": expression, "message": message}]}})
}

/// Returns the uids and the numbers of restarts of all pods of the installation.
async fn restarts(cluster: &TestCluster) -> Result<Vec<(Option<String>, i32)>> {
    let mut all = cluster.restarts().await?;
    for pod in cluster.pods().list(&ListParams::default().labels(OPERATORS)).await? {
        let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        all.push((pod.uid(), statuses.map(|status| status.restart_count).sum()));
    }
    Ok(all)
}

pub async fn two_tenants_and_an_outsider_change_nothing_of_others(cluster: &TestCluster) -> Result<()> {
    let before = restarts(cluster).await?;
    let (red, blue) = (Tenant::create(cluster, "red").await?, Tenant::create(cluster, "blue").await?);
    blue.apply(cluster, "rule", &cel("false", "no ConfigMaps in blue"), json!({})).await?;
    blue.until_denied("no ConfigMaps in blue").await?;

    attack_the_platform(cluster, &red).await?;
    attack_the_other_tenant(cluster, &red, &blue).await?;
    attack_from_the_network(cluster).await?;

    // Nothing of the platform and of the other tenant has changed.
    ensure!(restarts(cluster).await? == before, "pods of the installation were restarted");
    blue.until_denied("no ConfigMaps in blue").await?;
    let policy = blue.kubectl.run(&["get", "policies.proviso.dev", "rule", "-n", "blue", "-o", "json"]).await?;
    let policy: Value = serde_json::from_str(&policy)?;
    ensure!(policy["status"]["liveGeneration"] == 1 && policy["status"]["phase"] == "Active", "{:#}", policy["status"]);
    for namespace in ["red", "blue"] {
        cluster.kubectl.run(&["delete", "policies.proviso.dev", "--all", "-n", namespace]).await?;
        cluster.kubectl.run(&["delete", "namespace", namespace, "--wait=false"]).await?;
    }
    Ok(())
}

async fn attack_the_platform(cluster: &TestCluster, red: &Tenant) -> Result<()> {
    let role_bindings = json!([{
        "operations": ["*"], "apiGroups": ["rbac.authorization.k8s.io"], "apiVersions": ["*"], "resources": ["rolebindings"],
    }]);
    let everything = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    let deny = cel("false", "red");
    for (name, program, admission, expected) in [
        ("raise", &deny, json!({"rules": role_bindings}), "spec.admission.rules[0].apiGroups"),
        ("mutate", &deny, json!({"mutating": true}), "spec.admission.mutating"),
        (
            "secrets",
            &deny,
            json!({"rules": [
                {"operations": ["*"], "apiGroups": [""], "apiVersions": ["*"], "resources": ["secrets"]},
            ]}),
            "spec.admission.rules[0].resources",
        ),
        ("greedy", &json!({"rego": {"source": GREEDY, "dialect": "Gatekeeper"}}), json!({}), "spec.program"),
    ] {
        let refused = red.refusal(cluster, name, program, admission).await?;
        ensure!(refused.contains(expected), "{name}: {refused}");
    }
    // A policy on everything denies ordinary requests of the namespace only.
    red.apply(cluster, "everything", &deny, json!({"rules": everything})).await?;
    red.until_denied("denied the request: red").await?;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "viewer", "namespace": "red"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "name": "red"}],
    });
    let file = cluster.node.control_plane().folder().path().join("viewer.json");
    std::fs::write(&file, binding.to_string())?;
    // Not system:masters, which a Policy is never asked about.
    let grant = ["create", "clusterrolebinding", "flow-platform", "--clusterrole=cluster-admin", "--user=platform"];
    cluster.kubectl.run(&grant).await?;
    let platform = cluster.kubectl.by("platform", &[]);
    platform.until_permitted("create", "rolebindings", "red").await?;
    platform.run(&["apply", "-f", file.to_str().context("its path")?]).await?;
    let role = ["get", "rolebinding", "viewer", "-n", "red", "-o", "jsonpath={.roleRef.name}"];
    let role = platform.run(&role).await?;
    ensure!(role == "view", "the RoleBinding is for {role}");
    cluster.kubectl.run(&["delete", "clusterrolebinding", "flow-platform"]).await?;
    red.kubectl.run(&["delete", "policies.proviso.dev", "everything", "-n", "red"]).await?;
    for (verb, resource) in [
        ("list", "policyrevisions.proviso.dev"),
        ("list", "secrets"),
        ("get", "validatingwebhookconfigurations"),
        ("patch", "policyservers.proviso.dev"),
        ("create", "clusterpolicies.proviso.dev"),
    ] {
        let may = red.kubectl.run(&["auth", "can-i", verb, resource, "-n", NAMESPACE]).await;
        ensure!(may.is_err(), "a tenant may {verb} {resource}");
    }
    Ok(())
}

async fn attack_the_other_tenant(cluster: &TestCluster, red: &Tenant, blue: &Tenant) -> Result<()> {
    let refused = red.apply_in(cluster, "blue", "mine", &cel("true", "red"), json!({})).await.err();
    let refused = refused.context("a tenant wrote a policy of the other tenant")?.to_string();
    ensure!(refused.contains("forbidden"), "{refused}");

    // 64 evaluations at once that do not end, while the other tenant gets its verdicts.
    let numbers = (0..200).map(|number| number.to_string()).collect::<Vec<_>>().join(", ");
    let slow = format!("[{numbers}].all(a, [{numbers}].all(b, [{numbers}].all(c, a + b + c >= 0)))");
    red.apply(cluster, "slow", &cel(&slow, "slow"), json!({"failurePolicy": "Ignore"})).await?;
    until("slow requests", WAIT_TIMEOUT, async || {
        ensure!(red.denial().await.is_some(), "the policy is not live yet");
        Ok(())
    })
    .await?;
    let flood = futures_util::future::join_all((0..64).map(|_| red.denial()));
    let served = async {
        for _ in 0..10 {
            let denial = blue.denial().await.context("the request of the other tenant was allowed")?;
            ensure!(denial.contains("no ConfigMaps in blue"), "{denial}");
        }
        Ok(())
    };
    let (_, served) = tokio::join!(flood, served);
    red.kubectl.run(&["delete", "policies.proviso.dev", "slow", "-n", "red"]).await?;
    served
}

/// Calls the ports of the installation without its tokens, as a pod can that reaches them.
async fn attack_from_the_network(cluster: &TestCluster) -> Result<()> {
    let review = cluster.node.control_plane().folder().path().join("review.json");
    std::fs::write(&review, json!({"request": {"uid": "u"}}).to_string())?;
    let review = review.to_str().context("its path")?;
    let services = format!("/api/v1/namespaces/{NAMESPACE}/services");
    for path in [
        "https:policy-server-default:https/proxy/validate/ns.blue.rule/1",
        "https:policy-server-default:https/proxy/t/00/validate/ns.blue.rule/1",
        "https:policy-server-default:https/proxy/audit/ns.blue.rule/1",
        "https:proviso-operator:https/proxy/validate",
        "https:proviso-operator:https/proxy/t/00/validate",
    ] {
        let answer = cluster.kubectl.run(&["create", "--raw", &format!("{services}/{path}"), "-f", review]).await;
        ensure!(answer.is_err(), "{path}: {answer:?}");
    }
    let pods = cluster.pods().list(&ListParams::default().labels("proviso.dev/policy-server=default")).await?;
    let operators = cluster.pods().list(&ListParams::default().labels(OPERATORS)).await?;
    for pod in pods.items.iter().chain(&operators.items) {
        for (scheme, port) in [("http", 8081), ("https", 8082)] {
            let pod = format!("/api/v1/namespaces/{NAMESPACE}/pods/{scheme}:{}:{port}/proxy", pod.name_any());
            let metrics = cluster.kubectl.run(&["get", "--raw", &format!("{pod}/metrics")]).await;
            ensure!(metrics.is_err(), "{pod} shows its metrics to everybody: {metrics:?}");
            let details = cluster.kubectl.run(&["get", "--raw", &format!("{pod}/readyz?verbose")]).await;
            ensure!(!details.unwrap_or_default().contains("blue"), "{pod} shows the names of policies to everybody");
        }
    }
    Ok(())
}
