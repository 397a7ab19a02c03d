//! Operations of the REST API (AIP-151) over a folder: their results are kept, and a later change does not change them.

use std::net::TcpListener;

use hyper::Method;
use serde_json::{Value, json};

use crate::api::{Api, E, EXPERIMENTS, LIVE, forbidding, noop, reason, spec};
use crate::support::{Folder, Server, cel, experiment, pod, policy, wapc, wasm, with};

const START: &str = "/v1/policies/cluster.live/experiments/e:startPreview";
const STOP: &str = "/v1/policies/cluster.live/experiments/e:stopPreview";

/// Returns a folder with the policy `live`.
fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("live.json", policy("live", &json!({})));
    folder
}

/// Returns the manifest of an experiment without `autoStart`.
fn not_started(name: &str, policy_name: &str) -> String {
    let mut object: Value = serde_json::from_str(&experiment(name, policy_name, &cel("false", "no"))).unwrap();
    object["spec"]["autoStart"] = json!(false);
    object.to_string()
}

/// A registry that accepts connections and never answers. A version with a module of it is being prepared until the registry is
/// dropped, or for ten seconds.
struct SilentRegistry(TcpListener);

impl SilentRegistry {
    fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    /// Returns the body of a change of an experiment to a version with a module of the registry.
    fn experiment(&self) -> Value {
        let module = format!("registry://{}/a:v1", self.0.local_addr().unwrap());
        json!({"policy": {"spec": spec(&json!({"program": {"wasm": {"module": module}}}))}})
    }
}

#[tokio::test]
async fn a_start_stays_done_after_a_stop_and_after_a_restart() {
    let api = Api::with_state(folder()).await;
    api.create("e", &forbidding("no")).await;
    let started = api.ok(Method::POST, START, &json!({})).await;
    let stopped = api.done(Method::POST, STOP, &json!({})).await;
    let started = api.wait(&started).await;
    assert_eq!(started["response"]["previewMetadata"]["state"], "ACTIVE", "{started}");
    assert_eq!(stopped["response"]["previewMetadata"]["state"], "SUSPENDED", "{stopped}");
    assert_eq!(stopped["response"]["previewMetadata"].get("stopCause"), None, "a caller stopped it: {stopped}");

    let api = api.restart(|_| {}).await;
    for operation in [&started, &stopped] {
        assert_eq!(api.get(&format!("/v1/{}", operation["name"].as_str().unwrap())).await, *operation);
    }
    // Ids are not guessable, and an id that was never issued is unknown.
    for id in ["x", "0123456789abcdef0123456789abcdef", "WyJjIl0"] {
        let path = format!("/v1/operations/{id}");
        assert_eq!(api.refused(Method::GET, &path, &Value::Null).await, reason(404, "RESOURCE_NOT_FOUND"), "{id}");
    }
    // The creation, the start and the stop.
    assert_eq!(api.get("/v1/operations").await["operations"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn the_polled_answer_of_a_deletion_is_the_deleted_experiment() {
    let api = Api::with_state(folder()).await;
    let created = api.create("e", &forbidding("no")).await["response"].clone();
    let deleted = api.ok(Method::DELETE, E, &Value::Null).await;
    let api = api.restart(|_| {}).await;
    let polled = api.wait(&deleted).await;
    for field in ["name", "uid", "etag", "policy"] {
        assert_eq!(polled["response"][field], created[field], "{field}");
    }
    assert_eq!(polled["response"]["@type"], "type.googleapis.com/proviso.v1.PolicyExperiment");
    assert_eq!(api.refused(Method::GET, E, &Value::Null).await, reason(404, "RESOURCE_NOT_FOUND"));
    // A new experiment with the same name does not change the answer.
    api.create("e", &noop()).await;
    assert_eq!(api.wait(&deleted).await, polled);
}

#[tokio::test]
async fn a_start_without_a_policy_or_beyond_the_limit_fails_and_is_suspended() {
    let folder = folder();
    folder.write("lost.json", not_started("lost", "nowhere"));
    for number in 0..11 {
        let name = format!("e{number:02}");
        folder.write(&format!("{name}.json"), not_started(&name, "live"));
    }
    let api = Api(Server::start(folder, &[]).await);
    let (lost, excess) = ("/v1/policies/cluster.nowhere/experiments/lost", format!("{EXPERIMENTS}/e10"));
    for (experiment, code, error_reason, cause) in
        [(lost, 9, "POLICY_NOT_FOUND", "PolicyNotFound"), (excess.as_str(), 8, "TOO_MANY", "TooMany")]
    {
        let failed = api.ended(Method::POST, &format!("{experiment}:startPreview"), &json!({})).await;
        let error = &failed["error"];
        assert_eq!((&error["code"], &error["details"][0]["reason"]), (&json!(code), &json!(error_reason)), "{failed}");
        let metadata = api.get(experiment).await["previewMetadata"].clone();
        assert_eq!((&metadata["state"], &metadata["stopCause"]["reason"]), (&json!("SUSPENDED"), &json!(cause)));
    }
    let details = api.0.details().await;
    assert!(
        details.contains("experiment cluster.e10 previews nothing: cluster.live has 10 older experiments"),
        "{details}"
    );
    // After the cause is gone, another start is successful.
    api.0.folder.write("nowhere.json", policy("nowhere", &json!({})));
    api.0.until_details("cluster.nowhere generation 1 live").await;
    api.done(Method::DELETE, &format!("{EXPERIMENTS}/e00"), &Value::Null).await;
    for experiment in [lost, &excess] {
        let started = api.done(Method::POST, &format!("{experiment}:startPreview"), &json!({})).await;
        assert_eq!(started["response"]["previewMetadata"]["state"], "ACTIVE", "{started}");
        assert_eq!(started["response"]["previewMetadata"].get("stopCause"), None, "{started}");
    }
    // Without its policy, an experiment previews nothing.
    api.0.folder.remove("nowhere.json");
    api.0.until_details("experiment cluster.lost previews nothing: spec.policyRef.name").await;
    assert_eq!(api.get(lost).await["previewMetadata"]["stopCause"]["reason"], "PolicyNotFound");
}

#[tokio::test]
async fn a_start_of_a_version_that_cannot_be_prepared_fails() {
    let api = Api::start().await;
    api.create("e", &noop()).await;
    let registry = SilentRegistry::start();
    api.ok(Method::PATCH, E, &registry.experiment()).await;
    let started = api.ok(Method::POST, START, &json!({})).await;
    assert_eq!((&started["done"], started.get("error")), (&json!(false), None), "{started}");
    assert_eq!(api.get(E).await["previewMetadata"]["state"], "ACTIVE");
    drop(registry);
    let failed = api.wait(&started).await;
    assert_eq!(failed["error"]["details"][0]["reason"], "PULL_ERROR", "{failed}");
    let metadata = api.get(E).await["previewMetadata"].clone();
    assert_eq!((&metadata["state"], &metadata["stopCause"]["reason"]), (&json!("SUSPENDED"), &json!("PullError")));
    // The error stays, also if a later start is successful.
    api.done(Method::PATCH, E, &json!({"policy": {"spec": noop()}})).await;
    api.done(Method::POST, START, &json!({})).await;
    assert_eq!(api.wait(&started).await, failed);
}

#[tokio::test]
async fn a_start_that_was_stopped_or_changed_before_it_was_loaded_is_aborted() {
    let api = Api::start().await;
    let registry = SilentRegistry::start();
    api.create("e", &noop()).await;
    api.ok(Method::PATCH, E, &registry.experiment()).await;
    let started = api.ok(Method::POST, START, &json!({})).await;
    api.done(Method::POST, STOP, &json!({})).await;
    let aborted = api.wait(&started).await;
    assert_eq!(
        (&aborted["error"]["code"], &aborted["error"]["details"][0]["reason"]),
        (&json!(10), &json!("SUSPENDED"))
    );
    let started = api.ok(Method::POST, START, &json!({})).await;
    api.done(Method::PATCH, E, &json!({"policy": {"spec": noop()}})).await;
    let aborted = api.wait(&started).await;
    assert_eq!((&aborted["error"]["code"], &aborted["error"]["details"][0]["reason"]), (&json!(10), &json!("UPDATED")));
    assert_eq!(api.get(E).await["previewMetadata"]["stopCause"]["reason"], "Updated");
}

#[tokio::test]
async fn a_stop_is_done_when_the_evaluations_have_ended() {
    let folder = folder();
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    let endless = with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 4}));
    folder.write("e.json", experiment("e", "live", &endless));
    let api = Api(Server::start(folder, &[]).await);
    api.0.until_details("experiment cluster.e generation 1 previews").await;
    let review = || pod("u", "x").to_string();
    let mut ended = None;
    // An evaluation begins after the answer of its request. If the stop is faster, no evaluation runs, and the test tries again.
    for _ in 0..20 {
        for _ in 0..4 {
            assert!(api.0.post("/validate/cluster.live", review()).await.is_allowed());
        }
        let stopped = api.ok(Method::POST, STOP, &json!({})).await;
        if stopped["done"] == false {
            ended = Some(api.wait(&stopped).await);
            break;
        }
        api.done(Method::POST, START, &json!({})).await;
    }
    let ended = ended.expect("a stop finds a running evaluation");
    let evaluated = ended["response"]["divergence"]["evaluated"].as_u64().unwrap();
    assert!(evaluated > 0, "{ended}");
    assert_eq!(api.0.count("proviso_preview_evaluations_total", &["cluster.e"]).await, evaluated);
    // Nothing is evaluated after the end of the stop.
    assert!(api.0.post("/validate/cluster.live", review()).await.is_allowed());
    let divergence = api.get(E).await["divergence"].clone();
    assert_eq!(divergence, ended["response"]["divergence"]);
}

#[tokio::test]
async fn an_operation_waits_for_its_own_version() {
    let api = Api::start().await;
    api.create("e", &noop()).await;
    let broken = json!({"policy": {"spec": spec(&cel("1 +", ""))}});
    let registry = SilentRegistry::start();
    let failed = api.ok(Method::PATCH, E, &broken).await;
    api.0.until_details("cluster.e previews nothing: CompileError").await;
    let replaced = api.ok(Method::PATCH, E, &registry.experiment()).await;
    assert_eq!(replaced["done"], false, "{replaced}");
    api.done(Method::PATCH, E, &json!({"policy": {"spec": forbidding("no")}})).await;
    // Each result is that of its own version, although nobody polled in the meantime.
    for (operation, error) in [(&failed, "COMPILE_ERROR"), (&replaced, "SUPERSEDED")] {
        let ended = api.wait(operation).await;
        assert_eq!(ended["error"]["details"][0]["reason"], error, "{ended}");
    }
}

#[tokio::test]
async fn the_operation_of_an_object_that_was_never_loaded_survives_a_restart() {
    let api = Api::with_state(folder()).await;
    let registry = SilentRegistry::start();
    let created = api.ok(Method::POST, &format!("{EXPERIMENTS}?experimentId=e"), &registry.experiment()).await;
    assert_eq!(created["done"], false, "{created}");
    let uid = api.get(E).await["uid"].clone();
    // The server is not ready before the version was tried, but its API answers.
    let folder = api.0.stop().await;
    let state = folder.state();
    let api = Api(Server::spawn(folder, &["--state-dir", state.to_str().unwrap()]).await);
    assert_eq!(api.get(E).await["uid"], uid);
    api.ok(Method::PATCH, E, &json!({"policy": {"spec": noop()}})).await;
    let ended = api.wait(&created).await;
    assert_eq!(ended["error"]["details"][0]["reason"], "SUPERSEDED", "{ended}");
}

#[tokio::test]
async fn the_policies_of_one_namespace_are_listed() {
    let api = Api::start().await;
    for (id, name) in [("ns.pay.a", "one"), ("ns.pay.b", "two"), ("ns.shop.a", "three")] {
        api.done(Method::POST, &format!("/v1/policies?policyId={id}"), &json!({"spec": noop()})).await;
        let body = json!({"policy": {"spec": noop()}});
        api.done(Method::POST, &format!("/v1/policies/{id}/experiments?policyExperimentId={name}"), &body).await;
    }
    let names = async |path: &str, field: &str| {
        let list = api.get(path).await;
        list[field].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("/v1/policies?namespace=pay", "policies").await, ["policies/ns.pay.a", "policies/ns.pay.b"]);
    assert_eq!(names("/v1/policies?namespace=none", "policies").await, [""; 0]);
    assert_eq!(names("/v1/policies", "policies").await.len(), 4);
    let experiments = names("/v1/policies/-/experiments?namespace=shop", "policyExperiments").await;
    assert_eq!(experiments, ["policies/ns.shop.a/experiments/three"]);
    assert_eq!(api.get(LIVE).await["name"], "policies/cluster.live");
}
