//! What a real API server makes of the kinds: `kubectl apply -f crds/`, and which objects it takes.

#![allow(clippy::unwrap_used, reason = "clippy knows only #[test] functions as tests")]

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use proviso_e2e::{ControlPlane, Kubectl};
use serde_json::{Value, json};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A control plane that knows the kinds, and its kubectl.
async fn start(name: &str) -> Result<(ControlPlane, Kubectl)> {
    let plane = ControlPlane::start(name).await?;
    let kubectl = Kubectl::new(plane.kubeconfig())?;
    for (file, _) in proviso_crds::definitions() {
        kubectl.run(&["apply", "-f", repository().join("crds").join(file).to_str().unwrap()]).await?;
    }
    kubectl.run(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=60s"]).await?;
    Ok((plane, kubectl))
}

/// Writes the object beside the logs, and creates it.
async fn create(plane: &ControlPlane, kubectl: &Kubectl, object: &Value) -> Result<String> {
    let file = plane.folder().path().join("object.json");
    std::fs::write(&file, object.to_string())?;
    kubectl.run(&["create", "-f", file.to_str().unwrap()]).await
}

fn policy(name: &str) -> Value {
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "program": {"cel": {"validations": [{"expression": "true"}]}},
            "admission": {"rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
        },
    })
}

/// Of people who try things out, in the order of their wishes: does it take it, does it explain it, does it show it.
#[tokio::test]
async fn kubectl_takes_explains_and_shows_policies() -> Result<()> {
    let (plane, kubectl) = start("kubectl-and-policies").await?;
    kubectl.run(&["create", "namespace", "payments"]).await?;
    for entry in std::fs::read_dir(repository().join("examples/quickstart"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "yaml") || path.ends_with("namespaces.yaml") {
            continue;
        }
        // The quickstart's modules are files; a cluster takes them from a registry.
        let text = std::fs::read_to_string(&path)?.replace("file://../policies/", "registry://registry.example.com/");
        let file = plane.folder().path().join(path.file_name().context("its name")?);
        std::fs::write(&file, text)?;
        kubectl.run(&["create", "-f", file.to_str().unwrap()]).await?;
    }
    let explained = kubectl.run(&["explain", "clusterpolicy.spec.program.wasm.module"]).await?;
    ensure!(explained.contains("registry://host/repository:tag"), "{explained}");
    for short in ["pvcp", "proviso"] {
        let shown = kubectl.run(&["get", short, "--all-namespaces"]).await?;
        ensure!(shown.contains("required-labels") && shown.contains("LIVE"), "{shown}");
    }
    // What is not said has its default.
    let defaults = "jsonpath={.spec.policyServer} {.spec.enabled} {.spec.admission.mode} {.spec.revisionHistoryLimit}";
    let defaults = kubectl.run(&["get", "pvcp", "required-labels", "-o", defaults]).await?;
    ensure!(defaults == "default true Protect 10", "{defaults}");
    Ok(())
}

#[tokio::test]
async fn each_mistake_is_refused_with_its_field_and_the_remedy() -> Result<()> {
    let (plane, kubectl) = start("mistakes-in-policies").await?;
    create(&plane, &kubectl, &policy("right")).await?;
    let cel = json!({"validations": []});
    for (pointer, value, expected) in [
        ("/spec/admission", Value::Null, "say in `admission` which requests"),
        ("/spec/admission/rules", json!([]), "spec.admission.rules"),
        ("/spec/admission/timeoutSeconds", json!(31), "spec.admission.timeoutSeconds"),
        ("/spec/admission/mode", json!("Observe"), "spec.admission.mode"),
        ("/spec/timeoutEvalSeconds", json!(0), "spec.timeoutEvalSeconds"),
        ("/spec/program", json!({}), "spec.program: Invalid value: needs exactly one of"),
        ("/spec/program", json!({"cel": cel, "rego": {"source": "", "dialect": "Admission"}}), "needs exactly one of"),
        ("/spec/program", json!({"rego": {"dialect": "Gatekeeper"}}), "exactly one of `source` and `configMapRef`"),
        ("/spec/program", json!({"rego": {"dialect": "OPA", "source": ""}}), "spec.program.rego.dialect"),
        (
            "/spec/program",
            json!({"rego": {"dialect": "Gatekeeper", "source": "", "entrypoint": "a"}}),
            "is for the dialect Admission",
        ),
        ("/spec/program", json!({"wasm": {"module": "file:///a.wasm"}}), "without a cluster"),
        ("/spec/program", json!({"wasm": {"module": "https://a", "digest": "sha256:0"}}), "spec.program.wasm.digest"),
        ("/spec/setings", json!({}), "unknown field"),
        ("/metadata/name", json!("a".repeat(151)), "at most 150 characters"),
    ] {
        let mut object = policy("wrong");
        let (parent, key) = pointer.rsplit_once('/').context("a pointer")?;
        object.pointer_mut(parent).context("its parent")?[key] = value.clone();
        let error = create(&plane, &kubectl, &object).await.err().with_context(|| format!("{pointer} = {value}"))?;
        let message = format!("{error:#}").replace("\\\"", "\"");
        ensure!(message.contains(expected), "{pointer} = {value}: {message}");
    }
    Ok(())
}

#[tokio::test]
async fn nothing_but_enabled_changes_in_a_revision() -> Result<()> {
    let (plane, kubectl) = start("revisions").await?;
    let revision = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision", "metadata": {"name": "a", "namespace": "default"},
        "spec": {
            "policyServer": "default", "enabled": true, "data": policy("a")["spec"],
            "policyRef": {"kind": "Policy", "namespace": "default", "name": "a", "uid": "u", "generation": 1},
        },
    });
    create(&plane, &kubectl, &revision).await?;
    let patch = async |patch: Value| {
        kubectl
            .run(&["patch", "pvr/a", "--type=merge", "-p", &patch.to_string()])
            .await
            .map_err(|error| format!("{error:#}"))
    };
    ensure!(patch(json!({"spec": {"enabled": false}})).await.is_ok());
    for change in [
        json!({"policyServer": "other"}),
        json!({"policyRef": {"generation": 2}}),
        json!({"data": {"enabled": false}}),
        json!({"data": {"settings": {"a": 1}}}),
        json!({"data": {"program": {"cel": {"validations": []}}}}),
    ] {
        let refused = patch(json!({"spec": change})).await;
        ensure!(refused.as_ref().is_err_and(|said| said.contains("only `enabled`")), "{change}: {refused:?}");
    }
    Ok(())
}
