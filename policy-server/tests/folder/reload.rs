//! Tests of changes in the folder, and of restarts with a state folder.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hyper::StatusCode;
use serde_json::json;

use crate::support::{self, Folder, Server, cel, pod, policy, wasm};

#[tokio::test]
async fn changed_added_and_removed_manifests_take_effect() {
    let folder = Folder::new();
    folder.write("a.json", policy("a", &cel("object.metadata.name == 'one'", "only one")));
    let server = Server::start(folder, &[]).await;
    assert!(server.post("/validate/cluster.a", pod("u", "one").to_string()).await.is_allowed());
    assert_eq!(server.post("/validate/cluster.a", pod("u", "two").to_string()).await.message(), "only one");

    server.folder.write("a.json", policy("a", &cel("object.metadata.name == 'two'", "only two")));
    server.folder.write("sub/b.yaml", policy("b", &cel("true", "")));
    server.until_details("cluster.a generation 2 live").await;
    assert!(server.post("/validate/cluster.a", pod("u", "two").to_string()).await.is_allowed());
    assert_eq!(server.post("/validate/cluster.a/1", pod("u", "two").to_string()).await.message(), "only one");
    server.until_details("cluster.b generation 1 live").await;

    server.folder.remove("a.json");
    server.until("removal", async || !server.details().await.contains("cluster.a")).await;
    let gone = server.post("/validate/cluster.a", pod("u", "two").to_string()).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND, "{}", gone.text);
    assert!(server.post("/validate/cluster.b", pod("u", "x").to_string()).await.is_allowed());
}

#[tokio::test]
async fn the_last_good_generation_serves_after_an_invalid_change() {
    let folder = Folder::new();
    folder.write("a.json", policy("a", &cel("false", "never")));
    let server = Server::start(folder, &[]).await;
    for (content, wanted) in [
        (policy("a", &cel("object.", "never")), "CompileError: spec.program.cel"),
        (policy("a", &json!({"setings": {}})), "a.json:1: document 1: spec.setings: is not a known field"),
        ("{".to_owned(), "document 1: is not a Kubernetes object"),
        (policy("a", &wasm("missing.wasm")), "PullError: spec.program.wasm.module: the module"),
        (
            policy("a", &json!({"program": {"wasm": {"module": "registry://127.0.0.1:1/a:v1"}}})),
            "PullError: spec.program.wasm.module: 127.0.0.1:1 cannot be reached",
        ),
        (
            policy("a", &json!({"hostCapabilities": ["oci/*", "a"]})),
            "spec.hostCapabilities[1]: \"a\" matches no host capability",
        ),
    ] {
        server.folder.write("a.json", &content);
        server.until_details(wanted).await;
        assert!(server.details().await.contains("cluster.a generation 1 live"), "{wanted}");
        assert_eq!(server.get("/readyz").await.status, StatusCode::OK);
        assert_eq!(server.post("/validate/cluster.a", pod("u", "x").to_string()).await.message(), "never");
        let problems =
            server.metric("proviso_manifest_problems", &[]).await + server.metric("proviso_failing", &[]).await;
        assert!(problems > 0.0, "{wanted}");
    }
    server.folder.write("a.json", policy("a", &cel("false", "never again")));
    server.until_details("[+] cluster.a generation 2 live").await;
    assert!(!server.details().await.contains("[-]"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_lost_or_wrong_while_policies_change() {
    let folder = Folder::new();
    folder.write("a.json", policy("a", &cel("false", "generation 1")));
    let server = Arc::new(Server::start(folder, &[]).await);
    let (changing, seen) = (Arc::new(AtomicBool::new(true)), Arc::<[AtomicU64; 4]>::default());
    let asking: Vec<_> = (0..seen.len())
        .map(|client| {
            let (server, changing, seen) = (Arc::clone(&server), Arc::clone(&changing), Arc::clone(&seen));
            tokio::spawn(async move {
                while changing.load(Ordering::Relaxed) {
                    let message = server.post("/validate/cluster.a", pod("u", "x").to_string()).await.message();
                    let generation = message.strip_prefix("generation ").unwrap().parse::<u64>().unwrap();
                    let before = seen[client].swap(generation, Ordering::Relaxed);
                    assert!(generation >= before, "{generation} after {before}");
                }
            })
        })
        .collect();
    for generation in 2..=20 {
        server.folder.write("a.json", policy("a", &cel("false", &format!("generation {generation}"))));
        server.until_details(&format!("cluster.a generation {generation} live")).await;
    }
    let all_have_last = || seen.iter().all(|generation| generation.load(Ordering::Relaxed) == 20);
    let is_over = || all_have_last() || asking.iter().any(tokio::task::JoinHandle::is_finished);
    server.until("the last generation in all answers", async || is_over()).await;
    changing.store(false, Ordering::Relaxed);
    for task in asking {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn generations_and_compiled_modules_survive_a_restart() {
    let folder = Folder::new();
    let state = folder.state();
    let state = ["--state-dir", state.to_str().unwrap()];
    std::fs::copy(
        support::example("policies/trusted-registries/trusted-registries.wasm"),
        folder.manifests().join("m.wasm"),
    )
    .unwrap();
    let registries = |registry: &str| {
        let mut spec = wasm("m.wasm");
        spec["settings"] = json!({"registries": [registry]});
        policy("a", &spec)
    };
    folder.write("a.json", registries("nowhere.example.com"));
    let server = Server::start(folder, &state).await;
    server.folder.write("a.json", registries("registry.example.com"));
    server.until_details("cluster.a generation 2 live").await;

    let folder = server.stop().await;
    let compiled = || {
        let files = walkdir::WalkDir::new(folder.state().join("compiled")).into_iter().map(Result::unwrap);
        files
            .filter(|file| file.file_type().is_file())
            .map(|file| (file.path().to_owned(), file.metadata().unwrap().modified().unwrap()))
            .collect::<Vec<_>>()
    };
    let before = compiled();
    assert_eq!(before.len(), 2, "a module and its signature: {before:?}");
    let after = compiled();
    let server = Server::start(folder, &state).await;
    server.until_details("[+] cluster.a generation 2 live").await;
    assert!(server.post("/validate/cluster.a/2", pod("u", "x").to_string()).await.is_allowed());
    assert_eq!(before, after, "nothing was compiled again");

    // The manifest becomes invalid while the server is down. The last accepted generation serves, even without its module file.
    let folder = server.stop().await;
    folder.remove("m.wasm");
    folder.write("a.json", "{");
    let server = Server::start(folder, &state).await;
    server.until_details("cluster.a generation 2 live").await;
    assert!(server.post("/validate/cluster.a", pod("u", "x").to_string()).await.is_allowed());
    assert!(server.details().await.contains("[-]"));
}

#[tokio::test]
async fn a_changed_module_is_a_new_generation() {
    let folder = Folder::new();
    let deny = |message: &str| support::wapc::answering(&json!({"accepted": false, "message": message}));
    folder.write("m.wasm", deny("first"));
    folder.write("a.json", policy("a", &wasm("m.wasm")));
    let server = Server::start(folder, &[]).await;
    assert_eq!(server.post("/validate/cluster.a", pod("u", "x").to_string()).await.message(), "first");
    server.folder.write("m.wasm", deny("second"));
    server.until_details("cluster.a generation 2 live").await;
    assert_eq!(server.post("/validate/cluster.a", pod("u", "x").to_string()).await.message(), "second");
}

#[tokio::test]
async fn a_moved_policy_keeps_serving_when_its_new_file_becomes_invalid() {
    let folder = Folder::new();
    let state = folder.state();
    let state = ["--state-dir", state.to_str().unwrap()];
    folder.write("a.json", policy("a", &cel("false", "never")));
    let server = Server::start(folder, &state).await;
    server.folder.write("team/b.json", policy("a", &cel("false", "never")));
    server.until_details("is already defined at").await;
    server.folder.remove("a.json");
    server.until("one file", async || !server.details().await.contains("[-]")).await;
    server.folder.write("team/b.json", "{");
    server.until_details("b.json").await;
    assert_eq!(server.post("/validate/cluster.a/1", pod("u", "x").to_string()).await.message(), "never");

    let server = Server::start(server.stop().await, &state).await;
    assert_eq!(server.post("/validate/cluster.a/1", pod("u", "x").to_string()).await.message(), "never");
}

#[tokio::test]
async fn a_policy_that_lost_its_last_good_generation_denies() {
    let folder = Folder::new();
    let state = folder.state();
    let state_flag = ["--state-dir", state.to_str().unwrap()];
    folder.write("m.wasm", support::wapc::answering(&json!({"accepted": true})));
    folder.write("a.json", policy("a", &wasm("m.wasm")));
    let server = Server::start(folder, &state_flag).await;
    let folder = server.stop().await;
    folder.remove("m.wasm");
    std::fs::remove_dir_all(state.join("modules")).unwrap();
    let server = Server::start(folder, &state_flag).await;
    let answer = server.post("/validate/cluster.a", pod("u", "x").to_string()).await;
    assert!(!answer.is_allowed() && answer.response()["status"]["code"] == 500, "{}", answer.text);
    server.folder.write("m.wasm", support::wapc::answering(&json!({"accepted": true})));
    server.until_details("[+] cluster.a generation 1 live").await;
}

#[tokio::test]
async fn namespaces_keep_their_labels_while_their_manifest_is_invalid() {
    let folder = Folder::new();
    let mut spec = cel("false", "not in production");
    spec["admission"] = json!({"namespaceSelector": {"matchLabels": {"env": "production"}}});
    folder.write("a.json", policy("a", &spec));
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": {"env": "test"}}});
    folder.write("namespaces.json", namespace.to_string());
    let server = Server::start(folder, &[]).await;
    assert!(server.post("/validate/cluster.a", pod("u", "x").to_string()).await.is_allowed());
    server.folder.write("namespaces.json", "{");
    server.until_details("namespaces.json").await;
    assert!(server.post("/validate/cluster.a", pod("u", "x").to_string()).await.is_allowed());
    server.folder.remove("namespaces.json");
    server
        .until("unknown labels", async || {
            !server.post("/validate/cluster.a", pod("u", "x").to_string()).await.is_allowed()
        })
        .await;
}
