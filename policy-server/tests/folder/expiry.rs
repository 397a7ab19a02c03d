//! The end of a preview (`spec.ttl`), and the settings of a preview, over a folder.

use std::time::Duration;

use hyper::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::{Api, E, LIVE, forbidding};
use crate::support::{Folder, cel, experiment, pod, policy};

/// Returns a folder with the policy `live` and the experiment `e` with `autoStart`, which denies the Pod `bad`.
fn folder(settings: &Value) -> Folder {
    let folder = Folder::new();
    folder.write("live.json", policy("live", &json!({})));
    folder.write("e.json", experiment_with(settings, "no"));
    folder
}

fn experiment_with(settings: &Value, message: &str) -> String {
    let manifest = experiment("e", "live", &cel("object.metadata.name != 'bad'", message));
    let mut object: Value = serde_json::from_str(&manifest).unwrap();
    object["spec"].as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    object.to_string()
}

/// Returns the changed times of the preview of `e` in the state file: the start, and the end.
fn with_times(start: Timestamp, end: Timestamp) -> impl FnOnce(&Folder) {
    move |folder| {
        let path = folder.state().join("state.json");
        let mut state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let record = &mut state["records"]["experiment cluster.e"];
        let [start, end] = [start, end].map(|time| json!(format!("{time:.0}")));
        record["preview"]["startTime"] = start.clone();
        record["preview"]["expireTime"] = end;
        record["previewedStartTime"] = start;
        std::fs::write(path, state.to_string()).unwrap();
    }
}

#[tokio::test]
async fn a_preview_says_when_it_ends_and_does_not_start_again_by_itself() {
    let hour = Duration::from_hours(1);
    let api = Api::with_state(folder(&json!({"ttl": "90m"}))).await;
    api.0.until_details("experiment cluster.e generation 1 previews cluster.live").await;
    let metadata = api.get(E).await["previewMetadata"].clone();
    let time = |field: &str| metadata[field].as_str().unwrap().parse::<Timestamp>().unwrap();
    assert_eq!(time("expireTime").duration_since(time("startTime")).as_secs(), 90 * 60, "{metadata}");
    assert!(!api.0.details().await.contains("stops by itself"), "more than half of the time is left");

    let now = Timestamp::now();
    let api = api.restart(with_times(now - 2 * hour, now + hour)).await;
    let end = format!("previews cluster.live, and stops by itself at {:.0}", now + hour);
    api.0.until_details(&end).await;
    assert_eq!(api.get(E).await["previewMetadata"]["state"], "ACTIVE");

    let api = api.restart(with_times(now - 3 * hour, now - hour)).await;
    api.0.until_details("experiment cluster.e previews nothing: Expired: its ttl has passed").await;
    let metadata = api.get(E).await["previewMetadata"].clone();
    assert_eq!((&metadata["state"], &metadata["stopCause"]["reason"]), (&json!("SUSPENDED"), &json!("Expired")));
    assert!(metadata["stopTime"].is_string(), "{metadata}");
    assert_eq!(api.verdict("bad").await, None);
    let api = api.restart(|_| {}).await;
    assert_eq!(api.get(E).await["previewMetadata"]["state"], "SUSPENDED", "a restart does not start it again");
    assert!(api.0.previews().is_empty());

    // A change of the experiment starts it again.
    api.0.folder.write("e.json", experiment_with(&json!({"ttl": "90m"}), "changed"));
    api.0.until_details("experiment cluster.e generation 2 previews cluster.live").await;
    assert_eq!(api.get(E).await["previewMetadata"].get("stopCause"), None);
}

#[tokio::test]
async fn the_settings_of_a_preview_are_those_of_its_spec() {
    let api = Api::with_state(folder(&json!({"logging": "Divergences"}))).await;
    api.0.until_details("experiment cluster.e generation 1 previews").await;
    for name in ["good", "bad"] {
        assert_eq!(api.verdict(name).await, None);
    }
    let counted = async |wanted: u64| {
        api.0.until("the counts", async || api.get(E).await["divergence"]["evaluated"].as_u64() == Some(wanted)).await;
        api.get(E).await
    };
    let found = counted(2).await;
    assert_eq!(
        (&found["logging"], &found["sampleRate"], &found["ttl"]),
        (&json!("Divergences"), &json!(1.0), &json!("1209600s"))
    );
    let lines = api.0.until_previews(1).await;
    assert_eq!((lines.len(), &lines[0]["divergence"]), (1, &json!("NewlyDenied")), "only differences are logged");

    // A change of the settings is a change of the experiment.
    let changed = api.done(Method::PATCH, E, &json!({"sampleRate": 0.000_000_001, "logging": "All"})).await;
    let changed = &changed["response"];
    assert_ne!(changed["etag"], found["etag"]);
    assert_eq!((&changed["sampleRate"], &changed["ttl"]), (&json!(0.000_000_001), &found["ttl"]));
    let text = std::fs::read_to_string(api.0.folder.manifests().join("e.json")).unwrap();
    assert!(text.contains("sampleRate"), "{text}");
    api.0.until_details("experiment cluster.e generation 2 previews").await;
    for _ in 0..5 {
        assert_eq!(api.verdict("bad").await, None);
    }
    assert_eq!(api.get(E).await["divergence"]["evaluated"], 0, "the request is not in the sample");
    let body = json!({"sampleRate": 2});
    assert_eq!(api.refused(Method::PATCH, E, &body).await.0, 400);
}

#[tokio::test]
async fn counts_belong_to_one_live_version() {
    let api = Api::with_state(folder(&json!({}))).await;
    api.0.until_details("experiment cluster.e generation 1 previews").await;
    assert_eq!(api.verdict("bad").await, None);
    let counts = async |evaluated: u64| {
        api.0
            .until("the counts", async || api.get(E).await["divergence"]["evaluated"].as_u64() == Some(evaluated))
            .await;
        api.get(E).await
    };
    let first = counts(1).await;
    let live = api.get(LIVE).await["etag"].clone();
    assert_eq!((&first["divergence"]["etag"], &first["divergence"]["liveEtag"]), (&first["etag"], &live));
    assert_eq!(first["samples"].as_array().unwrap().len(), 1);
    // A new live version begins new counts, without samples of the old one.
    api.done(Method::PATCH, LIVE, &json!({"spec": forbidding("no")})).await;
    let second = counts(0).await;
    assert_ne!(api.get(LIVE).await["etag"], live);
    assert_eq!(second["divergence"]["liveEtag"], api.get(LIVE).await["etag"]);
    assert_eq!(second.get("samples"), None);
    let answer = api.0.post("/validate/cluster.live", pod("u", "bad").to_string()).await;
    assert!(!answer.is_allowed());
    assert_eq!(counts(1).await["divergence"]["same"], 1);
}
