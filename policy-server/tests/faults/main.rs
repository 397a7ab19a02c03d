//! Policies and requests that misbehave, and what must hold all the same. The numbers are those of the list of faults
//! that the design asks for. A program of its own: it lifts its limit of open files, which its servers inherit.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod experiments;
mod rego;
mod requests;
mod settings;
#[path = "../support/mod.rs"]
mod support;
mod wasm;

use hyper::StatusCode;
use serde_json::json;
use support::{Answer, Folder, Server, forbid, pod, policy, wapc};

/// What Kubewarden says too: dashboards look for it.
const TOO_LONG: &str = "Policy execution interrupted because it exceeded the allowed execution time";

/// A server with the policy `fine`, in wasm and in Rego, beside the ones under test.
async fn server_beside_fine_policies(folder: Folder, arguments: &[&str]) -> Server {
    folder.write("fine.wasm", wapc::answering(&json!({"accepted": false, "message": "fine"})));
    folder.write("fine.json", policy("fine", &support::wasm("fine.wasm")));
    folder.write("fine-rego.json", policy("fine-rego", &forbid("true", "fine")));
    Server::start(folder, arguments).await
}

/// The fine policies give their right answers, and the server is ready.
async fn assert_fine(server: &Server) {
    for name in ["fine", "fine-rego"] {
        assert_eq!(ask(server, name).await.message(), "fine");
    }
    assert_eq!(server.get("/readyz").await.status, StatusCode::OK);
}

async fn ask(server: &Server, name: &str) -> Answer {
    server.post(&format!("/validate/cluster.{name}"), pod("u", "x").to_string()).await
}

/// A failed evaluation: a denial with code 500 and the request's uid, inside HTTP 200.
fn assert_failed(answer: &Answer, words: &str) {
    let response = answer.response();
    assert_eq!((&response["uid"], &response["allowed"]), (&json!("u"), &json!(false)), "{}", answer.text);
    assert_eq!(response["status"]["code"], 500, "{}", answer.text);
    assert!(answer.message().contains(words), "{words}: {}", answer.text);
}
