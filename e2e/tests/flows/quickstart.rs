//! The quickstart, applied to a cluster as it stands: a policy of every kind of program, one after the other, since of
//! several denials kubectl shows one.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use proviso_e2e::{Registry, until};

use crate::stage::{NAMESPACE, PATIENCE, Stage};

/// The modules that the manifests name.
const MODULES: [&str; 5] =
    ["approved-regions", "required-probes", "safe-defaults", "service-types", "trusted-registries"];

pub async fn every_policy_of_the_quickstart(stage: &Stage) -> Result<()> {
    for module in MODULES {
        let path = examples().join("policies").join(module).join(module).with_extension("wasm");
        let wasm = std::fs::read(&path).with_context(|| path.display().to_string())?;
        stage.node.push(&format!("examples/{module}"), "v1", Registry::MODULE, &wasm).await?;
    }
    let here = |file: &str| examples().join(file).display().to_string();
    stage.kubectl.run(&["create", "-f", &here("quickstart/namespaces.yaml")]).await?;
    // Nothing runs of it: there is no such image.
    let ledger = std::fs::read_to_string(here("workloads/deployment-next.yaml"))?.replace("replicas: 3", "replicas: 0");
    let ledger = write(stage, "deployment.yaml", &ledger)?;
    stage.kubectl.run(&["create", "-f", &ledger]).await?;

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
        let manifest = applied(stage, policy).await?;
        let arguments = [&arguments[..], &["--dry-run=server"]].concat();
        until(&format!("{policy} to deny"), PATIENCE, async || {
            let refused = stage.kubectl.run(&arguments).await.err().context("it was let through")?.to_string();
            ensure!(refused.contains("denied the request: ") && refused.contains(message), "{refused}");
            Ok(())
        })
        .await?;
        if policy == "required-labels" {
            is_previewed(stage).await?;
        }
        removed(stage, policy, &manifest).await?;
        deleted.push(manifest);
    }

    let manifest = applied(stage, "safe-defaults").await?;
    let defaults = "jsonpath={.spec.securityContext.runAsNonRoot}";
    until("safe-defaults to change a pod", PATIENCE, async || {
        let changed = stage.kubectl.run(&["create", "-f", &pod, "--dry-run=server", "-o", defaults]).await?;
        ensure!(changed == "true", "{changed:?}");
        Ok(())
    })
    .await?;
    removed(stage, "safe-defaults", &manifest).await?;
    deleted.push(manifest);

    // None of an API server's requests: it only passes this one on.
    let manifest = applied(stage, "approved-regions").await?;
    let path = format!(
        "/api/v1/namespaces/{NAMESPACE}/services/https:policy-server-default:https/proxy/validate_raw/\
         cluster.approved-regions/1"
    );
    let said = stage.kubectl.run(&["create", "--raw", &path, "-f", &here("reviews/raw-database.json")]).await?;
    ensure!(said.contains(r#""allowed":false"#) && said.contains("production runs in eu-1, not in us-1"), "{said}");
    removed(stage, "approved-regions", &manifest).await?;
    deleted.push(manifest);
    // Waits for the end of each.
    for manifest in &deleted {
        stage.kubectl.run(&["delete", "--ignore-not-found", "-f", manifest]).await?;
    }

    let manifests = std::fs::read_dir(examples().join("quickstart"))?.count();
    // The experiment, the namespaces and the README besides.
    ensure!(manifests == deleted.len() + 3, "{manifests} files, {} policies", deleted.len());
    stage.kubectl.run(&["delete", "-f", &ledger]).await?;
    stage.kubectl.run(&["delete", "-f", &here("quickstart/namespaces.yaml")]).await.map(drop)
}

/// The experiment beside required-labels is previewed by every replica.
async fn is_previewed(stage: &Stage) -> Result<()> {
    let experiment = copied(stage, "required-labels-cost-center")?;
    stage.kubectl.run(&["apply", "-f", &experiment]).await?;
    let condition = "jsonpath={.status.conditions[?(@.type=='Previewing')].status}";
    until("the experiment to be previewed", PATIENCE, async || {
        let status = stage.kubectl.run(&["get", "-f", &experiment, "-o", condition]).await?;
        ensure!(status == "True", "{status:?}");
        Ok(())
    })
    .await?;
    stage.kubectl.run(&["delete", "-f", &experiment]).await.map(drop)
}

/// Applies a manifest of the quickstart, and waits until it is live; the file that was applied.
async fn applied(stage: &Stage, policy: &str) -> Result<String> {
    let manifest = copied(stage, policy)?;
    stage.kubectl.run(&["apply", "-f", &manifest]).await?;
    until(&format!("{policy} to be live"), PATIENCE, async || {
        let status = stage.kubectl.run(&["get", "-f", &manifest, "-o", "jsonpath={.status}"]).await?;
        let status: serde_json::Value = serde_json::from_str(&status)?;
        ensure!(status["liveGeneration"] == 1, "{status:#}");
        Ok(())
    })
    .await?;
    Ok(manifest)
}

/// Deletes a policy and waits until it has no webhook any more. The policy itself stays until every API server has forgotten
/// the webhook, which may deny a request until then.
async fn removed(stage: &Stage, policy: &str, manifest: &str) -> Result<()> {
    stage.kubectl.run(&["delete", "--wait=false", "-f", manifest]).await?;
    until(&format!("the end of {policy}"), PATIENCE, async || {
        let webhooks = ["get", "validatingwebhookconfigurations,mutatingwebhookconfigurations", "-o", "name"];
        let webhooks = stage.kubectl.run(&webhooks).await?;
        ensure!(!webhooks.lines().any(|name| name.ends_with(&format!(".{policy}"))), "{webhooks}");
        Ok(())
    })
    .await
}

/// A manifest whose modules come from the node's registry: no pod reads the files of this repository.
fn copied(stage: &Stage, policy: &str) -> Result<String> {
    let mut text = std::fs::read_to_string(examples().join("quickstart").join(policy).with_extension("yaml"))?;
    for module in MODULES {
        let file = format!("file://../policies/{module}/{module}.wasm");
        text = text.replace(&file, &format!("registry://{}/examples/{module}:v1", stage.node.registry_in_pods()));
    }
    write(stage, &format!("{policy}.yaml"), &text)
}

fn write(stage: &Stage, name: &str, text: &str) -> Result<String> {
    let file = stage.node.control_plane().folder().path().join(name);
    std::fs::write(&file, text)?;
    Ok(file.to_str().context("its path")?.to_owned())
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}
