use super::*;

const POLICY: &str = "\
apiVersion: proviso.dev/v1alpha1
kind: ClusterPolicy
metadata:
  name: good
spec:
  program:
    cel:
      validations:
        - expression: object.metadata.name != 'x'
  settings:
    limit: 3
  admission:
    rules:
      - operations: [CREATE]
        apiGroups: ['']
        apiVersions: [v1]
        resources: [pods]
";

fn read(text: &str) -> Manifests {
    let mut manifests = Manifests::default();
    manifests.read_text(Path::new("a.yaml"), text);
    manifests
}

fn problems(text: &str) -> Vec<String> {
    read(text).problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_policy_is_read_with_its_defaults() {
    let manifests = read(POLICY);
    assert_eq!(manifests.problems, []);
    let policy = &manifests.policies[&PolicyId::cluster("good").unwrap()];
    assert!(policy.spec.enabled);
    assert_eq!(policy.spec.settings["limit"], 3);
    assert_eq!(policy.spec.admission.as_ref().unwrap().timeout_seconds, 10);
}

#[test]
fn a_wrong_field_is_named_with_its_file_document_line_and_path() {
    for (from, to, wanted) in [
        ("limit: 3", "limit: 3\n  setings: {}", "a.yaml:12: document 1: spec.setings: is not a known field"),
        (
            "expression:",
            "expresion:",
            "a.yaml:9: document 1: spec.program.cel.validations[0]: missing field `expression`",
        ),
        (
            "- operations:",
            "- scop: x\n        operations:",
            "a.yaml:14: document 1: spec.admission.rules[0].scop: is not a known field",
        ),
        (
            "cel:",
            "lua:",
            "a.yaml:6: document 1: spec.program: needs exactly one of `wasm`, `rego`, `cel`, `group` and `requests`",
        ),
        (
            "operations: [CREATE]",
            "operations: [READ]",
            "a.yaml:14: document 1: spec.admission.rules[0].operations: has \"READ\"",
        ),
        (
            "      validations:",
            "      unknown: 1\n      validations:",
            "a.yaml:8: document 1: spec.program.cel.unknown: is not a known field",
        ),
        ("  settings:", "  rollout: {}\n  settings:", "spec.rollout: is not served by this version"),
        (
            "limit: 3",
            "limit: 3\n  timeoutEvalSeconds: soon",
            "spec.timeoutEvalSeconds: invalid type: string \"soon\", expected u32",
        ),
        ("name: good", "name: Good", "a.yaml:4: document 1: metadata.name: \"Good\" is not a policy name"),
        ("name: good", "name: good\n  namespace: a", "a.yaml:5: document 1: metadata.namespace: must not be set"),
        ("kind: ClusterPolicy", "kind: ClusterPolicies", "a.yaml:2: document 1: kind: is \"ClusterPolicies\""),
        ("v1alpha1", "v2", "a.yaml:1: document 1: apiVersion: is \"proviso.dev/v2\""),
        ("settings:\n    limit: 3", "settings: 3", "spec.settings"),
        ("kind: ClusterPolicy\n", "", "`apiVersion` or `kind` is missing"),
    ] {
        assert!(POLICY.contains(from), "{from}");
        let problems = problems(&POLICY.replace(from, to));
        assert_eq!(problems.len(), 1, "{to}: {problems:?}");
        assert!(problems[0].contains(wanted), "{wanted:?} is not in {:?}", problems[0]);
    }
}

#[test]
fn an_invalid_document_does_not_affect_the_others() {
    let second = POLICY.replace("name: good", "name: second");
    let broken = "---\nkind: [\nmetadata: 'text\n";
    let manifests = read(&format!("{POLICY}---\n# nothing\n{broken}---\n{second}"));
    assert_eq!(manifests.policies.len(), 2, "{:?}", manifests.problems);
    assert_eq!(manifests.problems.len(), 1);
    let problem = &manifests.problems[0];
    assert_eq!((problem.place.document, &problem.object), (2, &None));
    assert!((20..=25).contains(&problem.place.line), "{problem}");
}

#[test]
fn the_problem_of_an_invalid_policy_has_the_id_of_the_policy() {
    let manifests = read(&POLICY.replace("limit: 3", "limit: 3\n  setings: {}"));
    assert_eq!(manifests.problems[0].object, Some(ObjectId::Policy(PolicyId::cluster("good").unwrap())));
}

#[test]
fn the_first_of_two_documents_about_one_object_counts() {
    let manifests = read(&format!("{POLICY}---\n{}", POLICY.replace("limit: 3", "limit: 4")));
    assert_eq!(manifests.policies[&PolicyId::cluster("good").unwrap()].spec.settings["limit"], 3);
    assert!(manifests.problems[0].to_string().contains("is already defined at a.yaml:1"), "{}", manifests.problems[0]);
}

#[test]
fn experiments_namespaces_and_json_are_read_and_other_kinds_are_ignored() {
    let spec: serde_json::Value = serde_yaml::from_str::<serde_json::Value>(POLICY).unwrap()["spec"].clone();
    let experiment = serde_json::json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyExperiment", "metadata": {"name": "e", "namespace": "pay"},
        "spec": {"policyRef": {"name": "p"}, "policy": spec, "autoStart": true}, "status": {"anything": 1},
    });
    let namespace = "kind: Namespace\napiVersion: v1\nmetadata: {name: pay, labels: {env: prod}}\nspec: {future: 1}";
    let other = "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}";
    let manifests = read(&format!("{experiment:#}\n---\n{namespace}\n---\n{other}\n--- # empty\n"));
    assert_eq!(manifests.problems, []);
    let id = ExperimentId { namespace: Some("pay".into()), name: "e".into() };
    assert!(manifests.experiments[&id].spec.auto_start);
    assert_eq!(manifests.namespaces["pay"].spec["env"], "prod");
    assert!(manifests.policies.is_empty());
}

#[test]
fn a_policy_without_a_namespace_is_in_the_default_one() {
    let manifests = read(&POLICY.replace("ClusterPolicy", "Policy"));
    assert!(manifests.policies.contains_key(&PolicyId::namespaced("default", "good").unwrap()), "{manifests:?}");
}

#[test]
fn the_folder_is_read_at_any_depth_and_without_hidden_files() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("a/b");
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::create_dir_all(folder.path().join("..data")).unwrap();
    for (path, name) in
        [("a/b/x.yaml", "one"), ("y.yml", "two"), (".z.yaml", "three"), ("..data/y.yaml", "four"), ("n.txt", "five")]
    {
        std::fs::write(folder.path().join(path), POLICY.replace("good", name)).unwrap();
    }
    let manifests = Manifests::read(folder.path());
    let names: Vec<_> = manifests.policies.keys().map(PolicyId::name).collect();
    assert_eq!(names, ["one", "two"], "{:?}", manifests.problems);
}

#[test]
fn an_alias_bomb_is_an_error() {
    let mut bomb = "a: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 9].join(", ");
        bomb = format!("{bomb}b{level}: &a{level} [{aliases}]\n");
    }
    let problems = problems(&POLICY.replace("limit: 3\n", &bomb.replace("\nb", "\n    b")));
    assert!(problems.len() == 1 && problems[0].contains("repetition limit"), "{problems:?}");
}
