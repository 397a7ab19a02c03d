//! The generations of request policies on replicas: programs of all kinds, the switch to the next generation, and generations that do not
//! work. The tests mark revisions as live, as the operator does.

use anyhow::{Result, ensure};
use hyper::StatusCode;
use kube::api::DeleteParams;
use proviso_e2e::Registry;
use serde_json::{Value, json};

use super::{
    create_namespace, evaluator, in_namespace, make_live, marking, rejecting, request_revision, until_evaluated,
};
use crate::support::cluster::TestEnv;
use crate::support::modules::{RegistryEnv, denying};

const POD_2: &str = "policy-server-default-1";

fn body(service_type: &str) -> Value {
    json!({"payload": {"service_type": service_type}})
}

#[tokio::test]
async fn programs_of_all_kinds_decide_about_requests() -> Result<()> {
    let env = RegistryEnv::start("request-programs").await?;
    env.registry.push("requests", "v1", Registry::MODULE, &denying("no, says wasm")).await?;
    let server = env.replica("pod-1", &env.path("cache")).await?;
    let token = evaluator(&env.cluster, &env.cluster.plane.client().await?).await?;
    let cel =
        json!({"cel": {"validations": [{"expression": "object.service_type != 'cel'", "message": "no, says cel"}]}});
    let member = json!({"cel": {"validations": [{"expression": "false", "message": "never"}]}});
    let group =
        json!({"group": {"members": {"a": {"program": member}}, "expression": "a()", "message": "no, says group"}});
    let wasm = json!({"wasm": {"module": env.module("requests:v1")}});
    for (kind, program) in [("rego", rejecting("no, says rego")), ("cel", cel), ("group", group), ("wasm", wasm)] {
        let revision = request_revision(kind, 1, &json!({"serviceTypes": [kind]}), &program);
        make_live(&env.cluster, &revision, "pod-1").await?;
        let rejected = until_evaluated(&server, &token, &body(kind), kind, |it| {
            it.status == StatusCode::FORBIDDEN && it.body["type"] == "REJECTED"
        })
        .await?;
        rejected.ensure_problem(StatusCode::FORBIDDEN, "REJECTED", &format!("no, says {kind}"))?;
    }
    until_evaluated(&server, &token, &body("other"), "another service type", |it| it.status == StatusCode::OK)
        .await
        .map(drop)
}

#[tokio::test]
async fn replicas_answer_with_the_generation_that_is_marked_as_live() -> Result<()> {
    let env = TestEnv::start("request-generations").await?;
    let token = evaluator(&env, &env.plane.client().await?).await?;
    let (first, second) = (env.replica("pod-1").await?, env.replica_of(POD_2, "pod-2").await?);
    let until_trail = async |what: &str, trail: &[&str]| {
        for server in [&first, &second] {
            until_evaluated(server, &token, &body("vm"), what, |it| it.status == StatusCode::OK && it.trail() == trail)
                .await?;
        }
        anyhow::Ok(())
    };
    let revision = |generation: u32| request_revision("a", generation, &json!({}), &marking(&format!("g{generation}")));
    let until_loaded = async |name: &str| {
        for pod in ["pod-1", "pod-2"] {
            env.until_reported(name, pod, "True", "Loaded").await?;
        }
        anyhow::Ok(())
    };

    // A new policy has no effect before it is live.
    env.create(&revision(1)).await?;
    until_loaded("cluster.a-1").await?;
    until_trail("no policy", &[]).await?;
    env.set_condition("cluster.a-1", "Live", "True").await?;
    until_trail("generation 1", &["cluster.a-1"]).await?;

    // The old generation answers until the switch, for which the operator first marks the next generation.
    env.create(&revision(2)).await?;
    until_loaded("cluster.a-2").await?;
    until_trail("still generation 1", &["cluster.a-1"]).await?;
    env.set_condition("cluster.a-2", "Live", "True").await?;
    until_trail("generation 2", &["cluster.a-2"]).await?;
    env.set_condition("cluster.a-1", "Live", "False").await?;
    until_trail("generation 2 alone", &["cluster.a-2"]).await?;

    // A generation that does not work changes nothing.
    let broken = json!({"rego": {"dialect": "Request", "source": "package p\nresult := {"}});
    env.create(&request_revision("a", 3, &json!({}), &broken)).await?;
    let status = env.until_reported("cluster.a-3", "pod-1", "False", "CompileError").await?;
    ensure!(status["replicas"].to_string().contains("spec.program.rego.source"), "{status:#}");
    until_trail("the last generation that works", &["cluster.a-2"]).await?;

    // A rollback is a new generation with an old spec.
    env.create(&request_revision("a", 4, &json!({}), &marking("g1"))).await?;
    until_loaded("cluster.a-4").await?;
    env.set_condition("cluster.a-4", "Live", "True").await?;
    env.set_condition("cluster.a-2", "Live", "False").await?;
    until_trail("generation 4", &["cluster.a-4"]).await?;

    // A request policy is not asked by webhooks, on any replica.
    let review = first.post("/validate/cluster.a/4", "{\"request\": {\"uid\": \"u\"}}").await;
    ensure!(review.status != StatusCode::OK, "{}", review.text);

    // The policy is disabled or deleted: the operator removes the mark before it unloads the revision.
    env.set_condition("cluster.a-4", "Live", "False").await?;
    until_trail("no policy again", &[]).await?;
    for revision in ["cluster.a-3", "cluster.a-4"] {
        env.revisions.delete(revision, &DeleteParams::default()).await?;
    }
    until_trail("no policy after the deletion", &[]).await
}

#[tokio::test]
async fn requests_are_refused_if_the_live_generation_is_not_loaded() -> Result<()> {
    let env = TestEnv::start("request-unloaded").await?;
    let token = evaluator(&env, &env.plane.client().await?).await?;
    let server = env.replica("pod-1").await?;
    let broken = json!({"rego": {"dialect": "Request", "source": "package p\nresult := {"}});
    let unreachable = json!({"wasm": {"module": "https://127.0.0.1:1/a.wasm"}});
    let covered = json!({"serviceTypes": ["vm"]});
    let until_refused = async |status: StatusCode, kind: &str, words: &str| {
        let refused = until_evaluated(&server, &token, &body("vm"), words, |it| {
            it.status == status && it.body["detail"].as_str().unwrap_or_default().contains(words)
        })
        .await?;
        refused.ensure_problem(status, kind, words)?;
        // The policy covers no other requests.
        until_evaluated(&server, &token, &body("db"), "another service type", |it| it.status == StatusCode::OK).await?;
        anyhow::Ok(refused)
    };

    // No generation of the policy has worked yet.
    env.create(&request_revision("a", 1, &covered, &broken)).await?;
    until_refused(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", "policy cluster.a has no generation that works")
        .await?;
    // While the next generation is not live, nothing changes, although the operator has disabled the first one.
    env.create(&request_revision("a", 2, &covered, &unreachable)).await?;
    env.enable("cluster.a-1", false).await?;
    env.until_reported("cluster.a-2", "pod-1", "False", "PullError").await?;
    until_refused(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", "generation 2: PullError").await?;

    // The live generation cannot be loaded on this replica.
    env.set_condition("cluster.a-2", "Live", "True").await?;
    let refused = until_refused(
        StatusCode::SERVICE_UNAVAILABLE,
        "UNAVAILABLE",
        "generation 2 of policy cluster.a is live, and not loaded on this replica: PullError",
    )
    .await?;
    ensure!(refused.headers["retry-after"] == "1", "{refused:?}");
    // Nor is an older generation that is loaded and still marked.
    env.create(&request_revision("a", 3, &covered, &marking("a"))).await?;
    env.until_reported("cluster.a-3", "pod-1", "True", "Loaded").await?;
    env.create(&request_revision("a", 4, &covered, &unreachable)).await?;
    env.set_condition("cluster.a-3", "Live", "True").await?;
    env.set_condition("cluster.a-4", "Live", "True").await?;
    until_refused(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", "generation 4 of policy cluster.a is live").await?;
    // Somebody has disabled the live revision.
    env.set_condition("cluster.a-4", "Live", "False").await?;
    env.enable("cluster.a-3", false).await?;
    until_refused(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", "its revision is disabled").await?;

    env.enable("cluster.a-3", true).await?;
    until_evaluated(&server, &token, &body("vm"), "generation 3", |it| it.trail() == ["cluster.a-3"]).await?;
    // A replica that starts refuses all requests until it has tried to load all live generations.
    drop(server);
    env.expire_lease().await?;
    let server = env.replica("pod-2").await?;
    until_evaluated(&server, &token, &body("vm"), "generation 3 after a restart", |it| it.trail() == ["cluster.a-3"])
        .await
        .map(drop)
}

#[tokio::test]
async fn a_policy_of_a_tenant_that_does_not_work_refuses_the_requests_of_this_tenant_only() -> Result<()> {
    let env = TestEnv::start("request-unserved-tenant").await?;
    let client = env.plane.client().await?;
    let namespace = "request-unserved-team";
    create_namespace(&client, namespace, Some("purple")).await?;
    let token = super::account(&client, &env.namespace, "portal").await?;
    super::grant(&client, &env.namespace, "portal", super::PORTAL, None).await?;
    let server = env.replica("pod-1").await?;
    let broken = json!({"rego": {"dialect": "Request", "source": "package p\nresult := {"}});
    env.create(&in_namespace(request_revision("mine", 1, &json!({}), &broken), namespace)).await?;
    let request = |tenant: &str| json!({"payload": {}, "user": "ana", "tenant": tenant});
    let refused = until_evaluated(&server, &token, &request("purple"), "a refusal", |it| {
        it.status == StatusCode::INTERNAL_SERVER_ERROR
    })
    .await?;
    refused.ensure_problem(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", &format!("ns.{namespace}.mine"))?;
    for tenant in ["other", namespace] {
        until_evaluated(&server, &token, &request(tenant), tenant, |it| it.status == StatusCode::OK).await?;
    }
    Ok(())
}
