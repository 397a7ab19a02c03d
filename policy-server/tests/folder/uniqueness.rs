//! Request policies of a folder with the same name or priority.

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Folder, Server, ask, manifest};

/// Returns a policy that decides about one service type, and sets the field `by` to its name.
fn policy(name: &str, service_type: &str, priority: u32) -> String {
    let source = format!("package p\nresult := {{\"patch\": {{\"by\": \"{name}\"}}}}");
    let spec = json!({
        "request": {"serviceTypes": [service_type], "priority": priority},
        "program": {"rego": {"dialect": "Request", "source": source}},
    });
    manifest("ClusterPolicy", name, &spec)
}

/// Evaluates a request of this service type. Returns the policy that decided it, or the problem.
async fn decided_by(server: &Server, service_type: &str) -> Result<Value, String> {
    let body = json!({"payload": {"service_type": service_type}}).to_string();
    let answer = ask(&server.listen, Method::POST, "/api/v1/engine/evaluate", body.into()).await.unwrap();
    let value: Value = serde_json::from_str(&answer.text).unwrap();
    if answer.status == StatusCode::OK {
        return Ok(value["payload"]["by"].clone());
    }
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR, "{value}");
    Err(value["detail"].as_str().unwrap().to_owned())
}

/// Waits until this policy decides requests of this service type.
async fn until_decided_by(server: &Server, service_type: &str, name: &str) {
    server.until(name, async || decided_by(server, service_type).await == Ok(json!(name))).await;
}

#[tokio::test]
async fn two_new_policies_with_the_same_priority_serve_nothing_until_one_is_changed() {
    let folder = Folder::new();
    folder.write("a.json", policy("a", "vm", 7));
    folder.write("b.json", policy("b", "database", 7));
    let server = Server::start(folder, &[]).await;
    for (service_type, own, other) in [("vm", "a", "b"), ("database", "b", "a")] {
        let problem = decided_by(&server, service_type).await.unwrap_err();
        let expected = format!("7 is in use by policy cluster.{other} among the Global policies");
        assert!(problem.contains(&format!("policy cluster.{own} has no generation that works")), "{problem}");
        assert!(problem.contains(&expected) && problem.contains(&format!("{other}.json:1")), "{problem}");
    }
    assert_eq!(decided_by(&server, "network").await, Ok(Value::Null), "no policy covers it");
    assert!(server.metric("proviso_manifest_problems", &[]).await >= 2.0);
    server.folder.write("b.json", policy("b", "database", 8));
    until_decided_by(&server, "vm", "a").await;
    until_decided_by(&server, "database", "b").await;
    assert!(server.metric("proviso_manifest_problems", &[]).await < 1.0);
}

#[tokio::test]
async fn a_served_policy_keeps_its_priority_across_restarts_until_it_releases_it() {
    let folder = Folder::new();
    folder.write("b.json", policy("b", "vm", 7));
    folder.write("c.json", policy("c", "network", 9));
    let state = folder.state();
    let options = ["--state-dir", state.to_str().unwrap()];
    let server = Server::start(folder, &options).await;
    server.until_details("[+] cluster.c generation 1 live").await;
    // A file that comes first does not take the priority, and a change of another served policy does not either.
    server.folder.write("a.json", policy("a", "database", 7));
    server.folder.write("c.json", policy("c", "network", 7).replace("by\\", "new\\"));
    server.until_details("a.json:1: document 1: spec.request.priority: 7 is in use by policy cluster.b").await;
    server.until_details("c.json:1: document 1: spec.request.priority: 7 is in use by policy cluster.b").await;
    let server = Server::start(server.stop().await, &options).await;
    for _ in 0..2 {
        assert_eq!(decided_by(&server, "vm").await, Ok(json!("b")));
        assert_eq!(decided_by(&server, "network").await, Ok(json!("c")), "the last good generation");
        assert!(decided_by(&server, "database").await.is_err());
    }
    // The last good generation of `c` still has its priority.
    server.folder.write("b.json", policy("b", "vm", 9));
    server.until_details("b.json:1: document 1: spec.request.priority: 9 is in use by policy cluster.c").await;
    assert_eq!(decided_by(&server, "vm").await, Ok(json!("b")));
    server.folder.remove("c.json");
    until_decided_by(&server, "database", "a").await;
    until_decided_by(&server, "vm", "b").await;
    server.until("no problem", async || !server.details().await.contains("[-]")).await;
}

#[tokio::test]
async fn the_namespaces_of_one_tenant_share_their_names() {
    let folder = Folder::new();
    let in_namespace = |namespace: &str, priority: u32| {
        let mut object: Value = serde_json::from_str(&policy("defaults", namespace, priority)).unwrap();
        (object["kind"], object["metadata"]["namespace"]) = (json!("Policy"), json!(namespace));
        object.to_string()
    };
    folder.write("blue.json", in_namespace("blue", 1));
    folder.write("green.json", in_namespace("green", 2));
    let server = Server::start(folder, &[]).await;
    server.until_details("[+] ns.blue.defaults generation 1 live").await;
    server.until_details("[+] ns.green.defaults generation 1 live").await;
    // Both stay live after a change of the tenant, and both manifests have the problem.
    let labels = json!({"proviso.dev/tenant": "blue"});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "green", "labels": labels}});
    server.folder.write("namespace.json", namespace.to_string());
    server.until_details("spec.request.displayName: \"defaults\" is in use by policy ns.blue.defaults").await;
    server.until_details("spec.request.displayName: \"defaults\" is in use by policy ns.green.defaults").await;
    let body = json!({"payload": {"service_type": "green"}, "tenant": "blue"}).to_string();
    let answer = ask(&server.listen, Method::POST, "/api/v1/engine/evaluate", body.into()).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    server.folder.remove("namespace.json");
    server.until("no problem", async || !server.details().await.contains("[-]")).await;
}
