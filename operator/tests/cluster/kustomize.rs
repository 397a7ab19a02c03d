//! The kustomizations of `config/`: `kubectl apply -k` on an empty cluster, and the admission of the samples.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use proviso_crds::PolicyRevision;
use proviso_e2e::{Kubectl, console, until, until_with};
use serde_json::{Value, json};

use crate::test_cluster::{TIMEOUT, TestCluster};

fn repository() -> Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?)
}

/// Returns the path of a folder or file in `config/`.
fn config(name: &str) -> Result<String> {
    let path = repository()?.join("config").join(name);
    Ok(path.to_str().context("its path")?.to_owned())
}

/// Returns the objects of a kustomization from the API server.
async fn objects(cluster: &TestCluster, name: &str) -> Result<Vec<Value>> {
    let found = cluster.kubectl.run(&["get", "-k", &config(name)?, "-o", "json"]).await?;
    let mut found: Value = serde_json::from_str(&found)?;
    // kubectl prints a single object without a list.
    Ok(match found["items"].take() {
        Value::Array(items) => items,
        _ => vec![found],
    })
}

/// Returns the resource versions of the objects of a kustomization.
async fn versions(cluster: &TestCluster, name: &str) -> Result<BTreeMap<String, String>> {
    let objects = objects(cluster, name).await?;
    let entry = |object: &Value| {
        let metadata = &object["metadata"];
        let id = format!("{} {}/{}", object["kind"], metadata["namespace"], metadata["name"]);
        (id, metadata["resourceVersion"].to_string())
    };
    Ok(objects.iter().map(entry).collect())
}

/// Applies a kustomization client-side, as the guide does, and then server-side. After each of them, another apply
/// must change no object.
async fn apply(cluster: &TestCluster, name: &str) -> Result<()> {
    let folder = config(name)?;
    for flags in [&[][..], &["--server-side"]] {
        let apply = [&["apply", "--warnings-as-errors", "-k", &folder], flags].concat();
        cluster.kubectl.run(&apply).await.with_context(|| format!("{apply:?}"))?;
        // Controllers also write to new objects, so another apply may still change an object.
        let timeout = 4 * TIMEOUT;
        until_with(&format!("{apply:?} to change nothing"), timeout, timeout, async || {
            let before = versions(cluster, name).await?;
            cluster.kubectl.run(&apply).await?;
            let after = versions(cluster, name).await?;
            let changed = after.iter().filter(|(id, version)| before.get(*id) != Some(*version));
            let changed: Vec<_> = changed.map(|(id, _)| id).collect();
            ensure!(changed.is_empty(), "{changed:?} changed");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Waits until Kubernetes has aggregated the rules of the `ClusterRole` of policy servers, which the kustomization
/// leaves empty.
async fn until_aggregated(cluster: &TestCluster) -> Result<()> {
    let api = Api::<ClusterRole>::all(cluster.client.clone());
    until("the rules of policy servers", TIMEOUT, async || {
        let rules = api.get("proviso-policy-server").await?.rules.unwrap_or_default();
        ensure!(!rules.is_empty(), "no rules");
        Ok(())
    })
    .await
}

/// Waits until the webhook of the operator denies a policy that cannot work.
async fn until_webhook_answers(cluster: &TestCluster) -> Result<()> {
    let policy = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "broken"},
        "spec": {
            "program": {"cel": {"validations": [{"expression": "object."}]}},
            "admission": {"rules": [
                {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]},
            ]},
        },
    });
    let file = cluster.plane.folder().path().join("broken.json");
    std::fs::write(&file, policy.to_string())?;
    let file = file.to_str().context("its path")?;
    until("the operator's webhook", TIMEOUT, async || {
        let created = cluster.kubectl.run(&["create", "--dry-run=server", "-f", file]).await;
        let refusal = created.err().context("the policy was admitted")?.to_string();
        ensure!(refusal.contains("spec.program.cel"), "{refusal}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn kustomizations_apply_and_a_second_apply_changes_nothing() -> Result<()> {
    let mut cluster = TestCluster::empty("kustomize").await?;
    cluster.kubectl.run(&["apply", "-k", &config("default")?]).await?;
    until_aggregated(&cluster).await?;
    apply(&cluster, "default").await?;
    until_aggregated(&cluster).await?;
    apply(&cluster, "policy-server").await?;
    // Not a part of the samples, since the operator would create the same object.
    let revision = config("samples/proviso_v1alpha1_policyrevision.yaml")?;
    cluster.kubectl.run(&["create", "--dry-run=server", "-f", &revision]).await?;

    cluster.start_reachable_operator(&[]).await?;
    until_webhook_answers(&cluster).await?;
    apply(&cluster, "samples").await?;
    until("revisions of the samples", TIMEOUT, async || {
        let revisions = cluster.api::<PolicyRevision>().list(&ListParams::default()).await?;
        let names: Vec<_> = revisions.iter().map(ResourceExt::name_any).collect();
        for expected in ["cluster.sample-image-versions-1", "ns.proviso-samples.replica-limit-1"] {
            ensure!(names.iter().any(|name| name == expected), "{names:?}");
        }
        Ok(())
    })
    .await?;

    let kinds =
        objects(&cluster, "crd").await?.into_iter().map(|definition| definition["spec"]["names"]["kind"].clone());
    let mut kinds: BTreeSet<_> = kinds.map(|kind| kind.to_string()).collect();
    for sample in objects(&cluster, "samples").await? {
        kinds.remove(&sample["kind"].to_string());
    }
    ensure!(kinds == BTreeSet::from(["\"PolicyRevision\"".to_owned()]), "no samples of {kinds:?}");
    let delete = ["delete", "--ignore-not-found", "--timeout=2m", "-k", &config("samples")?];
    cluster.kubectl.run(&delete).await.map(drop)
}

/// Builds the kustomization of the guide for a private registry, as the guide shows it, in another folder.
#[tokio::test]
async fn the_kustomization_of_the_guide_replaces_both_images() -> Result<()> {
    let guide = std::fs::read_to_string(repository()?.join("docs/how-to/install.md"))?;
    let mut files = console::files(&guide).into_iter();
    let (_, kustomization) =
        files.find(|(name, _)| *name == "deploy/kustomization.yaml").context("the guide has none")?;
    let folder = tempfile::tempdir()?;
    let from = folder.path().canonicalize()?;
    // kustomize accepts only relative folders.
    let up = "../".repeat(from.components().count() - 1);
    let relative = format!("{up}{}", repository()?.strip_prefix("/")?.display());
    let kustomization = kustomization.replace("../config/", &format!("{relative}/config/"));
    std::fs::write(from.join("kustomization.yaml"), kustomization)?;
    let kubectl = Kubectl::new(&from.join("no-kubeconfig"))?;
    let built = kubectl.run(&["kustomize", from.to_str().context("its path")?]).await?;
    for program in ["operator", "policy-server"] {
        let named: Vec<_> = built.lines().filter(|line| line.contains(&format!("proviso/{program}:"))).collect();
        ensure!(!named.is_empty(), "no image of {program}");
        for line in named {
            ensure!(line.trim_end().ends_with(&format!("registry.example.com/proviso/{program}:0.1.0")), "{line}");
        }
    }
    Ok(())
}
