//! Templates of configuration policies: the child process of the operator that renders them, and the webhook that refuses templates which
//! do not compile.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::admission::AdmissionClient;
use crate::test_cluster::TestCluster;

fn policy(name: &str, configuration: &Value) -> Value {
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name},
        "spec": {"configuration": configuration},
    })
}

fn template(language: &str, source: &str) -> Value {
    json!({"configName": "memory", "template": {language: source}})
}

#[test]
fn the_child_process_renders_a_batch() -> Result<()> {
    let rego =
        "package a\nimport rego.v1\ncontent := {\"team\": input.component.namespace, \"base\": input.parameters.base}";
    let policies = [
        json!({"configuration": template("cel", "{'size': component.labels.size}"), "settings": {}}),
        json!({"configuration": template("cel", "{'size': component.labels.missing}"), "settings": {}}),
        json!({"configuration": template("rego", rego), "settings": {"base": 5}}),
    ];
    let component = json!({"namespace": "team", "name": "web", "kind": "Deployment", "labels": {"size": "4"}});
    let mut child = Command::new(env!("CARGO_BIN_EXE_operator"))
        .args(["render-configuration", "64", "60000"])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let input = serde_json::to_vec(&json!({"component": component, "policies": policies}))?;
    child.stdin.take().context("stdin")?.write_all(&input)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let results: Vec<Value> = serde_json::from_slice(&output.stdout)?;
    ensure!(results.len() == 3 && results[0] == json!({"Ok": {"size": "4"}}), "{results:?}");
    ensure!(results[1]["Err"]["Template"].is_string(), "{results:?}");
    ensure!(results[2] == json!({"Ok": {"team": "team", "base": 5}}), "{results:?}");
    Ok(())
}

#[tokio::test]
async fn templates_and_schemas_that_do_not_compile_are_refused() -> Result<()> {
    let mut cluster = TestCluster::start("configuration-templates").await?;
    cluster.start_operator(&[])?;
    let admission = AdmissionClient::start(&cluster).await?;
    let schema = json!({"properties": {"min": {"type": "integer"}}});
    for (configuration, expected) in [
        (template("cel", "{'min': 1}"), ""),
        (template("cel", "{'min': object.a}"), "spec.configuration.template.cel: "),
        (template("rego", "package a\nresult := {}"), "spec.configuration.template.rego: "),
        (json!({"configName": "a", "content": {}, "schema": {"type": 5}}), "spec.configuration.schema: "),
        (json!({"configName": "a", "content": {"min": "x"}, "schema": schema}), "spec.configuration.content: "),
        (json!({"configName": "a", "content": {"text": "x".repeat(520 * 1024)}}), "spec.configuration.content: "),
    ] {
        let refusal = admission.refusal("CREATE", &policy("memory", &configuration), None).await?;
        ensure!(refusal.starts_with(expected) && refusal.is_empty() == expected.is_empty(), "{expected}: {refusal}");
    }
    Ok(())
}
