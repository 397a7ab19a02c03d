//! Tests of the commands about policies and modules in files: `test`, `run`, `import`, `new`, `annotate` and `inspect`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::support::{examples, proviso, proviso_in, write};

const TEMPLATE: &str = include_str!("../../../examples/suites/gatekeeper/template.yaml");
const CONSTRAINT: &str = include_str!("../../../examples/suites/gatekeeper/constraint.yaml");

#[test]
fn the_suites_of_the_examples_pass() -> Result<()> {
    let output = proviso(&["test", "suites"])?;
    ensure!(output.code == Some(0) && output.err.is_empty(), "{output:?}");
    ensure!(output.out.starts_with("ok     suites/gatekeeper/suite.yaml  4 cases, "), "{}", output.out);
    ensure!(output.out.contains("\nok     suites/quickstart.yaml  30 cases, "), "{}", output.out);
    ensure!(output.out.contains("\n\n34 passed  2 suites, "), "{}", output.out);

    let output = proviso(&["test", "suites", "--run", "replica", "--verbose"])?;
    ensure!(
        output.code == Some(0) && output.out.contains("  ok     replica-limit / three replicas are allowed\n"),
        "{output:?}"
    );
    ensure!(output.out.contains("  skip   trusted-registries\n"), "{output:?}");
    Ok(())
}

#[test]
fn every_policy_of_the_quickstart_has_a_test() -> Result<()> {
    let suite = std::fs::read_to_string(examples().join("suites/quickstart.yaml"))?;
    let mut count = 0;
    for entry in std::fs::read_dir(examples().join("quickstart"))? {
        let path = entry?.path();
        let is_policy = std::fs::read_to_string(&path)?
            .lines()
            .any(|line| line.split_whitespace().take(2).eq(["kind:", "ClusterPolicy"]) || line == "kind: Policy");
        if is_policy {
            let name = path.file_name().context("its name")?.to_string_lossy();
            ensure!(suite.contains(&format!("    policy: ../quickstart/{name}\n")), "{name} has no test");
            count += 1;
        }
    }
    ensure!(count == 11, "there are {count}");
    Ok(())
}

#[test]
fn every_output_format_has_the_results() -> Result<()> {
    let output = proviso(&["test", "suites/gatekeeper", "-o", "json"])?;
    let report: Value = serde_json::from_str(&output.out)?;
    ensure!(report["counts"]["passed"] == 4 && report["counts"]["failed"] == 0, "{report:#}");
    ensure!(report["suites"][0]["tests"][0]["cases"][1]["outcome"] == "passed", "{report:#}");
    let output = proviso(&["test", "suites/gatekeeper", "-o", "tap"])?;
    ensure!(output.out.starts_with("TAP version 14\n1..4\nok 1 - suites/gatekeeper/suite.yaml: "), "{output:?}");
    let output = proviso(&["test", "suites/gatekeeper", "-o", "junit"])?;
    ensure!(output.out.contains("<testsuites tests=\"4\" failures=\"0\" errors=\"0\" skipped=\"0\""), "{output:?}");
    Ok(())
}

/// The suites have templates with libraries, an inventory for each case, and an `AdmissionReview` as the object.
#[test]
fn suites_of_gatekeeper_pass() -> Result<()> {
    let suites = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suites");
    let output = proviso_in(&suites, &["test"], "")?;
    ensure!(output.code == Some(0) && output.err.is_empty(), "{output:?}");
    ensure!(output.out.contains("\n\n8 passed  2 suites, "), "{}", output.out);
    Ok(())
}

#[test]
fn failed_tests_and_broken_tests_have_different_exit_codes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path();
    write(path, "template.yaml", TEMPLATE)?;
    write(path, "constraint.yaml", CONSTRAINT)?;
    let object = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 40}\n";
    write(path, "object.yaml", object)?;
    let suite = |template: &str, wanted: &str| {
        format!(
            "apiVersion: test.gatekeeper.sh/v1alpha1\nkind: Suite\ntests:\n- name: t\n  template: {template}\n  \
             constraint: constraint.yaml\n  cases:\n  - name: c\n    object: object.yaml\n    assertions: [{wanted}]\n"
        )
    };
    write(path, "suite.yaml", &suite("template.yaml", "{violations: no}"))?;
    let output = proviso_in(path, &["test"], "")?;
    ensure!(output.code == Some(1), "{output:?}");
    let wanted =
        "  FAIL   t / c\n         violations: expected none, found 1\n         - web has 40 replicas, not 1 to 10\n";
    ensure!(output.out.contains(wanted), "{}", output.out);

    write(path, "suite.yaml", &suite("nowhere.yaml", "{violations: no}"))?;
    let output = proviso_in(path, &["test"], "")?;
    ensure!(output.code == Some(2) && output.out.contains("nowhere.yaml cannot be read"), "{output:?}");

    // A template that does not compile is an error of its test, and not a test without violations.
    write(path, "broken.yaml", &TEMPLATE.replace("count <=", "no_such_builtin(count) <="))?;
    let text = suite("broken.yaml", "{violations: no}");
    for text in [&text, &format!("{text}    inventory: [object.yaml]\n")] {
        write(path, "suite.yaml", text)?;
        let output = proviso_in(path, &["test"], "")?;
        ensure!(output.code == Some(2) && output.out.contains("no_such_builtin"), "{output:?}");
        ensure!(output.out.contains("  ERROR  t\n         ./broken.yaml: rego: "), "{}", output.out);
    }

    let output = proviso_in(path, &["test", "--run", "nothing"], "")?;
    ensure!(output.code == Some(2) && output.err.contains("matches no test case"), "{output:?}");
    Ok(())
}

#[test]
fn a_policy_evaluates_a_review_or_an_object() -> Result<()> {
    let labels = "quickstart/required-labels.yaml";
    let output = proviso(&["run", labels, "reviews/deployment-create.json"])?;
    ensure!(output.code == Some(0) && output.out == "cluster.required-labels  allowed\n", "{output:?}");
    let output = proviso(&["run", labels, "reviews/deployment-create-unlabelled.json"])?;
    ensure!(
        output.code == Some(1) && output.out.starts_with("cluster.required-labels  denied\nDeployment lacks"),
        "{output:?}"
    );

    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {team: x}}";
    let folder = tempfile::tempdir()?;
    let settings = write(folder.path(), "settings.yaml", "labels: [team]")?;
    let output = proviso_in(&examples(), &["run", labels, "--settings", &settings, "-o", "json"], pod)?;
    let report: Value = serde_json::from_str(&output.out)?;
    ensure!(
        output.code == Some(0) && report["allowed"] == true && report["policy"] == "cluster.required-labels",
        "{output:?}"
    );
    let output = proviso_in(&examples(), &["run", labels, "-n", "kube-system"], pod)?;
    ensure!(output.code == Some(0) && output.out.contains("not asked: spec.admission.namespaceSelector"), "{output:?}");
    let output = proviso_in(&examples(), &["run", labels, "--operation", "delete"], pod)?;
    ensure!(output.out.contains("not asked: spec.admission.rules"), "{output:?}");
    Ok(())
}

#[test]
fn match_conditions_exclude_a_request_as_in_an_api_server() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let pod = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}"#;
    let (holds, fails, broken) = ("request.name == 'web'", "request.name == 'db'", "object.spec.replicas > 1");
    for (expressions, code, wanted) in [
        (vec![holds], 1, "denied"),
        (vec![holds, fails], 0, "not asked: spec.admission.matchConditions: c1 does not hold"),
        (vec![broken, fails], 0, "not asked: spec.admission.matchConditions: c1 does not hold"),
        (vec![holds, broken], 2, "spec.admission.matchConditions: c1: "),
        (vec!["object."], 2, "spec.admission.matchConditions[0].expression: "),
    ] {
        let conditions = expressions.iter().enumerate();
        let conditions: Vec<_> =
            conditions.map(|(index, it)| json!({"name": format!("c{index}"), "expression": it})).collect();
        let rules = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]);
        let policy = json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "a"},
            "spec": {
                "program": {"cel": {"validations": [{"expression": "false"}]}},
                "admission": {"rules": rules, "matchConditions": conditions},
            },
        });
        write(folder.path(), "policy.json", &policy.to_string())?;
        let output = proviso_in(folder.path(), &["run", "policy.json"], pod)?;
        ensure!(output.code == Some(code), "{expressions:?}: {output:?}");
        ensure!(format!("{}{}", output.out, output.err).contains(wanted), "{expressions:?}: {output:?}");
    }
    Ok(())
}

#[test]
fn a_raw_policy_evaluates_any_json() -> Result<()> {
    let regions = "quickstart/approved-regions.yaml";
    let output = proviso(&["run", regions, "reviews/raw-database.json", "--raw"])?;
    ensure!(output.code == Some(1) && output.out.contains("production runs in eu-1, not in us-1"), "{output:?}");
    let body = r#"{"request": {"environment": "test", "region": "us-1"}}"#;
    let output = proviso_in(&examples(), &["run", regions, "--raw"], body)?;
    ensure!(output.code == Some(0) && output.out == "cluster.approved-regions  allowed\n", "{output:?}");
    let output = proviso_in(&examples(), &["run", regions, "--raw"], r#"{"environment": "test"}"#)?;
    ensure!(output.code == Some(2) && output.err.contains("environment"), "{output:?}");
    let output = proviso(&["run", regions, "reviews/raw-database.json", "--raw", "-n", "payments"])?;
    ensure!(output.code == Some(2) && output.err.contains("leave out --namespace"), "{output:?}");
    Ok(())
}

#[test]
fn a_mutation_is_shown_as_a_diff() -> Result<()> {
    let output = proviso(&["run", "quickstart/safe-defaults.yaml", "reviews/pod-create.json"])?;
    ensure!(output.code == Some(0), "{output:?}");
    ensure!(output.out.contains("\n--- before the mutation\n+++ after the mutation\n"), "{}", output.out);
    ensure!(output.out.contains("\n+    proviso.dev/safe-defaults: v1\n"), "{}", output.out);
    Ok(())
}

#[test]
fn a_program_is_evaluated_without_a_manifest() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path();
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}";
    write(path, "gatekeeper.rego", "package a\nviolation[{\"msg\": \"never\"}] { input.review.kind.kind == \"Pod\" }")?;
    let output = proviso_in(path, &["run", "gatekeeper.rego"], pod)?;
    ensure!(output.code == Some(1) && output.out == "gatekeeper.rego  denied\nnever\n", "{output:?}");
    write(
        path,
        "opa.rego",
        "package a\nimport rego.v1\nwarn contains \"careful\" if input.request.name == \"a\"\ndeny contains \"no\" if false",
    )?;
    let output = proviso_in(path, &["run", "opa.rego"], pod)?;
    ensure!(output.code == Some(0) && output.out == "opa.rego  allowed\n\nWarnings\n- careful\n", "{output:?}");
    write(path, "broken.rego", "package a\nviolation[{\"msg\": 1}] { true }")?;
    let output = proviso_in(path, &["run", "broken.rego"], pod)?;
    ensure!(output.code == Some(2), "a failed evaluation is not a denial: {output:?}");

    let module = examples().join("policies/trusted-registries/trusted-registries.wasm");
    let settings = write(path, "settings.json", r#"{"registries": ["registry.example.com"], "allowLatest": false}"#)?;
    let arguments = ["run", module.to_str().unwrap(), "--settings", &settings];
    let of = |image: &str| format!("{pod}\nspec: {{containers: [{{name: a, image: '{image}'}}]}}");
    let output = proviso_in(path, &arguments, &of("registry.example.com/a:1"))?;
    ensure!(output.code == Some(0), "{output:?}");
    let output = proviso_in(path, &arguments, &of("docker.io/somebody/a:1"))?;
    ensure!(output.code == Some(1) && output.out.contains("denied"), "{output:?}");
    let wrong = write(path, "wrong.json", r#"{"registries": 1}"#)?;
    let output = proviso_in(path, &["run", module.to_str().unwrap(), "--settings", &wrong], pod)?;
    ensure!(output.code == Some(2) && output.err.contains("settings"), "{output:?}");
    Ok(())
}

#[test]
fn an_imported_policy_has_the_verdicts_of_its_source() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path();
    let files = ["gatekeeper/template.yaml", "gatekeeper/constraint.yaml"].map(|it| examples().join("suites").join(it));
    let [template, constraint] = files.map(|it| it.to_str().unwrap().to_owned());
    let output = proviso_in(path, &["import", &constraint, &template, "--output-dir", "out"], "")?;
    ensure!(output.code == Some(0) && output.out == "out/ten-at-most.yaml\n", "{output:?}");
    for (object, code) in [("few.yaml", 0), ("many.yaml", 1), ("update.yaml", 1)] {
        let object = examples().join("suites/gatekeeper").join(object);
        let output = proviso_in(path, &["run", "out/ten-at-most.yaml", object.to_str().unwrap()], "")?;
        ensure!(output.code == Some(code), "{}: {output:?}", object.display());
    }
    let output = proviso_in(path, &["import", &constraint, &template, "--output-dir", "out"], "")?;
    ensure!(
        output.code == Some(2) && output.err.contains("ten-at-most.yaml"),
        "an existing file is not replaced: {output:?}"
    );
    let output = proviso_in(path, &["import", &template], "")?;
    ensure!(output.code == Some(2) && output.err.contains("template.yaml: spec.crd.spec.names.kind"), "{output:?}");
    Ok(())
}

#[test]
fn a_new_policy_passes_its_own_tests() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for language in ["rego", "cel", "go"] {
        let name = format!("owners-{language}");
        let output = proviso_in(folder.path(), &["new", language, &name], "")?;
        ensure!(output.code == Some(0) && output.out.contains(&format!("proviso test {name}")), "{output:?}");
        let path = folder.path().join(&name);
        if language == "go" {
            build(&path)?;
        }
        let output = proviso_in(folder.path(), &["test", &name], "")?;
        ensure!(output.code == Some(0) && output.out.contains("3 passed"), "{output:?}");
        let output = proviso_in(folder.path(), &["new", language, &name], "")?;
        ensure!(output.code == Some(2) && output.err.contains(&name), "an existing folder is not changed: {output:?}");
    }
    Ok(())
}

/// The module is tested only if the compiler has the wasm target; the functions are always tested.
#[test]
fn a_new_policy_in_rust_passes_its_own_tests() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let output = proviso_in(folder.path(), &["new", "rust", "owners"], "")?;
    ensure!(output.code == Some(0) && output.out.contains("make, and proviso test owners"), "{output:?}");
    let path = folder.path().join("owners");
    // The same versions of dependencies as the examples, which the machine has already.
    std::fs::copy(examples().join("policies/Cargo.lock"), path.join("Cargo.lock"))?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let result = Command::new(&cargo)
        .args(["test", "--workspace", "--target-dir", "target"])
        .current_dir(&path)
        .output()
        .context("running cargo")?;
    let stdout = String::from_utf8_lossy(&result.stdout);
    ensure!(result.status.success(), "{stdout}{}", String::from_utf8_lossy(&result.stderr));
    ensure!(stdout.contains("the_denial_names_the_missing_label ... ok"), "{stdout}");
    ensure!(stdout.contains("every_operation_answers_as_kubewarden_expects ... ok"), "{stdout}");

    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let target = ["--print", "target-libdir", "--target", "wasm32-unknown-unknown"];
    let library = Command::new(rustc).args(target).current_dir(&path).output().context("running rustc")?;
    if !Path::new(String::from_utf8(library.stdout)?.trim()).is_dir() {
        return Ok(());
    }
    build(&path)?;
    let output = proviso_in(folder.path(), &["test", "owners"], "")?;
    ensure!(output.code == Some(0) && output.out.contains("3 passed"), "{output:?}");
    let output = proviso_in(&path, &["inspect", "policy.wasm"], "")?;
    ensure!(output.out.contains("io.kubewarden.policy.title: owners"), "{output:?}");
    Ok(())
}

/// Runs the Makefile of a policy, with the program of this test in `PATH`.
fn build(folder: &Path) -> Result<()> {
    let program = Path::new(env!("CARGO_BIN_EXE_proviso")).parent().context("a folder")?;
    let path = std::env::var("PATH")?;
    let result = Command::new("make")
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", program.display()))
        .output()
        .context("running make")?;
    ensure!(result.status.success(), "make: {}", String::from_utf8_lossy(&result.stderr));
    Ok(())
}

#[test]
fn the_metadata_of_an_annotated_module_is_shown() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path();
    std::fs::copy(examples().join("policies/safe-defaults/safe-defaults.wasm"), path.join("a.wasm"))?;
    write(path, "metadata.yaml", "mutating: true\nannotations: {io.kubewarden.policy.title: Defaults}\n")?;
    let output = proviso_in(path, &["annotate", "a.wasm", "-m", "metadata.yaml"], "")?;
    ensure!(output.code == Some(0), "{output:?}");
    let output = proviso_in(path, &["inspect", "a.wasm"], "")?;
    ensure!(
        output.out.contains("\nMetadata\nannotations:\n  io.kubewarden.policy.title: Defaults\n"),
        "{}",
        output.out
    );
    write(path, "metadata.yaml", "mutating: maybe\n")?;
    let output = proviso_in(path, &["annotate", "a.wasm", "-m", "metadata.yaml"], "")?;
    ensure!(output.code == Some(2) && output.err.contains("io.kubewarden.metadata"), "{output:?}");
    Ok(())
}

#[test]
fn a_request_to_a_service_has_a_trail_and_an_explanation() -> Result<()> {
    let evaluate = |request: &str, more: &[&str]| {
        let request = format!("requests/requests/{request}.json");
        proviso(&[&["evaluate", "-f", &request, "--policies", "requests/policies"], more].concat())
    };
    let output = evaluate("vm", &["--explain", "cpu"])?;
    ensure!(output.code == Some(0), "{output:?}");
    ensure!(output.out.starts_with("MODIFIED  service provider east-1\n"), "{}", output.out);
    for part in [
        "patches cost_center; locks cost_center",
        "It is 1: set by ns.team-blue.ana-test-machines (User, priority 500).",
        "- ns.team-blue.defaults (Tenant, priority 100) constrains it: {\"maximum\":8}",
        "+cost_center: cc-100",
    ] {
        ensure!(output.out.contains(part), "{part}: {}", output.out);
    }
    let output = evaluate("vm-large", &["-o", "json"])?;
    let report: Value = serde_json::from_str(&output.out)?;
    ensure!(output.code == Some(1) && report["status"] == "REJECTED", "{output:?}");
    ensure!(report["trail"].as_array().is_some_and(|trail| trail.len() == 3), "{report:#}");
    let other = evaluate("vm-large", &["--tenant", "green", "--user", "eve"])?;
    ensure!(
        other.out.contains("APPROVED") || other.out.contains("MODIFIED"),
        "another tenant has no such limit: {other:?}"
    );
    let output = proviso(&["evaluate", "-f", "requests/requests/vm.json", "--policies", "quickstart"])?;
    ensure!(output.code == Some(2) && output.err.contains("there is no policy with `spec.request` in "), "{output:?}");
    Ok(())
}

#[test]
fn a_suite_tests_a_chain_of_request_policies() -> Result<()> {
    let output = proviso(&["test", "requests"])?;
    ensure!(output.code == Some(0) && output.out.contains("5 passed"), "{output:?}");
    let folder = tempfile::tempdir()?;
    let path = folder.path();
    let policies = serde_json::to_string(&format!("{}/requests/policies", examples().display()))?;
    for (case, code, words) in [
        (r#"{"payload": {}, "expect": {"status": "APPROVED"}}"#, 1, "status: expected APPROVED, found MODIFIED"),
        (r#"{"expect": {"status": "APPROVED"}}"#, 2, "set `request` or `payload`"),
        (
            r#"{"payload": {}, "request": {}, "expect": {"status": "APPROVED"}}"#,
            2,
            "request: cannot be combined with payload",
        ),
        (r#"{"payload": {}, "expect": {"status": "ALLOWED"}}"#, 2, "tests[0].cases[0].expect.status"),
        (r#"{"payload": {}, "expect": {"status": "MODIFIED", "allowed": true}}"#, 2, "unknown field `allowed`"),
    ] {
        let mut case: Value = serde_json::from_str(case)?;
        case["name"] = "a".into();
        let suite = format!(
            r#"{{"apiVersion": "test.proviso.dev/v1alpha1", "kind": "Suite", "tests": [{{"name": "t", "policies": {policies}, "cases": [{case}]}}]}}"#
        );
        write(path, "suite.json", &suite)?;
        let output = proviso_in(path, &["test", "."], "")?;
        let text = format!("{}{}", output.out, output.err);
        ensure!(output.code == Some(code) && text.contains(words), "{case} {output:?}");
    }
    Ok(())
}
