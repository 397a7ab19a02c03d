//! Tests of the `CustomResourceDefinition`s with a real API server: `kubectl apply -f crds/`, the objects that it accepts,
//! and the objects that it refuses.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use proviso_e2e::{ControlPlane, Kubectl, until_with};
use serde_json::{Value, json};

/// The time limit for the API server to serve a new kind.
const SERVED_TIMEOUT: Duration = Duration::from_mins(1);

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Starts a control plane with the kinds installed. A warning about the definitions is an error.
async fn start(name: &str) -> Result<(ControlPlane, Kubectl)> {
    let plane = ControlPlane::start(name).await?;
    let kubectl = Kubectl::new(plane.kubeconfig())?;
    kubectl.run(&["apply", "--warnings-as-errors", "-f", env!("CARGO_MANIFEST_DIR")]).await?;
    kubectl.run(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=60s"]).await?;
    // The storage and the descriptions of an established kind are served a moment later.
    let names = kubectl.run(&["get", "crd", "-o", "jsonpath={.items[*].spec.names.plural}"]).await?;
    until_with("the kinds", SERVED_TIMEOUT, SERVED_TIMEOUT, async || {
        kubectl.run(&["get", &names.replace(' ', ","), "--all-namespaces"]).await?;
        for name in names.split(' ') {
            kubectl.run(&["explain", name]).await?;
        }
        Ok(())
    })
    .await?;
    Ok((plane, kubectl))
}

/// Writes the object into the folder of the control plane, and creates the object with kubectl.
async fn create(plane: &ControlPlane, kubectl: &Kubectl, object: &Value) -> Result<String> {
    let file = plane.folder().path().join("object.json");
    std::fs::write(&file, object.to_string())?;
    kubectl.run(&["create", "-f", file.to_str().unwrap()]).await
}

/// Returns the descriptions of a field without line breaks: `kubectl explain` wraps them at any word.
async fn explain(kubectl: &Kubectl, field: &str) -> Result<String> {
    let explained = kubectl.run(&["explain", field]).await?;
    Ok(explained.split_whitespace().collect::<Vec<_>>().join(" "))
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

/// kubectl creates the policies of the quickstart, explains their fields, lists them and shows their defaults.
#[tokio::test]
async fn kubectl_creates_explains_and_lists_policies() -> Result<()> {
    let (plane, kubectl) = start("kubectl-and-policies").await?;
    kubectl.run(&["create", "namespace", "payments"]).await?;
    for entry in std::fs::read_dir(repository().join("examples/quickstart"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "yaml") || path.ends_with("namespaces.yaml") {
            continue;
        }
        // The modules of the quickstart are files, which a cluster refuses: it needs modules in a registry.
        let text = std::fs::read_to_string(&path)?.replace("file://../policies/", "registry://registry.example.com/");
        let file = plane.folder().path().join(path.file_name().context("a file name")?);
        std::fs::write(&file, text)?;
        kubectl.run(&["create", "-f", file.to_str().unwrap()]).await?;
    }
    let explained = explain(&kubectl, "clusterpolicy.spec.program.wasm.module").await?;
    ensure!(explained.contains("registry://host/repository:tag"), "{explained}");
    for short in ["pvcp", "proviso"] {
        let shown = kubectl.run(&["get", short, "--all-namespaces"]).await?;
        ensure!(shown.contains("required-labels") && shown.contains("LIVE"), "{shown}");
    }
    // The API server fills in the defaults of fields that the manifest does not set.
    let defaults = "jsonpath={.spec.policyServer} {.spec.enabled} {.spec.admission.mode} {.spec.revisionHistoryLimit}";
    let defaults = kubectl.run(&["get", "pvcp", "required-labels", "-o", defaults]).await?;
    ensure!(defaults == "default true Protect 10", "{defaults}");
    Ok(())
}

#[tokio::test]
async fn each_error_in_a_policy_is_refused_with_its_field_or_remedy() -> Result<()> {
    let (plane, kubectl) = start("mistakes-in-policies").await?;
    create(&plane, &kubectl, &policy("right")).await?;
    let cel = json!({"validations": []});
    for (pointer, value, expected) in [
        ("/spec/admission", Value::Null, "say in `admission` or in `request`"),
        ("/spec/admission/rules", json!([]), "spec.admission.rules"),
        ("/spec/admission/timeoutSeconds", json!(31), "spec.admission.timeoutSeconds"),
        ("/spec/admission/mode", json!("Observe"), "spec.admission.mode"),
        ("/spec/timeoutEvalSeconds", json!(0), "spec.timeoutEvalSeconds"),
        ("/spec/program", json!({}), "spec.program: Invalid value: needs exactly one of"),
        ("/spec/program", json!({"cel": cel, "rego": {"source": "", "dialect": "Admission"}}), "needs exactly one of"),
        ("/spec/program", json!({"cel": cel, "requests": {}}), "needs exactly one of"),
        ("/spec/program", json!({"rego": {"dialect": "Gatekeeper"}}), "spec.program.rego.source: Required value"),
        ("/spec/program", json!({"rego": {"dialect": "OPA", "source": ""}}), "spec.program.rego.dialect"),
        (
            "/spec/program",
            json!({"rego": {"dialect": "Gatekeeper", "source": "", "entrypoint": "a"}}),
            "is for the dialects Admission and Request",
        ),
        (
            "/spec/program",
            json!({"rego": {"dialect": "Request", "source": "", "entrypoint": "a"}}),
            "must be `result` or `main`",
        ),
        ("/spec/program", json!({"wasm": {"module": "file:///a.wasm"}}), "without a cluster"),
        ("/spec/program", json!({"wasm": {"module": "https://a", "digest": "sha256:0"}}), "spec.program.wasm.digest"),
        ("/spec/setings", json!({}), "unknown field"),
        ("/spec/configuration", json!({"configName": "a", "content": {}}), "say in `admission` or in `request`"),
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
async fn a_configuration_policy_is_explained_and_each_error_in_it_is_refused() -> Result<()> {
    let (plane, kubectl) = start("configuration-policies").await?;
    let policy = |name: &str| {
        json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy", "metadata": {"name": name, "namespace": "default"},
            "spec": {"configuration": {"configName": "memory", "content": {"min_memory": "8GB"}}},
        })
    };
    let explained = explain(&kubectl, "policy.spec.configuration.template").await?;
    ensure!(explained.contains("computes the content for each component. It reads `component`"), "{explained}");
    create(&plane, &kubectl, &policy("right")).await?;
    let mut template = policy("template");
    template["spec"]["configuration"] = json!({
        "configName": "memory", "owner": "DCAE", "attributes": {"region": "eu"}, "confidential": true,
        "template": {"rego": "package a\ncontent := {}"}, "schema": {"type": "object"},
    });
    create(&plane, &kubectl, &template).await?;
    for (pointer, value, expected) in [
        ("/spec/configuration", Value::Null, "say in `admission` or in `request`"),
        ("/spec/program", json!({"cel": {"validations": []}}), "a policy with `configuration` has none"),
        ("/spec/configuration/configName", json!(""), "spec.configuration.configName"),
        ("/spec/configuration/content", json!("a"), "spec.configuration.content"),
        ("/spec/configuration/template", json!({"cel": "{}"}), "needs exactly one of `content` and `template`"),
        ("/spec/configuration/attributes", json!({"a": "b".repeat(1025)}), "attributes.a: Too long"),
    ] {
        let mut object = policy("wrong");
        let (parent, key) = pointer.rsplit_once('/').context("a pointer")?;
        object.pointer_mut(parent).context("its parent")?[key] = value.clone();
        let error = create(&plane, &kubectl, &object).await.err().with_context(|| format!("{pointer} = {value}"))?;
        ensure!(format!("{error:#}").contains(expected), "{pointer} = {value}: {error:#}");
    }
    // The section cannot be replaced by another one.
    let patch = json!({"spec": {
        "configuration": null, "program": {"cel": {"validations": [{"expression": "true"}]}}, "request": {"priority": 7},
    }});
    let error = kubectl.run(&["patch", "policy", "right", "--type=merge", "-p", &patch.to_string()]).await.err();
    let error = error.context("the section is replaced")?;
    ensure!(format!("{error:#}").contains("`configuration` cannot be added or removed"), "{error:#}");
    Ok(())
}

#[tokio::test]
async fn only_enabled_can_be_changed_in_a_revision() -> Result<()> {
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
        ensure!(refused.as_ref().is_err_and(|error| error.contains("only `enabled`")), "{change}: {refused:?}");
    }
    Ok(())
}

fn invalid_verifications() -> Vec<(Value, &'static str)> {
    let all_of = |signature: Value| json!({"verification": {"allOf": [signature]}});
    vec![
        (json!({"verification": {}}), "needs at least one signature"),
        (json!({"verification": {"allOf": []}}), "needs at least one signature"),
        (all_of(json!({"kind": "pubKey"})), "a `key` is for the kind pubKey"),
        (all_of(json!({"kind": "githubAction", "key": "PEM", "owner": "a"})), "a `key` is for the kind pubKey"),
        (all_of(json!({"kind": "githubAction"})), "an `owner` is for the kind githubAction"),
        (all_of(json!({"kind": "pubKey", "key": "PEM", "repo": "a"})), "a `repo` is for the kind githubAction"),
        (all_of(json!({"kind": "genericIssuer", "issuer": "a"})), "needs both"),
        (all_of(json!({"kind": "genericIssuer", "issuer": "a", "subject": {}})), "exactly one of `equal` and"),
        (all_of(json!({"kind": "certificate"})), "a `certificate` is for the kind certificate"),
        (all_of(json!({"kind": "pubKey", "key": "PEM", "requireRekorBundle": true})), "are for the kind certificate"),
        (all_of(json!({"kind": "other"})), "spec.verification.allOf[0].kind"),
        (json!({"verification": {"anyOf": {"signatures": []}}}), "spec.verification.anyOf.signatures"),
        (
            json!({"verification": {"anyOf": {"minimumMatches": 2, "signatures": [{"kind": "pubKey", "key": "PEM"}]}}}),
            "greater than the number of",
        ),
    ]
}

#[tokio::test]
async fn a_policy_server_is_explained_and_each_error_in_it_is_refused() -> Result<()> {
    let (plane, kubectl) = start("policy-servers").await?;
    let server = |spec: Value| {
        json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyServer", "metadata": {"name": "a"}, "spec": spec,
        })
    };
    for (field, expected) in [
        ("spec", "topologySpreadConstraints"),
        ("spec.cache.persistentVolumeClaim", "ReadWriteMany"),
        ("spec.evaluation.memoryLimitMiB", "Default: 128"),
        ("status", "readyReplicas"),
    ] {
        let explained = explain(&kubectl, &format!("policyserver.{field}")).await?;
        ensure!(explained.contains(expected), "{field}: {explained}");
    }
    // An object with every field is accepted, also with numbers for quantities.
    let mut everything = server(json!({
        "replicas": 2, "resources": {"requests": {"cpu": 1, "memory": "256Mi"}}, "minAvailable": "50%",
        "cache": {"persistentVolumeClaim": {"storageClassName": "nfs", "size": "10Gi"}}, "logLevel": "debug",
        "imagePullSecrets": [{"name": "a"}], "env": [{"name": "A", "value": "b"}],
        "sources": {
            "insecure": ["localhost:5000"], "authorities": {"example.com": ["PEM"]},
            "mirrors": {"ghcr.io": ["mirror/ghcr"]},
        },
        "verification": {
            "allOf": [
                {"kind": "pubKey", "key": "PEM", "owner": "ann", "annotations": {"env": "prod"}},
                {"kind": "genericIssuer", "issuer": "i", "subject": {"urlPrefix": "https://github.com/org"}},
            ],
            "anyOf": {"minimumMatches": 1, "signatures": [
                {"kind": "githubAction", "owner": "org", "repo": "repo"},
                {"kind": "certificate", "certificate": "PEM", "certificateChain": ["PEM"], "requireRekorBundle": false},
            ]},
            "trustedRoot": {"name": "sigstore", "key": "trusted_root.json"},
        },
    }));
    everything["metadata"]["name"] = json!("everything");
    create(&plane, &kubectl, &everything).await?;
    create(&plane, &kubectl, &server(json!({}))).await?;
    let replicas = kubectl.run(&["get", "pvs", "a", "-o", "jsonpath={.spec.replicas}"]).await?;
    ensure!(replicas == "1", "{replicas}");
    for (spec, expected) in [
        (json!({"replicas": -1}), "spec.replicas"),
        (json!({"cache": {}}), "needs exactly one of"),
        (json!({"cache": {"emptyDir": {}, "existingClaim": "a"}}), "needs exactly one of"),
        (json!({"cache": {"persistentVolumeClaim": {"size": "ten"}}}), "spec.cache.persistentVolumeClaim.size"),
        (json!({"minAvailable": 1, "maxUnavailable": 1}), "at most one of"),
        (json!({"env": [{"name": "POD_UID", "value": "a"}]}), "set by the operator"),
        (json!({"env": [{"name": "A"}, {"name": "A"}]}), "Duplicate value"),
        (json!({"resources": {"limits": {"cpu": "much"}}}), "spec.resources.limits.cpu"),
        (json!({"sources": {"insecure": ["http://localhost"]}}), "spec.sources.insecure[0]"),
        (json!({"evaluation": {"timeoutSeconds": 0}}), "spec.evaluation.timeoutSeconds"),
        (json!({"evaluation": {"concurrency": 1}}), "spec.evaluation.concurrency"),
        (json!({"preview": {"queueCapacity": 0}}), "spec.preview.queueCapacity"),
        (json!({"logLevel": "loud"}), "spec.logLevel"),
        (json!({"image": ""}), "spec.image"),
        (json!({"replica": 1}), "unknown field"),
    ]
    .into_iter()
    .chain(invalid_verifications())
    {
        let mut wrong = server(spec.clone());
        wrong["metadata"]["name"] = json!("wrong");
        let error = create(&plane, &kubectl, &wrong).await.err().with_context(|| spec.to_string())?;
        ensure!(format!("{error:#}").contains(expected), "{spec}: {error:#}");
    }
    for (name, expected) in [
        ("a".repeat(39), "at most 38 characters"),
        ("a.b".to_owned(), "no dot"),
        ("a-replicas".to_owned(), "does not end in -replicas"),
    ] {
        let mut wrong = server(json!({}));
        wrong["metadata"]["name"] = json!(name);
        let error = create(&plane, &kubectl, &wrong).await.err().context(name)?;
        ensure!(format!("{error:#}").contains(expected), "{error:#}");
    }
    // The size of a volume can be changed, and the volume can be removed. Another storage class is refused.
    let patch = async |change: Value| {
        let change = json!({"spec": {"cache": change}}).to_string();
        kubectl.run(&["patch", "pvs/everything", "--type=merge", "-p", &change]).await.map_err(|it| format!("{it:#}"))
    };
    for (change, expected) in [
        (json!({"persistentVolumeClaim": {"storageClassName": "other"}}), "keeps its storage class"),
        (json!({"persistentVolumeClaim": {"storageClassName": null}}), "keeps its storage class"),
    ] {
        let refused = patch(change.clone()).await;
        ensure!(refused.as_ref().is_err_and(|error| error.contains(expected)), "{change}: {refused:?}");
    }
    for change in [
        json!({"persistentVolumeClaim": {"size": "10240Mi"}}),
        json!({"persistentVolumeClaim": {"size": "11Gi"}}),
        // Undoes the increase.
        json!({"persistentVolumeClaim": {"size": "10Gi"}}),
        json!({"persistentVolumeClaim": null, "emptyDir": {}}),
    ] {
        let accepted = patch(change.clone()).await;
        ensure!(accepted.is_ok(), "{change}: {accepted:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_subscription_is_explained_and_each_error_in_it_is_refused() -> Result<()> {
    let (plane, kubectl) = start("subscriptions").await?;
    let subscription = |name: &str| {
        json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicySubscription",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "component": {"kind": "Deployment", "name": "scaler"},
                "policies": [{"id": "cluster.limits"}],
                "delivery": {"configMap": "scaler-policies"},
            },
        })
    };
    let explained = explain(&kubectl, "policysubscription").await?;
    ensure!(explained.contains("The configuration policies of a component"), "{explained}");
    let explained = explain(&kubectl, "policysubscription.spec.policies.filter").await?;
    ensure!(explained.contains("regular expression (RE2)"), "{explained}");
    create(&plane, &kubectl, &subscription("least")).await?;
    // An object with every field is accepted.
    let mut everything = subscription("everything");
    let spec = everything["spec"].as_object_mut().context("spec")?;
    spec.remove("component");
    spec.insert("scn".to_owned(), json!("dcae_scaler.v2"));
    let all = json!({
        "nameRegex": r"ns\.default\.scale-[a-z]+", "configName": "scaling", "owner": "DCAE", "unique": true,
        "attributes": {"region": "eu", "tier": ""},
    });
    let many = (0..98).map(|number| json!({"id": format!("ns.default.scale.{number}")}));
    let many: Vec<_> = many.chain([json!({"filter": all}), json!({"filter": {"owner": "a"}})]).collect();
    spec.insert("policies".to_owned(), json!(many));
    spec.insert("canaryFor".to_owned(), json!([{"policy": "cluster.limits", "experiment": "more-memory"}]));
    spec.insert("application".to_owned(), json!({"configMap": "scaler"}));
    spec.insert(
        "delivery".to_owned(),
        json!({"configMap": "a.b", "notify": {"timeoutSeconds": 60, "exec": {"container": "main", "command": ["/bin/reload", "-v"]}}}),
    );
    create(&plane, &kubectl, &everything).await?;
    let shown = kubectl.run(&["get", "pvsub"]).await?;
    ensure!(shown.contains("SCN") && shown.contains("dcae_scaler.v2") && shown.contains("scaler-policies"), "{shown}");
    let filter = |filter: Value| json!([{"filter": filter}]);
    let notify = |notify: Value| json!({"configMap": "a", "notify": notify});
    let exec = json!({"container": "a", "command": ["b"]});
    let http = |path: &str, port: u32| json!({"http": {"service": "a", "path": path, "port": port}});
    let too_many: Vec<_> = (0..101).map(|number| json!({"id": format!("cluster.a{number}")})).collect();
    for (pointer, value, expected) in [
        ("/spec/scn", json!("a"), "needs exactly one of `component` and `scn`"),
        ("/spec/component", Value::Null, "needs exactly one of `component` and `scn`"),
        ("/spec/component/kind", json!("Job"), "spec.component.kind"),
        ("/spec/component/name", json!("A"), "spec.component.name"),
        ("/spec/policies", json!([]), "spec.policies"),
        ("/spec/policies", json!(too_many), "spec.policies: Too many"),
        ("/spec/policies", json!([{}]), "spec.policies[0]: Invalid value: needs exactly one of `id` and `filter`"),
        ("/spec/policies/0/filter", json!({"owner": "a"}), "needs exactly one of `id` and `filter`"),
        ("/spec/policies/0/id", json!("limits"), "spec.policies[0].id"),
        ("/spec/policies/0/id", json!("ns.default"), "spec.policies[0].id"),
        ("/spec/policies/0/id", json!("cluster.a..b"), "spec.policies[0].id"),
        ("/spec/policies", filter(json!({})), "needs at least one of `nameRegex`"),
        ("/spec/policies", filter(json!({"unique": true, "attributes": {}})), "needs at least one of `nameRegex`"),
        ("/spec/policies", filter(json!({"nameRegex": "("})), "missing closing )"),
        (
            "/spec/policies",
            filter(json!({"nameRegex": "a".repeat(257)})),
            "spec.policies[0].filter.nameRegex: Too long",
        ),
        ("/spec/policies", filter(json!({"attributes": {"a": 1}})), "spec.policies[0].filter.attributes.a"),
        ("/spec/policies", filter(json!({"attributes": {"a": "b".repeat(1025)}})), "attributes.a: Too long"),
        ("/spec/delivery", Value::Null, "spec.delivery"),
        ("/spec/delivery/configMap", json!("A"), "spec.delivery.configMap"),
        ("/spec/delivery", notify(json!({})), "needs exactly one of `exec` and `http`"),
        ("/spec/delivery", notify(json!({"exec": exec, "http": http("/", 80)["http"]})), "needs exactly one of `exec`"),
        ("/spec/delivery", notify(json!({"exec": {"container": "a", "command": []}})), "notify.exec.command"),
        ("/spec/delivery", notify(http("policies", 80)), "spec.delivery.notify.http.path"),
        ("/spec/delivery", notify(http("/", 65536)), "spec.delivery.notify.http.port"),
        ("/spec/delivery", notify(json!({"exec": exec, "timeoutSeconds": 301})), "spec.delivery.notify.timeoutSeconds"),
        ("/spec/canaryFor", json!([{"policy": "limits", "experiment": "a"}]), "spec.canaryFor[0].policy"),
        ("/spec/deliver", json!({}), "unknown field"),
    ] {
        let mut object = subscription("wrong");
        let (parent, key) = pointer.rsplit_once('/').context("a pointer")?;
        object.pointer_mut(parent).context("its parent")?[key] = value.clone();
        let error = create(&plane, &kubectl, &object).await.err().with_context(|| format!("{pointer} = {value}"))?;
        let message = format!("{error:#}").replace("\\\"", "\"");
        ensure!(message.contains(expected), "{pointer} = {value}: {message}");
    }
    Ok(())
}
