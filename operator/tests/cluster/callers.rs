//! Hostile callers of the operator's ports: names that would change a URL, floods of tokens, and readers of metrics without a token.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, PostParams};
use kube::config::AuthInfo;
use kube::{Client, Config};
use proviso_e2e::until;
use serde_json::{Value, json};

use crate::actions::{GROUP, direct, shown, start_cluster};
use crate::test_cluster::{NAMESPACE, SERVICE, TIMEOUT, TestCluster};

/// Sends a request. Returns the status, the header `Retry-After`, and the body.
async fn send(client: &Client, request: http::Request<Vec<u8>>) -> Result<(u16, Option<String>, String)> {
    use http_body_util::BodyExt as _;
    let response = client.send(request.map(kube::client::Body::from)).await?;
    let retry_after = response.headers().get("retry-after").map(|it| it.to_str().map(ToOwned::to_owned));
    let (status, retry_after) = (response.status().as_u16(), retry_after.transpose()?);
    let body = response.into_body().collect().await?.to_bytes();
    Ok((status, retry_after, String::from_utf8(body.to_vec())?))
}

async fn bundle_of(cluster: &TestCluster) -> Result<String> {
    let services = Api::<APIService>::all(cluster.client.clone());
    let bundle = services.get("v1alpha1.actions.proviso.dev").await?.spec.and_then(|spec| spec.ca_bundle);
    Ok(String::from_utf8(bundle.context("no bundle")?.0)?)
}

fn bearing(token: &str) -> AuthInfo {
    AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() }
}

#[tokio::test]
async fn names_that_would_change_a_url_of_the_api_server_are_refused() -> Result<()> {
    let cluster = start_cluster("operator-hostile-names").await?;
    // The API server itself asks, for a cluster administrator: no permission stops the request.
    let api_server = cluster.plane.front_proxy().client("front-proxy-client", None)?;
    let client = direct(&cluster, &bundle_of(&cluster).await?, shown(&api_server))?;
    let ask = async |path: &str| {
        let body = json!({"apiVersion": "actions.proviso.dev/v1alpha1", "kind": "PolicyRollback", "generation": 1});
        let request = http::Request::post(format!("{GROUP}/{path}"))
            .header("content-type", "application/json")
            .header("X-Remote-User", "root")
            .header("X-Remote-Group", "system:masters");
        send(&client, request.body(body.to_string().into_bytes())?).await
    };
    let secret = format!("..%2f..%2f..%2f..%2fapi%2fv1%2fnamespaces%2f{NAMESPACE}%2fsecrets%2fproviso-ca");
    for name in
        ["..%2flive", "%2e%2e", "live%2f..%2flive", &secret, "live%3fdryRun=All", "live%23", "LIVE", "%20", "live%00"]
    {
        let (status, _, body) = ask(&format!("clusterpolicies/{name}/rollback")).await?;
        ensure!(status == 400 && body.contains("metadata.name"), "{name}: {status} {body}");
        let (status, _, body) = ask(&format!("namespaces/team/policies/{name}/rollback")).await?;
        ensure!(status == 400 && body.contains("metadata.name"), "{name}: {status} {body}");
        let (status, _, body) = ask(&format!("namespaces/{name}/policies/live/rollback")).await?;
        ensure!(status == 400 && body.contains("metadata.namespace"), "{name}: {status} {body}");
    }
    let (status, _, body) = ask("clusterpolicies/live/rollback").await?;
    ensure!(status == 201 || body.contains("retained"), "a good name is accepted: {status} {body}");
    Ok(())
}

#[tokio::test]
async fn a_flood_of_bad_tokens_becomes_few_token_reviews() -> Result<()> {
    let cluster = start_cluster("operator-token-flood").await?;
    let bundle = bundle_of(&cluster).await?;
    let reviews = async || {
        let metrics = cluster.metrics().await?;
        let line = metrics.lines().find(|line| line.contains("tokenreviews"));
        let count = line.and_then(|line| line.rsplit(' ').next()).map_or(Ok(0), str::parse::<u64>)?;
        Ok::<_, anyhow::Error>(count)
    };
    let before = reviews().await?;
    // All at once: on a slow machine, one request after the other would not exceed the limits.
    let client = direct(&cluster, &bundle, AuthInfo::default())?;
    let flood = (0..200).map(async |number| {
        let path = [GROUP, "/v1/policies", "/api/v1/policies", "/api/v1alpha1/policies"][number % 4];
        let request = http::Request::get(path).header("authorization", format!("Bearer bad-{number}"));
        send(&client, request.body(Vec::new())?).await
    });
    let (mut refused, mut limited) = (0, 0);
    for answer in futures_util::future::join_all(flood).await {
        let (status, retry_after, body) = answer?;
        match status {
            401 => refused += 1,
            429 => {
                ensure!(retry_after.is_some_and(|seconds| seconds.parse::<u64>().is_ok()), "{body}");
                limited += 1;
            }
            _ => anyhow::bail!("{status} {body}"),
        }
    }
    let reviewed = reviews().await? - before;
    ensure!(reviewed == refused && limited > 0, "{reviewed} reviews, {refused} refused, {limited} limited");
    // The client is served again when its limit permits another review.
    let client = direct(&cluster, &bundle, bearing("again"))?;
    until("a review of another token", TIMEOUT, async || {
        let (status, ..) = send(&client, http::Request::get("/v1/policies").body(Vec::new())?).await?;
        ensure!(status == 401, "{status}");
        Ok(())
    })
    .await?;
    // The API server names its callers in headers, so their requests need no reviews and are not limited.
    let api_server = cluster.plane.front_proxy().client("front-proxy-client", None)?;
    let client = direct(&cluster, &bundle, shown(&api_server))?;
    for _ in 0..50 {
        let request = http::Request::get(GROUP).header("X-Remote-User", "root").body(Vec::new())?;
        let (status, ..) = send(&client, request).await?;
        ensure!(status == 200, "{status}");
    }
    Ok(())
}

#[tokio::test]
async fn metrics_of_the_operator_need_a_token_whose_user_may_read_them() -> Result<()> {
    let mut cluster = TestCluster::start("operator-metrics-callers").await?;
    cluster.start_operator(&["--metrics-listen=127.0.0.1:0"])?;
    let address = until("the address of the metrics", TIMEOUT, async || {
        let log = cluster.log()?;
        let line = log.lines().find(|line| line.contains("\"listening\"")).context("not yet")?;
        let line: Value = serde_json::from_str(line)?;
        Ok(line["metrics"].as_str().context("no address")?.to_owned())
    })
    .await?;
    // The admin port has no metrics.
    ensure!(cluster.metrics().await.is_err(), "the admin port serves metrics");
    let bundle = until("the CA", TIMEOUT, async || cluster.secret("proviso-ca", "bundle.crt").await).await?;
    let ask = async |token: Option<&str>| {
        let mut config = Config::new(address.parse()?);
        config.root_cert = Some(vec![crate::actions::pem_to_der(&bundle)?]);
        config.tls_server_name = Some(format!("{SERVICE}.{NAMESPACE}.svc"));
        config.auth_info = token.map(bearing).unwrap_or_default();
        send(&Client::try_from(config)?, http::Request::get("/metrics").body(Vec::new())?).await
    };
    // The operator has its certificate a moment after its CA.
    let (status, ..) = until("an answer", TIMEOUT, async || ask(None).await).await?;
    ensure!(status == 401, "{status}");
    ensure!(ask(Some("forged")).await?.0 == 401);

    let accounts = cluster.api::<ServiceAccount>();
    let account = serde_json::from_value(json!({"metadata": {"name": "prometheus"}}))?;
    accounts.create(&PostParams::default(), &account).await?;
    let token = accounts.create_token_request("prometheus", &PostParams::default(), &TokenRequest::default()).await?;
    let token = token.status.and_then(|status| status.token).context("no token")?;
    let (status, _, body) = ask(Some(&token)).await?;
    ensure!(status == 403 && body.contains("proviso-metrics-reader"), "{status} {body}");
    let role = ["create", "clusterrole", "proviso-metrics-reader", "--verb=get", "--non-resource-url=/metrics"];
    cluster.kubectl.run(&role).await?;
    let account = format!("--serviceaccount={NAMESPACE}:prometheus");
    let binding = ["create", "clusterrolebinding", "prometheus", "--clusterrole=proviso-metrics-reader", &account];
    cluster.kubectl.run(&binding).await?;
    until("the metrics", TIMEOUT, async || {
        let (status, _, body) = ask(Some(&token)).await?;
        ensure!(status == 200 && body.contains("proviso_operator_leader"), "{status} {body}");
        Ok(())
    })
    .await
}
