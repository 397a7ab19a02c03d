//! Tests of misbehaving policies and requests: the server denies, other policies keep serving, and the server stays ready. A
//! separate test program, because a test raises the process' limit of open files, which the servers inherit.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod bodies;
mod experiments;
mod rego;
mod requests;
mod settings;
mod shares;
mod snapshots;
#[path = "../support/mod.rs"]
mod support;
mod wasm;

use hyper::StatusCode;
use serde_json::json;
use support::{Answer, Folder, Server, forbid, pod, policy, wapc};

/// The message of a timeout. Kubewarden has the same message, and dashboards search for it.
const TOO_LONG: &str = "Policy execution interrupted because it exceeded the allowed execution time";

/// Starts a server over this folder, with the two policies `fine` (wasm) and `fine-rego` in addition.
async fn server_with_fine_policies(folder: Folder, arguments: &[&str]) -> Server {
    folder.write("fine.wasm", wapc::answering(&json!({"accepted": false, "message": "fine"})));
    folder.write("fine.json", policy("fine", &support::wasm("fine.wasm")));
    folder.write("fine-rego.json", policy("fine-rego", &forbid("true", "fine")));
    Server::start(folder, arguments).await
}

/// Asserts that the fine policies answer correctly and that the server is ready.
async fn assert_fine(server: &Server) {
    for name in ["fine", "fine-rego"] {
        assert_eq!(ask(server, name).await.message(), "fine");
    }
    assert_eq!(server.get("/readyz").await.status, StatusCode::OK);
}

async fn ask(server: &Server, name: &str) -> Answer {
    server.post(&format!("/validate/cluster.{name}"), pod("u", "x").to_string()).await
}

/// Asserts that the answer is a failed evaluation: HTTP 200 with a denial, code 500 and the uid of the request.
fn assert_failed(answer: &Answer, words: &str) {
    let response = answer.response();
    assert_eq!((&response["uid"], &response["allowed"]), (&json!("u"), &json!(false)), "{}", answer.text);
    assert_eq!(response["status"]["code"], 500, "{}", answer.text);
    assert!(answer.message().contains(words), "{words}: {}", answer.text);
}
