//! What `proviso` does with policies and modules in files: `test`, `run`, `import`, `new`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::support::{examples, proviso, proviso_in, write};

const TEMPLATE: &str = include_str!("../../../examples/suites/gatekeeper/template.yaml");
const CONSTRAINT: &str = include_str!("../../../examples/suites/gatekeeper/constraint.yaml");

#[test]
fn the_suites_of_the_examples_pass() -> Result<()> {
    let said = proviso(&["test", "suites"])?;
    ensure!(said.code == Some(0) && said.err.is_empty(), "{said:?}");
    ensure!(said.out.starts_with("ok     suites/gatekeeper/suite.yaml  4 cases, "), "{}", said.out);
    ensure!(said.out.contains("\nok     suites/quickstart.yaml  30 cases, "), "{}", said.out);
    ensure!(said.out.contains("\n\n34 passed  2 suites, "), "{}", said.out);

    let said = proviso(&["test", "suites", "--run", "replica", "--verbose"])?;
    ensure!(said.code == Some(0) && said.out.contains("  ok     replica-limit / a few are not\n"), "{said:?}");
    ensure!(said.out.contains("  skip   trusted-registries\n"), "{said:?}");
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
fn every_form_of_output_says_the_same() -> Result<()> {
    let said = proviso(&["test", "suites/gatekeeper", "-o", "json"])?;
    let report: Value = serde_json::from_str(&said.out)?;
    ensure!(report["counts"]["passed"] == 4 && report["counts"]["failed"] == 0, "{report:#}");
    ensure!(report["suites"][0]["tests"][0]["cases"][1]["outcome"] == "passed", "{report:#}");
    let said = proviso(&["test", "suites/gatekeeper", "-o", "tap"])?;
    ensure!(said.out.starts_with("TAP version 14\n1..4\nok 1 - suites/gatekeeper/suite.yaml: "), "{said:?}");
    let said = proviso(&["test", "suites/gatekeeper", "-o", "junit"])?;
    ensure!(said.out.contains("<testsuites tests=\"4\" failures=\"0\" errors=\"0\" skipped=\"0\""), "{said:?}");
    Ok(())
}

/// With libraries, an inventory of its own for each case, and a request that is more than its object.
#[test]
fn suites_of_gatekeeper_pass() -> Result<()> {
    let suites = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suites");
    let said = proviso_in(&suites, &["test"], "")?;
    ensure!(said.code == Some(0) && said.err.is_empty(), "{said:?}");
    ensure!(said.out.contains("\n\n8 passed  2 suites, "), "{}", said.out);
    Ok(())
}

#[test]
fn a_test_that_fails_and_one_that_cannot_run_end_differently() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let place = folder.path();
    write(place, "template.yaml", TEMPLATE)?;
    write(place, "constraint.yaml", CONSTRAINT)?;
    let object = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 40}\n";
    write(place, "object.yaml", object)?;
    let suite = |template: &str, wanted: &str| {
        format!(
            "apiVersion: test.gatekeeper.sh/v1alpha1\nkind: Suite\ntests:\n- name: t\n  template: {template}\n  \
             constraint: constraint.yaml\n  cases:\n  - name: c\n    object: object.yaml\n    assertions: [{wanted}]\n"
        )
    };
    write(place, "suite.yaml", &suite("template.yaml", "{violations: no}"))?;
    let said = proviso_in(place, &["test"], "")?;
    ensure!(said.code == Some(1), "{said:?}");
    let wanted =
        "  FAIL   t / c\n         violations: expected none, found 1\n         - web has 40 replicas, not 1 to 10\n";
    ensure!(said.out.contains(wanted), "{}", said.out);

    write(place, "suite.yaml", &suite("nowhere.yaml", "{violations: no}"))?;
    let said = proviso_in(place, &["test"], "")?;
    ensure!(said.code == Some(2) && said.out.contains("nowhere.yaml cannot be read"), "{said:?}");

    // A template that this version does not run is one error of its test, and not a suite without violations.
    write(place, "broken.yaml", &TEMPLATE.replace("count <=", "no_such_builtin(count) <="))?;
    let text = suite("broken.yaml", "{violations: no}");
    for text in [&text, &format!("{text}    inventory: [object.yaml]\n")] {
        write(place, "suite.yaml", text)?;
        let said = proviso_in(place, &["test"], "")?;
        ensure!(said.code == Some(2) && said.out.contains("no_such_builtin"), "{said:?}");
        ensure!(said.out.contains("  ERROR  t\n         ./broken.yaml: rego: "), "{}", said.out);
    }

    let said = proviso_in(place, &["test", "--run", "nothing"], "")?;
    ensure!(said.code == Some(2) && said.err.contains("no case is chosen"), "{said:?}");
    Ok(())
}

#[test]
fn a_policy_is_asked_about_a_review_or_an_object() -> Result<()> {
    let labels = "quickstart/required-labels.yaml";
    let said = proviso(&["run", labels, "reviews/deployment-create.json"])?;
    ensure!(said.code == Some(0) && said.out == "cluster.required-labels  allowed\n", "{said:?}");
    let said = proviso(&["run", labels, "reviews/deployment-create-unlabelled.json"])?;
    ensure!(
        said.code == Some(1) && said.out.starts_with("cluster.required-labels  denied\nDeployment lacks"),
        "{said:?}"
    );

    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {team: x}}";
    let folder = tempfile::tempdir()?;
    let settings = write(folder.path(), "settings.yaml", "labels: [team]")?;
    let said = proviso_in(&examples(), &["run", labels, "--settings", &settings, "-o", "json"], pod)?;
    let report: Value = serde_json::from_str(&said.out)?;
    ensure!(
        said.code == Some(0) && report["allowed"] == true && report["policy"] == "cluster.required-labels",
        "{said:?}"
    );
    let said = proviso_in(&examples(), &["run", labels, "-n", "kube-system"], pod)?;
    ensure!(said.code == Some(0) && said.out.contains("not asked: spec.admission.namespaceSelector"), "{said:?}");
    let said = proviso_in(&examples(), &["run", labels, "--operation", "delete"], pod)?;
    ensure!(said.out.contains("not asked: spec.admission.rules"), "{said:?}");
    Ok(())
}

#[test]
fn conditions_leave_a_request_out_as_an_api_server_would() -> Result<()> {
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
        let said = proviso_in(folder.path(), &["run", "policy.json"], pod)?;
        ensure!(said.code == Some(code), "{expressions:?}: {said:?}");
        ensure!(format!("{}{}", said.out, said.err).contains(wanted), "{expressions:?}: {said:?}");
    }
    Ok(())
}

#[test]
fn a_raw_policy_is_asked_about_anything() -> Result<()> {
    let regions = "quickstart/approved-regions.yaml";
    let said = proviso(&["run", regions, "reviews/raw-database.json", "--raw"])?;
    ensure!(said.code == Some(1) && said.out.contains("production runs in eu-1, not in us-1"), "{said:?}");
    let body = r#"{"request": {"environment": "test", "region": "us-1"}}"#;
    let said = proviso_in(&examples(), &["run", regions, "--raw"], body)?;
    ensure!(said.code == Some(0) && said.out == "cluster.approved-regions  allowed\n", "{said:?}");
    let said = proviso_in(&examples(), &["run", regions, "--raw"], r#"{"environment": "test"}"#)?;
    ensure!(said.code == Some(2) && said.err.contains("environment"), "{said:?}");
    let said = proviso(&["run", regions, "reviews/raw-database.json", "--raw", "-n", "payments"])?;
    ensure!(said.code == Some(2) && said.err.contains("leave out --namespace"), "{said:?}");
    Ok(())
}

#[test]
fn a_change_is_shown_as_a_difference() -> Result<()> {
    let said = proviso(&["run", "quickstart/safe-defaults.yaml", "reviews/pod-create.json"])?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(said.out.contains("\n--- the request\n+++ what the policy makes of it\n"), "{}", said.out);
    ensure!(said.out.contains("\n+    proviso.dev/safe-defaults: v1\n"), "{}", said.out);
    Ok(())
}

#[test]
fn a_program_is_asked_without_any_manifest() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let place = folder.path();
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}";
    write(
        place,
        "gatekeeper.rego",
        "package a\nviolation[{\"msg\": \"never\"}] { input.review.kind.kind == \"Pod\" }",
    )?;
    let said = proviso_in(place, &["run", "gatekeeper.rego"], pod)?;
    ensure!(said.code == Some(1) && said.out == "gatekeeper.rego  denied\nnever\n", "{said:?}");
    write(
        place,
        "opa.rego",
        "package a\nimport rego.v1\nwarn contains \"careful\" if input.request.name == \"a\"\ndeny contains \"no\" if false",
    )?;
    let said = proviso_in(place, &["run", "opa.rego"], pod)?;
    ensure!(said.code == Some(0) && said.out == "opa.rego  allowed\n\nWarnings\n- careful\n", "{said:?}");
    write(place, "broken.rego", "package a\nviolation[{\"msg\": 1}] { true }")?;
    let said = proviso_in(place, &["run", "broken.rego"], pod)?;
    ensure!(said.code == Some(2), "a policy that fails is no denial: {said:?}");

    let module = examples().join("policies/trusted-registries/trusted-registries.wasm");
    let settings = write(place, "settings.json", r#"{"registries": ["registry.example.com"], "allowLatest": false}"#)?;
    let arguments = ["run", module.to_str().unwrap(), "--settings", &settings];
    let of = |image: &str| format!("{pod}\nspec: {{containers: [{{name: a, image: '{image}'}}]}}");
    let said = proviso_in(place, &arguments, &of("registry.example.com/a:1"))?;
    ensure!(said.code == Some(0), "{said:?}");
    let said = proviso_in(place, &arguments, &of("docker.io/somebody/a:1"))?;
    ensure!(said.code == Some(1) && said.out.contains("denied"), "{said:?}");
    let wrong = write(place, "wrong.json", r#"{"registries": 1}"#)?;
    let said = proviso_in(place, &["run", module.to_str().unwrap(), "--settings", &wrong], pod)?;
    ensure!(said.code == Some(2) && said.err.contains("settings"), "{said:?}");
    Ok(())
}

#[test]
fn an_imported_policy_decides_as_the_one_that_it_comes_from() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let place = folder.path();
    let files = ["gatekeeper/template.yaml", "gatekeeper/constraint.yaml"].map(|it| examples().join("suites").join(it));
    let [template, constraint] = files.map(|it| it.to_str().unwrap().to_owned());
    let said = proviso_in(place, &["import", &constraint, &template, "--output-dir", "out"], "")?;
    ensure!(said.code == Some(0) && said.out == "out/ten-at-most.yaml\n", "{said:?}");
    for (object, code) in [("few.yaml", 0), ("many.yaml", 1), ("update.yaml", 1)] {
        let object = examples().join("suites/gatekeeper").join(object);
        let said = proviso_in(place, &["run", "out/ten-at-most.yaml", object.to_str().unwrap()], "")?;
        ensure!(said.code == Some(code), "{}: {said:?}", object.display());
    }
    let said = proviso_in(place, &["import", &constraint, &template, "--output-dir", "out"], "")?;
    ensure!(said.code == Some(2) && said.err.contains("ten-at-most.yaml"), "what is there stays: {said:?}");
    let said = proviso_in(place, &["import", &template], "")?;
    ensure!(said.code == Some(2) && said.err.contains("template.yaml: spec.crd.spec.names.kind"), "{said:?}");
    Ok(())
}

#[test]
fn a_new_policy_passes_its_own_tests() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for language in ["rego", "cel", "go"] {
        let name = format!("owners-{language}");
        let said = proviso_in(folder.path(), &["new", language, &name], "")?;
        ensure!(said.code == Some(0) && said.out.contains(&format!("proviso test {name}")), "{said:?}");
        let place = folder.path().join(&name);
        if language == "go" {
            build(&place)?;
        }
        let said = proviso_in(folder.path(), &["test", &name], "")?;
        ensure!(said.code == Some(0) && said.out.contains("3 passed"), "{said:?}");
        let said = proviso_in(folder.path(), &["new", language, &name], "")?;
        ensure!(said.code == Some(2) && said.err.contains(&name), "what is there stays: {said:?}");
    }
    Ok(())
}

/// Its functions are tested everywhere; the module where the compiler has the target for it.
#[test]
fn a_new_policy_in_rust_passes_its_own_tests() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let said = proviso_in(folder.path(), &["new", "rust", "owners"], "")?;
    ensure!(said.code == Some(0) && said.out.contains("make, and proviso test owners"), "{said:?}");
    let place = folder.path().join("owners");
    // The versions that the examples are built with.
    std::fs::copy(examples().join("policies/Cargo.lock"), place.join("Cargo.lock"))?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(&cargo)
        .args(["test", "--workspace", "--target-dir", "target"])
        .current_dir(&place)
        .output()
        .context("running cargo")?;
    let told = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(told.contains("a_label_that_is_missing_is_named ... ok"), "{told}");
    ensure!(told.contains("every_operation_answers_as_kubewarden_expects ... ok"), "{told}");

    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let target = ["--print", "target-libdir", "--target", "wasm32-unknown-unknown"];
    let library = Command::new(rustc).args(target).current_dir(&place).output().context("running rustc")?;
    if !Path::new(String::from_utf8(library.stdout)?.trim()).is_dir() {
        return Ok(());
    }
    build(&place)?;
    let said = proviso_in(folder.path(), &["test", "owners"], "")?;
    ensure!(said.code == Some(0) && said.out.contains("3 passed"), "{said:?}");
    let said = proviso_in(&place, &["inspect", "policy.wasm"], "")?;
    ensure!(said.out.contains("io.kubewarden.policy.title: owners"), "{said:?}");
    Ok(())
}

/// Runs the Makefile of a policy, with this program.
fn build(place: &Path) -> Result<()> {
    let program = Path::new(env!("CARGO_BIN_EXE_proviso")).parent().context("a folder")?;
    let path = std::env::var("PATH")?;
    let output = Command::new("make")
        .current_dir(place)
        .env("PATH", format!("{}:{path}", program.display()))
        .output()
        .context("running make")?;
    ensure!(output.status.success(), "make: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
fn a_module_says_what_it_was_annotated_with() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let place = folder.path();
    std::fs::copy(examples().join("policies/safe-defaults/safe-defaults.wasm"), place.join("a.wasm"))?;
    write(place, "metadata.yaml", "mutating: true\nannotations: {io.kubewarden.policy.title: Defaults}\n")?;
    let said = proviso_in(place, &["annotate", "a.wasm", "-m", "metadata.yaml"], "")?;
    ensure!(said.code == Some(0), "{said:?}");
    let said = proviso_in(place, &["inspect", "a.wasm"], "")?;
    ensure!(said.out.contains("\nMetadata\nannotations:\n  io.kubewarden.policy.title: Defaults\n"), "{}", said.out);
    write(place, "metadata.yaml", "mutating: maybe\n")?;
    let said = proviso_in(place, &["annotate", "a.wasm", "-m", "metadata.yaml"], "")?;
    ensure!(said.code == Some(2) && said.err.contains("io.kubewarden.metadata"), "{said:?}");
    Ok(())
}
