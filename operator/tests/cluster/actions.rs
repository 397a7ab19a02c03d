//! The APIs of the operator: the aggregated API, which kubectl calls with the permissions of its user, and the REST
//! API, which takes a token.

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::config::AuthInfo;
use kube::{Client, Config, ResourceExt as _};
use proviso_crds::fixtures::condition;
use proviso_crds::names::CHANGED_BY;
use proviso_crds::{ClusterPolicy, ClusterPolicyExperiment, PolicyExperiment, PolicyRevision, PreviewState};
use proviso_e2e::pki::{Authority, Identity};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::test_cluster::{NAMESPACE, SERVICE, TIMEOUT, TestCluster};

pub const GROUP: &str = "/apis/actions.proviso.dev/v1alpha1";

/// Starts a cluster with the aggregated API, and with a policy and an experiment of each scope.
pub async fn start_cluster(name: &str) -> Result<TestCluster> {
    let mut cluster = TestCluster::start(name).await?;
    cluster.start_reachable_operator(&[]).await?;
    let services = Api::<APIService>::all(cluster.client.clone());
    until("the aggregated API to be available", TIMEOUT, async || {
        let service = services.get("v1alpha1.actions.proviso.dev").await?;
        let conditions = service.status.and_then(|status| status.conditions).unwrap_or_default();
        ensure!(conditions.iter().any(|it| it.type_ == "Available" && it.status == "True"), "{conditions:#?}");
        Ok(())
    })
    .await?;
    cluster.kubectl.run(&["create", "namespace", "team"]).await?;
    for (kind, name, namespace) in [("ClusterPolicy", "live", None), ("Policy", "live", Some("team"))] {
        apply(&cluster, kind, name, namespace, spec("1")).await?;
        let experiment = json!({"policyRef": {"name": name}, "policy": spec("2")});
        apply(&cluster, &kind.replace("Policy", "PolicyExperiment"), "next", namespace, experiment).await?;
    }
    Ok(cluster)
}

fn spec(message: &str) -> Value {
    json!({
        "program": {"cel": {"validations": [{"expression": "false", "message": message}]}},
        "admission": {"rules": [
            {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]},
        ]},
    })
}

async fn apply(cluster: &TestCluster, kind: &str, name: &str, namespace: Option<&str>, spec: Value) -> Result<()> {
    let object = json!({"apiVersion": "proviso.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let api = cluster.dynamic("proviso.dev/v1alpha1", kind, namespace);
    // The webhook may be registered a moment before its Service can be reached.
    until(&format!("{kind} {name} to be taken"), TIMEOUT, async || {
        Ok(api.patch(name, &PatchParams::apply("owner").force(), &Patch::Apply(&object)).await?)
    })
    .await?;
    Ok(())
}

/// Requests an action from the API server.
async fn act(client: &Client, path: &str, kind: &str, fields: Value) -> Result<String, kube::Error> {
    let mut body = json!({"apiVersion": "actions.proviso.dev/v1alpha1", "kind": kind});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let request = http::Request::post(format!("{GROUP}/{path}")).header("content-type", "application/json");
    let done: Value = client.request(request.body(body.to_string().into_bytes()).unwrap()).await?;
    assert_eq!((&done["kind"], &done["status"]), (&json!("Status"), &json!("Success")), "{done}");
    Ok(done["message"].as_str().unwrap_or_default().to_owned())
}

/// Reports that the candidate of an experiment is prepared, as the leader of the policy server does. Waits until the operator has
/// reported it too, or the experiment is committed.
async fn report_prepared(
    cluster: &TestCluster,
    candidate: &str,
    experiments: &Api<PolicyExperiment>,
    name: &str,
) -> Result<()> {
    let candidates = cluster.api::<PolicyRevision>();
    until("the candidate to be prepared", TIMEOUT, async || {
        let Some(experiment) = experiments.get_opt(name).await? else { return Ok(()) };
        let conditions = experiment.status.unwrap_or_default().conditions;
        if conditions.iter().any(|it| it.type_ == "Initialized" && it.status == "True") {
            return Ok(());
        }
        let generation = candidates.get(candidate).await?.metadata.generation.context("no generation")?;
        let initialized =
            json!({"status": {"conditions": [condition("Initialized", "True", "Prepared", "", generation)]}});
        candidates.patch_status(candidate, &PatchParams::default(), &Patch::Merge(initialized)).await?;
        bail!("the operator has not reported it")
    })
    .await
}

fn code(result: Result<String, kube::Error>) -> (u16, String) {
    match result.unwrap_err() {
        kube::Error::Api(status) => (status.code, status.message),
        other => panic!("{other}"),
    }
}

/// Returns a client that impersonates this user.
async fn by(cluster: &TestCluster, user: &str) -> Result<Client> {
    let mut config = cluster.plane.config().await?;
    config.auth_info.impersonate = Some(user.to_owned());
    Ok(Client::try_from(config)?)
}

/// Grants a user these permissions in the namespace `team`.
async fn allow(cluster: &TestCluster, user: &str, rules: &Value) -> Result<()> {
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": user}, "rules": rules});
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    for (kind, object) in [("Role", role), ("RoleBinding", binding)] {
        let api = cluster.dynamic("rbac.authorization.k8s.io/v1", kind, Some("team"));
        api.patch(user, &PatchParams::apply("owner").force(), &Patch::Apply(&object)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn experiment_actions_need_the_permissions_of_the_caller() -> Result<()> {
    let cluster = start_cluster("operator-actions").await?;
    let experiments = Api::<PolicyExperiment>::namespaced(cluster.client.clone(), "team");
    let (start, stop) = (json!({}), json!({}));
    allow(&cluster, "mara", &json!([
        {"apiGroups": ["actions.proviso.dev"], "resources": ["policyexperiments/start", "policyexperiments/stop"], "verbs": ["create"]},
    ]))
    .await?;
    let can = async |user: &str, question: &[&str]| {
        let question = [&["auth", "can-i"], question, &["-n", "team"]].concat();
        cluster.kubectl.by(user, &[]).run(&question).await.is_ok_and(|answer| answer.trim() == "yes")
    };
    let until_allowed = async |user: &str, question: &[&str]| {
        until(&format!("{user} to be allowed {question:?}"), TIMEOUT, async || {
            ensure!(can(user, question).await);
            Ok(())
        })
        .await
    };
    let commits = ["create", "policyexperiments.actions.proviso.dev", "--subresource=commit"];
    until_allowed("mara", &["create", "policyexperiments.actions.proviso.dev", "--subresource=stop"]).await?;
    let mara = by(&cluster, "mara").await?;
    let path = "namespaces/team/policyexperiments/next";
    act(&mara, &format!("{path}/start"), "PreviewStart", start).await?;
    let preview = experiments.get("next").await?.status.and_then(|status| status.preview_metadata).context("none")?;
    ensure!(preview.state == PreviewState::Active && preview.log_prefix == "PolicyPreviewLog", "{preview:?}");
    act(&mara, &format!("{path}/stop"), "PreviewStop", stop).await?;
    let preview = experiments.get("next").await?.status.and_then(|status| status.preview_metadata).context("none")?;
    ensure!(preview.state == PreviewState::Suspended && preview.stop_time.is_some(), "{preview:?}");

    // The user mara may not commit, and `kubectl auth can-i` reports that.
    ensure!(!can("mara", &commits).await, "mara may commit");
    let etag = proviso_core::experiment::etag(
        &experiments.get("next").await?.metadata.uid.context("no uid")?,
        experiments.get("next").await?.metadata.generation.context("no generation")?,
    );
    let commit = json!({"etag": etag});
    let (status, message) = code(act(&mara, &format!("{path}/commit"), "ExperimentCommit", commit.clone()).await);
    ensure!(
        status == 403 && message.contains("\"mara\" cannot create resource \"policyexperiments/commit\""),
        "{status} {message}"
    );
    ensure!(cluster.log()?.contains("mara"), "the refusal is not logged");

    // A commit also needs the permissions for the writes that it does.
    let only_commit =
        json!([{"apiGroups": ["actions.proviso.dev"], "resources": ["policyexperiments/commit"], "verbs": ["create"]}]);
    allow(&cluster, "ci", &only_commit).await?;
    until_allowed("ci", &commits).await?;
    let ci = by(&cluster, "ci").await?;
    let (status, message) = code(act(&ci, &format!("{path}/commit"), "ExperimentCommit", commit.clone()).await);
    ensure!(status == 403 && message.contains("policies"), "{status} {message}");
    allow(
        &cluster,
        "ci",
        &json!([
            only_commit[0],
            {"apiGroups": ["proviso.dev"], "resources": ["policies"], "verbs": ["update"]},
            {"apiGroups": ["proviso.dev"], "resources": ["policyexperiments"], "verbs": ["delete"]},
        ]),
    )
    .await?;
    until_allowed("ci", &["delete", "policyexperiments.proviso.dev"]).await?;

    for (fields, expected, words) in [
        (json!({}), 400, "etag"),
        (json!({"etag": "\"0000000000000000\""}), 409, "etag"),
        (json!({"etag": etag, "parentEtag": "\"0000000000000000\""}), 409, "etag"),
        (json!({"etag": etag, "force": true}), 400, "force"),
    ] {
        let (status, message) = code(act(&ci, &format!("{path}/commit"), "ExperimentCommit", fields.clone()).await);
        ensure!(status == expected && message.contains(words), "{fields}: {status} {message}");
    }
    let (status, message) = code(act(&ci, &format!("{path}/commit"), "PreviewStart", commit.clone()).await);
    ensure!(status == 400 && message.contains("ExperimentCommit"), "{status} {message}");
    let (status, _) = code(act(&ci, &format!("{path}/commit?dryRun=All"), "ExperimentCommit", commit.clone()).await);
    ensure!(status == 400);
    let commit_path = format!("{path}/commit");
    let (committed, prepared) = tokio::join!(
        act(&ci, &commit_path, "ExperimentCommit", commit.clone()),
        report_prepared(&cluster, "experiment.ns.team.next-1", &experiments, "next"),
    );
    committed?;
    prepared?;
    let policy = Api::<proviso_crds::Policy>::namespaced(cluster.client.clone(), "team").get("live").await?;
    ensure!(serde_json::to_value(&policy.spec)?["program"] == spec("2")["program"], "{:#?}", policy.spec);
    ensure!(policy.annotations().get(CHANGED_BY).is_some_and(|user| user == "ci"), "{:#?}", policy.annotations());
    ensure!(cluster.log()?.contains("team/policyexperiments/next"), "the commit is not logged");
    until("the end of the experiment", TIMEOUT, async || {
        ensure!(experiments.get_opt("next").await?.is_none());
        Ok(())
    })
    .await?;
    let (status, _) = code(act(&ci, &format!("{path}/commit"), "ExperimentCommit", commit).await);
    ensure!(status == 404, "{status}");
    Ok(())
}

#[tokio::test]
async fn the_aggregated_api_has_discovery_and_does_not_shadow_policies() -> Result<()> {
    let mut cluster = start_cluster("operator-discovery").await?;
    let resources: Value = serde_json::from_str(&cluster.kubectl.run(&["get", "--raw", GROUP]).await?)?;
    let names: Vec<_> = resources["resources"].as_array().context("no list")?.iter().map(|it| &it["name"]).collect();
    ensure!(names.contains(&&json!("clusterpolicyexperiments/commit")) && names.contains(&&json!("policies/rollback")));
    until("its schemas to be published", TIMEOUT, async || {
        let document = cluster.kubectl.run(&["get", "--raw", &format!("/openapi/v3{GROUP}")]).await?;
        ensure!(document.contains("parentEtag"), "{document}");
        Ok(())
    })
    .await?;
    // kubectl still lists the policies themselves by these names.
    let listed = cluster.kubectl.run(&["get", "policies,clusterpolicyexperiments", "-A", "-o", "name"]).await?;
    ensure!(listed.contains("policy.proviso.dev/live"), "{listed}");
    let (status, _) = code(act(&cluster.client, "policies/live/start", "PreviewStart", json!({})).await);
    ensure!(status == 404);
    // An administrator starts a cluster-scoped experiment.
    act(&cluster.client, "clusterpolicyexperiments/next/start", "PreviewStart", json!({})).await?;
    let experiments = Api::<ClusterPolicyExperiment>::all(cluster.client.clone());
    ensure!(experiments.get("next").await?.status.is_some_and(|status| status.preview_metadata.is_some()));
    let (status, message) =
        code(act(&cluster.client, "clusterpolicyexperiments/none/start", "PreviewStart", json!({})).await);
    ensure!(status == 404 && message.contains("none"), "{message}");

    // The operator deletes the registration if the aggregated API is disabled.
    cluster.operators.pop().context("no operator")?.terminate().await?;
    cluster.start_reachable_operator(&["--aggregated-api", "false"]).await?;
    until("the end of the registration", TIMEOUT, async || {
        ensure!(
            Api::<APIService>::all(cluster.client.clone()).get_opt("v1alpha1.actions.proviso.dev").await?.is_none()
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_rollback_action_restores_an_earlier_generation() -> Result<()> {
    let cluster = start_cluster("operator-rollback-action").await?;
    let revisions = cluster.api::<PolicyRevision>();
    let written = async |generation: i64| {
        until("a revision", TIMEOUT, async || Ok(revisions.get(&format!("cluster.live-{generation}")).await?)).await
    };
    written(1).await?;
    apply(&cluster, "ClusterPolicy", "live", None, spec("other")).await?;
    written(2).await?;
    let (status, message) =
        code(act(&cluster.client, "clusterpolicies/live/rollback", "PolicyRollback", json!({"generation": 9})).await);
    ensure!(status == 400 && message.contains("retained generations: [1, 2]"), "{status} {message}");
    act(&cluster.client, "clusterpolicies/live/rollback", "PolicyRollback", json!({"generation": 1})).await?;
    let third = written(3).await?;
    ensure!(serde_json::to_value(&third.spec.data)?["program"] == spec("1")["program"]);
    ensure!(Api::<ClusterPolicy>::all(cluster.client.clone()).get("live").await?.metadata.generation == Some(3));
    Ok(())
}

/// Returns a client that connects to the operator, and not to the API server.
pub fn direct(cluster: &TestCluster, bundle: &str, auth_info: AuthInfo) -> Result<Client> {
    let address = cluster.address.context("not reachable")?;
    let mut config = Config::new(format!("https://{address}").parse()?);
    config.root_cert = Some(vec![pem_to_der(bundle)?]);
    config.tls_server_name = Some(format!("{SERVICE}.{NAMESPACE}.svc"));
    config.auth_info = auth_info;
    // A request that is refused because of a limit is not repeated.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

pub fn pem_to_der(pem: &str) -> Result<Vec<u8>> {
    use base64::Engine as _;
    let lines = pem.lines().skip_while(|line| !line.starts_with("-----BEGIN")).skip(1);
    let text: String = lines.take_while(|line| !line.starts_with("-----END")).collect();
    Ok(base64::engine::general_purpose::STANDARD.decode(text)?)
}

pub fn shown(identity: &Identity) -> AuthInfo {
    AuthInfo {
        client_certificate: Some(identity.certificate.display().to_string()),
        client_key: Some(identity.key.display().to_string()),
        ..AuthInfo::default()
    }
}

/// Callers forge their identity: by headers without the client certificate of the API server, or by a changed token.
#[tokio::test]
async fn a_caller_cannot_impersonate_another_user() -> Result<()> {
    let cluster = start_cluster("operator-callers").await?;
    let services = Api::<APIService>::all(cluster.client.clone());
    let bundle = services.get("v1alpha1.actions.proviso.dev").await?.spec.and_then(|spec| spec.ca_bundle);
    let bundle = String::from_utf8(bundle.context("no bundle")?.0)?;
    let ask = async |auth_info: AuthInfo, path: &str, headers: &[(&str, &str)]| {
        let client = direct(&cluster, &bundle, auth_info)?;
        let mut request = http::Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = client.send(request.body(kube::client::Body::empty())?).await?;
        Ok::<_, anyhow::Error>(response.status().as_u16())
    };
    let root = [("X-Remote-User", "root"), ("X-Remote-Group", "system:masters")];
    let stranger =
        Authority::new("stranger", &cluster.plane.folder().path().join("pki"))?.client("front-proxy-client", None)?;
    let misnamed = cluster.plane.front_proxy().client("somebody", None)?;
    let own = cluster.plane.front_proxy().client("front-proxy-client", None)?;
    for path in [GROUP, "/v1/policies"] {
        ensure!(ask(AuthInfo::default(), path, &root).await? == 401, "without a certificate: {path}");
        ensure!(ask(shown(&stranger), path, &root).await? == 401, "certificate of another CA: {path}");
        ensure!(ask(shown(&misnamed), path, &root).await? == 401, "certificate with another name: {path}");
        ensure!(ask(shown(&own), path, &[]).await? == 401, "without a user: {path}");
        ensure!(ask(shown(&own), path, &root).await? == 200, "the API server itself: {path}");
    }

    let accounts = Api::<ServiceAccount>::namespaced(cluster.client.clone(), "team");
    accounts.create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": "robot"}}))?).await?;
    let spec = TokenRequestSpec { expiration_seconds: Some(600), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let token = accounts.create_token_request("robot", &PostParams::default(), &request).await?;
    let token = token.status.and_then(|status| status.token).context("no token")?;
    let bearing = |token: &str| AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
    let mut forged = token.clone();
    forged.replace_range(forged.len() - 8..forged.len() - 2, "AAAAAA");
    ensure!(ask(bearing(&forged), "/v1/policies", &[]).await? == 401);
    // The headers do not change the user of the token.
    ensure!(ask(bearing(&token), "/v1/policies", &root).await? == 403);
    let own_policy = "/v1/policies/ns.team.live";
    ensure!(ask(bearing(&token), own_policy, &[]).await? == 403);
    cluster
        .kubectl
        .run(&["create", "role", "reader", "-n", "team", "--verb=get", "--resource=policies.proviso.dev"])
        .await?;
    cluster
        .kubectl
        .run(&["create", "rolebinding", "reader", "-n", "team", "--role=reader", "--serviceaccount=team:robot"])
        .await?;
    until("its permission to count", TIMEOUT, async || {
        ensure!(ask(bearing(&token), own_policy, &[]).await? == 200);
        Ok(())
    })
    .await?;
    let log = cluster.log()?;
    ensure!(
        log.contains("unknown caller") && log.contains("system:serviceaccount:team:robot"),
        "refusals are not logged"
    );
    Ok(())
}
