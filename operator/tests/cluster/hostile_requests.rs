//! Attacks on the admission webhook of the operator: requests without the token, and policies that are made to exhaust the operator.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use axum::http::Request;
use serde_json::{Value, json};

use crate::admission::AdmissionClient;
use crate::test_cluster::TestCluster;

/// The peak of the operator's memory that leaves space for four child processes of 64 MiB in a container of 384 MiB.
const MAX_PEAK_MIB: u64 = 128;

/// A policy in Rego.
fn rego(name: &str, body: &str) -> Value {
    let source = format!("package a\nxs := numbers.range(1, 3000)\nviolation[{{\"msg\": \"no\"}}] {{ {body} }}");
    policy(name, &json!({"rego": {"source": source, "dialect": "Gatekeeper"}}), &json!({}))
}

fn policy(name: &str, program: &Value, settings: &Value) -> Value {
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name},
        "spec": {
            "program": program,
            "settings": settings,
            "admission": {"rules": [
                {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]},
            ]},
        },
    })
}

/// The comprehension that took both operators of a cluster down.
fn comprehension(name: &str) -> Value {
    rego(name, "count([[x, y] | x := xs[_]; y := xs[_]]) > 0")
}

/// Returns a review of 6 MiB of text that would be more than 100 MiB of values.
fn large_body() -> Result<Vec<u8>> {
    let settings = json!({"a": "PLACEHOLDER"});
    let object = policy("l", &json!({"cel": {"validations": [{"expression": "true"}]}}), &settings);
    let body = String::from_utf8(AdmissionClient::body("CREATE", &object, None)?)?;
    Ok(body.replace("\"PLACEHOLDER\"", &format!("[0{}]", ",0".repeat(3_000_000))).into_bytes())
}

/// Returns the peak of the memory of the operator, in MiB, without the pages of its program file, which are large in a development
/// build and which the kernel can drop.
fn peak_mib(cluster: &TestCluster) -> Result<u64> {
    let operator = cluster.operators.last().context("an operator")?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", operator.0.id()))?;
    let kib = |name: &str| -> Result<u64> {
        let line = status.lines().find(|line| line.starts_with(name)).context("no such line")?;
        Ok(line.split_whitespace().nth(1).context("a number")?.parse()?)
    };
    Ok(kib("VmHWM:")?.saturating_sub(kib("RssFile:")?) / 1024)
}

/// Requires that the operator lives, has stayed small, and still admits an ordinary policy.
async fn ensure_unharmed(cluster: &mut TestCluster, admission: &AdmissionClient) -> Result<()> {
    let fine = rego("fine", "input.review.object.metadata.name == \"x\"");
    let response = admission.ask("CREATE", &fine, None).await?;
    ensure!(response["allowed"] == true, "{response}");
    let peak = peak_mib(cluster)?;
    ensure!(peak < MAX_PEAK_MIB, "the operator took {peak} MiB");
    let operator = cluster.operators.last_mut().context("an operator")?;
    ensure!(operator.0.try_wait()?.is_none(), "the operator has ended");
    Ok(())
}

#[tokio::test]
async fn a_caller_without_the_token_is_refused() -> Result<()> {
    let mut cluster = TestCluster::start("admission-token").await?;
    cluster.start_operator(&[])?;
    let admission = AdmissionClient::start(&cluster).await?;
    for path in ["/validate", "/t//validate", "/t/0123456789abcdef0123456789abcdef/validate"] {
        // The aggregated API answers other paths: 401 without the certificate of a front proxy.
        let status = status(&admission, path).await?;
        ensure!([401, 403, 404].contains(&status), "{path}: {status}");
    }
    ensure!(status(&admission, &admission.path).await? == 400, "with the token, the body is read");
    ensure_unharmed(&mut cluster, &admission).await
}

/// Sends a body that is not a review. Returns the status code of the answer.
async fn status(admission: &AdmissionClient, path: &str) -> Result<u16> {
    let request = Request::post(path).body(b"not a review".to_vec().into())?;
    Ok(admission.client.send(request).await?.status().as_u16())
}

#[tokio::test]
async fn policies_whose_trial_takes_gigabytes_are_refused_and_the_operator_stays_small() -> Result<()> {
    let mut cluster = TestCluster::start("admission-bombs").await?;
    cluster.start_operator(&[])?;
    let admission = AdmissionClient::start(&cluster).await?;
    let nested = "x".repeat(3000);
    let cel = (0..100).map(|index| json!({"expression": format!("object.metadata.name != '{index}{nested}'")}));
    let bombs = [
        comprehension("a"),
        comprehension("b"),
        comprehension("c"),
        // A source that is large itself.
        rego("large", &"input.a == {\"a\": [1, 2, 3]}; ".repeat(8000)),
        // Texts that are short, and large as values.
        policy(
            "settings",
            &json!({"cel": {"validations": [{"expression": "true"}]}}),
            &json!({"a": vec![0; 1_000_000]}),
        ),
        policy("cel", &json!({"cel": {"validations": cel.collect::<Vec<_>>()}}), &json!({})),
    ];
    let mut is_limit_named = false;
    let answers = bombs.iter().map(|bomb| admission.ask("CREATE", bomb, None));
    for (bomb, answer) in bombs.iter().zip(futures_util::future::join_all(answers).await) {
        let (name, response) = (&bomb["metadata"]["name"], answer?);
        // The others may be valid: what matters is the operator.
        let is_bomb = ["a", "b", "c"].iter().any(|it| name == it);
        let message = response["status"]["message"].as_str().unwrap_or_default();
        ensure!(!is_bomb || response["allowed"] == false, "{name}: {response}");
        is_limit_named |= is_bomb && message.contains("spec.program");
        // A request that would wait too long for the others is refused for now.
        ensure!(
            !is_bomb || message.contains("spec.program") || response["status"]["code"] == 503,
            "{name}: {response}"
        );
    }
    ensure!(is_limit_named, "no refusal names the program");
    ensure_unharmed(&mut cluster, &admission).await
}

#[tokio::test]
async fn a_hundred_hostile_requests_at_once_do_not_take_256_mib() -> Result<()> {
    let mut cluster = TestCluster::start("admission-flood").await?;
    cluster.start_operator(&[])?;
    let admission = AdmissionClient::start(&cluster).await?;
    let requests = (0..100).map(|index| {
        let body =
            if index % 4 == 0 { large_body() } else { AdmissionClient::body("CREATE", &comprehension("a"), None) };
        let admission = &admission;
        async move {
            tokio::time::timeout(Duration::from_mins(2), admission.send(body?))
                .await
                .with_context(|| format!("no answer to {index}"))
        }
    });
    let answers = futures_util::future::join_all(requests).await;
    for answer in answers {
        // An answer within the time limit of the test: a refusal, or an HTTP error that the caller repeats.
        match answer? {
            Ok(response) => {
                let message = response["status"]["message"].as_str().unwrap_or_default();
                ensure!(response["allowed"] == true || !message.is_empty(), "{response}");
            }
            Err(error) => {
                let busy = error.to_string();
                // The operator refuses a body that it has no memory for before it has read the body, which ends the connection.
                let refused = ["503", "try again", "408", "SendRequest"];
                ensure!(refused.iter().any(|it| busy.contains(it)), "{busy}");
            }
        }
    }
    ensure_unharmed(&mut cluster, &admission).await
}
