//! Metrics and details of a replica are for callers that the API server knows, and that may read metrics.

use anyhow::{Context as _, Result, ensure};
use hyper::StatusCode;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::PostParams;
use proviso_e2e::until;
use serde_json::json;

use crate::support::cluster::{POD, TestEnv, revision};
use crate::support::tls::Pair;
use crate::support::{Folder, Server, WAIT_TIMEOUT, forbid};

#[tokio::test]
async fn metrics_and_details_need_a_token_whose_user_may_read_metrics() -> Result<()> {
    let env = TestEnv::start("metrics-callers").await?;
    let (folder, pair) = (tempfile::tempdir()?, Pair::new());
    pair.write(folder.path());
    let mut command = env.command(POD, "pod-1");
    command.arg("--tls-cert").arg(folder.path().join("tls.crt")).arg("--tls-key").arg(folder.path().join("tls.key"));
    command.args(["--metrics-listen", "127.0.0.1:0"]);
    let server = Server::run(command, Folder::new()).await;
    server.until("ready", async || server.get("/readyz").await.status == StatusCode::OK).await;
    let started = server.event("policy server started").context("not started")?;
    let address = started["metrics"].as_str().and_then(|url| url.strip_prefix("https://")).context("its address")?;

    // The probes of the kubelet need no token, and name no policy.
    env.create(&revision("secret-name", 1, &forbid("true", "no"))).await?;
    env.until_reported("cluster.secret-name-1", "pod-1", "True", "Loaded").await?;
    for open in ["/readyz", "/readyz?verbose", "/livez"] {
        let answer = server.get(open).await;
        ensure!(answer.status == StatusCode::OK && answer.text == "ok\n", "{open}: {}", answer.text);
    }
    let metrics = server.get("/metrics").await;
    ensure!(metrics.status == StatusCode::NOT_FOUND && !metrics.text.contains("proviso_"), "{}", metrics.text);

    let client = env.plane.client().await?;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), &env.namespace);
    let account = serde_json::from_value(json!({"metadata": {"name": "prometheus"}}))?;
    accounts.create(&PostParams::default(), &account).await?;
    let token = accounts.create_token_request("prometheus", &PostParams::default(), &TokenRequest::default()).await?;
    let token = token.status.and_then(|status| status.token).context("no token")?;
    let pages = ["/metrics", "/readyz?verbose"];
    for page in pages {
        for (token, expected) in [
            (None, StatusCode::UNAUTHORIZED),
            (Some("forged"), StatusCode::UNAUTHORIZED),
            (Some(token.as_str()), StatusCode::FORBIDDEN),
        ] {
            let answer = pair.get(address, page, token).await?;
            ensure!(answer.status == expected, "{page}: {}", answer.status);
            ensure!(!answer.text.contains("secret-name"), "{page}: {}", answer.text);
        }
    }

    // The rules of the ClusterRole proviso-metrics-reader of the chart.
    let rules = json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]);
    let role = serde_json::from_value(json!({"metadata": {"name": env.namespace}, "rules": rules}))?;
    Api::<ClusterRole>::all(client.clone()).create(&PostParams::default(), &role).await?;
    let binding = serde_json::from_value(json!({
        "metadata": {"name": env.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": env.namespace},
        "subjects": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": env.namespace}],
    }))?;
    Api::<ClusterRoleBinding>::all(client).create(&PostParams::default(), &binding).await?;
    for (page, words) in pages.into_iter().zip(["proviso_tls_pair_valid 1", "[+] cluster.secret-name-1 loaded"]) {
        until(page, WAIT_TIMEOUT, async || {
            let answer = pair.get(address, page, Some(&token)).await?;
            ensure!(
                answer.status == StatusCode::OK && answer.text.contains(words),
                "{}: {}",
                answer.status,
                answer.text
            );
            Ok(())
        })
        .await?;
    }

    // A flood of bad tokens is limited. All at once: on a slow machine, one after the other would not exceed the limits.
    let flood = (0..100).map(async |number| pair.get(address, "/metrics", Some(&format!("bad-{number}"))).await);
    let mut limited = 0;
    for answer in futures_util::future::join_all(flood).await {
        let answer = answer?;
        match answer.status {
            StatusCode::UNAUTHORIZED => {}
            StatusCode::TOO_MANY_REQUESTS => {
                ensure!(answer.headers.contains_key("retry-after"), "{:?}", answer.headers);
                limited += 1;
            }
            status => anyhow::bail!("{status}"),
        }
    }
    ensure!(limited > 0, "no request of the flood was limited");
    // Prometheus is answered again when the limit of its address permits a review.
    until("the metrics after the flood", WAIT_TIMEOUT, async || {
        let answer = pair.get(address, "/metrics", Some(&token)).await?;
        ensure!(answer.status == StatusCode::OK, "{}", answer.status);
        Ok(())
    })
    .await
}
