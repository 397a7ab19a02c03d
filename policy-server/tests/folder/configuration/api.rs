//! The configuration API over a folder, in the forms of ONAP's services, with its callers.

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Components, folder, policy, subscription};
use crate::support::{Folder, WAIT_TIMEOUT, ask, ask_as, manifest};

/// Returns a folder with the policies `memory` and `disk`, and the component `meter` with records of its own.
fn prepared() -> Folder {
    let folder = folder();
    folder.write("memory.json", policy("memory", &json!({"mib": 256})));
    folder.write("disk.json", policy("disk", &json!({"gib": 1})));
    let mut spec = subscription(&folder, &json!([{"filter": {"owner": "DCAE"}}]));
    spec["application"] = json!({"configMap": "meter"});
    folder.write("meter.json", manifest("PolicySubscription", "meter", &spec));
    let records = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "meter", "namespace": "default"},
        "data": {"config": "{\"port\": 8080}", "dti": "{\"a\": 1}"},
    });
    folder.write("records.json", records.to_string());
    folder
}

async fn get(components: &Components, path: &str) -> (StatusCode, String) {
    let answer = ask(&components.server.listen, Method::GET, path, Bytes::new()).await.unwrap();
    (answer.status, answer.text)
}

async fn json_of(components: &Components, path: &str) -> Value {
    let (status, text) = get(components, path).await;
    assert_eq!(status, StatusCode::OK, "{path}: {text}");
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn components_and_policies_have_the_forms_of_onap() {
    let components = Components::start(prepared()).await;
    components.until_acknowledged(2).await;
    let all = json_of(&components, "/service_component_all/meter").await;
    assert_eq!((&all["config"], &all["dti"]), (&json!({"port": 8080}), &json!({"a": 1})));
    assert_eq!(all["policies"]["event"]["policies_count"], 2);
    assert_eq!(all["policies"]["items"][1]["policyName"], "cluster.memory.1.xml");
    assert_eq!(json_of(&components, "/service_component/meter").await, json!({"port": 8080}));
    assert_eq!(json_of(&components, "/dti/meter").await, json!({"a": 1}));
    let latest = json_of(&components, "/policy_latest/cluster.memory").await;
    assert_eq!(latest["policy_body"]["config"], json!({"mib": 256}));
    let latest = json_of(&components, "/policies_latest").await;
    assert_eq!(latest["latest_policies"].as_object().unwrap().len(), 2);
    assert_eq!(json_of(&components, "/v1/kv/meter?keys").await.as_array().unwrap().len(), 5);
    let (status, raw) = get(&components, "/v1/kv/meter:policies/items/cluster.disk?raw").await;
    assert_eq!((status, raw), (StatusCode::OK, components.read("meter/items/cluster.disk").unwrap()));
    assert_eq!(json_of(&components, "/healthcheck").await["server"]["name"], "proviso");
    for (path, expected) in [
        ("/service_component_all/nobody", StatusCode::NOT_FOUND),
        ("/policies/meter", StatusCode::BAD_REQUEST),
        ("/other/meter", StatusCode::NOT_FOUND),
        ("/policy_latest/cluster.nothing", StatusCode::NOT_FOUND),
    ] {
        let (status, text) = get(&components, path).await;
        assert_eq!(status, expected, "{path}: {text}");
    }
}

#[tokio::test]
async fn the_subscription_shows_what_the_component_has_and_should_have() {
    let components = Components::start(prepared()).await;
    components.until_acknowledged(2).await;
    let list = json_of(&components, "/api/v1alpha1/subscriptions").await;
    assert!(list.to_string().contains("\"meter\""), "{list}");
    components.server.folder.write("memory.json", policy("memory", &json!({"mib": "reject-me"})));
    components.until_delivered("Rejected").await;
    let read = json_of(&components, "/api/v1alpha1/subscriptions/default/meter").await;
    let policies = read["policies"].as_array().unwrap();
    let memory = policies.iter().find(|policy| policy["id"] == "cluster.memory").unwrap();
    assert_eq!(memory["state"], "rejected");
    assert_eq!(read["has"]["cluster.memory"]["config"], json!({"mib": 256}));
    assert_eq!(read["should"]["cluster.memory"]["config"], json!({"mib": "reject-me"}));
    assert!(memory["diff"].as_str().unwrap().contains("reject-me"), "{memory}");
}

#[tokio::test]
async fn a_catch_up_repairs_files_that_were_edited_by_hand() {
    let components = Components::start(prepared()).await;
    components.until_acknowledged(2).await;
    std::fs::write(components.path("meter/items/cluster.memory"), "{}").unwrap();
    std::fs::write(components.path("meter/items/of-nobody"), "{}").unwrap();
    std::fs::write(components.path("meter/notes"), "kept").unwrap();
    let (status, text) = get(&components, "/catch_up").await;
    assert!(status.is_success(), "{text}");
    let is_repaired = async || components.config("cluster.memory") == json!({"mib": 256});
    components.server.until("the repair", is_repaired).await;
    components.server.until("the removal", async || components.items().len() == 2).await;
    assert_eq!(components.read("meter/notes").as_deref(), Some("kept"));

    // The interval does the same, and a removed record makes all policies be sent again.
    let folder = components.server.stop().await;
    let components = Components::start_with(folder, &["--catch-up-interval", "1s"]).await;
    components.until_acknowledged(2).await;
    std::fs::remove_file(components.path("meter/items/cluster.disk")).unwrap();
    components.server.until("the repair", async || components.config("cluster.disk") == json!({"gib": 1})).await;
    components.until_acknowledged(2).await;
    let folder = components.server.stop().await;
    let before = std::fs::read_to_string(folder.root().join("messages")).unwrap().lines().count();
    std::fs::remove_file(folder.root().join("components/meter/record.json")).unwrap();
    let components = Components::start(folder).await;
    components.until_acknowledged(2).await;
    assert_eq!(components.messages().len(), before + 1);
}

#[tokio::test]
async fn a_component_reads_each_change_as_a_server_sent_event() {
    let components = Components::start(prepared()).await;
    components.until_acknowledged(2).await;
    let mut stream = TcpStream::connect(&components.server.listen).await.unwrap();
    let head = "GET /service_component_all/meter HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut received = String::new();
    for wanted in [r#""mib":256"#, r#""mib":512"#] {
        let reading = async {
            let mut buffer = [0; 4096];
            while !received.contains(wanted) {
                let count = stream.read(&mut buffer).await.unwrap();
                assert!(count > 0, "the stream ended: {received}");
                received.push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        };
        timeout(WAIT_TIMEOUT, reading).await.unwrap_or_else(|_| panic!("no event with {wanted}"));
        components.server.folder.write("memory.json", policy("memory", &json!({"mib": 512})));
    }
    assert!(received.starts_with("HTTP/1.1 200 OK\r\n"), "{received}");
    // The stream ends with the server, which does not wait for its clients.
    components.server.stop().await;
}

#[tokio::test]
async fn only_callers_with_the_token_read_components() {
    let folder = prepared();
    let (token, file) = ("t".repeat(32), folder.root().join("token"));
    std::fs::write(&file, &token).unwrap();
    let components = Components::start_with(folder, &["--api-token-file", file.to_str().unwrap()]).await;
    components.until_acknowledged(2).await;
    let status = async |path: &str, token: Option<&str>| {
        ask_as(&components.server.listen, Method::GET, path, token, Bytes::new()).await.unwrap().status
    };
    for path in
        ["/service_component_all/meter", "/dti/meter", "/v1/kv/meter?keys", "/catch_up", "/api/v1alpha1/subscriptions"]
    {
        assert_eq!(status(path, None).await, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(status(path, Some("wrong")).await, StatusCode::UNAUTHORIZED, "{path}");
        assert!(status(path, Some(&token)).await.is_success(), "{path}");
    }
    assert_eq!(status("/healthcheck", None).await, StatusCode::OK);
}
