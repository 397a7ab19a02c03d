//! The configuration API of the operator: components outside of Kubernetes read their policies with the permissions of a service account.

use anyhow::{Context as _, Result, ensure};
use http_body_util::BodyExt as _;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, Patch, PatchParams};
use kube::config::AuthInfo;
use kube::{Client, ResourceExt as _};
use proviso_crds::names::{CATCH_UP, CHANGED_BY};
use proviso_crds::{ClusterPolicy, PolicySubscription};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::actions::direct;
use crate::test_cluster::{TIMEOUT, TestCluster};

/// An operator in a debug build validates a policy in a child process.
const BOUND: std::time::Duration = std::time::Duration::from_mins(2);
const COMPONENT: &str = "/service_component_all/collector-1";

/// An answer of the operator.
struct Answer {
    status: u16,
    index: String,
    text: String,
}

impl Answer {
    fn json(&self) -> Result<Value> {
        ensure!(self.status == 200, "{} {}", self.status, self.text);
        Ok(serde_json::from_str(&self.text)?)
    }
}

async fn send(client: &Client, method: &str, path: &str, body: &str) -> Result<Answer> {
    let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
    let response = client.send(request.body(kube::client::Body::from(body.as_bytes().to_vec()))?).await?;
    let status = response.status().as_u16();
    let index = response.headers().get("x-proviso-index").and_then(|index| index.to_str().ok()).unwrap_or_default();
    let index = index.to_owned();
    let text = String::from_utf8(response.into_body().collect().await?.to_bytes().to_vec())?;
    Ok(Answer { status, index, text })
}

async fn apply_policy(cluster: &TestCluster, minimum: u32) -> Result<()> {
    let policy = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "memory"},
        "spec": {"configuration": {"configName": "memory", "owner": "DCAE", "content": {"min": minimum}}},
    });
    let policies = Api::<ClusterPolicy>::all(cluster.client.clone());
    // The webhook may be registered a moment before its Service can be reached.
    until("the policy to be taken", TIMEOUT, async || {
        Ok(policies.patch("memory", &PatchParams::apply("owner").force(), &Patch::Apply(&policy)).await?)
    })
    .await?;
    Ok(())
}

/// Creates a service account in the namespace `team` with these rules. Returns a client of the operator with its token.
async fn account(cluster: &TestCluster, bundle: &str, name: &str, rules: &[&[&str]]) -> Result<Client> {
    let kubectl = &cluster.kubectl;
    kubectl.run(&["create", "serviceaccount", name, "--namespace", "team"]).await?;
    for (number, rule) in rules.iter().enumerate() {
        let role = format!("{name}-{number}");
        kubectl.run(&[&["create", "role", &role, "--namespace", "team"], *rule].concat()).await?;
        let (role_argument, subject) = (format!("--role={role}"), format!("--serviceaccount=team:{name}"));
        kubectl.run(&["create", "rolebinding", &role, "--namespace", "team", &role_argument, &subject]).await?;
    }
    let token = kubectl.run(&["create", "token", name, "--namespace", "team"]).await?.trim().to_owned();
    direct(cluster, bundle, AuthInfo { token: Some(token.into()), ..AuthInfo::default() })
}

#[tokio::test]
async fn a_component_outside_of_kubernetes_follows_its_policies() -> Result<()> {
    let mut cluster = TestCluster::start("operator-configuration-api").await?;
    cluster.start_reachable_operator(&[]).await?;
    let services = Api::<APIService>::all(cluster.client.clone());
    let bundle = until("the CA of the operator", TIMEOUT, async || {
        let service = services.get("v1alpha1.actions.proviso.dev").await?;
        Ok(String::from_utf8(service.spec.and_then(|spec| spec.ca_bundle).context("no bundle")?.0)?)
    })
    .await?;
    cluster.kubectl.run(&["create", "namespace", "team"]).await?;
    let records = ["create", "configmap", "collector", "--namespace", "team", r#"--from-literal=config={"level": 1}"#];
    cluster.kubectl.run(&records).await?;
    apply_policy(&cluster, 2).await?;
    let subscription = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicySubscription",
        "metadata": {"name": "collector", "namespace": "team"},
        "spec": {
            "scn": "collector-1", "policies": [{"filter": {"configName": "memory"}}],
            "application": {"configMap": "collector"}, "delivery": {"configMap": "collector-policies"},
        },
    });
    let subscriptions = Api::<PolicySubscription>::namespaced(cluster.client.clone(), "team");
    until("the subscription to be taken", TIMEOUT, async || {
        let params = PatchParams::apply("owner").force();
        Ok(subscriptions.patch("collector", &params, &Patch::Apply(&subscription)).await?)
    })
    .await?;
    let reads: &[&[&str]] = &[
        &["--verb=get", "--resource=policysubscriptions.proviso.dev", "--resource-name=collector"],
        &["--verb=get", "--resource=configmaps", "--resource-name=collector"],
    ];
    let reader = account(&cluster, &bundle, "reader", reads).await?;
    let stranger = account(&cluster, &bundle, "stranger", &[]).await?;
    let anonymous = direct(&cluster, &bundle, AuthInfo::default())?;

    let first = until("the first delivery", BOUND, async || {
        let answer = send(&reader, "GET", COMPONENT, "").await?;
        ensure!(answer.json()?["policies"]["items"][0]["policyVersion"] == "1", "{}", answer.text);
        Ok(answer)
    })
    .await?;
    let json = first.json()?;
    ensure!(json["config"] == json!({"level": 1}), "{json}");
    ensure!(json["policies"]["items"][0]["config"] == json!({"min": 2}), "{json}");

    // A component that exists and one that does not have the same answer for a stranger.
    let forbidden = send(&stranger, "GET", COMPONENT, "").await?;
    let unknown = send(&stranger, "GET", "/service_component_all/collector-2", "").await?;
    ensure!((forbidden.status, unknown.status) == (404, 404), "{} {}", forbidden.status, unknown.status);
    ensure!(forbidden.text == unknown.text.replace("collector-2", "collector-1"), "{}", forbidden.text);
    ensure!(send(&anonymous, "GET", COMPONENT, "").await?.status == 401);
    ensure!(send(&anonymous, "GET", "/healthcheck", "").await?.status == 200);

    // A long poll has the new version. The index may also change by the record of the first delivery.
    apply_policy(&cluster, 8).await?;
    let mut index = first.index.clone();
    let changed = until("the second version", BOUND, async || {
        let answer = send(&reader, "GET", &format!("{COMPONENT}?index={index}&wait=10s"), "").await?;
        index.clone_from(&answer.index);
        ensure!(answer.json()?["policies"]["items"][0]["config"] == json!({"min": 8}), "{}", answer.text);
        Ok(answer)
    })
    .await?;
    ensure!(changed.index != first.index, "{}", changed.index);

    // The permission to read does not include a catch-up.
    ensure!(send(&reader, "GET", "/catch_up", "").await?.status == 403);
    let permissions: &[&[&str]] = &[&["--verb=get,list,patch", "--resource=policysubscriptions.proviso.dev"]];
    let owner = account(&cluster, &bundle, "owner", permissions).await?;
    until("the permission", TIMEOUT, async || send(&owner, "GET", "/catch_up", "").await?.json().map(drop)).await?;
    until("the request for a catch-up", TIMEOUT, async || {
        let annotations = subscriptions.get("collector").await?.annotations().clone();
        let user = annotations.get(CHANGED_BY).map(String::as_str);
        ensure!(
            annotations.contains_key(CATCH_UP) && user == Some("system:serviceaccount:team:owner"),
            "{annotations:?}"
        );
        Ok(())
    })
    .await?;
    let resend = "/api/v1alpha1/subscriptions/team/collector:resend";
    let value = send(&owner, "POST", resend, "").await?.json()?["resend"].as_str().context("no value")?.to_owned();
    until("the resend", BOUND, async || {
        let status = subscriptions.get("collector").await?.status.unwrap_or_default();
        ensure!(status.observed_resend.as_deref() == Some(value.as_str()), "{status:?}");
        Ok(())
    })
    .await?;
    let shown = send(&owner, "GET", "/api/v1alpha1/subscriptions/team/collector", "").await?.json()?;
    ensure!(shown["policies"][0]["should"]["version"] == "2", "{shown:#}");
    let deployed = send(&owner, "GET", "/policy", "").await?.json()?;
    ensure!(deployed["policy_filters"]["team/collector/0"].is_object(), "{deployed:#}");
    Ok(())
}
