//! Commits of experiments over a folder. A commit that cannot work, or that races with an edit, changes nothing.

use std::net::TcpListener;

use hyper::Method;
use serde_json::{Value, json};

use crate::api::{Api, E, LIVE, forbidding, reason, spec};
use crate::support::{Folder, cel, experiment, policy};

const COMMIT: &str = "/v1/policies/cluster.live/experiments/e:commit";

/// Returns the contents of all files of the manifests, by their names.
fn files(folder: &Folder) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(folder.manifests()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(path).unwrap()))
        .collect();
    files.sort();
    files
}

async fn etag(api: &Api, path: &str) -> Value {
    api.get(path).await["etag"].clone()
}

#[tokio::test]
async fn a_version_that_is_not_prepared_is_not_committed() {
    let api = Api::start().await;
    api.create("e", &forbidding("first")).await;
    let started = api.done(Method::POST, &format!("{E}:startPreview"), &json!({})).await;
    assert_eq!(started["response"]["previewMetadata"]["state"], "ACTIVE");
    let registry = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("registry://{}/a:v1", registry.local_addr().unwrap());
    for (program, refusal) in [
        (json!({"wasm": {"module": silent}}), "NOT_PREPARED"),
        (json!({"cel": {"validations": [{"expression": "1 +"}]}}), "DOES_NOT_WORK"),
        (json!({"wasm": {"module": "file:///no/such.wasm"}}), "DOES_NOT_WORK"),
    ] {
        let body = json!({"policy": {"spec": spec(&json!({"program": program}))}});
        let operation = api.ok(Method::PATCH, E, &body).await;
        if refusal == "DOES_NOT_WORK" {
            api.wait(&operation).await;
        }
        let (before, live) = (files(&api.0.folder), api.get(LIVE).await);
        let commit = json!({"etag": etag(&api, E).await, "parentEtag": live["etag"]});
        assert_eq!(api.refused(Method::POST, COMMIT, &commit).await, reason(400, refusal), "{program}");
        assert_eq!(files(&api.0.folder), before, "{program}: nothing is written");
        assert_eq!(api.get(LIVE).await, live);
        assert_eq!(api.verdict("bad").await, None);
    }
    // A version that works is committed, in any state of the preview.
    let updated = api.done(Method::PATCH, E, &json!({"policy": {"spec": forbidding("last")}})).await;
    api.done(Method::POST, COMMIT, &json!({"etag": updated["response"]["etag"]})).await;
    assert_eq!(api.verdict("bad").await.as_deref(), Some("last"));
}

#[tokio::test]
async fn a_commit_does_not_lose_an_edit_of_a_file() {
    let api = Api::start().await;
    let folder = &api.0.folder;
    folder.write("e.json", experiment("e", "live", &cel("false", "experiment")));
    api.0.until_details("experiment cluster.e generation 1 previews").await;
    let commit = json!({"etag": etag(&api, E).await, "parentEtag": etag(&api, LIVE).await});
    // The policy is edited after the reviewed version.
    let edited = policy("live", &cel("false", "edited"));
    folder.write("live.json", &edited);
    let before = files(folder);
    assert_eq!(api.refused(Method::POST, COMMIT, &commit).await, reason(409, "ETAG_MISMATCH"));
    assert_eq!(files(folder), before);
    // So is the experiment.
    folder.write("live.json", policy("live", &json!({})));
    folder.write("e.json", experiment("e", "live", &cel("false", "edited")));
    let before = files(folder);
    assert_eq!(api.refused(Method::POST, COMMIT, &commit).await, reason(409, "ETAG_MISMATCH"));
    assert_eq!(files(folder), before);
    // An annotation or a comment of another author is kept.
    api.0.until_details("experiment cluster.e generation 2 previews").await;
    let text = std::fs::read_to_string(folder.manifests().join("live.json")).unwrap();
    folder.write("live.json", format!("# reviewed by ann\n{text}"));
    let commit = json!({"etag": etag(&api, E).await});
    api.done(Method::POST, COMMIT, &commit).await;
    let text = std::fs::read_to_string(folder.manifests().join("live.json")).unwrap();
    assert!(text.starts_with("# reviewed by ann\n") && text.contains("edited"), "{text}");
}

#[tokio::test]
async fn the_annotation_of_a_commit_has_no_effect_without_a_commit() {
    let folder = Folder::new();
    folder.write("live.json", policy("live", &json!({})));
    folder.write("e.json", experiment("e", "live", &cel("false", "no")));
    let api = Api::with_state(folder).await;
    let found = api.get(E).await;
    let committed = json!({"name": "e", "uid": found["uid"], "generation": 1, "etag": found["etag"]}).to_string();
    let forge = |folder: &Folder| {
        let mut object: Value = serde_json::from_str(&policy("live", &json!({}))).unwrap();
        object["metadata"]["annotations"] = json!({"proviso.dev/committed-experiment": committed});
        folder.write("live.json", object.to_string());
    };
    forge(&api.0.folder);
    assert_eq!(api.get(E).await["uid"], found["uid"]);
    let api = api.restart(forge).await;
    assert_eq!(api.get(E).await["uid"], found["uid"]);
    assert_eq!(api.get(E).await["previewMetadata"]["state"], "ACTIVE");
}
