//! Tests of the chart, and of `config/operator` and `config/policy-server`, which are the chart with its default values for
//! `kubectl apply -k`. They need Helm, and neither a cluster nor root.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use proviso_e2e::{Helm, Kubectl};
use serde::Deserialize as _;
use serde_yaml::{Mapping, Value};

use crate::repository;

const NAMESPACE: &str = "proviso-system";
/// The label with the name of the program that manages an object.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Returns the path of a kubeconfig that does not exist, for commands that need no cluster.
fn no_kubeconfig() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("charts.kubeconfig")
}

/// Removes the labels and annotations of Helm.
fn remove_helm(value: &mut Value) {
    match value {
        Value::Mapping(mapping) => {
            mapping.values_mut().for_each(remove_helm);
            mapping.retain(|key, value| {
                let key = key.as_str().unwrap_or_default();
                let is_empty = value.as_mapping().is_some_and(Mapping::is_empty);
                let is_removed = key.starts_with("helm.sh/") || (key == "annotations" && is_empty);
                !is_removed
            });
            if let Some(manager) = mapping.get_mut(MANAGED_BY) {
                *manager = "kustomize".into();
            }
        }
        Value::Sequence(items) => items.iter_mut().for_each(remove_helm),
        _ => {}
    }
}

/// Returns the objects of each template of the chart.
async fn rendered(options: &[&str]) -> Result<BTreeMap<String, Vec<Value>>> {
    let chart = repository().join("charts/proviso");
    let chart = chart.to_str().context("its path")?;
    let text = Helm::new(&no_kubeconfig())?
        .run(&[&["template", "proviso", chart, "--namespace", NAMESPACE], options].concat())
        .await?;
    ensure!(!text.contains("helm.sh/hook"), "kubectl runs no hooks: config/ needs another way to do the same");
    let mut templates = BTreeMap::<_, Vec<_>>::new();
    for document in text.split("\n---\n") {
        let source = document.lines().find_map(|line| line.strip_prefix("# Source: proviso/templates/"));
        let mut object: Value = serde_yaml::from_str(document)?;
        let Some(source) = source.filter(|_| !object.is_null()) else { continue };
        remove_helm(&mut object);
        templates.entry(source.to_owned()).or_default().push(object);
    }
    Ok(templates)
}

/// Returns the file of `config/` for a template.
fn file(template: &str) -> String {
    let folder = if template == "policyserver.yaml" { "policy-server" } else { "operator" };
    format!("config/{folder}/{template}")
}

/// Returns the objects by their kind, namespace and name.
fn by_id(objects: impl IntoIterator<Item = Value>) -> BTreeMap<String, Value> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let id = |object: &Value| {
        let metadata = &object["metadata"];
        format!("{} {}/{}", text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]))
    };
    objects.into_iter().map(|object| (id(&object), object)).collect()
}

#[tokio::test]
async fn the_kustomizations_are_the_chart_with_its_default_values() -> Result<()> {
    let templates = rendered(&[]).await?;
    for (template, objects) in &templates {
        let documents = objects.iter().map(serde_yaml::to_string).collect::<Result<Vec<_>, _>>()?;
        let header = format!("# Generated from charts/proviso/templates/{template}: `make record`.\n");
        proviso_recorded::check(&file(template), &(header + &documents.join("---\n")));
    }

    // Each kustomization lists its files, and the namespace, which the chart does not create.
    let kubectl = Kubectl::new(&no_kubeconfig())?;
    let mut built = Vec::new();
    for folder in ["config/operator", "config/policy-server"] {
        let folder = repository().join(folder);
        let text = kubectl.run(&["kustomize", folder.to_str().context("its path")?]).await?;
        for document in serde_yaml::Deserializer::from_str(&text) {
            built.push(Value::deserialize(document)?);
        }
    }
    let (mut built, wanted) = (by_id(built), by_id(templates.into_values().flatten()));
    ensure!(built.remove(&format!("Namespace /{NAMESPACE}")).is_some(), "no namespace");
    ensure!(built.keys().eq(wanted.keys()), "kustomize: {:#?}\nchart: {:#?}", built.keys(), wanted.keys());
    for (id, object) in &wanted {
        ensure!(
            built.get(id) == Some(object),
            "{id} of kustomize differs from that of the chart:\n{:#?}",
            built.get(id)
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_pull_secrets_are_those_of_the_operator_and_of_the_policy_server() -> Result<()> {
    let templates = rendered(&["--set", "imagePullSecrets[0].name=registry"]).await?;
    let expected: Value = serde_yaml::from_str("[{name: registry}]")?;
    let deployment = &templates["deployment.yaml"].iter().find(|it| it["kind"] == "Deployment").context("none")?;
    ensure!(deployment["spec"]["template"]["spec"]["imagePullSecrets"] == expected, "{deployment:#?}");
    let server = &templates["policyserver.yaml"][0];
    ensure!(server["spec"]["imagePullSecrets"] == expected, "{server:#?}");

    // The PolicyServer keeps Secrets of its own.
    let own = "defaultPolicyServer.spec.imagePullSecrets[0].name=other";
    let templates = rendered(&["--set", "imagePullSecrets[0].name=registry", "--set", own]).await?;
    let expected: Value = serde_yaml::from_str("[{name: other}]")?;
    ensure!(templates["policyserver.yaml"][0]["spec"]["imagePullSecrets"] == expected, "the Secrets were replaced");
    Ok(())
}

#[tokio::test]
async fn images_have_the_tag_of_the_values_or_their_own_digest() -> Result<()> {
    let digest = format!("proviso/operator@sha256:{}", "0".repeat(64));
    let own = format!("operator.image={digest}");
    for (values, expected) in [
        (vec![], "proviso/operator:0.1.0".to_owned()),
        (
            vec!["image.registry=registry.example.com/", "image.tag=v1"],
            "registry.example.com/proviso/operator:v1".to_owned(),
        ),
        (vec!["image.registry=registry.example.com", own.as_str()], format!("registry.example.com/{digest}")),
    ] {
        let options: Vec<_> = values.iter().flat_map(|value| ["--set", value]).collect();
        let templates = rendered(&options).await?;
        let deployment = find(&templates, "Deployment").context("no Deployment")?;
        let image = &deployment["spec"]["template"]["spec"]["containers"][0]["image"];
        ensure!(*image == expected.as_str(), "{values:?}: {image:?}");
    }
    Ok(())
}

/// Returns the object of this kind in the template of the operator's Deployment.
fn find<'a>(templates: &'a BTreeMap<String, Vec<Value>>, kind: &str) -> Option<&'a Value> {
    templates["deployment.yaml"].iter().find(|object| object["kind"] == kind)
}

#[tokio::test]
async fn the_default_installation_has_two_replicas_of_each_program_on_different_nodes() -> Result<()> {
    let templates = rendered(&[]).await?;
    let deployment = &find(&templates, "Deployment").context("no Deployment")?["spec"];
    let (pod, server) = (&deployment["template"]["spec"], &templates["policyserver.yaml"][0]["spec"]);
    ensure!(deployment["replicas"] == 2 && server["replicas"] == 2, "{deployment:#?} {server:#?}");
    for spec in [pod, server] {
        ensure!(spec["priorityClassName"] == "system-cluster-critical", "{spec:#?}");
    }
    // The operator spreads the replicas of a PolicyServer itself, if its spec does not.
    ensure!(server["topologySpreadConstraints"].is_null() && server["affinity"].is_null(), "{server:#?}");
    let spread = &pod["topologySpreadConstraints"][0];
    for (field, expected) in [
        ("topologyKey", "kubernetes.io/hostname"),
        ("whenUnsatisfiable", "DoNotSchedule"),
        ("nodeTaintsPolicy", "Honor"),
    ] {
        ensure!(spread[field] == expected, "{field}: {spread:#?}");
    }
    ensure!(spread["labelSelector"] == deployment["selector"], "{spread:#?}");
    ensure!(find(&templates, "PodDisruptionBudget").is_some(), "no PodDisruptionBudget");

    // A quota exists exactly if a priority class of Kubernetes is used.
    let quota = find(&templates, "ResourceQuota").context("no ResourceQuota")?;
    let scope = &quota["spec"]["scopeSelector"]["matchExpressions"][0]["values"];
    ensure!(*scope == serde_yaml::from_str::<Value>("[system-cluster-critical]")?, "{quota:#?}");
    let [none, mine] = ["", "mine"].map(|class| format!("operator.priorityClassName={class}"));
    let servers = ["--set", "defaultPolicyServer.spec.priorityClassName=mine"];
    for own in [&none, &mine] {
        let templates = rendered(&[&["--set", own.as_str()][..], &servers].concat()).await?;
        ensure!(find(&templates, "ResourceQuota").is_none(), "{own}: an unneeded quota");
    }
    let templates = rendered(&["--set", "criticalPodsQuota.create=false"]).await?;
    ensure!(find(&templates, "ResourceQuota").is_none(), "the quota is created");
    Ok(())
}

#[tokio::test]
async fn the_values_replace_the_default_placement_of_the_operator() -> Result<()> {
    const TAINT: &str = "node.kubernetes.io/unreachable";
    let long = format!(r#"tolerations=[{{"key":"{TAINT}","operator":"Exists","tolerationSeconds":600}}]"#);
    let count = |value: &Value| value.as_sequence().map_or(0, Vec::len);
    for (values, constraints, tolerations) in [
        ("tolerations=[]", 2, 2),
        (r#"tolerations=[{"key":"dedicated","operator":"Exists"}]"#, 2, 3),
        (r#"tolerations=[{"operator":"Exists","effect":"NoSchedule"}]"#, 2, 3),
        (r#"tolerations=[{"operator":"Exists"}]"#, 2, 1),
        (long.as_str(), 2, 2),
        (r#"affinity={"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[]}}"#, 2, 2),
        (r#"affinity={"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[]}}"#, 0, 2),
        (r#"topologySpreadConstraints=[{"topologyKey":"rack","labelSelector":{}}]"#, 1, 2),
    ] {
        let templates = rendered(&["--set-json", &format!("operator.{values}")]).await?;
        let deployment = find(&templates, "Deployment").context("no Deployment")?;
        let pod = &deployment["spec"]["template"]["spec"];
        ensure!(count(&pod["topologySpreadConstraints"]) == constraints, "{values}: {pod:#?}");
        ensure!(count(&pod["tolerations"]) == tolerations, "{values}: {pod:#?}");
        ensure!(pod["affinity"].is_null() != values.starts_with("affinity"), "{values}: {pod:#?}");
    }
    Ok(())
}

#[tokio::test]
async fn network_policies_open_the_ports_of_webhooks_only_unless_the_values_name_other_places() -> Result<()> {
    let ports = |rule: &Value| {
        let ports = rule["ports"].as_sequence().into_iter().flatten();
        ports.map(|it| it["port"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let templates = rendered(&[]).await?;
    let policies = &templates["networkpolicy.yaml"];
    ensure!(policies.len() == 2, "{policies:#?}");
    for policy in policies {
        let spec = &policy["spec"];
        ensure!(spec["policyTypes"] == serde_yaml::from_str::<Value>("[Ingress]")?, "{spec:#?}");
        let rules = spec["ingress"].as_sequence().context("no rules")?;
        ensure!(rules.len() == 1 && ports(&rules[0]) == ["https"] && rules[0]["from"].is_null(), "{spec:#?}");
    }
    // The pods of the operator, and of all policy servers: the label is that of `operator/src/policy_servers/build.rs`.
    let selectors: Vec<_> = policies.iter().map(|policy| &policy["spec"]["podSelector"]).collect();
    let deployment = find(&templates, "Deployment").context("no Deployment")?;
    ensure!(selectors.contains(&&deployment["spec"]["selector"]), "{selectors:#?}");
    let of_servers: Value =
        serde_yaml::from_str("matchExpressions: [{key: proviso.dev/policy-server, operator: Exists}]")?;
    ensure!(selectors.contains(&&of_servers), "{selectors:#?}");

    let (servers, monitoring) = (
        r#"networkPolicy.apiServers=[{"cidr":"10.0.0.0/28"}]"#,
        r#"networkPolicy.metricsFrom=[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"monitoring"}}}]"#,
    );
    let templates = rendered(&["--set-json", servers, "--set-json", monitoring]).await?;
    for policy in &templates["networkpolicy.yaml"] {
        let rules = policy["spec"]["ingress"].as_sequence().context("no rules")?;
        ensure!(rules[0]["from"][0]["ipBlock"]["cidr"] == "10.0.0.0/28", "{rules:#?}");
        ensure!(ports(&rules[1]) == ["metrics"], "{rules:#?}");
        ensure!(!rules[1]["from"][0]["namespaceSelector"].is_null(), "{rules:#?}");
    }
    let portals = r#"networkPolicy.requestsFrom=[{"podSelector":{"matchLabels":{"app":"portal"}}}]"#;
    let templates = rendered(&["--set-json", servers, "--set-json", portals]).await?;
    for policy in &templates["networkpolicy.yaml"] {
        let rules = policy["spec"]["ingress"].as_sequence().context("no rules")?;
        let is_open =
            rules.len() == 2 && ports(&rules[1]) == ["https"] && !rules[1]["from"][0]["podSelector"].is_null();
        // Portals have nothing to ask the operator.
        let wanted = policy["metadata"]["name"] == "proviso-policy-server";
        ensure!(is_open == wanted && (wanted || rules.len() == 1), "{rules:#?}");
    }
    let open = ["--set", "metrics.authentication=false", "--set-json", monitoring];
    for policy in &rendered(&open).await?["networkpolicy.yaml"] {
        ensure!(ports(&policy["spec"]["ingress"][1]) == ["admin"], "{policy:#?}");
    }
    let templates = rendered(&["--set", "networkPolicy.enabled=false"]).await?;
    ensure!(!templates.contains_key("networkpolicy.yaml"), "the NetworkPolicies are created");
    Ok(())
}

#[tokio::test]
async fn metrics_need_authentication_unless_a_value_opens_them() -> Result<()> {
    let container = |templates: &BTreeMap<String, Vec<Value>>| {
        let deployment = find(templates, "Deployment").context("no Deployment")?;
        Ok::<_, anyhow::Error>(serde_yaml::to_string(&deployment["spec"]["template"]["spec"]["containers"][0])?)
    };
    let templates = rendered(&[]).await?;
    ensure!(container(&templates)?.contains("--metrics-listen=0.0.0.0:8082"), "{templates:#?}");
    let named = |name: &str| templates["rbac.yaml"].iter().find(|it| it["metadata"]["name"] == name);
    let reader = named("proviso-metrics-reader").context("no ClusterRole for Prometheus")?;
    ensure!(reader["rules"][0]["nonResourceURLs"][0] == "/metrics", "{reader:#?}");
    for (name, verbs) in
        [("proviso-request-evaluator", "[create]"), ("proviso-request-portal", "[create, impersonate]")]
    {
        let rules = &named(name).context(name)?["rules"];
        let wanted = format!("[{{apiGroups: [proviso.dev], resources: [servicerequests], verbs: {verbs}}}]");
        ensure!(*rules == serde_yaml::from_str::<Value>(&wanted)?, "{rules:#?}");
    }
    let open = rendered(&["--set", "metrics.authentication=false"]).await?;
    let container = container(&open)?;
    ensure!(!container.contains("metrics-listen") && !container.contains("8082"), "{container}");
    Ok(())
}

#[tokio::test]
async fn an_installation_without_the_delivery_lacks_its_permissions() -> Result<()> {
    const ROLE: &str = "proviso-operator-configuration";
    for (is_enabled, expected) in [(true, 4), (false, 0)] {
        let value = format!("configuration.enabled={is_enabled}");
        let templates = rendered(&["--set", &value]).await?;
        let named = templates.values().flatten().filter(|object| object["metadata"]["name"] == ROLE).count();
        ensure!(named == expected, "{value}: {named} objects with the name {ROLE}");
        let deployment = templates["deployment.yaml"].iter().find(|it| it["kind"] == "Deployment").context("none")?;
        let arguments = serde_yaml::to_string(&deployment["spec"]["template"]["spec"]["containers"][0]["args"])?;
        ensure!(arguments.contains(&format!("--configuration={is_enabled}")), "{arguments}");
    }
    Ok(())
}

#[tokio::test]
async fn durations_that_the_operator_refuses_are_refused_by_helm() -> Result<()> {
    for (name, accepted, refused) in [
        ("operator.retireAfter", ["5s", "90s", "5m30s", "1h"], ["4s", "61m", "2h", "5"]),
        ("configuration.catchUpInterval", ["1s", "1h30m", "1440m", "24h"], ["0s", "25h", "24h1s", "soon"]),
    ] {
        for value in accepted {
            rendered(&["--set-string", &format!("{name}={value}")]).await.with_context(|| format!("{name}={value}"))?;
        }
        for value in refused {
            let error = rendered(&["--set-string", &format!("{name}={value}")]).await.err();
            let error = error.with_context(|| format!("{name}={value} was accepted"))?.to_string();
            let field = name.rsplit('.').next().unwrap_or_default();
            ensure!(error.contains(field) && error.contains("pattern"), "{name}={value}: {error}");
        }
    }
    Ok(())
}
