//! The keys of Consul.

use serde_json::{Value, json};

use crate::calls::Server;
use crate::memory_store::{UPDATE, event};

/// The header that clients of Consul read from each answer.
const INDEX: &str = "x-consul-index";

#[tokio::test]
async fn one_key_is_an_entry_with_its_value_in_base64() {
    let server = Server::new();
    let answer = server.get("/v1/kv/team.collector:dti").await;
    let entry = json!({
        "LockIndex": 0, "Key": "team.collector:dti", "Flags": 0, "Value": "eyJhIjpbMV19", "CreateIndex": 1, "ModifyIndex": 1,
    });
    assert_eq!((answer.status, answer.json()), (200, json!([entry])));
    assert_eq!(answer.headers[INDEX], "1");
    let raw = server.get("/v1/kv/team.collector:policies/event?raw").await;
    assert_eq!(serde_json::from_str::<Value>(&raw.text).unwrap(), event(UPDATE, 2));
    let raw = server.get("/v1/kv/team.collector:policies/items/cluster.memory?raw=true").await;
    assert_eq!(serde_json::from_str::<Value>(&raw.text).unwrap()["policyVersion"], "2");
    // The configuration keeps its templates: the config-binding service replaces them.
    let raw = server.get("/v1/kv/team.collector?raw").await;
    assert_eq!(serde_json::from_str::<Value>(&raw.text).unwrap(), json!({"topic": "<<feed>>", "level": 1}));
    for missing in
        ["team.collector:other", "team.collector:policies/items/cluster.other", "gateway-1", "team.collect", "x/y"]
    {
        let answer = server.get(&format!("/v1/kv/{missing}")).await;
        assert_eq!(answer.status, 404, "{missing}");
        assert_eq!(answer.headers[INDEX], "1", "{missing}");
    }
    assert_eq!(server.call("PUT", "/v1/kv/team.collector:dti", "{}").await.status, 405);
}

#[tokio::test]
async fn keys_below_a_prefix_are_listed() {
    let server = Server::new();
    let names = server.get("/v1/kv/team.collector:policies/?keys").await.json();
    let expected = [
        "team.collector:policies/event",
        "team.collector:policies/items/cluster.memory",
        "team.collector:policies/items/ns.team.secret",
    ];
    assert_eq!(names, json!(expected));
    let names = server.get("/v1/kv/team.collector:policies/?keys&separator=/").await.json();
    assert_eq!(names, json!(["team.collector:policies/event", "team.collector:policies/items/"]));
    let entries = server.get("/v1/kv/team.collector?recurse").await.json();
    let keys: Vec<_> = entries.as_array().unwrap().iter().map(|entry| entry["Key"].as_str().unwrap()).collect();
    let records = ["team.collector", "team.collector:dmaap", "team.collector:dti", "team.collector:note"];
    assert_eq!(keys, records.into_iter().chain(expected).collect::<Vec<_>>());
    assert_eq!(server.get("/v1/kv/team.collector:z?recurse").await.status, 404);
}
