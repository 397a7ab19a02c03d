//! The kustomizations of `config/`: `kubectl apply -k` on an empty cluster, and the operator's webhook about the samples.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use proviso_crds::PolicyRevision;
use proviso_e2e::{Kubectl, until};
use serde_json::{Value, json};

use crate::stage::{PATIENCE, Stage};

fn repository() -> Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?)
}

/// A folder or a file of `config/`.
fn config(name: &str) -> Result<String> {
    let path = repository()?.join("config").join(name);
    Ok(path.to_str().context("its path")?.to_owned())
}

/// The objects of a kustomization, as the API server has them.
async fn objects(stage: &Stage, name: &str) -> Result<Vec<Value>> {
    let found = stage.kubectl.run(&["get", "-k", &config(name)?, "-o", "json"]).await?;
    let mut found: Value = serde_json::from_str(&found)?;
    // kubectl prints a single object as it is.
    Ok(match found["items"].take() {
        Value::Array(items) => items,
        _ => vec![found],
    })
}

/// The resource versions of the objects of a kustomization.
async fn versions(stage: &Stage, name: &str) -> Result<BTreeMap<String, String>> {
    let objects = objects(stage, name).await?;
    let entry = |object: &Value| {
        let metadata = &object["metadata"];
        let id = format!("{} {}/{}", object["kind"], metadata["namespace"], metadata["name"]);
        (id, metadata["resourceVersion"].to_string())
    };
    Ok(objects.iter().map(entry).collect())
}

/// Applies a kustomization by the client, as the guide does, then by the server. Each must reach a state in which another apply
/// changes no object.
async fn apply(stage: &Stage, name: &str) -> Result<()> {
    let folder = config(name)?;
    for flags in [&[][..], &["--server-side"]] {
        let apply = [&["apply", "--warnings-as-errors", "-k", &folder], flags].concat();
        stage.kubectl.run(&apply).await.with_context(|| format!("{apply:?}"))?;
        // Controllers write to new objects too, and so there may be a second try.
        until(&format!("{apply:?} to change nothing"), 4 * PATIENCE, async || {
            let before = versions(stage, name).await?;
            stage.kubectl.run(&apply).await?;
            let after = versions(stage, name).await?;
            let changed = after.iter().filter(|(id, version)| before.get(*id) != Some(*version));
            let changed: Vec<_> = changed.map(|(id, _)| id).collect();
            ensure!(changed.is_empty(), "{changed:?} changed");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Waits until Kubernetes has filled in the rules of the `ClusterRole` of policy servers, which the kustomization leaves to it.
async fn until_aggregated(stage: &Stage) -> Result<()> {
    let api = Api::<ClusterRole>::all(stage.client.clone());
    until("the rules of policy servers", PATIENCE, async || {
        let rules = api.get("proviso-policy-server").await?.rules.unwrap_or_default();
        ensure!(!rules.is_empty(), "no rules");
        Ok(())
    })
    .await
}

/// Waits until the API server asks the operator about policies: until it refuses one that cannot work.
async fn until_judged(stage: &Stage) -> Result<()> {
    let policy = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "broken"},
        "spec": {
            "program": {"cel": {"validations": [{"expression": "object."}]}},
            "admission": {"rules": [
                {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]},
            ]},
        },
    });
    let file = stage.plane.folder().path().join("broken.json");
    std::fs::write(&file, policy.to_string())?;
    let file = file.to_str().context("its path")?;
    until("the operator's webhook", PATIENCE, async || {
        let created = stage.kubectl.run(&["create", "--dry-run=server", "-f", file]).await;
        let refusal = created.err().context("the policy was admitted")?.to_string();
        ensure!(refusal.contains("spec.program.cel"), "{refusal}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn kustomizations_apply_and_a_second_apply_changes_nothing() -> Result<()> {
    let mut stage = Stage::empty("kustomize").await?;
    stage.kubectl.run(&["apply", "-k", &config("default")?]).await?;
    until_aggregated(&stage).await?;
    apply(&stage, "default").await?;
    until_aggregated(&stage).await?;
    apply(&stage, "policy-server").await?;
    // Not a part of the samples, since the operator would create the same object.
    let revision = config("samples/proviso_v1alpha1_policyrevision.yaml")?;
    stage.kubectl.run(&["create", "--dry-run=server", "-f", &revision]).await?;

    stage.start_reachable_operator(&[]).await?;
    until_judged(&stage).await?;
    apply(&stage, "samples").await?;
    until("revisions of the samples", PATIENCE, async || {
        let revisions = stage.api::<PolicyRevision>().list(&ListParams::default()).await?;
        let names: Vec<_> = revisions.iter().map(ResourceExt::name_any).collect();
        for wanted in ["cluster.sample-image-versions-1", "ns.proviso-samples.replica-limit-1"] {
            ensure!(names.iter().any(|name| name == wanted), "{names:?}");
        }
        Ok(())
    })
    .await?;

    let kinds = objects(&stage, "crd").await?.into_iter().map(|definition| definition["spec"]["names"]["kind"].clone());
    let mut kinds: BTreeSet<_> = kinds.map(|kind| kind.to_string()).collect();
    for sample in objects(&stage, "samples").await? {
        kinds.remove(&sample["kind"].to_string());
    }
    ensure!(kinds == BTreeSet::from(["\"PolicyRevision\"".to_owned()]), "no samples of {kinds:?}");
    let delete = ["delete", "--ignore-not-found", "--timeout=2m", "-k", &config("samples")?];
    stage.kubectl.run(&delete).await.map(drop)
}

/// The guide's kustomization for a registry of one's own, as written, beside another folder.
#[tokio::test]
async fn the_kustomization_of_the_guide_replaces_both_images() -> Result<()> {
    let guide = std::fs::read_to_string(repository()?.join("docs/guide/install.md"))?;
    let (_, block) = guide.split_once("```yaml\n# deploy/kustomization.yaml\n").context("the guide has none")?;
    let (kustomization, _) = block.split_once("```").context("its end")?;
    let folder = tempfile::tempdir()?;
    let from = folder.path().canonicalize()?;
    // kustomize takes relative folders only.
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
