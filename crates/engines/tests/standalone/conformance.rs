//! Runs this crate's cases in the format of OPA, which all pass. `examples/rego-conformance.rs` runs OPA's own cases.

use std::path::Path;

#[path = "../support/conformance.rs"]
mod runner;

use runner::Outcome;

#[test]
fn cases_in_the_format_of_opa_pass() {
    let runs = runner::run(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/opa")).unwrap();
    assert!(runs.len() > 40, "{} cases", runs.len());
    let failed = runs.iter().filter(|run| run.outcome != Outcome::Passed);
    let failed: Vec<_> = failed.map(|run| format!("{}: {}: {:?}", run.folder, run.name, run.outcome)).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The other test proves nothing if the runner reports every case as passed.
#[test]
fn the_runner_reports_each_kind_of_outcome() {
    let case = |query: &str, expected: &str| {
        let text = format!("{{note: n, query: {}, {expected}}}", serde_json::Value::from(query));
        serde_yaml::from_str::<runner::opa::Case>(&text).unwrap().outcome()
    };
    assert_eq!(case("x := 1", "want_result: [{x: 1}]"), Outcome::Passed);
    assert_eq!(case("x := 1", "want_result: [{x: 1.0}]"), Outcome::Passed);
    assert!(matches!(case("x := 1", "want_result: [{x: 2}]"), Outcome::Different(_)));
    assert!(matches!(case("x := 1", "want_result: []"), Outcome::Different(_)));
    assert!(matches!(case("x := 1", "want_error: any"), Outcome::Looser(_)));
    assert_eq!(case("x := := 1", "want_error: any"), Outcome::Passed);
    assert!(matches!(case("x := := 1", "want_result: []"), Outcome::Refused(_) | Outcome::Denied(_)));
}
