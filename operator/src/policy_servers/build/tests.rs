//! The objects of a policy server, compared with the recorded files, and their changes with the spec.

use super::*;

fn server(name: &str, spec: Value) -> PolicyServer {
    let mut server = PolicyServer::new(name, serde_json::from_value(spec).unwrap());
    server.metadata.uid = Some("3e1ccb1c-3a3c-4c6e-9f2a-8a5d5b8f1f10".to_owned());
    server
}

fn defaults() -> ServerDefaults {
    ServerDefaults {
        namespace: "proviso-system".to_owned(),
        image: "registry.example.com/policy-server:1".to_owned(),
        authenticates_metrics: true,
    }
}

fn every_field() -> Value {
    json!({
        "replicas": 3,
        "image": "registry.example.com/mine:2",
        "imagePullPolicy": "Always",
        "imagePullSecrets": [{"name": "harbor"}, {"name": "ghcr"}],
        "resources": {"requests": {"cpu": 1, "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "cache": {"persistentVolumeClaim": {"storageClassName": "nfs", "size": "10Gi"}},
        "sources": {
            "insecure": ["localhost:5000"],
            "authorities": {"registry.example.com": ["PEM"]},
            "mirrors": {"ghcr.io": ["mirror.example.com/ghcr", "ghcr.io"]},
        },
        "verification": {
            "allOf": [{"kind": "githubAction", "owner": "kubewarden", "annotations": {"env": "prod"}}],
            "anyOf": {"minimumMatches": 1, "signatures": [
                {"kind": "pubKey", "key": "PEM", "owner": "ann"},
                {"kind": "genericIssuer", "issuer": "https://issuer", "subject": {"urlPrefix": "https://github.com/org"}},
                {"kind": "certificate", "certificate": "PEM", "certificateChain": ["PEM"], "requireRekorBundle": false},
            ]},
            "trustedRoot": {"name": "sigstore", "key": "trusted_root.json"},
        },
        "allowedNamespaces": {"matchNames": ["team"], "selector": {"matchLabels": {"tenant": "yes"}}},
        "namespacedCapabilities": ["oci/*"],
        "namespacedPullSecrets": ["ghcr"],
        "namespacedRegistries": ["ghcr.io/team"],
        "namespacedMutation": true,
        "namespacedSystemRequests": true,
        "evaluation": {"timeoutSeconds": 3, "namespacedTimeoutSeconds": 5, "memoryLimitMiB": 64, "concurrency": 16},
        "preview": {"queueCapacity": 10},
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}},
        ]}},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"},
            {
                "maxSkew": 2, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"a": "b"}},
            },
        ],
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "priorityClassName": "system-cluster-critical",
        "serviceAccountName": "with-cloud-identity",
        "minAvailable": "50%",
        "clientCA": {"name": "api-servers", "key": "ca.crt"},
        "logLevel": "debug",
    })
}

#[test]
fn built_objects_match_the_recorded_files() {
    for (file, server) in
        [("minimal.yaml", server("default", json!({}))), ("every-field.yaml", server("busy", every_field()))]
    {
        let documents: Vec<_> =
            objects(&server, &defaults()).iter().map(|object| serde_yaml::to_string(object).unwrap()).collect();
        proviso_recorded::check(&format!("operator/src/policy_servers/build/{file}"), &documents.join("---\n"));
    }
}

#[test]
fn parts_names_every_built_object() {
    let parts = parts("busy");
    for object in objects(&server("busy", every_field()), &defaults()) {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (version, kind, name) =
            (text(&object["apiVersion"]), text(&object["kind"]), text(&object["metadata"]["name"]));
        assert!(parts.contains(&(&version, &kind, name.clone())), "{kind} {name}");
    }
}

fn template(spec: Value) -> Value {
    let objects = objects(&server("a", spec), &defaults());
    objects.into_iter().find(|object| object["kind"] == "StatefulSet").unwrap()["spec"]["template"].take()
}

#[test]
fn the_pod_template_changes_only_with_startup_settings() {
    let before = template(json!({}));
    for same in [
        json!({"replicas": 5}),
        json!({"replicas": 0}),
        json!({"minAvailable": 1}),
        json!({"maxUnavailable": "30%"}),
        json!({"sources": {"insecure": ["localhost:5000"]}}),
        json!({"sources": {"authorities": {"localhost:5000": ["PEM"]}}}),
        json!({"cache": {"emptyDir": {}}}),
    ] {
        assert_eq!(template(same.clone()), before, "{same}");
    }
    for (field, value) in every_field().as_object().unwrap() {
        let is_same = ["replicas", "minAvailable", "sources", "allowedNamespaces"].contains(&field.as_str());
        let template = template(json!({field: value}));
        assert_eq!(template == before, is_same, "{field}");
    }
    // A larger size does not change the pods.
    let claim = |size: &str| template(json!({"cache": {"persistentVolumeClaim": {"size": size}}}));
    assert_eq!(claim("1Gi"), claim("2Gi"));
    let limited = template(json!({"cache": {"emptyDir": {"sizeLimit": "1Gi"}}}));
    assert_eq!(limited["spec"]["volumes"][5], json!({"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}}));
    let existing = template(json!({"cache": {"existingClaim": "mine"}}));
    assert_eq!(existing["spec"]["volumes"][5]["persistentVolumeClaim"]["claimName"], "mine");
}

#[test]
fn replicas_are_spread_unless_the_spec_has_rules_about_other_pods() {
    let constraints = |spec: Value| template(spec)["spec"]["topologySpreadConstraints"].take();
    let selector = json!({"matchLabels": {SERVER_LABEL: "a"}});
    let default = |topology_key: &str, when_unsatisfiable: &str| {
        json!({
            "maxSkew": 1, "topologyKey": topology_key, "whenUnsatisfiable": when_unsatisfiable,
            "nodeTaintsPolicy": "Honor", "labelSelector": selector,
        })
    };
    let defaults = json!([
        default("kubernetes.io/hostname", "DoNotSchedule"),
        default("topology.kubernetes.io/zone", "ScheduleAnyway"),
    ]);
    let mut own = json!({"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"});
    let spec_with_own = json!({"topologySpreadConstraints": [own]});
    own["labelSelector"] = selector;
    let arm64 = json!({"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}]});
    for (spec, expected) in [
        (json!({}), defaults.clone()),
        (
            json!({"affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [arm64]},
            }}}),
            defaults,
        ),
        (json!({"affinity": {"podAntiAffinity": {}}}), Value::Null),
        (json!({"affinity": {"podAffinity": {}}}), Value::Null),
        (spec_with_own, json!([own])),
    ] {
        assert_eq!(constraints(spec.clone()), expected, "{spec}");
    }
}

#[test]
fn replicas_leave_a_lost_node_after_30_seconds_unless_the_spec_tolerates_its_taints() {
    let short =
        |taint: &str| json!({"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30});
    let (not_ready, unreachable) = (short("node.kubernetes.io/not-ready"), short("node.kubernetes.io/unreachable"));
    let mut long = unreachable.clone();
    long["tolerationSeconds"] = json!(600);
    let dedicated = json!({"key": "dedicated", "operator": "Exists"});
    let everything = json!({"operator": "Exists"});
    let scheduling = json!({"operator": "Exists", "effect": "NoSchedule"});
    for (own, expected) in [
        (json!([]), json!([not_ready, unreachable])),
        (json!([dedicated]), json!([dedicated, not_ready, unreachable])),
        (json!([scheduling]), json!([scheduling, not_ready, unreachable])),
        (json!([long]), json!([long, not_ready])),
        (json!([everything]), json!([everything])),
    ] {
        assert_eq!(template(json!({"tolerations": own}))["spec"]["tolerations"], expected, "{own}");
    }
}

#[test]
fn replicas_run_on_linux_nodes_unless_the_spec_selects_another_system() {
    for (own, expected) in [
        (json!({}), json!({"kubernetes.io/os": "linux"})),
        (json!({"disk": "ssd"}), json!({"kubernetes.io/os": "linux", "disk": "ssd"})),
        (json!({"kubernetes.io/os": "windows"}), json!({"kubernetes.io/os": "windows"})),
    ] {
        assert_eq!(template(json!({"nodeSelector": own}))["spec"]["nodeSelector"], expected, "{own}");
    }
}

#[test]
fn a_disruption_budget_has_exactly_one_limit() {
    for (spec, expected) in [
        (json!({}), json!({"maxUnavailable": 1})),
        (json!({"maxUnavailable": "30%"}), json!({"maxUnavailable": "30%"})),
        (json!({"minAvailable": 2}), json!({"minAvailable": 2})),
        (json!({"maxUnavailable": 0}), json!({"maxUnavailable": 0})),
    ] {
        let mut budget = disruption_budget(&server("a", spec))["spec"].take();
        budget.as_object_mut().unwrap().retain(|field, _| ["minAvailable", "maxUnavailable"].contains(&field.as_str()));
        assert_eq!(budget, expected);
    }
}

#[test]
fn no_name_is_longer_than_kubernetes_allows() {
    let longest = "a".repeat(38);
    // The longest value is a label of the pods about their revision: the name of the StatefulSet and ten digits.
    assert_eq!(name(&longest).len() + "-4294967295".len(), 63);
    assert!(replicas_name(&longest).len() <= 63, "a Service");
    // A policy server with a name that ends in `-replicas` is refused, because its name would equal this one.
    assert_eq!(replicas_name("a"), name("a-replicas"));
    assert!(certificate_names(&longest, "n").iter().all(|name| name.split('.').all(|label| label.len() <= 63)));
}
