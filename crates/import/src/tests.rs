use std::path::Path;

use proviso_evaluation::{PolicyFile, documents};
use serde_json::{Value, json};

use super::*;

const MATCHES: &str = "
    kinds: [{apiGroups: [''], kinds: [Pod]}, {apiGroups: [apps], kinds: [Deployment]}]
    excludedNamespaces: [kube-system]
    labelSelector: {matchLabels: {app: web}}";

fn template(target: &str) -> String {
    format!(
        "apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {{name: labels}}
spec:
  crd: {{spec: {{names: {{kind: Labels}}, validation: {{openAPIV3Schema: {{type: object, properties: {{
    labels: {{type: array, items: {{type: string}}, default: [owner]}}}}}}}}}}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    {target}
---
"
    )
}

fn rego() -> String {
    template(
        "rego: |\n      package labels\n      violation[{\"msg\": \"no\"}] { label := input.parameters.labels[_]; not input.review.object.metadata.labels[label] }",
    )
}

fn constraint(spec: &str) -> String {
    format!(
        "apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: Labels\nmetadata: {{name: owners, labels: {{a: b}}}}\nspec: {spec}\n---\n"
    )
}

fn vap(spec: &str) -> String {
    format!(
        "apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: replicas}}
spec:
  matchConstraints:
    resourceRules: [{{apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments]}}]
    namespaceSelector: {{matchLabels: {{env: prod}}}}
  validations: [{{expression: object.spec.replicas <= 5, reason: Forbidden}}]
  {spec}
---
"
    )
}

fn binding(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicyBinding\nmetadata: {{name: {name}}}\n\
         spec: {{policyName: replicas, {spec}}}\n---\n"
    )
}

fn kubewarden(kind: &str, spec: &str) -> String {
    format!(
        "apiVersion: policies.kubewarden.io/v1\nkind: {kind}\nmetadata: {{name: owners, namespace: team}}\nspec:\n  \
         rules: [{{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}}]\n{spec}\n---\n"
    )
}

fn of(text: &str) -> Result<Vec<Imported>, String> {
    let documents = documents::parse(Path::new("a.yaml"), text).map_err(|error| error.to_string())?;
    import(documents, &ResourceNames::new()).map_err(|error| error.to_string())
}

fn one(text: &str) -> Value {
    let imported = of(text).unwrap();
    assert_eq!(imported.len(), 1, "{text}");
    let written = imported[0].to_yaml().unwrap();
    // The manifest must be valid for a policy server.
    let documents = documents::parse(Path::new("b.yaml"), &written).unwrap();
    PolicyFile::of(&documents[0]).unwrap();
    assert_eq!(documents[0].value, imported[0].manifest);
    imported[0].manifest.clone()
}

#[test]
fn a_constraint_becomes_a_policy_with_its_templates_program() {
    let policy = one(&(rego() + &constraint(&format!("\n  enforcementAction: dryrun\n  match:{MATCHES}"))));
    assert_eq!(policy["kind"], "ClusterPolicy");
    assert_eq!(policy["metadata"], json!({"name": "owners", "labels": {"a": "b"}}));
    let spec = &policy["spec"];
    assert!(spec["program"]["rego"]["source"].as_str().unwrap().starts_with("package labels"));
    assert_eq!(spec["settings"], json!({"labels": ["owner"]}), "with the defaults of the template");
    assert_eq!(
        spec["admission"],
        json!({
            "mode": "Monitor",
            "rules": [
                {"apiGroups": [""], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
                 "resources": ["pods", "pods/ephemeralcontainers"]},
                {"apiGroups": ["apps"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": ["deployments"]},
            ],
            "objectSelector": {"matchLabels": {"app": "web"}},
            "namespaceSelector": {"matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]},
            ]},
        })
    );
}

#[test]
fn a_policy_has_the_libraries_of_its_template() {
    let text = template("rego: package a\n    libs: [package lib.b]") + &constraint("{}");
    let documents = documents::parse(Path::new("a.yaml"), &text).unwrap();
    let drafts = constraint::import(&documents, &ResourceNames::new()).unwrap();
    let wanted = json!({"dialect": "Gatekeeper", "source": "package a", "libs": ["package lib.b"]});
    assert_eq!(drafts[0].spec["program"]["rego"], wanted);
}

/// Returns a program whose library reads the inventory.
fn rego_with_inventory_library() -> String {
    r#"rego: "package a\nimport data.lib.b\nviolation[{\"msg\": \"no\"}] { b.taken }"
    libs: ["package lib.b\nimport data.inventory as all\ntaken { all.cluster.v1 }"]"#
        .to_owned()
}

#[test]
fn a_library_that_reads_the_inventory_grants_the_kinds() {
    let synced = "metadata: {name: labels, annotations: {metadata.gatekeeper.sh/requires-sync-data: \
        '[[{\"groups\": [\"\"], \"versions\": [\"v1\"], \"kinds\": [\"Namespace\"]}]]'}}";
    let text = template(&rego_with_inventory_library()).replace("metadata: {name: labels}", synced) + &constraint("{}");
    assert_eq!(one(&text)["spec"]["contextAwareResources"], json!([{"apiVersion": "v1", "kind": "Namespace"}]));
}

#[test]
fn patterns_of_names_become_match_conditions() {
    let spec = "{match: {namespaces: [team-*, web], excludedNamespaces: ['*-system', kube-public], name: 'x-*', scope: Namespaced}}";
    let policy = one(&(rego() + &constraint(spec)));
    let admission = &policy["spec"]["admission"];
    let outside = "!has(request.namespace) || request.namespace == ''";
    assert_eq!(
        admission["matchConditions"],
        json!([
            {"name": "namespaces",
             "expression": format!("{outside} || request.namespace.startsWith('team-') || request.namespace == 'web'")},
            {"name": "excluded-namespaces", "expression": format!("{outside} || !(request.namespace.endsWith('-system'))")},
            {"name": "name", "expression": "request.name.startsWith('x-') || (request.name == '' && \
                has(object.metadata.generateName) && object.metadata.generateName.startsWith('x-'))"},
        ])
    );
    assert_eq!(admission["rules"][0]["resources"], json!(["*", "pods/ephemeralcontainers"]));
    assert_eq!(admission["rules"][0]["scope"], "Namespaced");
    assert_eq!(admission["namespaceSelector"]["matchExpressions"][0]["values"], json!(["kube-public"]));
}

#[test]
fn a_kubernetes_policy_and_its_binding_become_one_policy() {
    let bound = "validationActions: [Deny], matchResources: {namespaceSelector: {matchLabels: {a: b}}}";
    let policy = one(&(vap("failurePolicy: Fail") + &binding("everywhere", bound)));
    assert_eq!(policy["metadata"]["name"], "replicas");
    let spec = &policy["spec"];
    assert_eq!(spec["program"]["cel"]["validations"][0]["reason"], "Forbidden");
    assert_eq!(
        spec["admission"]["namespaceSelector"]["matchExpressions"],
        json!([
            {"key": "env", "operator": "In", "values": ["prod"]}, {"key": "a", "operator": "In", "values": ["b"]},
        ])
    );
    assert_eq!((&spec["admission"]["mode"], &spec["admission"]["failurePolicy"]), (&json!("Protect"), &json!("Fail")));

    let two = vap("") + &binding("one", "validationActions: [Deny]") + &binding("two", "validationActions: [Audit]");
    let two = of(&two).unwrap();
    let named: Vec<_> = two.iter().map(Imported::file_name).collect();
    assert_eq!(named, ["replicas-one.yaml", "replicas-two.yaml"]);
    assert_eq!(two[1].manifest["spec"]["admission"]["mode"], "Monitor");
}

#[test]
fn kubewarden_policies_and_groups_keep_their_fields() {
    let policy = one(&kubewarden(
        "AdmissionPolicy",
        "  module: ghcr.io/kubewarden/policies/owners:v1\n  mode: monitor\n  mutating: true\n  policyServer: reserved\n  \
         settings: {a: 1}\n  message: no owner\n  timeoutEvalSeconds: 5",
    ));
    assert_eq!((&policy["kind"], &policy["metadata"]["namespace"]), (&json!("Policy"), &json!("team")));
    let spec = &policy["spec"];
    assert_eq!(spec["program"]["wasm"]["module"], "registry://ghcr.io/kubewarden/policies/owners:v1");
    assert_eq!((&spec["settings"], &spec["policyServer"]), (&json!({"a": 1}), &json!("reserved")));
    assert_eq!(spec["timeoutEvalSeconds"], 5);
    let admission = &spec["admission"];
    assert_eq!((&admission["mode"], &admission["mutating"]), (&json!("Monitor"), &json!(true)));
    assert_eq!(admission["message"], "no owner");

    let group = one(&kubewarden(
        "ClusterAdmissionPolicyGroup",
        "  expression: a() || !b()\n  message: neither\n  policies:\n    a: {module: 'registry://r/a:v1'}\n    \
         b: {module: 'https://r/b.wasm', settings: {x: y}}",
    ));
    assert_eq!((&group["kind"], &group["metadata"]["namespace"]), (&json!("ClusterPolicy"), &Value::Null));
    let group = &group["spec"]["program"]["group"];
    assert_eq!((&group["expression"], &group["message"]), (&json!("a() || !b()"), &json!("neither")));
    assert_eq!(group["members"]["b"]["settings"], json!({"x": "y"}));
}

#[test]
fn a_module_with_context_aware_resources_may_read_them() {
    let read = "contextAwareResources: [{apiVersion: v1, kind: Namespace}]";
    let member =
        format!("  expression: a()\n  message: no\n  policies:\n    a: {{module: r/a, settings: null, {read}}}");
    let wanted =
        json!(["kubernetes/get_resource", "kubernetes/list_resources_all", "kubernetes/list_resources_by_namespace"]);
    for (kind, spec, wanted) in [
        ("ClusterAdmissionPolicy", format!("  module: r/a\n  settings: null\n  {read}"), &wanted),
        ("ClusterAdmissionPolicyGroup", member, &wanted),
        ("ClusterAdmissionPolicy", "  module: r/a".to_owned(), &Value::Null),
    ] {
        assert_eq!(&one(&kubewarden(kind, &spec))["spec"]["hostCapabilities"], wanted, "{spec}");
    }
}

#[test]
fn a_policy_that_uses_the_authorizer_may_check_permissions() {
    let asking = vap("").replace("object.spec.replicas <= 5", "authorizer.requestResource.check('get').allowed()");
    let bound = binding("b", "validationActions: [Deny]");
    assert_eq!(one(&(asking + &bound))["spec"]["hostCapabilities"], json!(["kubernetes/can_i"]));
    assert_eq!(one(&(vap("") + &bound))["spec"]["hostCapabilities"], Value::Null);
}

#[test]
fn the_items_of_a_list_are_imported() {
    let items: Vec<Value> = documents::parse(Path::new("a"), &(rego() + &constraint("{}")))
        .unwrap()
        .into_iter()
        .map(|it| it.value)
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    assert_eq!(one(&list)["metadata"]["name"], "owners");
}

#[test]
fn a_field_without_an_equivalent_is_refused_with_file_and_field() {
    let both = |target: &str, spec: &str| template(target) + &constraint(spec);
    let source = "rego: 'package a\n\n      violation[{\"msg\": \"no\"}] { data.inventory.x }'";
    let policy = |spec: &str| kubewarden("ClusterAdmissionPolicy", spec);
    let bound = binding("b", "validationActions: [Deny]");
    for (text, wanted) in [
        ("kind: Pod\napiVersion: v1".to_owned(), "a.yaml: kind: is \"Pod\""),
        (rego(), "a.yaml: spec.crd.spec.names.kind: there is no constraint of the kind Labels"),
        (constraint("{}"), "a.yaml: kind: is \"Labels\": the ConstraintTemplate"),
        (rego() + &constraint("{enforcementAction: warn}"), "a.yaml: document 2: spec.enforcementAction: warn"),
        (rego() + &constraint("{enforcementAction: scoped}"), "spec.enforcementAction: scoped"),
        (rego() + &constraint("{match: {kinds: [{kinds: [Widget]}]}}"), "the resource of the kind Widget is not known"),
        (rego() + &constraint("{match: {source: Generated}}"), "spec.match.source"),
        (rego() + &constraint("{match: {kindz: []}}"), "spec.match.kindz: unknown field"),
        (rego() + &constraint("{parameters: {labels: [1]}}"), "spec.parameters.labels.0"),
        (both(source, "{}"), "requires-sync-data"),
        (both(&rego_with_inventory_library(), "{}"), "requires-sync-data"),
        (both("rego: package a", "{}"), "as a policy of Proviso: spec.program.rego.source"),
        (vap(""), "metadata.name: has no binding"),
        (bound.clone(), "spec.policyName: is \"replicas\""),
        (vap("paramKind: {apiVersion: v1, kind: ConfigMap}") + &bound, "spec.paramKind"),
        (vap("failurePolicy: Ignore") + &bound, "spec.failurePolicy"),
        (vap("") + &binding("b", "validationActions: [Warn]"), "document 2: spec.validationActions: Warn"),
        (vap("") + &binding("b", "validationActions: [Deny], paramRef: {name: p}"), "spec.paramRef"),
        (
            vap("").replace("resourceRules:", "excludeResourceRules: [{}]\n    resourceRules:") + &bound,
            "excludeResourceRules",
        ),
        (policy("  module: http://a/b.wasm"), "spec.module: http://"),
        (policy("  module: a/b\n  color: red"), "spec.color: unknown field"),
        (policy("  module: a/b\n  sideEffects: Some"), "spec.sideEffects"),
        (policy("  module: a/b\n  mode: shout"), "spec.mode"),
        (policy("  settings: {}"), "spec.module: is missing"),
    ] {
        let error = of(&text).unwrap_err();
        assert!(error.contains(wanted), "{wanted}: {error}\n{text}");
    }
    let two = of(&(constraint("{}") + &vap(""))).unwrap_err();
    assert_eq!(two.lines().count(), 2, "all errors at once: {two}");
}

#[test]
fn a_kubernetes_mutation_is_kept() {
    let text = vap("").replace("Validating", "Mutating").replace(
        "validations: [{expression: object.spec.replicas <= 5, reason: Forbidden}]",
        "reinvocationPolicy: Never\n  mutations: [{patchType: JSONPatch, jsonPatch: {expression: '[]'}}]",
    );
    let text = text + &binding("b", "").replace("Validating", "Mutating").replace("replicas, }", "replicas}");
    let documents = documents::parse(Path::new("a.yaml"), &text).unwrap();
    let drafts = admission_policy::import(&documents).unwrap();
    let spec = &drafts[0].spec;
    assert_eq!(spec["program"]["cel"]["mutations"], json!([{"patchType": "JSONPatch", "expression": "[]"}]));
    assert_eq!(spec["admission"]["mutating"], true);
}
