//! Tests of the REST API (AIP-236) of a real server over a folder. The tests follow the requirements of the AIP.

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Folder, Server, ask, cel, experiment, manifest, pod, policy};

pub const LIVE: &str = "/v1/policies/cluster.live";
pub const EXPERIMENTS: &str = "/v1/policies/cluster.live/experiments";
pub const E: &str = "/v1/policies/cluster.live/experiments/e";

/// Returns a spec with this program that covers all requests.
pub fn spec(program: &Value) -> Value {
    json!({
        "program": program["program"],
        "admission": {"rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]},
    })
}

pub fn noop() -> Value {
    spec(&json!({"program": {"cel": {"validations": []}}}))
}

pub fn forbidding(message: &str) -> Value {
    spec(&cel("object.metadata.name != 'bad'", message))
}

/// A server over a folder with the policy `live`, and the calls of its API.
pub struct Api(pub Server);

impl Api {
    pub async fn start() -> Self {
        let folder = Folder::new();
        folder.write("live.json", policy("live", &json!({})));
        Self(Server::start(folder, &[]).await)
    }

    /// Starts the server with a state folder.
    pub async fn with_state(folder: Folder) -> Self {
        let state = folder.state();
        Self(Server::start(folder, &["--state-dir", state.to_str().unwrap()]).await)
    }

    /// Restarts a server that has a state folder. `change` may change its files in the meantime.
    pub async fn restart(self, change: impl FnOnce(&Folder)) -> Self {
        let folder = self.0.stop().await;
        change(&folder);
        Self::with_state(folder).await
    }

    pub async fn call(&self, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = ask(&self.0.listen, method, path, body.into()).await.unwrap();
        assert_eq!(answer.headers["content-type"], "application/json", "{}", answer.text);
        (answer.status, serde_json::from_str(&answer.text).unwrap())
    }

    pub async fn ok(&self, method: Method, path: &str, body: &Value) -> Value {
        let (status, answer) = self.call(method.clone(), path, body).await;
        assert_eq!(status, StatusCode::OK, "{method} {path}: {answer}");
        answer
    }

    pub async fn get(&self, path: &str) -> Value {
        self.ok(Method::GET, path, &Value::Null).await
    }

    /// Calls a method, waits for its operation, and returns the operation, which must be successful.
    pub async fn done(&self, method: Method, path: &str, body: &Value) -> Value {
        let ended = self.ended(method, path, body).await;
        assert_eq!(ended.get("error"), None, "{ended}");
        ended
    }

    /// Calls a method, waits for the end of its operation, and returns the operation.
    pub async fn ended(&self, method: Method, path: &str, body: &Value) -> Value {
        let operation = self.ok(method, path, body).await;
        self.wait(&operation).await
    }

    /// Waits for the end of an operation, and returns the operation.
    pub async fn wait(&self, operation: &Value) -> Value {
        let name = operation["name"].as_str().unwrap();
        let ended = self.ok(Method::POST, &format!("/v1/{name}:wait"), &json!({"timeout": "60s"})).await;
        assert_eq!(ended["done"], true, "{ended}");
        assert_eq!(ended["name"], operation["name"]);
        ended
    }

    /// Calls a method that is refused, and returns the status and the reason of the error.
    pub async fn refused(&self, method: Method, path: &str, body: &Value) -> (u16, String) {
        let (status, answer) = self.call(method, path, body).await;
        let error = &answer["error"];
        assert_eq!(error["code"], status.as_u16(), "{answer}");
        assert_eq!(error["details"][0]["@type"], "type.googleapis.com/google.rpc.ErrorInfo", "{answer}");
        (status.as_u16(), error["details"][0]["reason"].as_str().unwrap().to_owned())
    }

    pub async fn create(&self, name: &str, spec: &Value) -> Value {
        let body = json!({"policy": {"name": "policies/cluster.live", "spec": spec}});
        self.done(Method::POST, &format!("{EXPERIMENTS}?experimentId={name}"), &body).await
    }

    pub async fn verdict(&self, name: &str) -> Option<String> {
        let answer = self.0.post("/validate/cluster.live", pod("u", name).to_string()).await;
        (!answer.is_allowed()).then(|| answer.message())
    }
}

/// Sends this text on a new connection, and returns the answer.
async fn raw(address: &str, request: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

pub fn reason(status: u16, reason: &str) -> (u16, String) {
    (status, reason.to_owned())
}

#[tokio::test]
async fn an_experiment_is_created_started_inspected_and_committed() {
    let api = Api::start().await;
    let created = api.create("e", &forbidding("no")).await["response"].clone();
    assert_eq!(created["@type"], "type.googleapis.com/proviso.v1.PolicyExperiment");
    assert_eq!(created["name"], "policies/cluster.live/experiments/e");
    assert_eq!(created["policy"]["name"], "policies/cluster.live");
    // "When an experiment is first previewed, preview_metadata must be absent."
    assert_eq!(created.get("previewMetadata"), None);

    let started = api.done(Method::POST, &format!("{E}:startPreview"), &json!({})).await["response"].clone();
    let metadata = &started["previewMetadata"];
    assert_eq!((&metadata["state"], &metadata["logPrefix"]), (&json!("ACTIVE"), &json!("PolicyPreviewLog")));
    assert!(metadata["startTime"].is_string() && metadata.get("stopTime").is_none(), "{metadata}");

    assert_eq!(api.verdict("bad").await, None);
    let line = api.0.until_previews(1).await.remove(0);
    assert_eq!((&line["divergence"], &line["experimentEtag"]), (&json!("NewlyDenied"), &started["etag"]));
    assert_eq!(line["liveEtag"], api.get(LIVE).await["etag"]);
    let found = api.get(E).await;
    let counts = &found["divergence"];
    assert_eq!((&counts["evaluated"], &counts["newlyDenied"]), (&json!(1), &json!(1)), "{found}");
    assert_eq!(
        (&found["samples"][0]["divergence"], &found["samples"][0]["message"]),
        (&json!("NewlyDenied"), &json!("no"))
    );

    let active = "?filter=preview_metadata.state%20%3D%20ACTIVE";
    let listed = api.get(&format!("{EXPERIMENTS}{active}")).await;
    assert_eq!(listed["policyExperiments"].as_array().unwrap().len(), 1, "{listed}");

    // "If any experiment fails commit, previewing it must not stop."
    let commit = format!("{E}:commit");
    assert_eq!(api.refused(Method::POST, &commit, &json!({"etag": "\"0\""})).await, reason(409, "ETAG_MISMATCH"));
    assert_eq!(api.get(E).await["previewMetadata"], *metadata);
    assert_eq!(api.verdict("bad").await, None);
    api.0.until_previews(2).await;

    // An update suspends the preview.
    let change = json!({"policy": {"spec": forbidding("never")}});
    let updated = api.done(Method::PATCH, &format!("{E}?updateMask=policy.spec"), &change).await["response"].clone();
    assert_eq!(updated["previewMetadata"]["state"], "SUSPENDED");
    assert!(updated["previewMetadata"]["stopTime"].is_string(), "{updated}");
    assert_ne!(updated["etag"], started["etag"]);
    assert_eq!(updated.get("divergence"), None, "the counts belong to the version before");
    assert_eq!(api.get(&format!("{EXPERIMENTS}{active}")).await["policyExperiments"], json!([]));
    assert_eq!(
        api.get("/v1/policies/-/experiments?filter=name:*").await["policyExperiments"][0]["name"],
        updated["name"]
    );

    assert_eq!(api.refused(Method::POST, &commit, &json!({})).await, reason(400, "INVALID_FIELD"));
    let stale = json!({"etag": started["etag"]});
    assert_eq!(api.refused(Method::POST, &commit, &stale).await, reason(409, "ETAG_MISMATCH"));
    let stale_parent = json!({"etag": updated["etag"], "parentEtag": "\"0\""});
    assert_eq!(api.refused(Method::POST, &commit, &stale_parent).await, reason(409, "ETAG_MISMATCH"));
    assert_eq!(api.verdict("bad").await, None, "nothing changed");
    assert_eq!(api.get(E).await["etag"], updated["etag"], "nothing changed");

    let right = json!({"etag": updated["etag"], "parent_etag": api.get(LIVE).await["etag"]});
    let committed = api.done(Method::POST, &commit, &right).await;
    assert_eq!(committed["response"], json!({"@type": "type.googleapis.com/google.protobuf.Empty", "value": {}}));
    assert_eq!(api.verdict("bad").await.as_deref(), Some("never"));
    assert_eq!(api.refused(Method::POST, &commit, &right).await, reason(404, "RESOURCE_NOT_FOUND"));
    assert_eq!(api.refused(Method::GET, E, &Value::Null).await, reason(404, "RESOURCE_NOT_FOUND"));
    let text = std::fs::read_to_string(api.0.folder.manifests().join("live.json")).unwrap();
    assert!(text.contains("proviso.dev/committed-experiment"), "{text}");
    let left: Vec<_> =
        std::fs::read_dir(api.0.folder.manifests()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left, ["live.json"]);
}

#[tokio::test]
async fn a_new_policy_and_a_deletion_are_previewed_with_a_no_op() {
    let api = Api::start().await;
    // A new policy is created as a no-op, and its rules are previewed.
    let body = json!({"spec": noop(), "annotations": {"owner": "team-a"}});
    let made = api.done(Method::POST, "/v1/policies?policy_id=ns.pay.new", &body).await["response"].clone();
    assert_eq!((&made["state"], &made["annotations"]), (&json!("ACTIVE"), &json!({"owner": "team-a"})));
    let path = "/v1/policies/ns.pay.new/experiments";
    let rules = json!({"policy": {"spec": forbidding("new")}, "autoStart": true});
    let experiment = api.done(Method::POST, &format!("{path}?experimentId=rules"), &rules).await["response"].clone();
    assert_eq!(experiment["previewMetadata"]["state"], "ACTIVE", "{experiment}");
    let etag = json!({"etag": experiment["etag"]});
    api.done(Method::POST, &format!("{path}/rules:commit"), &etag).await;
    let kept = api.get("/v1/policies/ns.pay.new").await;
    assert_eq!(kept["spec"]["program"], forbidding("new")["program"]);
    assert_eq!(kept["annotations"], json!({"owner": "team-a"}), "reserved annotations are hidden, others are kept");

    // A deletion is previewed with the full payload of the live policy and a program that is a no-op.
    api.done(Method::PATCH, LIVE, &json!({"spec": forbidding("old")})).await;
    let mut copied = api.get(LIVE).await;
    copied["spec"]["program"] = noop()["program"].clone();
    let body = json!({"policy": copied});
    api.done(Method::POST, &format!("{EXPERIMENTS}?experimentId=gone"), &body).await;
    api.done(Method::POST, &format!("{EXPERIMENTS}/gone:startPreview"), &Value::Null).await;
    assert_eq!(api.verdict("bad").await.as_deref(), Some("old"));
    let line = api.0.until_previews(1).await.remove(0);
    assert_eq!(line["divergence"], "NewlyAllowed");
}

#[tokio::test]
async fn previews_can_be_started_and_stopped_again_and_survive_a_restart() {
    let folder = Folder::new();
    folder.write("live.json", policy("live", &json!({})));
    let api = Api::with_state(folder).await;
    api.create("e", &forbidding("no")).await;
    let stop = format!("{E}:stopPreview");
    assert_eq!(api.refused(Method::POST, &stop, &json!({})).await, reason(400, "NOT_STARTED"));
    let first = api.done(Method::POST, &format!("{E}:startPreview"), &json!({})).await["response"].clone();
    let stopped = api.done(Method::POST, &stop, &json!({})).await["response"]["previewMetadata"].clone();
    assert_eq!(
        (&stopped["state"], &stopped["startTime"]),
        (&json!("SUSPENDED"), &first["previewMetadata"]["startTime"])
    );
    assert!(stopped["stopTime"].is_string());
    assert_eq!(api.verdict("bad").await, None);
    // The times have a precision of one second, and identify each start.
    let second = api.done(Method::POST, &format!("{E}:startPreview"), &json!({})).await["response"].clone();
    assert!(second["previewMetadata"]["startTime"].as_str() > first["previewMetadata"]["startTime"].as_str());
    assert_eq!(second["etag"], first["etag"], "a start does not change the experiment");
    let api = api.restart(|_| {}).await;
    let after = api.get(E).await;
    assert_eq!((&after["previewMetadata"], &after["uid"]), (&second["previewMetadata"], &second["uid"]));
    assert_eq!((&after["etag"], &after["createTime"]), (&second["etag"], &second["createTime"]));
    assert_eq!(api.verdict("bad").await, None);
    api.0.until_previews(1).await;
}

#[tokio::test]
async fn deleting_a_policy_deletes_its_experiments() {
    let api = Api::start().await;
    let folder = &api.0.folder;
    let other = experiment("other", "kept", &json!({}));
    let mine = experiment("mine", "live", &json!({}));
    folder.write("both.yaml", format!("# a comment\n{mine}\n---\n# another\n{other}\n"));
    folder.write("kept.json", policy("kept", &json!({})));
    api.create("e", &noop()).await;
    api.0.until_details("cluster.kept generation 1 live").await;
    let stale = format!("{LIVE}?etag=%22x%22");
    assert_eq!(api.refused(Method::DELETE, &stale, &Value::Null).await, reason(409, "ETAG_MISMATCH"));
    let deleted = api.done(Method::DELETE, LIVE, &Value::Null).await;
    assert_eq!(deleted["response"]["@type"], "type.googleapis.com/google.protobuf.Empty");
    let all = api.get("/v1/policies/-/experiments").await;
    assert_eq!(all["policyExperiments"].as_array().unwrap().len(), 1, "{all}");
    assert_eq!(all["policyExperiments"][0]["name"], "policies/cluster.kept/experiments/other");
    let text = std::fs::read_to_string(folder.manifests().join("both.yaml")).unwrap();
    assert_eq!(text, format!("---\n# another\n{other}\n"));
    // The response of deleting an experiment is the experiment (AIP-236).
    let path = "/v1/policies/cluster.kept/experiments/other";
    let deleted = api.ok(Method::DELETE, path, &Value::Null).await;
    assert_eq!(deleted["response"]["@type"], "type.googleapis.com/proviso.v1.PolicyExperiment");
    assert_eq!(deleted["response"]["etag"], all["policyExperiments"][0]["etag"]);
}

#[tokio::test]
async fn invalid_calls_are_refused_with_a_reason_and_change_nothing() {
    let api = Api::start().await;
    api.create("e", &noop()).await;
    let (post, get, patch) = (Method::POST, Method::GET, Method::PATCH);
    let wrong_name = json!({"policy": {"name": "policies/cluster.other", "spec": noop()}});
    let unknown = json!({"policy": {"spec": noop()}, "polici": 1});
    let create = format!("{EXPERIMENTS}?experimentId=f");
    for (method, path, body, wanted) in [
        (&post, create.as_str(), &wrong_name, reason(400, "INVALID_FIELD")),
        (&post, &create, &unknown, reason(400, "INVALID_FIELD")),
        (&post, &create, &json!({}), reason(400, "INVALID_FIELD")),
        (&post, EXPERIMENTS, &json!({"policy": {"spec": noop()}}), reason(400, "INVALID_FIELD")),
        (
            &post,
            &format!("{EXPERIMENTS}?experimentId=e"),
            &json!({"policy": {"spec": noop()}}),
            reason(409, "RESOURCE_ALREADY_EXISTS"),
        ),
        (
            &post,
            &format!("{EXPERIMENTS}?experimentId=E!"),
            &json!({"policy": {"spec": noop()}}),
            reason(400, "INVALID_FIELD"),
        ),
        (&post, "/v1/policies?policyId=cluster.live", &json!({"spec": noop()}), reason(409, "RESOURCE_ALREADY_EXISTS")),
        (
            &post,
            "/v1/policies/cluster.x/experiments?experimentId=e",
            &json!({"policy": {"spec": noop()}}),
            reason(404, "RESOURCE_NOT_FOUND"),
        ),
        (&patch, E, &wrong_name, reason(400, "INVALID_FIELD")),
        (&patch, E, &json!({"etag": "\"0\"", "autoStart": true}), reason(409, "ETAG_MISMATCH")),
        (&patch, &format!("{E}?updateMask=nothing"), &json!({}), reason(400, "INVALID_FIELD")),
        (&patch, E, &json!({"annotations": {"proviso.dev/x": "y"}}), reason(400, "INVALID_FIELD")),
        (&get, &format!("{EXPERIMENTS}?filter=x"), &Value::Null, reason(400, "INVALID_FIELD")),
        (&get, &format!("{EXPERIMENTS}?orderBy=name"), &Value::Null, reason(400, "INVALID_FIELD")),
        (&get, &format!("{EXPERIMENTS}?page_size=-1"), &Value::Null, reason(400, "INVALID_FIELD")),
        (&get, &format!("{EXPERIMENTS}?pagesize=1"), &Value::Null, reason(400, "INVALID_FIELD")),
        (&get, "/v1/policies/live", &Value::Null, reason(400, "INVALID_FIELD")),
        (&get, "/v1/policies/cluster.x", &Value::Null, reason(404, "RESOURCE_NOT_FOUND")),
        (&get, "/v1/policies/cluster.x/experiments/e", &Value::Null, reason(404, "RESOURCE_NOT_FOUND")),
        (&get, "/v1/operations/x", &Value::Null, reason(404, "RESOURCE_NOT_FOUND")),
        (&get, "/v1/nothing", &Value::Null, reason(404, "PATH_NOT_FOUND")),
        (&Method::PUT, E, &Value::Null, reason(405, "METHOD_NOT_ALLOWED")),
        (
            &post,
            &format!("{E}:startPreview"),
            &json!({"name": "policies/cluster.live/experiments/f"}),
            reason(400, "INVALID_FIELD"),
        ),
        (&post, &format!("{E}:commit"), &json!({"etag": 1}), reason(400, "INVALID_FIELD")),
        (&post, &create, &json!("x".repeat(4 * 1024 * 1024)), reason(413, "BODY_TOO_LARGE")),
    ] {
        assert_eq!(api.refused(method.clone(), path, body).await, wanted, "{method} {path}");
    }
    assert_eq!(api.get("/v1/policies/-/experiments").await["policyExperiments"].as_array().unwrap().len(), 1);
    // A policy can have at most 10 experiments.
    for index in 1..10 {
        api.ok(post.clone(), &format!("{EXPERIMENTS}?experimentId=n{index}"), &json!({"policy": {"spec": noop()}}))
            .await;
    }
    let eleventh = json!({"policy": {"spec": noop()}});
    assert_eq!(api.refused(post.clone(), &create, &eleventh).await, reason(429, "TOO_MANY_EXPERIMENTS"));
    // Lists have pages.
    let first = api.get(&format!("{EXPERIMENTS}?pageSize=7")).await;
    let token = first["nextPageToken"].as_str().unwrap();
    let second = api.get(&format!("{EXPERIMENTS}?pageSize=7&pageToken={token}")).await;
    assert_eq!((second["policyExperiments"].as_array().unwrap().len(), second.get("nextPageToken")), (3, None));
    let elsewhere = format!("/v1/policies?pageToken={token}");
    assert_eq!(api.refused(get.clone(), &elsewhere, &Value::Null).await, reason(400, "INVALID_FIELD"));
}

#[tokio::test]
async fn a_failed_operation_has_the_same_reason_as_in_a_cluster() {
    let api = Api::start().await;
    let module = "file://".to_owned()
        + concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/policies/trusted-registries/trusted-registries.wasm");
    for (name, program, state_reason, error_reason) in [
        ("compile", json!({"cel": {"validations": [{"expression": "1 +"}]}}), "CompileError", "COMPILE_ERROR"),
        ("settings", json!({"wasm": {"module": module}}), "SettingsInvalid", "SETTINGS_INVALID"),
        ("pull", json!({"wasm": {"module": "file:///no/such.wasm"}}), "PullError", "PULL_ERROR"),
    ] {
        let spec = spec(&json!({"program": program}));
        let operation = api
            .ok(Method::POST, &format!("{EXPERIMENTS}?experimentId={name}"), &json!({"policy": {"spec": spec}}))
            .await;
        let wait = format!("/v1/{}:wait", operation["name"].as_str().unwrap());
        let failed = api.ok(Method::POST, &wait, &json!({})).await;
        assert_eq!(failed["error"]["details"][0]["reason"], error_reason, "{failed}");
        let stored = api.get(&format!("{EXPERIMENTS}/{name}")).await;
        assert_eq!(stored["stateReason"], state_reason, "{stored}");
        assert!(!stored["stateMessage"].as_str().unwrap().starts_with(state_reason), "{stored}");
    }
}

#[tokio::test]
async fn a_version_that_does_not_work_cannot_be_committed() {
    let api = Api::start().await;
    let broken =
        json!({"policy": {"spec": spec(&json!({"program": {"cel": {"validations": [{"expression": "1 +"}]}}}))}});
    let operation = api.ok(Method::POST, &format!("{EXPERIMENTS}?experimentId=e"), &broken).await;
    let wait = format!("/v1/{}:wait", operation["name"].as_str().unwrap());
    let failed = api.ok(Method::POST, &wait, &json!({})).await;
    assert_eq!((&failed["done"], &failed["error"]["code"]), (&json!(true), &json!(9)), "{failed}");
    assert_eq!(failed["error"]["details"][0]["reason"], "COMPILE_ERROR");
    let stored = api.get(E).await;
    assert_eq!(stored["stateReason"], "CompileError", "{stored}");
    let commit = json!({"etag": stored["etag"]});
    assert_eq!(api.refused(Method::POST, &format!("{E}:commit"), &commit).await, reason(400, "DOES_NOT_WORK"));
    assert_eq!(api.refused(Method::POST, &format!("{E}:startPreview"), &json!({})).await, reason(400, "DOES_NOT_WORK"));
    // A new version has another etag, so a commit with the old etag is refused.
    let works = json!({"policy": {"spec": forbidding("no")}});
    let updated = api.done(Method::PATCH, E, &works).await["response"].clone();
    assert_eq!(api.refused(Method::POST, &format!("{E}:commit"), &commit).await, reason(409, "ETAG_MISMATCH"));
    let again = api.ok(Method::POST, &wait, &json!({})).await;
    assert_eq!(again["done"], true, "{again}");
    api.done(Method::POST, &format!("{E}:commit"), &json!({"etag": updated["etag"]})).await;
    assert_eq!(api.verdict("bad").await.as_deref(), Some("no"));
    let operations = api.get("/v1/operations?filter=done%3Dtrue").await;
    let targets: Vec<_> =
        operations["operations"].as_array().unwrap().iter().map(|it| &it["metadata"]["target"]).collect();
    assert_eq!(targets, [&stored["name"]; 3], "a creation, an update and a commit: {operations}");
}

#[tokio::test]
async fn a_commit_that_races_with_an_edit_is_refused() {
    let api = Api::start().await;
    let folder = &api.0.folder;
    folder.write("e.json", experiment("e", "live", &cel("false", "one")));
    api.0.until_details("experiment cluster.e generation 1 previews").await;
    let etag = json!({"etag": api.get(E).await["etag"]});
    folder.write("e.json", experiment("e", "live", &cel("false", "two")));
    assert_eq!(api.refused(Method::POST, &format!("{E}:commit"), &etag).await, reason(409, "ETAG_MISMATCH"));
    // An unreadable manifest is neither committed nor overwritten.
    folder.write("e.json", "{");
    let (status, _) = api.call(Method::PATCH, E, &json!({"autoStart": false})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let broken = manifest("ClusterPolicyExperiment", "e", &json!({"policyRef": {"name": "live"}}));
    folder.write("e.json", &broken);
    assert_eq!(api.refused(Method::PATCH, E, &json!({"autoStart": false})).await, reason(400, "MANIFEST_REFUSED"));
    assert_eq!(std::fs::read_to_string(folder.manifests().join("e.json")).unwrap(), broken);
    // If two commits run at the same time, one succeeds.
    folder.write("e.json", experiment("e", "live", &cel("false", "three")));
    let annotated = api.done(Method::PATCH, E, &json!({"annotations": {"a": "b"}})).await;
    let etag = json!({"etag": annotated["response"]["etag"]});
    let commit = format!("{E}:commit");
    let (one, two) = tokio::join!(api.call(Method::POST, &commit, &etag), api.call(Method::POST, &commit, &etag));
    let mut statuses = [one.0.as_u16(), two.0.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 404]);
}

#[tokio::test]
async fn a_caller_needs_the_current_token() {
    let folder = Folder::new();
    folder.write("live.json", policy("live", &json!({})));
    let token = folder.root().join("token");
    std::fs::write(&token, format!("{}\n", "a".repeat(32))).unwrap();
    let server = Server::start(folder, &["--api-token-file", token.to_str().unwrap()]).await;
    let status = async |given: Option<&str>| {
        let authorization = given.map(|given| format!("authorization: Bearer {given}\r\n")).unwrap_or_default();
        raw(&server.listen, &format!("GET {LIVE} HTTP/1.1\r\nhost: x\r\n{authorization}connection: close\r\n\r\n"))
            .await
    };
    let (mine, other) = ("a".repeat(32), "b".repeat(32));
    assert!(status(None).await.contains("401 Unauthorized"));
    assert!(status(Some(&other)).await.contains("UNAUTHENTICATED"));
    assert!(status(Some("")).await.contains("401 Unauthorized"));
    assert!(status(Some(&mine)).await.contains("200 OK"));
    // Reviews need no token.
    assert!(server.post("/validate/cluster.live", pod("u", "a").to_string()).await.is_allowed());
    std::fs::write(&token, "short").unwrap();
    server
        .until("a warning", async || server.event("new content of its file refused, the old one stays").is_some())
        .await;
    assert!(status(Some(&mine)).await.contains("200 OK"));
    std::fs::write(&token, &other).unwrap();
    server.until("the new token", async || status(Some(&other)).await.contains("200 OK")).await;
    assert!(status(Some(&mine)).await.contains("401 Unauthorized"));
}

#[tokio::test]
async fn the_openapi_document_is_served_and_web_pages_are_refused() {
    let api = Api::start().await;
    let document = api.get("/v1/openapi.json").await;
    assert_eq!((&document["openapi"], document["paths"].as_object().unwrap().len()), (&json!("3.1.0"), 16));
    for (path, reason) in [(LIVE, "WEB_PAGE"), ("/api/v1alpha1/policies", "PERMISSION_DENIED")] {
        let page = format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\norigin: http://evil.example.com\r\nconnection: close\r\n\r\n",
            api.0.listen
        );
        let answer = raw(&api.0.listen, &page).await;
        assert!(answer.contains("403 Forbidden") && answer.contains(reason), "{answer}");
    }
}
