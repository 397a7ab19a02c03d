//! Previews of request policies: the whole chain with the candidate, compared with the live outcome.

use std::collections::BTreeMap;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::api::{Api, E, EXPERIMENTS, LIVE, forbidding, reason};
use crate::requests::{ADR, evaluate};
use crate::support::{Folder, Server, cel, experiment, manifest, policy, wapc};

/// Returns the spec of a request policy whose result is this value. `section` is `spec.request`.
fn spec(section: &Value, result: &Value) -> Value {
    json!({
        "request": section,
        "program": {"rego": {"dialect": "Request", "source": format!("package p\nresult := {result}")}},
    })
}

fn request_policy(name: &str, spec: &Value) -> String {
    manifest("ClusterPolicy", name, spec)
}

/// Returns the manifest of an experiment on the policy `live` that starts itself.
fn candidate(name: &str, spec: &Value) -> String {
    let spec = json!({"policyRef": {"name": "live"}, "policy": spec, "autoStart": true});
    manifest("ClusterPolicyExperiment", name, &spec)
}

/// Returns the result of the policy `live`, with other values of these members.
fn result_with(members: &Value) -> Value {
    let mut result = json!({
        "patch": {"size": "small"}, "constraints": {"cpu": {"maximum": 4}}, "selected_provider": "east",
    });
    result.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    result
}

/// The section of the policy `live`.
fn first() -> Value {
    json!({"priority": 100})
}

fn live() -> Value {
    spec(&first(), &result_with(&json!({})))
}

/// Returns the body of a request, whose payload has a secret.
fn request() -> Value {
    json!({
        "payload": {"service_type": "vm", "cpu": 2, "token": "hunter2", "metadata": {"name": "web"}},
        "user": "ana", "tenant": "blue",
    })
}

/// Returns the lines by the names of their experiments.
fn by_experiment(lines: Vec<Value>) -> BTreeMap<String, Value> {
    let name = |line: &Value| line["experiment"].as_str().unwrap().trim_start_matches("cluster.").to_owned();
    lines.into_iter().map(|line| (name(&line), line)).collect()
}

#[tokio::test]
async fn each_kind_of_divergence_has_a_line_and_a_count() {
    let folder = Folder::new();
    folder.write("live.json", request_policy("live", &live()));
    let disabled = json!({"enabled": false, "request": live()["request"], "program": live()["program"]});
    let cases = [
        ("same", live(), "Same", json!({})),
        (
            "rejects",
            spec(&first(), &json!({"rejected": true, "rejection_reason": "not now"})),
            "NewlyDenied",
            json!({}),
        ),
        (
            "payload",
            spec(&first(), &result_with(&json!({"patch": {"size": "large"}}))),
            "MutationDiffers",
            json!({"payload": ["size"]}),
        ),
        ("provider", spec(&first(), &result_with(&json!({"selected_provider": "west"}))), "MutationDiffers", json!({})),
        (
            "constraints",
            spec(&first(), &result_with(&json!({"constraints": {"cpu": {"maximum": 8}}}))),
            "DetailsDiffer",
            json!({"constraints": ["cpu"]}),
        ),
        ("secret", spec(&first(), &json!({"constraints": {"token": {"minLength": 20}}})), "NewlyDenied", json!({})),
        ("fails", spec(&first(), &json!({"typo": 1})), "NewlyDenied", json!({})),
        ("disabled", disabled, "MutationDiffers", json!({"payload": ["size"], "constraints": ["cpu"]})),
        (
            "elsewhere",
            spec(&json!({"serviceTypes": ["database"]}), &result_with(&json!({}))),
            "MutationDiffers",
            json!({"payload": ["size"], "constraints": ["cpu"]}),
        ),
    ];
    for (name, spec, ..) in &cases {
        folder.write(&format!("{name}.json"), candidate(name, spec));
    }
    let server = Server::start(folder, &[]).await;
    let (status, answer) = evaluate(&server, ADR, &request()).await;
    assert_eq!((status, &answer["payload"]["size"]), (StatusCode::OK, &json!("small")), "{answer}");
    let lines = by_experiment(server.until_previews(cases.len()).await);
    for (name, _, divergence, differs) in &cases {
        let line = &lines[*name];
        assert_eq!((&line["divergence"], &line["differs"]), (&json!(divergence), differs), "{name}: {line}");
        assert_eq!(line["live"], json!({"status": "MODIFIED", "provider": "east"}), "{name}");
        assert!(!line.to_string().contains("hunter2"), "{line}");
    }
    let uids: std::collections::BTreeSet<_> = lines.values().map(|line| line["request"]["uid"].to_string()).collect();
    assert_eq!(uids.len(), 1, "the lines about one request share its uid");
    assert_eq!(lines["provider"]["preview"], json!({"status": "MODIFIED", "provider": "west"}));
    assert_eq!(lines["rejects"]["preview"]["status"], "REJECTED");
    let message = "policy cluster.live (generation 1) rejects the request: not now";
    assert_eq!(lines["rejects"]["preview"]["message"], message);
    let message = "the field `token` violates the constraint of policy cluster.live (generation 1)";
    assert_eq!(lines["secret"]["preview"]["message"], message);
    assert_eq!(
        (&lines["fails"]["preview"]["status"], &lines["fails"]["preview"]["error"]),
        (&json!("FAILED"), &json!("ResultInvalid"))
    );
    assert_eq!(server.count("proviso_preview_evaluations_total", &[]).await, 9);
    assert_eq!(server.count("proviso_preview_errors_total", &[]).await, 1);
    assert_eq!(server.count("proviso_preview_dropped_total", &[]).await, 0);
    assert_eq!(server.count("proviso_evaluations_total", &[]).await, 1, "previews are not counted as evaluations");

    // The status has the same counts, and a sample.
    let api = Api(server);
    let found = api.get(&format!("{EXPERIMENTS}/provider")).await;
    assert_eq!((&found["divergence"]["evaluated"], &found["divergence"]["mutationDiffers"]), (&json!(1), &json!(1)));
    let sample = &found["samples"][0];
    assert_eq!(
        [&sample["divergence"], &sample["kind"], &sample["namespace"], &sample["user"], &sample["name"]],
        ["MutationDiffers", "vm", "blue", "ana", "web"],
        "{sample}"
    );
    assert_eq!(sample["message"], "provider east → west");
    let found = api.get(&format!("{EXPERIMENTS}/secret")).await;
    let message = found["samples"][0]["message"].as_str().unwrap();
    assert!(message.starts_with("status MODIFIED → REJECTED; the field `token` violates"), "{message}");
    assert!(!found["samples"].to_string().contains("hunter2"), "{found}");
}

#[tokio::test]
async fn a_preview_line_has_the_request_and_both_outcomes_but_no_values() {
    let folder = Folder::new();
    folder.write("live.json", request_policy("live", &live()));
    let next = spec(
        &first(),
        &json!({"patch": {"size": "large", "disk": 1}, "service_provider_constraints": {"allow_list": ["east", "west"]}}),
    );
    folder.write("new.json", candidate("new", &next));
    let server = Server::start(folder, &[]).await;
    assert_eq!(evaluate(&server, ADR, &request()).await.0, StatusCode::OK);
    let mut line = server.until_previews(1).await.remove(0);
    let mut take = |field: &str| line.as_object_mut().unwrap().remove(field).unwrap_or_else(|| panic!("no {field}"));
    assert!(take("time").as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
    assert!(take("durationUs").as_u64().unwrap() > 0);
    assert_ne!(take("liveEtag"), take("experimentEtag"));
    let uid = take("request");
    assert!(uid["uid"].as_str().unwrap().len() == 36, "{uid}");
    let wanted = json!({
        "policy": "cluster.live",
        "liveGeneration": 1,
        "experiment": "cluster.new",
        "live": {"status": "MODIFIED", "provider": "east"},
        "preview": {"status": "MODIFIED"},
        "divergence": "MutationDiffers",
        "differs": {"payload": ["disk", "size"], "constraints": ["cpu"], "providerConstraints": true},
    });
    assert_eq!(line, wanted);
    let mut uid = uid;
    uid.as_object_mut().unwrap().remove("uid");
    assert_eq!(uid, json!({"serviceType": "vm", "tenant": "blue", "user": "ana", "name": "web"}));
}

#[tokio::test]
async fn a_candidate_can_move_to_another_place_in_the_chain() {
    let folder = Folder::new();
    let tier = |section: &Value, tier: &str| spec(section, &json!({"patch": {"tier": tier}}));
    folder.write("live.json", request_policy("live", &tier(&json!({"priority": 100}), "live")));
    folder.write("other.json", request_policy("other", &tier(&json!({"priority": 200}), "other")));
    for (name, section) in [
        ("before", json!({"priority": 150})),
        ("after", json!({"priority": 300})),
        ("user", json!({"priority": 100, "level": "User"})),
        ("ben", json!({"priority": 100, "user": "ben"})),
    ] {
        folder.write(&format!("{name}.json"), candidate(name, &tier(&section, "live")));
    }
    let server = Server::start(folder, &[]).await;
    let (_, answer) = evaluate(&server, ADR, &request()).await;
    assert_eq!(answer["payload"]["tier"], "other", "{answer}");
    let lines = by_experiment(server.until_previews(4).await);
    for (name, divergence) in
        [("before", "Same"), ("after", "MutationDiffers"), ("user", "MutationDiffers"), ("ben", "Same")]
    {
        assert_eq!(lines[name]["divergence"], divergence, "{}", lines[name]);
    }
    assert_eq!(lines["user"]["differs"], json!({"payload": ["tier"]}));
}

#[tokio::test]
async fn a_request_counts_if_the_candidate_or_the_live_policy_covers_it() {
    let folder = Folder::new();
    let of_type = |name: &str| spec(&json!({"serviceTypes": [name]}), &json!({"rejected": true}));
    folder.write("live.json", request_policy("live", &of_type("vm")));
    folder.write("new.json", candidate("new", &of_type("database")));
    let server = Server::start(folder, &[]).await;
    let ask =
        async |service_type: &str| evaluate(&server, ADR, &json!({"payload": {"service_type": service_type}})).await.0;
    assert_eq!(ask("queue").await, StatusCode::OK);
    assert_eq!(ask("vm").await, StatusCode::FORBIDDEN);
    assert_eq!(ask("database").await, StatusCode::OK);
    let lines = server.until_previews(2).await;
    let found: BTreeMap<_, _> = lines
        .iter()
        .map(|line| (line["request"]["serviceType"].as_str().unwrap(), line["divergence"].as_str().unwrap()))
        .collect();
    assert_eq!(found, BTreeMap::from([("vm", "NewlyAllowed"), ("database", "NewlyDenied")]));
    assert_eq!(server.count("proviso_preview_evaluations_total", &[]).await, 2);
}

#[tokio::test]
async fn the_sample_rate_and_the_logging_of_an_experiment_apply() {
    let folder = Folder::new();
    folder.write("live.json", request_policy("live", &live()));
    for (name, settings) in
        [("all", json!({})), ("rare", json!({"sampleRate": 1e-9})), ("quiet", json!({"logging": "Divergences"}))]
    {
        let mut manifest: Value = serde_json::from_str(&candidate(name, &live())).unwrap();
        manifest["spec"].as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        folder.write(&format!("{name}.json"), manifest.to_string());
    }
    let api = Api(Server::start(folder, &[]).await);
    for _ in 0..5 {
        assert_eq!(evaluate(&api.0, ADR, &request()).await.0, StatusCode::OK);
    }
    let evaluated = async |name: &str| api.get(&format!("{EXPERIMENTS}/{name}")).await["divergence"]["same"].as_u64();
    api.0.until("the counts", async || evaluated("all").await == Some(5) && evaluated("quiet").await == Some(5)).await;
    assert_eq!(evaluated("rare").await, Some(0), "no request is in the sample");
    let lines = api.0.until_previews(5).await;
    assert!(lines.len() == 5 && lines.iter().all(|line| line["experiment"] == "cluster.all"), "{lines:#?}");
}

#[tokio::test]
async fn an_experiment_is_created_started_stopped_and_committed() {
    let folder = Folder::new();
    folder.write("live.json", request_policy("live", &live()));
    let api = Api(Server::start(folder, &[]).await);
    let size = async || evaluate(&api.0, ADR, &request()).await.1["payload"]["size"].clone();
    let next = spec(&json!({"priority": 7, "displayName": "Sizes"}), &json!({"patch": {"size": "large"}}));
    let body = json!({"policy": {"name": "policies/cluster.live", "spec": next}, "logging": "Divergences"});
    api.done(Method::POST, &format!("{EXPERIMENTS}?experimentId=e"), &body).await;
    assert_eq!(size().await, "small");
    assert!(api.get(E).await.get("divergence").is_none(), "not started");
    api.done(Method::POST, &format!("{E}:startPreview"), &json!({})).await;
    assert_eq!(size().await, "small");
    assert_eq!(api.0.until_previews(1).await[0]["divergence"], "MutationDiffers");
    api.done(Method::POST, &format!("{E}:stopPreview"), &json!({})).await;
    let stopped = api.get(E).await;
    assert_eq!(
        (&stopped["divergence"]["evaluated"], &stopped["previewMetadata"]["state"]),
        (&json!(1), &json!("SUSPENDED"))
    );
    assert_eq!(size().await, "small");
    assert_eq!(api.get(E).await["divergence"]["evaluated"], 1, "a stopped preview counts nothing");

    api.done(Method::POST, &format!("{E}:commit"), &json!({"etag": stopped["etag"]})).await;
    assert_eq!(size().await, "large");
    let committed = api.get(LIVE).await["spec"].clone();
    assert_eq!((&committed["request"]["priority"], &committed["request"]["displayName"]), (&json!(7), &json!("Sizes")));
    assert_eq!(api.refused(Method::GET, E, &Value::Null).await, reason(404, "RESOURCE_NOT_FOUND"));
}

#[tokio::test]
async fn an_experiment_cannot_change_the_enforcement_point() {
    let folder = Folder::new();
    folder.write("live.json", request_policy("live", &live()));
    folder.write("admission.json", policy("admission", &json!({})));
    folder.write("wrong.json", experiment("wrong", "live", &cel("false", "no")));
    let mut other: Value = serde_json::from_str(&candidate("other", &live())).unwrap();
    other["spec"]["policyRef"]["name"] = json!("admission");
    folder.write("other.json", other.to_string());
    let api = Api(Server::start(folder, &[]).await);
    for (name, wanted) in [
        ("wrong", "spec.policy: has the section `admission`, and cluster.live has `request`"),
        ("other", "spec.policy: has the section `request`, and cluster.admission has `admission`"),
    ] {
        api.0.until_details(&format!("[-] experiment cluster.{name} previews nothing: {wanted}")).await;
    }
    let (wrong, etag) =
        (format!("{EXPERIMENTS}/wrong"), api.get(&format!("{EXPERIMENTS}/wrong")).await["etag"].clone());
    let failed = api.ended(Method::POST, &format!("{wrong}:startPreview"), &json!({})).await;
    assert_eq!(failed["error"]["details"][0]["reason"], "INVALID", "{failed}");
    let committed = api.refused(Method::POST, &format!("{wrong}:commit"), &json!({"etag": etag})).await;
    assert_eq!(committed, reason(400, "ENFORCEMENT_POINT"));
    let create = format!("{EXPERIMENTS}?experimentId=e");
    let body = json!({"policy": {"name": "policies/cluster.live", "spec": forbidding("no")}});
    assert_eq!(api.refused(Method::POST, &create, &body).await, reason(400, "INVALID_FIELD"));
    api.create("e", &live()).await;
    assert_eq!(
        api.refused(Method::PATCH, E, &json!({"policy": {"spec": forbidding("no")}})).await,
        reason(400, "INVALID_FIELD")
    );
    assert_eq!(evaluate(&api.0, ADR, &request()).await.0, StatusCode::OK);
    assert!(api.0.previews().is_empty());
    // The policy changes its section: the experiment is previewed then.
    let section = json!({"priority": 200});
    api.0.folder.write("admission.json", request_policy("admission", &spec(&section, &result_with(&json!({})))));
    api.0.until_details("experiment cluster.other generation 1 previews cluster.admission").await;
}

#[tokio::test]
async fn answers_do_not_wait_for_previews() {
    let folder = Folder::new();
    folder.write("live.json", request_policy("live", &live()));
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    // Long enough for the answers on a busy machine.
    let endless = json!({
        "request": first(), "program": {"wasm": {"module": "file://./loop.wasm"}}, "timeoutEvalSeconds": 12,
    });
    folder.write("loop.json", candidate("loop", &endless));
    let server = Server::start(folder, &[]).await;
    for _ in 0..3 {
        assert_eq!(evaluate(&server, ADR, &request()).await.0, StatusCode::OK);
    }
    assert_eq!(server.previews().len(), 0, "an answer waited for the first preview");
    let lines = server.until_previews(3).await;
    assert!(lines.iter().all(|line| line["divergence"] == "NewlyDenied"), "{lines:#?}");
    assert!(lines.iter().all(|line| line["preview"]["error"] == "DeadlineExceeded"), "{lines:#?}");
}
