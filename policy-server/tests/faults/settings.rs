//! Settings that are refused: by the policy, or because they are too large or too deep.

use hyper::StatusCode;
use serde_json::json;

use crate::{ask, assert_failed, assert_fine, server_with_fine_policies};

use crate::support::{Folder, Server, forbid, policy, wapc, wasm};

// The policy refuses its settings.
#[tokio::test]
async fn refused_settings_are_reported_with_the_message_of_the_policy() {
    let folder = Folder::new();
    folder.write("m.wasm", wapc::answering(&json!({"accepted": false, "message": "good"})));
    folder.write("a.json", policy("a", &wasm("m.wasm")));
    let server = Server::start(folder, &[]).await;
    let words = "the label \"owner\" needs a pattern";
    server.folder.write("strict.wasm", wapc::refusing_settings(words));
    server.folder.write("a.json", policy("a", &wasm("strict.wasm")));
    let wanted = format!("SettingsInvalid: the policy refused its settings: {words}");
    server.until_details(&wanted).await;
    assert!(server.details().await.contains("[-] cluster.a generation 1 live"));
    assert_eq!(ask(&server, "a").await.message(), "good");
    assert_eq!(server.count("proviso_failing", &[]).await, 1);

    // A policy that has never worked denies, with the same message.
    server.folder.write("b.json", policy("b", &wasm("strict.wasm")));
    server.until_details("[-] cluster.b denies everything").await;
    assert_failed(&ask(&server, "b").await, &wanted);
}

// Settings are very large or very deep.
#[tokio::test]
async fn too_large_settings_are_refused_with_their_size() {
    let server = server_with_fine_policies(Folder::new(), &[]).await;
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let bomb = |settings: &str| {
        policy("bomb", &forbid("true", "x")).replace("\"program\"", &format!("\"settings\":{settings},\"program\""))
    };
    let huge = format!("{{\"text\": {:?}}}", "x".repeat(300 * 1024));
    for (settings, wanted) in [
        (huge, "spec.settings: has 307211 bytes as JSON, at most 262144 (256 KiB) are allowed"),
        (format!("{{\"deep\": {}}}", nested(100)), "spec.settings: is nested deeper than 64 levels"),
        (format!("{{\"deep\": {}}}", nested(100_000)), "bomb.json:1: document 1: "),
    ] {
        server.folder.write("bomb.json", bomb(&settings));
        server.until_details(wanted).await;
        assert_fine(&server).await;
        // If the document still names its policy, that policy denies.
        let answer = ask(&server, "bomb").await;
        if answer.status != StatusCode::NOT_FOUND {
            assert_failed(&answer, wanted);
        }
        server.folder.remove("bomb.json");
        server.until("recovery", async || !server.details().await.contains("[-]")).await;
    }
    // 40 KB of nested lists on one line: a parser that keeps the path of each list would take gigabytes.
    let lists = format!(
        "apiVersion: proviso.dev/v1alpha1\nkind: ClusterPolicy\nmetadata: {{name: bomb}}\nspec:\n  settings:\n    deep:\n      {}1\n",
        "- ".repeat(20_000)
    );
    server.folder.write("bomb.yaml", lists);
    server.until_details("bomb.yaml:1: document 1: ").await;
    assert!(server.peak() < 512 << 20, "{} MiB were taken to refuse it", server.peak() >> 20);
    server.folder.remove("bomb.yaml");
    server.until("recovery", async || !server.details().await.contains("[-]")).await;
    // Settings of exactly the maximum size work.
    let text = "x".repeat(256 * 1024 - 11);
    server.folder.write("bomb.json", bomb(&format!("{{\"text\": {text:?}}}")));
    server.until_details("[+] cluster.bomb generation 1 live").await;
}
