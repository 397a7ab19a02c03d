//! Evaluates the cases of the CEL engine (`crates/engines/tests/cases/cel`) with a real API server. A
//! `ValidatingAdmissionPolicy` with the same expressions must give the same answers. A case with another answer has the reason in
//! `differs`.

#[path = "../../../crates/engines/tests/support/cel_cases.rs"]
mod cases;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, bail, ensure};
use cases::{Answer, Question};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client};
use proviso_e2e::{ControlPlane, until};
use serde_json::{Value, json};

const WAIT_TIMEOUT: Duration = Duration::from_mins(1);
/// The name of a `ConfigMap` that the policy denies as soon as it is enforced.
const SENTINEL: &str = "case-sentinel";

fn policy(name: &str, validations: &[Value]) -> Result<ValidatingAdmissionPolicy> {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
    let policy = json!({
        "metadata": {"name": name},
        "spec": {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]}, "validations": validations},
    });
    Ok(serde_json::from_value(policy)?)
}

/// Returns the message with which the API server refuses a `ConfigMap` of this name; `None` if the API server accepts it.
async fn refusal(client: &Client, name: &str) -> Result<Option<String>> {
    let map = json!({"metadata": {"name": name, "namespace": "default"}, "data": {"a": "1", "empty": ""}});
    let map: ConfigMap = serde_json::from_value(map)?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    match Api::<ConfigMap>::namespaced(client.clone(), "default").create(&dry_run, &map).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some(status.message.clone())),
        Err(error) => Err(error.into()),
    }
}

#[tokio::test]
async fn an_api_server_gives_the_answers_of_the_cel_engine() -> Result<()> {
    let plane = ControlPlane::start("cel").await?;
    let client = plane.client().await?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/engines/tests/cases/cel");
    let questions = cases::questions(&folder, |difference| difference.kubernetes).map_err(Error::msg)?;
    ensure!(questions.len() > 200, "only {} expressions were found", questions.len());

    let started = Instant::now();
    let policies = Api::<ValidatingAdmissionPolicy>::all(client.clone());
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let mut validations = vec![json!({"expression": format!("request.name != '{SENTINEL}'"), "message": "ready"})];
    let mut refused = Vec::new();
    for (number, question) in questions.iter().enumerate() {
        let expression = format!("request.name != 'case-{number}' || ({})", question.expression);
        let validation = json!({"expression": expression, "message": "does not hold"});
        match policies.create(&dry_run, &policy("one", std::slice::from_ref(&validation))?).await {
            Ok(_) => validations.push(validation),
            Err(kube::Error::Api(status)) => refused.push((number, status.message.clone())),
            Err(error) => return Err(error.into()),
        }
    }
    policies.create(&PostParams::default(), &policy("cases", &validations)?).await?;
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": {"name": "cases"}, "spec": {"policyName": "cases", "validationActions": ["Deny"]},
    }))?;
    Api::all(client.clone()).create(&PostParams::default(), &binding).await?;
    until("the policy to be enforced", WAIT_TIMEOUT, async || {
        let refusal = refusal(&client, SENTINEL).await?;
        ensure!(refusal.as_ref().is_some_and(|message| message.contains("ready")), "{refusal:?}");
        Ok(())
    })
    .await?;

    let mut wrong = Vec::new();
    for (number, Question { case, expression, wanted }) in questions.iter().enumerate() {
        let (answer, message) = match refused.iter().find(|(refused, _)| *refused == number) {
            Some((_, message)) => (Answer::Errors, message.clone()),
            None => match refusal(&client, &format!("case-{number}")).await? {
                None => (Answer::Holds, String::new()),
                Some(message) if message.contains("resulted in error") => (Answer::Errors, message),
                Some(message) if message.contains("does not hold") => (Answer::Fails, String::new()),
                Some(message) => bail!("{expression}: {message}"),
            },
        };
        if answer != *wanted {
            wrong.push(format!("{case}: {expression}: {answer:?}, not {wanted:?}: {message}"));
        }
    }
    ensure!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), questions.len(), wrong.join("\n"));
    eprintln!("{} expressions in {:.1} s", questions.len(), started.elapsed().as_secs_f64());
    Ok(())
}
