//! The routes of the config-binding service.

use serde_json::{Value, json};

use crate::calls::Server;
use crate::memory_store::{UPDATE, event, item, parts, policy, subscription};

#[tokio::test]
async fn the_configuration_has_its_templates_replaced() {
    let server = Server::new();
    let answer = server.get("/service_component/team.collector").await;
    assert_eq!((answer.status, answer.json()), (200, json!({"topic": {"url": "u"}, "level": 1})));
    assert_eq!(answer.headers["x-onap-requestid"], "request-1");
    // A component without records has no configuration.
    for missing in ["gateway-1", "other"] {
        let answer = server.get(&format!("/service_component/{missing}")).await;
        assert_eq!(answer.status, 404);
        assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
    }
}

#[tokio::test]
async fn all_records_have_the_configuration_the_policies_and_the_others() {
    let server = Server::new();
    let mut json = server.get("/service_component_all/team.collector").await.json();
    assert!(json["timestamp"].is_string());
    json["timestamp"] = Value::Null;
    let body = |name: &str, version: &str, config: Value, conditions: Value| {
        json!({
            "config": config, "matchingConditions": conditions, "policyConfigMessage": "Config Retrieved! ",
            "policyConfigStatus": "CONFIG_RETRIEVED", "policyName": name, "policyVersion": version, "property": null,
            "responseAttributes": {}, "type": "JSON",
        })
    };
    let expected = json!({
        "config": {"topic": {"url": "u"}, "level": 1},
        "policies": {
            "event": event(UPDATE, 2),
            "items": [
                body(
                    "cluster.memory.2.xml", "2", json!({"min": 2}),
                    json!({"ConfigName": "memory", "ONAPName": "DCAE", "key1": "value1"}),
                ),
                body("ns.team.secret.1.xml", "1", json!({"key": "k"}), json!({"ConfigName": "secret"})),
            ],
        },
        "dti": {"a": [1]}, "note": "plain text", "requestID": "request-1", "timestamp": null,
    });
    assert_eq!(json, expected);
    // No policies were stored yet, and the component has no records.
    let mut json = server.get("/service_component_all/gateway-1").await.json();
    json["timestamp"] = Value::Null;
    assert_eq!(json, json!({"config": {}, "requestID": "request-1", "timestamp": null}));
    assert_eq!(server.get("/service_component_all/other").await.status, 404);
}

#[tokio::test]
async fn a_component_does_not_start_with_an_empty_configuration_by_mistake() {
    let server = Server::new();
    server.store.state().applications.clear();
    for path in ["/service_component/team.collector", "/service_component_all/team.collector"] {
        assert_eq!(server.get(path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn a_record_is_found_by_its_key() {
    let server = Server::new();
    for (path, status, expected) in [
        ("/dti/team.collector", 200, json!({"a": [1]})),
        ("/note/team.collector", 200, json!("plain text")),
        ("/dmaap/team.collector", 200, json!({"feed": {"url": "u"}})),
        ("/config/team.collector", 404, Value::Null),
        ("/other/team.collector", 404, Value::Null),
        ("/dti/other", 404, Value::Null),
        ("/policies/team.collector", 400, Value::Null),
        ("/policies/other", 400, Value::Null),
    ] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, status, "{path}");
        if status == 200 {
            assert_eq!(answer.json(), expected, "{path}");
        } else {
            assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/plain"), "{path}");
        }
    }
    assert_eq!(server.call("POST", "/dti/team.collector", "{}").await.status, 404);
    assert_eq!(server.call("POST", "/service_component/team.collector", "{}").await.status, 405);
}

#[tokio::test]
async fn a_name_with_special_characters_is_found_by_its_encoded_path() {
    let server = Server::new();
    let spec = json!({
        "scn": "dcae/collector 1", "policies": [{"id": "cluster.memory"}], "delivery": {"configMap": "c"},
    });
    server.store.state().subscriptions.push(subscription("edge", "special", &spec));
    assert_eq!(server.get("/service_component_all/dcae%2Fcollector%201").await.status, 200);
}

#[tokio::test]
async fn a_subscription_cannot_take_the_name_of_a_component_in_another_namespace() {
    let server = Server::new();
    let spec = json!({
        "scn": "team.collector", "policies": [{"id": "cluster.memory"}], "delivery": {"configMap": "c"},
    });
    let body = item(&policy("cluster.memory", 9, "memory"), &json!({}));
    {
        let mut state = server.store.state();
        let mut taker = subscription("attack", "taker", &spec);
        taker.metadata.creation_timestamp = serde_json::from_value(json!("2000-01-01T00:00:00Z")).unwrap();
        state.subscriptions.insert(0, taker);
        state.parts.insert("taker".to_owned(), parts("taken", &[("cluster.memory", &body)]));
    }
    let version = async |path: &str| {
        let json = server.get(path).await.json();
        json["policies"]["items"][0]["policyVersion"].as_str().unwrap().to_owned()
    };
    assert_eq!(version("/service_component_all/team.collector").await, "2");
    assert_eq!(version("/service_component_all/team.collector?namespace=attack").await, "9");
    assert_eq!(server.get("/service_component_all/team.collector?namespace=edge").await.status, 404);
}
