//! Previews (AIP-236): the verdicts of experiments on live requests, compared with the live verdicts.

mod verdicts;

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{self, Folder, Server, experiment, forbid, manifest, pod, policy, rego, wapc, wasm, with};

const NEVER: &str = "false";

fn create(name: &str) -> String {
    pod("u", name).to_string()
}

/// Returns the divergences of these lines, by experiment.
fn divergences(lines: &[Value]) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    lines.iter().map(|line| (text(&line["experiment"]), text(&line["divergence"]))).collect()
}

fn expected(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, divergence)| (format!("cluster.{name}"), (*divergence).to_owned())).collect()
}

#[tokio::test]
async fn every_divergence_has_a_line_and_a_count() {
    let folder = Folder::new();
    folder.write("live.json", policy("live", &forbid(r#"input.request.name == "bad""#, "bad")));
    for (name, spec) in [
        ("equal", forbid(r#"input.request.name in {"bad"}"#, "bad")),
        ("strict", forbid("true", "nothing at all")),
        ("lax", forbid(NEVER, "")),
        ("polite", forbid(r#"input.request.name == "bad""#, "please choose another name")),
        ("monitoring", with(forbid("true", "x"), &json!({"admission": {"mode": "Monitor"}}))),
        ("disabled", with(forbid("true", "x"), &json!({"enabled": false}))),
        (
            "custom",
            with(forbid(r#"input.request.name == "bad""#, "bad"), &json!({"admission": {"message": "see the wiki"}})),
        ),
    ] {
        folder.write(&format!("{name}.json"), experiment(name, "live", &spec));
    }
    let server = Server::start(folder, &[]).await;
    assert!(server.post("/validate/cluster.live", create("good")).await.is_allowed());
    let lines = server.until_previews(7).await;
    let good = [
        ("equal", "Same"),
        ("strict", "NewlyDenied"),
        ("lax", "Same"),
        ("polite", "Same"),
        ("monitoring", "Same"),
        ("disabled", "Same"),
        ("custom", "Same"),
    ];
    assert_eq!(divergences(&lines), expected(&good));
    assert_eq!(server.post("/validate/cluster.live", create("bad")).await.message(), "bad");
    let lines = server.until_previews(14).await;
    let bad = [
        ("equal", "Same"),
        ("strict", "MessageDiffers"),
        ("lax", "NewlyAllowed"),
        ("polite", "MessageDiffers"),
        ("monitoring", "NewlyAllowed"),
        ("disabled", "NewlyAllowed"),
        ("custom", "MessageDiffers"),
    ];
    assert_eq!(divergences(&lines[7..]), expected(&bad));
    assert_eq!(server.previews().len(), 14, "one line for each evaluation");

    let mut counted = BTreeMap::new();
    for (name, divergence) in good.into_iter().chain(bad) {
        *counted.entry((name, divergence)).or_insert(0) += 1;
    }
    for ((name, divergence), count) in counted {
        let labels = [format!("\"cluster.{name}\""), format!("\"{divergence}\"")];
        let labels = labels.each_ref().map(String::as_str);
        assert_eq!(server.count("proviso_preview_evaluations_total", &labels).await, count, "{labels:?}");
    }
    assert_eq!(server.count("proviso_preview_evaluations_total", &[]).await, 14);
    assert_eq!(server.count("proviso_preview_dropped_total", &[]).await, 0);
    assert_eq!(server.count("proviso_evaluations_total", &[]).await, 2, "previews are not counted as evaluations");
}

#[tokio::test]
async fn a_preview_line_has_request_and_verdicts_but_no_object_content() {
    let folder = Folder::new();
    folder.write(
        "live.json",
        policy("live", &rego("package test\nwarn contains \"soon forbidden\" if true\ndeny contains \"x\" if false")),
    );
    folder.write("new.json", experiment("new", "live", &forbid("true", "forbidden now")));
    let server = Server::start(folder, &[]).await;
    let mut review = pod("7f0c", "shop");
    review["request"]["subResource"] = json!("ephemeralcontainers");
    review["request"]["object"]["metadata"]["annotations"] = json!({"note": "secret-of-the-object"});
    assert!(server.post("/validate/cluster.live", review.to_string()).await.is_allowed());
    let mut line = server.until_previews(1).await.remove(0);
    assert!(!line.to_string().contains("secret-of-the-object"), "{line}");

    let mut take = |field: &str| line.as_object_mut().unwrap().remove(field).unwrap_or_else(|| panic!("no {field}"));
    let time = take("time");
    assert!(
        time.as_str().unwrap().parse::<jiff::Timestamp>().is_ok() && time.as_str().unwrap().ends_with('Z'),
        "{time}"
    );
    assert!(take("durationUs").as_u64().unwrap() > 0);
    let etags = [take("liveEtag"), take("experimentEtag")];
    for etag in &etags {
        let strong = etag.as_str().unwrap();
        assert!(strong.len() > 10 && strong.starts_with('"') && strong.ends_with('"'), "{etag}");
    }
    assert_ne!(etags[0], etags[1]);
    let wanted = json!({
        "policy": "cluster.live",
        "liveGeneration": 1,
        "experiment": "cluster.new",
        "request": {
            "uid": "7f0c",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "subResource": "ephemeralcontainers",
            "namespace": "default",
            "name": "shop",
            "operation": "CREATE",
            "user": "ann",
        },
        "live": {"allowed": true, "mutated": false, "warnings": ["soon forbidden"]},
        "preview": {"allowed": false, "message": "forbidden now", "mutated": false},
        "divergence": "NewlyDenied",
    });
    assert_eq!(line, wanted);
}

#[tokio::test]
async fn mutations_are_compared_by_the_patched_objects() {
    let mutating = json!({"admission": {"mutating": true}});
    let mut object = pod("u", "x")["request"]["object"].take();
    object["metadata"]["labels"]["tier"] = json!("web");
    let patch = |operations: Value| {
        let answer = json!({"response": {"allowed": true, "patchType": "JSONPatch", "patch": operations}});
        with(rego(&format!("package test\nmain := {answer}")), &mutating)
    };
    let folder = Folder::new();
    folder.write("live.wasm", wapc::answering(&json!({"accepted": true, "mutated_object": object})));
    folder.write("live.json", policy("live", &with(wasm("live.wasm"), &mutating)));
    object["metadata"]["labels"]["tier"] = json!("shop");
    folder.write("other.wasm", wapc::answering(&json!({"accepted": true, "mutated_object": object})));
    for (name, spec) in [
        (
            "whole",
            patch(json!([{"op": "replace", "path": "/metadata/labels", "value": {"app": "web", "tier": "web"}}])),
        ),
        (
            "detour",
            patch(json!([
                {"op": "add", "path": "/metadata/labels/tier", "value": "shop"},
                {"op": "add", "path": "/metadata/labels/more", "value": "x"},
                {"op": "remove", "path": "/metadata/labels/more"},
                {"op": "replace", "path": "/metadata/labels/tier", "value": "web"},
            ])),
        ),
        ("other", with(wasm("other.wasm"), &mutating)),
        ("nothing", forbid(NEVER, "")),
        ("forbidden", wasm("live.wasm")),
        ("broken", patch(json!([{"op": "remove", "path": "/nowhere"}]))),
    ] {
        folder.write(&format!("{name}.json"), experiment(name, "live", &spec));
    }
    let server = Server::start(folder, &[]).await;
    assert_eq!(server.post("/validate/cluster.live", create("x")).await.response()["patchType"], "JSONPatch");
    let lines = server.until_previews(6).await;
    let wanted = [
        ("whole", "Same"),
        ("detour", "Same"),
        ("other", "MutationDiffers"),
        ("nothing", "MutationDiffers"),
        ("forbidden", "NewlyDenied"),
        // The API server denies a request whose patch it cannot apply.
        ("broken", "NewlyDenied"),
    ];
    assert_eq!(divergences(&lines), expected(&wanted));
    let mutated =
        |name: &str| lines.iter().find(|line| line["experiment"] == name).unwrap()["preview"]["mutated"].clone();
    assert_eq!((mutated("cluster.other"), mutated("cluster.nothing")), (json!(true), json!(false)));
    let broken = lines.iter().find(|line| line["experiment"] == "cluster.broken").unwrap();
    assert_eq!((&broken["preview"]["code"], &broken["preview"]["error"]), (&json!(500), &json!("InvalidAnswer")));
    assert_eq!(server.count("proviso_preview_errors_total", &[]).await, 1);
}

#[tokio::test]
async fn an_experiment_applies_its_own_rules_and_selectors() {
    let folder = Folder::new();
    folder.write("live.json", policy("live", &forbid(NEVER, "")));
    let namespace = |name: &str, environment: &str| {
        let metadata = json!({"name": name, "labels": {"env": environment}});
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}).to_string()
    };
    folder.write(
        "namespaces.yaml",
        format!("{}\n---\n{}\n", namespace("default", "test"), namespace("shop", "production")),
    );
    let rule = |operations: &str, resources: &str, scope: &str| json!({"rules": [{"operations": [operations], "apiGroups": [""], "apiVersions": ["v1"], "resources": [resources], "scope": scope}]});
    let labels = |field: &str, key: &str, value: &str| json!({field: {"matchLabels": {key: value}}});
    let cases = [
        ("pods", rule("CREATE", "pods", "*"), "NewlyDenied"),
        ("updates", rule("UPDATE", "pods", "*"), "Same"),
        ("services", rule("CREATE", "services", "*"), "Same"),
        ("cluster-scope", rule("CREATE", "pods", "Cluster"), "Same"),
        ("namespace-scope", rule("CREATE", "pods", "Namespaced"), "NewlyDenied"),
        ("labelled", labels("objectSelector", "app", "web"), "NewlyDenied"),
        ("otherwise-labelled", labels("objectSelector", "app", "database"), "Same"),
        ("test", labels("namespaceSelector", "env", "test"), "NewlyDenied"),
        ("production", labels("namespaceSelector", "env", "production"), "Same"),
        ("named", labels("namespaceSelector", "kubernetes.io/metadata.name", "default"), "NewlyDenied"),
    ];
    for (name, admission, _) in &cases {
        let spec = with(forbid("true", "x"), &json!({"admission": admission}));
        folder.write(&format!("{name}.json"), experiment(name, "live", &spec));
    }
    let server = Server::start(folder, &[]).await;
    assert!(server.post("/validate/cluster.live", create("x")).await.is_allowed());
    let lines = server.until_previews(cases.len()).await;
    assert_eq!(divergences(&lines), expected(&cases.each_ref().map(|(name, _, divergence)| (*name, *divergence))));

    // A changed label of a namespace takes effect without a restart.
    let swapped = format!("{}\n---\n{}\n", namespace("default", "production"), namespace("shop", "test"));
    server.folder.write("namespaces.yaml", swapped);
    let has_new_labels = async || {
        let before = server.previews().len();
        assert!(server.post("/validate/cluster.live", create("x")).await.is_allowed());
        let lines = server.until_previews(before + cases.len()).await;
        let found = divergences(&lines[before..]);
        found["cluster.production"] == "NewlyDenied" && found["cluster.test"] == "Same"
    };
    server.until("the new labels", has_new_labels).await;
}

#[tokio::test]
async fn dry_runs_audits_and_requests_of_old_generations_are_not_previewed() {
    let folder = Folder::new();
    folder.write("live.json", policy("live", &forbid("true", "first")));
    folder.write("new.json", experiment("new", "live", &forbid(NEVER, "")));
    let server = Server::start(folder, &[]).await;
    server.folder.write("live.json", policy("live", &forbid("true", "second")));
    server.until_details("cluster.live generation 2 live").await;
    let mut dry = pod("dry", "x");
    dry["request"]["dryRun"] = json!(true);
    for (path, body) in [
        ("/validate/cluster.live", dry.to_string()),
        ("/audit/cluster.live", pod("audit", "x").to_string()),
        ("/validate_raw/cluster.live", pod("raw", "x").to_string()),
        ("/validate/cluster.live/1", pod("old", "x").to_string()),
        ("/validate/cluster.live/3", pod("unknown", "x").to_string()),
        (
            "/validate/cluster.live",
            r#"{"kind": "AdmissionReview", "request": {"uid": "malformed", "operation": 1}}"#.to_owned(),
        ),
    ] {
        server.post(path, body).await;
    }
    for path in ["/validate/cluster.live", "/validate/cluster.live/2", "/validate/cluster.live"] {
        server.post(path, pod("live", "x").to_string()).await;
    }
    let lines = server.until_previews(3).await;
    assert!(lines.iter().all(|line| line["request"]["uid"] == "live" && line["liveGeneration"] == 2), "{lines:#?}");
    assert_eq!(server.count("proviso_preview_evaluations_total", &[]).await, 3);
    assert_eq!(server.count("proviso_preview_dropped_total", &[]).await, 0);
}

#[tokio::test]
async fn an_experiment_that_previews_nothing_gives_its_reason() {
    let folder = Folder::new();
    folder.write("live.json", policy("live", &forbid(NEVER, "")));
    let waiting = |auto_start: bool| {
        let mut object: Value = serde_json::from_str(&experiment("waiting", "live", &forbid("true", "x"))).unwrap();
        object["spec"]["autoStart"] = json!(auto_start);
        object.to_string()
    };
    folder.write("waiting.json", waiting(false));
    folder.write("lost.json", experiment("lost", "nowhere", &forbid("true", "x")));
    folder.write("broken.json", experiment("broken", "live", &rego("package test\ndeny contains")));
    // A PolicyExperiment does not belong to a ClusterPolicy of the same name.
    let spec: Value = serde_json::from_str(&experiment("x", "live", &forbid("true", "x"))).unwrap();
    folder.write("other.json", manifest("PolicyExperiment", "other", &spec["spec"]));
    let server = Server::start(folder, &[]).await;
    let details = server.details().await;
    for wanted in [
        "[ ] experiment cluster.waiting previews nothing: not started: spec.autoStart is false",
        "[-] experiment cluster.lost previews nothing: spec.policyRef.name: there is no policy cluster.nowhere",
        "[-] experiment cluster.broken previews nothing: CompileError: ",
        "[-] experiment ns.default.other previews nothing: spec.policyRef.name: there is no policy ns.default.live",
    ] {
        assert!(details.contains(wanted), "{wanted}:\n{details}");
    }
    assert!(server.post("/validate/cluster.live", create("x")).await.is_allowed());

    server.folder.write("waiting.json", waiting(true));
    server.until_details("[+] experiment cluster.waiting generation 2 previews cluster.live").await;
    assert!(server.post("/validate/cluster.live", create("x")).await.is_allowed());
    let lines = server.until_previews(1).await;
    assert_eq!(divergences(&lines), expected(&[("waiting", "NewlyDenied")]));
    assert_eq!(server.count("proviso_preview_evaluations_total", &[]).await, 1);

    server.folder.write("nowhere.json", policy("nowhere", &forbid(NEVER, "")));
    server.until_details("[+] experiment cluster.lost generation 1 previews cluster.nowhere").await;
    server.folder.remove("waiting.json");
    server.until("removal", async || !server.details().await.contains("cluster.waiting")).await;
}

#[tokio::test]
async fn each_edit_of_an_experiment_has_its_own_etag() {
    let folder = Folder::new();
    folder.write("live.json", policy("live", &forbid(NEVER, "")));
    folder.write("new.json", experiment("new", "live", &forbid("true", "first")));
    let server = Server::start(folder, &[]).await;
    let mut etags = Vec::new();
    for (generation, message) in [(1, "first"), (2, "second"), (3, "first")] {
        server.folder.write("new.json", experiment("new", "live", &forbid("true", message)));
        server.until_details(&format!("experiment cluster.new generation {generation} previews")).await;
        assert!(server.post("/validate/cluster.live", create("x")).await.is_allowed());
        let line = server.until_previews(generation).await.pop().unwrap();
        assert_eq!(line["preview"]["message"], message);
        etags.push((line["experimentEtag"].clone(), line["liveEtag"].clone()));
    }
    assert!(etags[0].0 != etags[1].0 && etags[1].0 != etags[2].0 && etags[0].0 != etags[2].0, "{etags:?}");
    assert!(etags.iter().all(|(_, live)| *live == etags[0].1), "the policy did not change: {etags:?}");

    // After an edit that does not work, the last good version is still previewed.
    server.folder.write("new.json", experiment("new", "live", &rego("package test\ndeny contains")));
    server.until("the report", async || server.count("proviso_failing", &[]).await == 1).await;
    assert!(server.post("/validate/cluster.live", create("x")).await.is_allowed());
    let line = server.until_previews(4).await.pop().unwrap();
    assert_eq!(line["experimentEtag"], etags[2].0);
    // The details show the author of the edit that it does not work.
    let details = server.details().await;
    assert!(
        details
            .lines()
            .any(|line| line.starts_with("[-]") && line.contains("cluster.new") && line.contains("CompileError")),
        "{details}"
    );
}

#[tokio::test]
async fn a_policy_has_at_most_ten_experiments() {
    let folder = Folder::new();
    folder.write("live.json", policy("live", &forbid(NEVER, "")));
    for number in 0..11 {
        let name = format!("e{number:02}");
        folder.write(&format!("{name}.json"), experiment(&name, "live", &forbid("true", "x")));
    }
    let server = Server::start(folder, &[]).await;
    let details = server.details().await;
    let excess =
        "[-] experiment cluster.e10 previews nothing: cluster.live has 10 older experiments already: delete one";
    assert!(details.contains(excess), "{details}");
    assert_eq!(details.matches("previews cluster.live").count(), 10, "{details}");
    assert!(server.post("/validate/cluster.live", create("x")).await.is_allowed());
    assert!(!divergences(&server.until_previews(10).await).contains_key("cluster.e10"));
    server.folder.remove("e00.json");
    server.until_details("[+] experiment cluster.e10 generation 1 previews cluster.live").await;
}

#[tokio::test]
async fn the_live_answer_is_sent_before_its_preview_starts() {
    let folder = Folder::new();
    folder.write("live.json", policy("live", &forbid("true", "live")));
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    // Long enough for five answers on a busy machine.
    let endless = with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 8}));
    folder.write("loop.json", experiment("loop", "live", &endless));
    folder.write("new.json", experiment("new", "live", &forbid(NEVER, "")));
    let server = Server::start(folder, &[]).await;
    for _ in 0..5 {
        assert_eq!(server.post("/validate/cluster.live", create("x")).await.message(), "live");
    }
    let loops = |lines: &[Value]| lines.iter().filter(|line| line["experiment"] == "cluster.loop").count();
    assert_eq!(loops(&server.previews()), 0, "an answer waited for the first preview");
    assert_eq!(loops(&server.until_previews(10).await), 5, "all five requests are previewed");
}

/// Returns the number of the scheduling policy of the preview thread (`man 5 proc_pid_stat`).
fn scheduling(server: &Server) -> Option<u32> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    let mut threads = threads.map(|thread| thread.unwrap().path());
    let worker = threads.find(|thread| std::fs::read_to_string(thread.join("comm")).unwrap() == "preview\n")?;
    let stat = std::fs::read_to_string(worker.join("stat")).unwrap();
    stat.rsplit_once(") ")?.1.split(' ').nth(38)?.parse().ok()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn previews_run_at_idle_priority_unless_configured_otherwise() {
    const NORMAL: u32 = 0;
    const IDLE: u32 = 5;
    for (arguments, wanted) in [(&[][..], IDLE), (&["--preview-priority", "normal"], NORMAL)] {
        let folder = Folder::new();
        let mut command = Command::new(env!("CARGO_BIN_EXE_policy-server"));
        command.args([
            "--listen",
            "127.0.0.1:0",
            "--admin-listen",
            "127.0.0.1:0",
            "--log-format",
            "json",
            "--manifests",
        ]);
        command.arg(folder.manifests()).args(arguments).env_remove(support::PREVIEW_PRIORITY);
        let server = Server::run(command, folder).await;
        server.until("the priority", async || scheduling(&server) == Some(wanted)).await;
    }
}
