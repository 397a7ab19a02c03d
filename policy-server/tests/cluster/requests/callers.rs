//! The callers of requests to services, and the users and tenants that they may name.

use anyhow::{Result, ensure};
use hyper::{Method, StatusCode};
use proviso_core::CallerToken;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{
    ADR, EVALUATOR, PORTAL, PUBLISHED, account, create_namespace, evaluate, evaluator, grant, in_namespace, make_live,
    marking, request_revision, until_evaluated,
};
use crate::support::cluster::{POD, TestEnv};
use crate::support::{Server, ask_as, parse_answer, pod};

/// A replica with a global policy, and policies of the tenants `TEST-blue` and `TEST-green`. The namespace `TEST-team` has the label of
/// the first tenant, and the other tenant is a namespace without a label.
struct Tenants {
    env: TestEnv,
    client: kube::Client,
    server: Server,
    blue: String,
    green: String,
    team: String,
}

impl Tenants {
    async fn start(test: &str) -> Result<Self> {
        let env = TestEnv::start(test).await?;
        let client = env.plane.client().await?;
        let (blue, green, team) = (format!("{test}-blue"), format!("{test}-green"), format!("{test}-team"));
        create_namespace(&client, &team, Some(&blue)).await?;
        create_namespace(&client, &green, None).await?;
        let server = env.replica("pod-1").await?;
        make_live(&env, &request_revision("all", 1, &json!({}), &marking("all")), "pod-1").await?;
        for (namespace, words) in [(&team, "blue"), (&green, "green")] {
            let revision = request_revision("mine", 1, &json!({}), &marking(words));
            make_live(&env, &in_namespace(revision, namespace), "pod-1").await?;
        }
        for policy in ["cluster.all".to_owned(), format!("ns.{team}.mine"), format!("ns.{green}.mine")] {
            let label = format!("policy=\"{policy}\"");
            let is_live = async || server.count("proviso_policy_live_generation", &[&label]).await == 1;
            server.until(&policy, is_live).await;
        }
        Ok(Self { env, client, server, blue, green, team })
    }

    /// Creates a `ServiceAccount` with these verbs, and waits until the replica knows all policies. Returns its token.
    async fn account(&self, namespace: &str, name: &str, verbs: &[&str]) -> Result<String> {
        let token = account(&self.client, namespace, name).await?;
        grant(&self.client, namespace, name, verbs, None).await?;
        let body = json!({"payload": {}, "user": null, "tenant": null});
        // A caller that may not impersonate is refused because of its fields, after it has been authenticated.
        until_evaluated(&self.server, &token, &body, "a known caller", |it| {
            it.status == StatusCode::OK || it.body["detail"].as_str().unwrap_or_default().starts_with("user: ")
        })
        .await?;
        Ok(token)
    }

    async fn evaluate(&self, token: &str, user: Value, tenant: Value) -> Result<super::Evaluated> {
        let mut body = json!({"payload": {}});
        for (field, value) in [("user", user), ("tenant", tenant)] {
            if value != json!("absent") {
                body[field] = value;
            }
        }
        evaluate(&self.server, ADR, Some(token), &body).await
    }
}

#[tokio::test]
async fn a_request_needs_a_token_and_the_permission_to_evaluate() -> Result<()> {
    let env = TestEnv::start("request-callers").await?;
    let client = env.plane.client().await?;
    let server = env.replica("pod-1").await?;
    let (adr, published) = (json!({"payload": {}}), json!({"service_instance": {"spec": {"service_type": "vm"}}}));
    let stranger = account(&client, &env.namespace, "stranger").await?;
    for (path, body) in [(ADR, &adr), (PUBLISHED, &published), ("/api/v1/policies", &adr), ("/api", &adr)] {
        for token in [None, Some("forged"), Some("")] {
            let refused = evaluate(&server, path, token, body).await?;
            refused.ensure_problem(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", "")?;
            ensure!(refused.headers["www-authenticate"] == "Bearer", "{refused:?}");
        }
        let refused = evaluate(&server, path, Some(&stranger), body).await?;
        refused.ensure_problem(StatusCode::FORBIDDEN, "PERMISSION_DENIED", "proviso-request-evaluator")?;
    }
    ensure!(server.count("proviso_requests_refused_total", &["reason=\"unknown_caller\""]).await == 12);
    ensure!(server.count("proviso_requests_refused_total", &["reason=\"forbidden\""]).await == 4);

    let token = evaluator(&env, &client).await?;
    let allowed = until_evaluated(&server, &token, &adr, "an allowed caller", |it| it.status == StatusCode::OK).await?;
    ensure!(allowed.body["status"] == "APPROVED", "{allowed:?}");
    let allowed = evaluate(&server, PUBLISHED, Some(&token), &published).await?;
    ensure!(allowed.body["status"] == "APPROVED", "{allowed:?}");
    let unknown = ask_as(&server.listen, Method::POST, "/api/v1/policies", Some(&token), "{}".into()).await?;
    ensure!(unknown.status == StatusCode::NOT_FOUND, "{}", unknown.text);

    // A role can be limited to other PolicyServers.
    let other = account(&client, &env.namespace, "other").await?;
    grant(&client, &env.namespace, "other", EVALUATOR, Some("other")).await?;
    let named = account(&client, &env.namespace, "named").await?;
    grant(&client, &env.namespace, "named", EVALUATOR, Some("default")).await?;
    until_evaluated(&server, &named, &adr, "the PolicyServer of the role", |it| it.status == StatusCode::OK).await?;
    let refused = evaluate(&server, ADR, Some(&other), &adr).await?;
    refused.ensure_problem(StatusCode::FORBIDDEN, "PERMISSION_DENIED", "the PolicyServer default")
}

#[tokio::test]
async fn an_unknown_caller_is_answered_before_its_body_is_read() -> Result<()> {
    let env = TestEnv::start("request-bodies").await?;
    let server = env.replica("pod-1").await?;
    let mut stream = TcpStream::connect(&server.listen).await?;
    // The body never arrives.
    let head = format!(
        "POST {ADR} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer forged\r\ncontent-length: 1000000\r\n\r\n",
        server.listen
    );
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = parse_answer(&String::from_utf8(answer)?);
    ensure!(answer.status == StatusCode::UNAUTHORIZED, "{}", answer.text);
    Ok(())
}

#[tokio::test]
async fn only_the_paths_of_the_api_need_no_token_of_an_api_server() -> Result<()> {
    let env = TestEnv::start("request-paths").await?;
    let client = env.plane.client().await?;
    let folder = tempfile::tempdir()?;
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, format!("{}\n", CallerToken::from_random([7; 32]).expose()))?;
    let mut command = env.command(POD, "pod-1");
    command.arg("--caller-tokens").arg(&tokens);
    let server = TestEnv::run(command).await?;
    let token = evaluator(&env, &client).await?;
    until_evaluated(&server, &token, &json!({"payload": {}}), "an allowed caller", |it| it.status == StatusCode::OK)
        .await?;
    for path in [
        "/validate/cluster.all/1",
        "/v1/policies",
        "/apis",
        "/apiv1",
        "/",
        "//api/v1/engine/evaluate",
        "/t/api/v1/engine/evaluate",
    ] {
        let answer = ask_as(&server.listen, Method::POST, path, Some(&token), pod("u", "x").to_string().into()).await?;
        let is_unknown = answer.status == StatusCode::UNAUTHORIZED && answer.text.contains("only the webhooks");
        ensure!(is_unknown, "{path}: {} {}", answer.status, answer.text);
    }
    Ok(())
}

#[tokio::test]
async fn the_identity_of_a_caller_is_its_own_and_the_tenant_is_that_of_its_namespace() -> Result<()> {
    let tenants = Tenants::start("request-identity").await?;
    let absent = || json!("absent");
    for (namespace, tenant, words) in
        [(&tenants.team, &tenants.blue, "blue"), (&tenants.green, &tenants.green, "green")]
    {
        let token = tenants.account(namespace, "app", EVALUATOR).await?;
        let user = format!("system:serviceaccount:{namespace}:app");
        let payload = json!({"all": [user, tenant], words: [user, tenant]});
        for (named_user, named_tenant) in
            [(absent(), absent()), (json!(user), json!(tenant)), (absent(), json!(tenant))]
        {
            let evaluated = tenants.evaluate(&token, named_user, named_tenant).await?;
            ensure!(evaluated.status == StatusCode::OK && evaluated.body["payload"] == payload, "{evaluated:?}");
        }
        // The published API has the same identity, without fields for it.
        let body = json!({"service_instance": {"spec": {"service_type": "vm"}}});
        let evaluated = evaluate(&tenants.server, PUBLISHED, Some(&token), &body).await?;
        let spec = &evaluated.body["evaluated_service_instance"]["spec"];
        ensure!(spec["all"] == payload["all"] && spec[words] == payload[words], "{evaluated:?}");
        for (named_user, named_tenant, words) in [
            (json!("ana"), absent(), "user: is \"ana\""),
            (absent(), json!("other"), "tenant: is \"other\""),
            (absent(), Value::Null, "tenant: is none"),
            (Value::Null, absent(), "user: is none"),
        ] {
            let refused = tenants.evaluate(&token, named_user, named_tenant).await?;
            refused.ensure_problem(StatusCode::FORBIDDEN, "PERMISSION_DENIED", words)?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_portal_names_the_users_and_tenants_of_others_and_must_name_both() -> Result<()> {
    let tenants = Tenants::start("request-portals").await?;
    let token = tenants.account(&tenants.env.namespace, "portal", PORTAL).await?;
    for (user, tenant, words) in [
        (json!("ana"), json!(tenants.blue), Some("blue")),
        (json!("ana"), json!(tenants.green), Some("green")),
        (json!("ana"), Value::Null, None),
        (Value::Null, Value::Null, None),
    ] {
        let evaluated = tenants.evaluate(&token, user.clone(), tenant.clone()).await?;
        let mut payload = json!({"all": [user, tenant]});
        if let Some(words) = words {
            payload[words] = payload["all"].clone();
        }
        ensure!(evaluated.status == StatusCode::OK && evaluated.body["payload"] == payload, "{evaluated:?}");
    }
    // A portal that forgets the tenant would skip the policies of the tenant.
    for (user, tenant, field) in
        [(json!("ana"), json!("absent"), "tenant: is missing"), (json!("absent"), json!("absent"), "user: is missing")]
    {
        let refused = tenants.evaluate(&token, user, tenant).await?;
        refused.ensure_problem(StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", field)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_flood_of_bad_tokens_is_limited_and_a_known_caller_is_answered_meanwhile() -> Result<()> {
    let env = TestEnv::start("request-floods").await?;
    let client = env.plane.client().await?;
    let server = env.replica("pod-1").await?;
    let token = evaluator(&env, &client).await?;
    let body = json!({"payload": {}});
    until_evaluated(&server, &token, &body, "an allowed caller", |it| it.status == StatusCode::OK).await?;
    let flood = async {
        let all = (0..100).map(async |number| evaluate(&server, ADR, Some(&format!("bad-{number}")), &body).await);
        futures_util::future::join_all(all).await
    };
    let (answers, known) = tokio::join!(flood, evaluate(&server, ADR, Some(&token), &body));
    let known = known?;
    // On a slow machine, the result of the review of the known token may have ended meanwhile.
    ensure!([StatusCode::OK, StatusCode::TOO_MANY_REQUESTS].contains(&known.status), "{known:?}");
    let mut limited = 0;
    for answer in answers {
        let answer = answer?;
        if answer.status == StatusCode::TOO_MANY_REQUESTS {
            answer.ensure_problem(StatusCode::TOO_MANY_REQUESTS, "RESOURCE_EXHAUSTED", "too many tokens")?;
            ensure!(answer.headers.contains_key("retry-after"), "{answer:?}");
            limited += 1;
        } else {
            answer.ensure_problem(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", "")?;
        }
    }
    ensure!(limited > 0, "no request of the flood was limited");
    until_evaluated(&server, &token, &body, "the known caller", |it| it.status == StatusCode::OK).await.map(drop)
}
