//! Applies the policies of the quickstart to a cluster, one after the other, because kubectl shows only one of several denials.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use proviso_e2e::{Registry, until};

use crate::test_cluster::{NAMESPACE, TestCluster, WAIT_TIMEOUT};

/// The modules of the manifests.
const MODULES: [&str; 5] =
    ["approved-regions", "required-probes", "safe-defaults", "service-types", "trusted-registries"];

pub async fn every_policy_of_the_quickstart(cluster: &TestCluster) -> Result<()> {
    for module in MODULES {
        let path = examples().join("policies").join(module).join(module).with_extension("wasm");
        let wasm = std::fs::read(&path).with_context(|| path.display().to_string())?;
        cluster.node.push(&format!("examples/{module}"), "v1", Registry::MODULE, &wasm).await?;
    }
    write_manifests(cluster).await?;
    let here = |file: &str| examples().join(file).display().to_string();
    cluster.kubectl.run(&["create", "-f", &here("quickstart/namespaces.yaml")]).await?;
    // The tests are system:masters, about whose requests a namespaced policy is not asked.
    let binding = ["clusterrolebinding", "quickstart-admins"];
    let grant = ["--clusterrole=cluster-admin", "--group=quickstart-admins"];
    cluster.kubectl.run(&[&["create"][..], &binding, &grant].concat()).await?;
    let mara = cluster.kubectl.by("mara", &["quickstart-admins"]);
    // The Deployment has no replicas, because its image does not exist.
    let ledger = std::fs::read_to_string(here("workloads/deployment-next.yaml"))?.replace("replicas: 3", "replicas: 0");
    let ledger = write(cluster, "deployment.yaml", &ledger)?;
    cluster.kubectl.run(&["create", "-f", &ledger]).await?;

    let workload = |name: &str| here(&format!("workloads/{name}.yaml"));
    let (pod, large, untrusted) = (workload("pod"), workload("pod-large"), workload("pod-untrusted-image"));
    let (unlabelled, service) = (workload("deployment-unlabelled"), workload("service"));
    let [create, delete, scale] = [["create", "-f"], ["delete", "--namespace=payments"], ["scale", "--replicas=200"]];
    let mut deleted = Vec::new();
    for (policy, arguments, message) in [
        ("required-labels", [&create[..], &[&unlabelled]].concat(), "Deployment lacks these labels: owner"),
        ("trusted-registries", [&create[..], &[&untrusted]].concat(), "acme-tools/toolbox"),
        ("service-types", [&create[..], &[&service]].concat(), "a Service of type LoadBalancer is not allowed here"),
        (
            "required-probes",
            [&create[..], &[&unlabelled]].concat(),
            "container web of Deployment web has no readinessP",
        ),
        ("replica-limit", [&scale[..], &["--namespace=payments", "deployment/ledger"]].concat(), "more replicas than"),
        ("team-pods", [&create[..], &[&large]].concat(), "a container may have at most 4Gi of memory"),
        ("production-images", [&create[..], &[&untrusted]].concat(), "pods in production run images of"),
        ("protected-namespaces", vec!["delete", "namespace/payments"], "this is a production namespace"),
        ("protected-objects", [&delete[..], &["deployment/ledger"]].concat(), "Deployment ledger is protected"),
    ] {
        let manifest = apply(cluster, policy).await?;
        let arguments = [&arguments[..], &["--dry-run=server"]].concat();
        until(&format!("{policy} to deny"), WAIT_TIMEOUT, async || {
            let refused = mara.run(&arguments).await.err().context("the request was allowed")?.to_string();
            ensure!(refused.contains("denied the request: ") && refused.contains(message), "{refused}");
            Ok(())
        })
        .await?;
        if policy == "required-labels" {
            preview_experiment(cluster).await?;
        }
        remove(cluster, policy, &manifest).await?;
        deleted.push(manifest);
    }

    let manifest = apply(cluster, "safe-defaults").await?;
    let defaults = "jsonpath={.spec.securityContext.runAsNonRoot}";
    until("safe-defaults to change a pod", WAIT_TIMEOUT, async || {
        let changed = cluster.kubectl.run(&["create", "-f", &pod, "--dry-run=server", "-o", defaults]).await?;
        ensure!(changed == "true", "{changed:?}");
        Ok(())
    })
    .await?;
    remove(cluster, "safe-defaults", &manifest).await?;
    deleted.push(manifest);

    // This request is not an AdmissionReview. The API server forwards it to the policy server, which knows its callers by the token.
    let manifest = apply(cluster, "approved-regions").await?;
    let tokens = "go-template={{.data.tokens | base64decode}}";
    let secret = ["get", "secret", "policy-server-default-callers", "-n", NAMESPACE, "-o", tokens];
    let tokens = cluster.kubectl.run(&secret).await?;
    let token = tokens.lines().next().context("no token")?;
    let proxy = format!("/api/v1/namespaces/{NAMESPACE}/services/https:policy-server-default:https/proxy");
    let path = format!("{proxy}/t/{token}/validate_raw/cluster.approved-regions/1");
    let answer = cluster.kubectl.run(&["create", "--raw", &path, "-f", &here("reviews/raw-database.json")]).await?;
    ensure!(
        answer.contains(r#""allowed":false"#) && answer.contains("production runs in eu-1, not in us-1"),
        "{answer}"
    );
    let without = format!("{proxy}/validate_raw/cluster.approved-regions/1");
    let refused = cluster.kubectl.run(&["create", "--raw", &without, "-f", &here("reviews/raw-database.json")]).await;
    ensure!(refused.is_err(), "a caller without a token got an answer: {refused:?}");
    remove(cluster, "approved-regions", &manifest).await?;
    deleted.push(manifest);
    // `kubectl delete` waits until each policy is deleted.
    for manifest in &deleted {
        cluster.kubectl.run(&["delete", "--ignore-not-found", "-f", manifest]).await?;
    }

    let manifests = std::fs::read_dir(examples().join("quickstart"))?.count();
    // Besides: the experiment, the namespaces, the README and the kustomization.
    ensure!(manifests == deleted.len() + 4, "{manifests} files, {} policies", deleted.len());
    cluster.kubectl.run(&["delete", "-f", &ledger]).await?;
    cluster.kubectl.run(&[&["delete"][..], &binding].concat()).await?;
    cluster.kubectl.run(&["delete", "-f", &here("quickstart/namespaces.yaml")]).await.map(drop)
}

/// Applies the experiment of required-labels, waits until every replica previews it, and deletes it.
async fn preview_experiment(cluster: &TestCluster) -> Result<()> {
    let experiment = manifest_of(cluster, "required-labels-cost-center")?;
    cluster.kubectl.run(&["apply", "-f", &experiment]).await?;
    let condition = "jsonpath={.status.conditions[?(@.type=='Previewing')].status}";
    until("the experiment to be previewed", WAIT_TIMEOUT, async || {
        let status = cluster.kubectl.run(&["get", "-f", &experiment, "-o", condition]).await?;
        ensure!(status == "True", "{status:?}");
        Ok(())
    })
    .await?;
    cluster.kubectl.run(&["delete", "-f", &experiment]).await.map(drop)
}

/// Applies a manifest of the quickstart, and waits until the policy is live. Returns the path of the applied file.
async fn apply(cluster: &TestCluster, policy: &str) -> Result<String> {
    let manifest = manifest_of(cluster, policy)?;
    cluster.kubectl.run(&["apply", "-f", &manifest]).await?;
    until(&format!("{policy} to be live"), WAIT_TIMEOUT, async || {
        let status = cluster.kubectl.run(&["get", "-f", &manifest, "-o", "jsonpath={.status}"]).await?;
        let status: serde_json::Value = serde_json::from_str(&status)?;
        ensure!(status["liveGeneration"] == 1, "{status:#}");
        Ok(())
    })
    .await?;
    Ok(manifest)
}

/// Deletes a policy, and waits until its webhook is removed. The policy itself exists until no API server uses the webhook any
/// more, which may deny requests until then.
async fn remove(cluster: &TestCluster, policy: &str, manifest: &str) -> Result<()> {
    cluster.kubectl.run(&["delete", "--wait=false", "-f", manifest]).await?;
    until(&format!("the end of {policy}"), WAIT_TIMEOUT, async || {
        let webhooks = ["get", "validatingwebhookconfigurations,mutatingwebhookconfigurations", "-o", "name"];
        let webhooks = cluster.kubectl.run(&webhooks).await?;
        ensure!(!webhooks.lines().any(|name| name.ends_with(&format!(".{policy}"))), "{webhooks}");
        Ok(())
    })
    .await
}

/// Writes the manifests of the quickstart as its kustomization has them, with the registry of the node.
async fn write_manifests(cluster: &TestCluster) -> Result<()> {
    let quickstart = examples().join("quickstart");
    let manifests = cluster.kubectl.run(&["kustomize", quickstart.to_str().context("its path")?]).await?;
    let registry = format!("{}/examples", cluster.node.registry_in_pods());
    for document in manifests.split("\n---\n") {
        let object: serde_yaml::Value = serde_yaml::from_str(document)?;
        let name = object["metadata"]["name"].as_str().context("no name")?;
        let text = document.replace("registry.example.com/proviso-examples", &registry);
        ensure!(!text.contains("file://"), "{name}: the kustomization leaves a module in a file");
        if object["kind"] != "Namespace" {
            write(cluster, &format!("{name}.yaml"), &text)?;
        }
    }
    Ok(())
}

/// Returns the path of a manifest that [`write_manifests`] has written.
fn manifest_of(cluster: &TestCluster, name: &str) -> Result<String> {
    let file = cluster.node.control_plane().folder().path().join(name).with_extension("yaml");
    Ok(file.to_str().context("its path")?.to_owned())
}

fn write(cluster: &TestCluster, name: &str, text: &str) -> Result<String> {
    let file = cluster.node.control_plane().folder().path().join(name);
    std::fs::write(&file, text)?;
    Ok(file.to_str().context("its path")?.to_owned())
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}
