//! Requests to services in a cluster: replicas authenticate their callers, and evaluate the live request policies of their server.

mod callers;
mod generations;

use anyhow::{Context as _, Result, ensure};
use hyper::{HeaderMap, Method, StatusCode};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Api, PostParams};
use kube::{Client, Resource};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::support::cluster::{TestEnv, revision};
use crate::support::{Server, WAIT_TIMEOUT, ask_as};

const ADR: &str = "/api/v1/engine/evaluate";
const PUBLISHED: &str = "/api/v1alpha1/policies:evaluateRequest";
/// The verbs of the `ClusterRole` proviso-request-evaluator of the chart.
const EVALUATOR: &[&str] = &["create"];
/// The verbs of the `ClusterRole` proviso-request-portal of the chart.
const PORTAL: &[&str] = &["create", "impersonate"];

/// The answer to a request to a service.
#[derive(Debug)]
struct Evaluated {
    status: StatusCode,
    headers: HeaderMap,
    body: Value,
}

impl Evaluated {
    /// Checks that the answer is an error with this status and type whose detail has these words.
    fn ensure_problem(&self, status: StatusCode, kind: &str, words: &str) -> Result<()> {
        let detail = self.body["detail"].as_str().unwrap_or_default();
        ensure!(self.status == status && self.body["type"] == kind && detail.contains(words), "{self:?}");
        ensure!(self.headers["content-type"] == "application/problem+json", "{self:?}");
        Ok(())
    }

    /// Returns the policies of the trail with their generations.
    fn trail(&self) -> Vec<String> {
        let trail = self.body["trail"].as_array().cloned().unwrap_or_default();
        trail.iter().map(|entry| format!("{}-{}", entry["policy"].as_str().unwrap(), entry["generation"])).collect()
    }
}

/// Sends a request with this token to a replica.
async fn evaluate(server: &Server, path: &str, token: Option<&str>, body: &Value) -> Result<Evaluated> {
    let answer = ask_as(&server.listen, Method::POST, path, token, body.to_string().into()).await?;
    let body = serde_json::from_str(&answer.text).with_context(|| answer.text.clone())?;
    Ok(Evaluated { status: answer.status, headers: answer.headers, body })
}

async fn create<K>(api: Api<K>, object: Value) -> Result<()>
where
    K: Resource + Clone + serde::de::DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// Creates a Namespace, with the label of this tenant if there is one.
async fn create_namespace(client: &Client, name: &str, tenant: Option<&str>) -> Result<()> {
    let labels = tenant.map(|tenant| json!({"proviso.dev/tenant": tenant}));
    create::<k8s_openapi::api::core::v1::Namespace>(
        Api::all(client.clone()),
        json!({"metadata": {"name": name, "labels": labels}}),
    )
    .await
}

/// Creates a `ServiceAccount`. Returns its token.
async fn account(client: &Client, namespace: &str, name: &str) -> Result<String> {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    create(accounts.clone(), json!({"metadata": {"name": name}})).await?;
    let token = accounts.create_token_request(name, &PostParams::default(), &TokenRequest::default()).await?;
    token.status.and_then(|status| status.token).context("no token")
}

/// Grants these verbs on the virtual resource for requests to a `ServiceAccount`. `server` limits them to a `PolicyServer`.
async fn grant(client: &Client, namespace: &str, name: &str, verbs: &[&str], server: Option<&str>) -> Result<()> {
    let role = format!("{namespace}-{name}");
    let mut permission = json!({"apiGroups": ["proviso.dev"], "resources": ["servicerequests"], "verbs": verbs});
    if let Some(server) = server {
        permission["resourceNames"] = json!([server]);
    }
    create::<ClusterRole>(Api::all(client.clone()), json!({"metadata": {"name": role}, "rules": [permission]})).await?;
    create::<ClusterRoleBinding>(
        Api::all(client.clone()),
        json!({
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }),
    )
    .await
}

/// Returns the token of a new `ServiceAccount` that may evaluate requests.
async fn evaluator(env: &TestEnv, client: &Client) -> Result<String> {
    let token = account(client, &env.namespace, "evaluator").await?;
    grant(client, &env.namespace, "evaluator", EVALUATOR, None).await?;
    Ok(token)
}

/// Returns the revision of a global request policy.
fn request_revision(name: &str, generation: u32, request: &Value, program: &Value) -> Value {
    let mut revision = revision(name, generation, &json!({}));
    revision["spec"]["data"] = json!({"request": request, "program": program});
    revision
}

/// Returns the same revision for a Policy in a namespace.
fn in_namespace(mut revision: Value, namespace: &str) -> Value {
    let name = revision["metadata"]["name"].as_str().unwrap().replace("cluster.", &format!("ns.{namespace}."));
    revision["metadata"]["name"] = name.into();
    revision["spec"]["policyRef"]["kind"] = "Policy".into();
    revision["spec"]["policyRef"]["namespace"] = namespace.into();
    revision
}

/// Returns a program that sets this field of the payload to the user and the tenant of the request.
fn marking(field: &str) -> Value {
    let source =
        format!("package p\nimport rego.v1\nresult := {{\"patch\": {{{field:?}: [input.user, input.tenant]}}}}");
    json!({"rego": {"dialect": "Request", "source": source}})
}

/// Returns a program that rejects each request with this reason.
fn rejecting(reason: &str) -> Value {
    let source = format!("package p\nimport rego.v1\nresult := {{\"reject\": true, \"reason\": {reason:?}}}");
    json!({"rego": {"dialect": "Request", "source": source}})
}

/// Creates a revision, waits until this pod has loaded it, and marks it as live, as the operator does.
async fn make_live(env: &TestEnv, revision: &Value, pod_uid: &str) -> Result<()> {
    env.create(revision).await?;
    let name = revision["metadata"]["name"].as_str().context("no name")?;
    env.until_reported(name, pod_uid, "True", "Loaded").await?;
    env.set_condition(name, "Live", "True").await
}

/// Waits until an answer meets the condition. Returns the answer.
async fn until_evaluated(
    server: &Server,
    token: &str,
    body: &Value,
    what: &str,
    condition: impl Fn(&Evaluated) -> bool,
) -> Result<Evaluated> {
    until(what, WAIT_TIMEOUT, async || {
        let evaluated = evaluate(server, ADR, Some(token), body).await?;
        ensure!(condition(&evaluated), "{evaluated:?}");
        Ok(evaluated)
    })
    .await
}
