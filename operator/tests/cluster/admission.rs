//! The admission webhook of the operator, with a real API server and the operator's binary. The tests call the
//! webhook as the API server would.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aws_lc_rs::hmac;
use axum::http::Request;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client, Config};
use proviso_crds::ClusterPolicyExperiment;
use proviso_e2e::{until, until_with};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::test_cluster::{NAMESPACE, TIMEOUT, TestCluster};

/// The time limit for an answer of the webhook: the operator gives up the check of a policy before.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// A client that calls the operator as the API server does: by the name of its Service, and with the token of the webhook's path.
pub struct AdmissionClient {
    pub client: Client,
    pub path: String,
}

impl AdmissionClient {
    pub async fn start(cluster: &TestCluster) -> Result<Self> {
        let address = until("the operator to listen", TIMEOUT, async || {
            let log = cluster.log()?;
            let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let line = lines.find(|line| line["message"] == "listening").context("it does not yet")?;
            Ok(line["listen"].as_str().context("its address")?.to_owned())
        })
        .await?;
        let bundle = until("the CA", TIMEOUT, async || cluster.secret("proviso-ca", "bundle.crt").await).await?;
        let authorities = CertificateDer::pem_slice_iter(bundle.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let mut config = Config::new(address.parse()?);
        config.root_cert = Some(authorities.iter().map(|it| it.to_vec()).collect());
        config.tls_server_name = Some(format!("proviso-operator.{NAMESPACE}.svc"));
        let path = path(&cluster.secret("proviso-ca", "ca.key").await?);
        let admission = Self { client: Client::try_from(config)?, path };
        until("an answer", TIMEOUT, async || {
            admission.ask("CREATE", &experiment("any", "a", &policy("true")), None).await.map(drop)
        })
        .await?;
        Ok(admission)
    }

    /// Sends a review. Returns the response.
    pub async fn ask(&self, operation: &str, object: &Value, old: Option<&Value>) -> Result<Value> {
        self.send(Self::body(operation, object, old)?).await
    }

    /// Returns the body of a review.
    pub fn body(operation: &str, object: &Value, old: Option<&Value>) -> Result<Vec<u8>> {
        let kind = object["kind"].as_str().context("kind")?;
        let version = json!({"group": "proviso.dev", "version": "v1alpha1"});
        let with = |key: &str, value: &str| {
            let mut version = version.clone();
            version[key] = value.into();
            version
        };
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "kind": with("kind", kind), "resource": with("resource", "any"),
            "name": object["metadata"]["name"], "namespace": object["metadata"]["namespace"],
            "operation": operation, "userInfo": {}, "object": object, "oldObject": old, "dryRun": false,
        }});
        Ok(serde_json::to_vec(&review)?)
    }

    /// Sends the body of a review. Returns the response.
    pub async fn send(&self, body: Vec<u8>) -> Result<Value> {
        let request = Request::post(&self.path).header("content-type", "application/json");
        let answer: Value = self.client.request(request.body(body)?).await?;
        Ok(answer["response"].clone())
    }

    /// Returns the reason of a denial; empty if the object is admitted.
    pub async fn refusal(&self, operation: &str, object: &Value, old: Option<&Value>) -> Result<String> {
        in_time(ANSWER_TIMEOUT, async || {
            let response = self.ask(operation, object, old).await?;
            ensure!(response["allowed"] == response["status"]["message"].is_null(), "{response}");
            Ok(response["status"]["message"].as_str().unwrap_or_default().to_owned())
        })
        .await
    }
}

/// Asks for the reason of a denial until the operator has time for the check: on a busy machine it has none, and denies. Other errors are
/// returned at once.
pub async fn in_time(attempt_timeout: Duration, mut ask: impl AsyncFnMut() -> Result<String>) -> Result<String> {
    let busy = ["checks many other policies now", "took longer than", "cannot be reviewed now"];
    until_with("an answer of an operator that has time", TIMEOUT, attempt_timeout, async || {
        let refusal = ask().await;
        let is_busy = refusal.as_ref().is_ok_and(|refusal| busy.iter().any(|words| refusal.contains(words)));
        ensure!(!is_busy, "{refusal:?}");
        Ok(refusal)
    })
    .await?
}

/// Returns the path with the token of the webhook, which follows from the key of the CA and the current 30 days.
fn path(key: &str) -> String {
    let period = jiff::Timestamp::now().as_second().div_euclid(30 * 24 * 3600);
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    let token = hmac::sign(&key, format!("proviso operator webhook, period {period}").as_bytes());
    let token: Vec<String> = token.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("/t/{}/validate", token.concat())
}

fn policy(expression: &str) -> Value {
    json!({
        "program": {"cel": {"validations": [{"expression": expression}]}},
        "admission": {"rules": [
            {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]},
        ]},
    })
}

fn experiment(name: &str, of: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicyExperiment", "metadata": {"name": name},
        "spec": {"policyRef": {"name": of}, "policy": spec},
    })
}

/// Returns the experiment as a `PolicyExperiment` in a namespace.
fn namespaced(mut experiment: Value) -> Value {
    experiment["kind"] = "PolicyExperiment".into();
    experiment["metadata"]["namespace"] = "team".into();
    experiment
}

#[tokio::test]
async fn experiments_that_cannot_work_are_refused_with_field_and_remedy() -> Result<()> {
    let mut cluster = TestCluster::start("admission-of-experiments").await?;
    cluster.start_operator(&[])?;
    let admission = AdmissionClient::start(&cluster).await?;

    let mut wrong = Vec::new();
    let mut case = |pointer: &str, value: Value, is_namespaced: bool, words: &'static str| {
        let mut object = experiment("e", "a", &policy("true"));
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        match object.pointer_mut(parent).unwrap() {
            Value::Array(items) => items[key.parse::<usize>().unwrap()] = value,
            parent => parent[key] = value,
        }
        wrong.push((if is_namespaced { namespaced(object) } else { object }, words));
    };
    let rule = "/spec/policy/admission/rules/0";
    case("/spec/policy/program/cel/validations/0/expression", json!("object."), false, "spec.policy.program.cel");
    case("/spec/policyRef/name", json!("A"), false, "spec.policyRef.name");
    case("/spec/policy/admission/rules", json!([]), false, "spec.policy.admission.rules");
    case("/spec/policy/program", json!({"wasm": {"module": "file:///a"}}), false, "spec.policy.program.wasm.module");
    case("/spec/policy/program", json!({}), false, "spec.policy.program");
    case(&format!("{rule}/apiGroups"), json!(["proviso.dev"]), false, "spec.policy.admission.rules[0].apiGroups");
    case(&format!("{rule}/resources"), json!(["secrets"]), true, "spec.policy.admission.rules[0].resources");
    case(&format!("{rule}/scope"), json!("Cluster"), true, "spec.policy.admission.rules[0].scope");
    let condition = json!([{"name": "a", "expression": "object.nothing("}]);
    case(
        "/spec/policy/admission/matchConditions",
        condition,
        false,
        "spec.policy.admission: the API server rejects its webhook",
    );
    case("/metadata/name", json!("E"), false, "metadata.name");
    for (object, words) in wrong {
        let refusal = admission.refusal("CREATE", &object, None).await?;
        ensure!(refusal.contains(words), "{words}: {refusal}\n{object}");
    }

    // A valid experiment is admitted, with a warning if its policy does not exist.
    for object in [experiment("e", "a", &policy("true")), namespaced(experiment("e", "a", &policy("true")))] {
        let response = admission.ask("CREATE", &object, None).await?;
        let warning = response["warnings"][0].as_str().unwrap_or_default();
        ensure!(response["allowed"] == true && warning.contains("there is no policy a"), "{response}");
    }
    cluster.apply_policy("a", "default", "true").await?;
    let response = admission.ask("CREATE", &experiment("e", "a", &policy("true")), None).await?;
    ensure!(response["allowed"] == true && response["warnings"][0].is_null(), "{response}");
    Ok(())
}

#[tokio::test]
async fn an_eleventh_experiment_and_edits_during_a_commit_are_refused() -> Result<()> {
    let mut cluster = TestCluster::start("admission-limits").await?;
    cluster.start_operator(&[])?;
    let admission = AdmissionClient::start(&cluster).await?;
    let experiments = Api::<ClusterPolicyExperiment>::all(cluster.client.clone());
    let create = async |name: &str| -> Result<()> {
        let object = Patch::Apply(experiment(name, "a", &policy("true")));
        experiments.patch(name, &PatchParams::apply("owner").force(), &object).await?;
        Ok(())
    };
    for number in 0..9 {
        create(&format!("e{number}")).await?;
    }
    let next = experiment("next", "a", &policy("true"));
    ensure!(admission.refusal("CREATE", &next, None).await?.is_empty(), "the tenth");
    create("e9").await?;
    let refusal = admission.refusal("CREATE", &next, None).await?;
    ensure!(refusal.contains("spec.policyRef.name: a has 10 experiments already") && refusal.contains("e0, e1, e2"));
    // Experiments of another policy or scope do not count, and existing experiments can be updated.
    ensure!(admission.refusal("CREATE", &experiment("next", "b", &policy("true")), None).await?.is_empty());
    ensure!(admission.refusal("CREATE", &namespaced(next.clone()), None).await?.is_empty());
    let changed = experiment("e0", "a", &policy("1 < 2"));
    let old = experiment("e0", "a", &policy("true"));
    ensure!(admission.refusal("UPDATE", &changed, Some(&old)).await?.is_empty());
    experiments.delete("e4", &DeleteParams::default()).await?;
    until("room for another", TIMEOUT, async || {
        let refusal = admission.refusal("CREATE", &next, None).await?;
        ensure!(refusal.is_empty(), "{refusal}");
        Ok(())
    })
    .await?;

    // During a commit, an update of the spec is denied. Updates of annotations are admitted, and refuse nothing.
    let mut committing = old.clone();
    committing["status"]["commit"] =
        json!({"id": "a", "generation": 1, "policyGeneration": 1, "since": "2026-11-20T09:14:07Z"});
    let refusal = admission.refusal("UPDATE", &changed, Some(&committing)).await?;
    ensure!(refusal.contains("being committed"), "{refusal}");
    ensure!(admission.refusal("UPDATE", &old, Some(&committing)).await?.is_empty());
    let mut annotated = old.clone();
    annotated["metadata"]["annotations"] = json!({"proviso.dev/commit-intent": "2026-11-20T09:14:07Z"});
    ensure!(admission.refusal("UPDATE", &changed, Some(&annotated)).await?.is_empty());

    // The webhook is registered for all kinds.
    cluster.operators.clear();
    cluster.start_operator(&["--service", "proviso-operator", "--aggregated-api", "false"])?;
    let webhooks = Api::<ValidatingWebhookConfiguration>::all(cluster.client.clone());
    until("the registration", TIMEOUT, async || {
        let webhook = webhooks.get("proviso-operator").await?.webhooks.context("webhooks")?.remove(0);
        let path = webhook.client_config.service.as_ref().and_then(|service| service.path.clone());
        ensure!(path.as_ref() == Some(&admission.path), "{path:?}");
        let resources = webhook.rules.context("rules")?.remove(0).resources.context("resources")?;
        for kind in ["policyexperiments", "clusterpolicyexperiments", "policies", "clusterpolicies"] {
            ensure!(resources.iter().any(|it| it == kind), "{resources:?}");
        }
        Ok(())
    })
    .await
}
