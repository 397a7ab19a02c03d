//! The routes of policy-handler and deployment-handler, in the shapes that their clients expect.

use std::collections::BTreeSet;

use proviso_configuration_api::{Body, instance_of};
use serde_json::{Value, json};

use crate::calls::Server;
use crate::memory_store::{acknowledged, id, item, policy};

/// Returns the body of `cluster.memory` in the catalog.
fn memory() -> Value {
    json!({
        "config": {"min": 8},
        "matchingConditions": {"ConfigName": "memory", "ONAPName": "DCAE", "key1": "value1"},
        "policyConfigMessage": "Config Retrieved! ",
        "policyConfigStatus": "CONFIG_RETRIEVED",
        "policyName": "cluster.memory.3.xml",
        "policyVersion": "3",
        "property": null,
        "responseAttributes": {},
        "type": "JSON",
    })
}

#[tokio::test]
async fn the_latest_policy_has_its_id_and_body() {
    let server = Server::new();
    let answer = server.get("/policy_latest/cluster.memory").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json(), json!({"policy_id": "cluster.memory", "policy_body": memory()}));
    for header in ["x-ecomp-requestid", "x-onap-requestid"] {
        assert_eq!(answer.headers[header], "request-1");
    }
    let named = server.get("/policy_latest/cluster.memory.3.xml").await;
    assert_eq!((named.status, named.json()), (200, answer.json()));
    for missing in ["cluster.other", "DCAE.Config_other", "x", "cluster.memory.2.xml", "cluster.other.1.xml"] {
        let answer = server.get(&format!("/policy_latest/{missing}")).await;
        assert_eq!((answer.status, answer.json()), (404, json!({})), "{missing}");
    }
    let template = server.get("/policy_latest/cluster.computed").await.json();
    let reference = json!({"configOmitted": true, "policyName": "cluster.computed.4.xml", "policyVersion": "4"});
    assert_eq!(template["policy_body"], reference);
    let broken = server.get("/policy_latest/cluster.broken").await;
    assert_eq!(broken.status, 404);
    assert_eq!(broken.json(), json!({"policy_id": "cluster.broken", "error": "the body is too large"}));
}

#[tokio::test]
async fn a_filter_finds_the_latest_policies() {
    let server = Server::new();
    let filter = json!({
        "configAttributes": {"key1": "value1"}, "configName": "memory", "onapName": "DCAE", "policyName": "cluster.*",
        "unique": false, "requestID": "r",
    });
    let answer = server.call("POST", "/policies_latest", &filter.to_string()).await;
    assert_eq!(answer.status, 200);
    let expected = json!({
        "errored_policies": {},
        "latest_policies": {"cluster.memory": {"policy_id": "cluster.memory", "policy_body": memory()}},
        "policy_filter": filter,
    });
    assert_eq!(answer.json(), expected);
    let one = json!({"policyName": "cluster.memory.3.xml"}).to_string();
    assert_eq!(server.call("POST", "/policies_latest", &one).await.status, 200);
    let broken = server.call("POST", "/policies_latest", r#"{"policyName": "cluster\\.(broken|memory)"}"#).await.json();
    let error = json!({"policy_id": "cluster.broken", "error": "the body is too large"});
    assert_eq!(broken["errored_policies"], json!({"cluster.broken": error}));
    assert_eq!(broken["latest_policies"].as_object().unwrap().len(), 1);
    let broken = server.call("POST", "/policies_latest", r#"{"policyName": "cluster\\.broken"}"#).await;
    assert_eq!((broken.status, &broken.json()["latest_policies"]), (200, &json!({})));
}

#[tokio::test]
async fn a_filter_without_policies_is_not_found_and_a_wrong_one_is_refused() {
    let server = Server::new();
    for (body, status, message) in [
        (json!({"policyName": "cluster.memory.2.xml"}), 404, ""),
        (json!({"policyName": "memory"}), 404, ""),
        (json!({"policyName": ".*", "configAttributes": {"key1": "other"}}), 404, ""),
        (json!({"policyName": ".*", "unique": true}), 400, "unique: is true, and the filter selects 4 policies"),
        (json!({"policyName": "("}), 400, "policyName: "),
        (json!({}), 400, "body: has no criterion"),
        (json!({"policyNames": "a"}), 400, "policyNames: is no criterion"),
    ] {
        let answer = server.call("POST", "/policies_latest", &body.to_string()).await;
        assert_eq!(answer.status, status, "{body}");
        let json = answer.json();
        if status == 404 {
            assert_eq!(json, json!({"errored_policies": {}, "latest_policies": {}, "policy_filter": body}));
        } else {
            assert_eq!(json["status"], status);
            assert!(json["message"].as_str().unwrap().starts_with(message), "{json}");
        }
    }
    let mut request = crate::calls::request("admin", "POST", "/policies_latest", "a=b");
    request.headers_mut().insert("content-type", "text/plain".parse().unwrap());
    assert_eq!(server.send(request).await.status, 415);
    assert_eq!(server.call("POST", "/policies_latest", "{").await.status, 400);
    assert_eq!(server.call("POST", "/policies_latest", &format!("\"{}\"", "x".repeat(300_000))).await.status, 413);
    let refused = server.call("DELETE", "/policies_latest", "").await;
    assert_eq!((refused.status, &refused.headers["allow"]), (405, &"GET, POST".parse().unwrap()));
}

#[tokio::test]
async fn the_latest_policies_of_all_components_have_the_update_that_they_wait_for() {
    let server = Server::new();
    let gone = item(&policy("cluster.gone", 1, "gone"), &json!({}));
    server.store.state().subscriptions[1].status = Some(acknowledged(&[("cluster.gone", &gone)]));
    let answer = server.get("/policies_latest").await;
    assert_eq!(answer.status, 200);
    let json = answer.json();
    let latest: BTreeSet<_> = json["latest_policies"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(latest, ["cluster.memory".to_owned(), "ns.team.secret".to_owned()].into());
    assert_eq!(json["errored_policies"], json!({}));
    let update = json!({
        "catch_up": true,
        "latest_policies": {"cluster.memory": {"policy_id": "cluster.memory", "policy_body": memory()}},
        "policy_filter_matches": {"cluster.memory": {"edge/gateway/0": true}},
        "removed_policies": {"cluster.gone": true},
    });
    assert_eq!(json["policy_update"], update);
    assert_eq!(server.get("/policies_latest?data_segment=2").await.status, 400);
    // A policy that exists and cannot be read is not removed.
    server.store.state().unreadable = vec![id("cluster.gone")];
    let json = server.get("/policies_latest").await.json();
    assert_eq!(json["policy_update"]["removed_policies"], json!({}));
}

#[tokio::test]
async fn a_large_update_is_divided_into_segments() {
    let server = Server::new();
    {
        let mut state = server.store.state();
        state.policies.clear();
        for number in 0..25 {
            let policy = policy(&format!("ns.team.p{number:02}"), 1, "large");
            let body = Body::Item(item(&policy, &json!("x".repeat(500_000))));
            state.policies.push((policy, body));
        }
    }
    let first = server.get("/policies_latest").await.json();
    assert_eq!(first["policy_update"]["data_segment"], "1/2");
    assert_eq!(first["latest_policies"].as_object().unwrap().len(), 25);
    let second = server.get("/policies_latest?data_segment=2").await.json();
    assert_eq!(second["policy_update"]["data_segment"], "2/2");
    let ids = |json: &Value| -> Vec<String> {
        json["policy_update"]["latest_policies"].as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(ids(&first).len() + ids(&second).len(), 25);
    let refused = server.get("/policies_latest?data_segment=3").await.json();
    assert_eq!(refused["message"], "data_segment: is more than the number of segments, which is 2");
}

#[tokio::test]
async fn without_components_the_latest_policies_are_not_found() {
    let server = Server::new();
    server.store.state().subscriptions.clear();
    let answer = server.get("/policies_latest").await;
    assert_eq!((answer.status, answer.json()), (404, json!({"warning": "got no deployed policies"})));
}

#[tokio::test]
async fn a_catch_up_is_requested_for_all_components() {
    let server = Server::new();
    let json = server.get("/catch_up").await.json();
    assert_eq!(json["request_id"], "request-1");
    let started = json["catch-up requested"].as_str().unwrap();
    let has_form = started.len() == "2018-10-06 16:54:31.696123".len() && started.as_bytes()[10] == b' ';
    assert!(has_form && started.as_bytes()[19] == b'.', "{started}");
    let names = vec!["gateway".to_owned(), "collector".to_owned()];
    assert_eq!(server.store.state().catch_ups, [("admin".to_owned(), names)]);
}

#[tokio::test]
async fn the_policies_and_filters_of_components_have_the_shape_of_deployment_handler() {
    let server = Server::new();
    let json = server.get("/policy").await.json();
    let policies = json!({
        "cluster.memory": {"policy_id": "cluster.memory", "policy_versions": {"2": true}, "pending_update": false},
        "ns.team.secret": {"policy_id": "ns.team.secret", "policy_versions": {"1": true}, "pending_update": false},
    });
    assert_eq!(json["policies"], policies);
    let filters = json!({
        "edge/gateway/0": {
            "policy_filter_id": "edge/gateway/0",
            "policy_filter": {
                "policyName": ".*", "configName": "memory", "configAttributes": {"key1": "value1"}, "unique": false,
            },
            "pending_update": false,
        },
        "team/collector/1": {
            "policy_filter_id": "team/collector/1",
            "policy_filter": {"policyName": "ns\\.team\\..*", "configAttributes": {}, "unique": false},
            "pending_update": false,
        },
    });
    assert_eq!(json["policy_filters"], filters);
    assert_eq!(json["requestID"], "request-1");
    assert_eq!(json["server_instance_uuid"], instance_of("test").to_string());
    assert_eq!(json["status"], 200);
    for time in ["started", "ended"] {
        let text = json[time].as_str().unwrap();
        assert!(text.len() == "2018-10-06T16:54:31.696Z".len() && text.ends_with('Z'), "{text}");
    }
    // An update that waits is pending.
    server.store.state().subscriptions[1].status =
        Some(serde_json::from_value(json!({"pending": [{"id": "cluster.memory", "version": "3"}]})).unwrap());
    let json = server.get("/policy").await.json();
    assert_eq!(json["policy_filters"]["edge/gateway/0"]["pending_update"], true);
    assert_eq!(json["policies"]["cluster.memory"]["pending_update"], false);
}

#[tokio::test]
async fn each_component_is_listed_with_its_policies() {
    let server = Server::new();
    let json = server.get("/policy/components").await.json();
    let instances = json!([
        {"node_instance_id": "edge/gateway", "deployment_id": "edge", "policies_count": 0, "policy_filters_count": 1},
        {"node_instance_id": "team/collector", "deployment_id": "team", "policies_count": 2, "policy_filters_count": 1},
    ]);
    assert_eq!(json["node_instance_ids"], instances);
    let policy = json!({
        "policy_id": "cluster.memory",
        "policy_body": {"configOmitted": true, "policyName": "cluster.memory.2.xml", "policyVersion": "2"},
        "component_id": "team/collector", "deployment_id": "team",
    });
    assert_eq!(json["component_policies"][0], policy);
    let filter = &json["component_policy_filters"][0];
    assert_eq!(
        (&filter["policy_filter_id"], &filter["component_id"]),
        (&json!("edge/gateway/0"), &json!("edge/gateway"))
    );
    let properties = &json["node_instances"][1]["runtime_properties"];
    assert_eq!(properties["service_component_name"], "team.collector");
    assert!(properties["policies"]["ns.team.secret"].is_object() && properties["policy_filters"].is_object());
}

#[tokio::test]
async fn a_policy_update_makes_the_concerned_components_compare() {
    let server = Server::new();
    for (message, expected) in [
        (json!({"catch_up": true}), vec!["gateway", "collector"]),
        // By id.
        (json!({"catch_up": false, "removed_policies": {"ns.team.secret": true}}), vec!["collector"]),
        // By a filter, and by id.
        (json!({"latest_policies": {"cluster.memory": {"policy_id": "cluster.memory"}}}), vec!["gateway", "collector"]),
        (json!({"policy_filter_matches": {"cluster.computed": {"f": true}}}), vec![]),
        (json!({"latest_policies": {"DCAE.Config_other": {}}, "data_segment": "1/2"}), vec![]),
        (json!({}), vec![]),
    ] {
        let answer = server.call("PUT", "/policy", &message.to_string()).await;
        assert_eq!(answer.status, 200, "{message}");
        let json = answer.json();
        let members: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(members, ["requestID", "server_instance_uuid", "started"], "{message}");
        let requested: Vec<_> = std::mem::take(&mut server.store.state().catch_ups);
        let names: Vec<_> = requested.into_iter().flat_map(|(_, names)| names).collect();
        assert_eq!(names, expected, "{message}");
    }
    for (body, message) in [
        ("[]", "body: is no policy update"),
        (r#"{"removed_policies": ["a"]}"#, "removed_policies: "),
        ("{", "body: is not JSON"),
    ] {
        let refused = server.call("PUT", "/policy", body).await;
        let json = refused.json();
        assert_eq!((refused.status, &json["status"]), (400, &json!(400)));
        assert!(json["message"].as_str().unwrap().starts_with(message), "{json}");
    }
    assert!(server.store.state().catch_ups.is_empty());
}

#[tokio::test]
async fn the_health_check_has_the_members_of_both_services() {
    let server = Server::new();
    let answer = server.get("/healthcheck").await;
    assert_eq!(answer.status, 200);
    let json = answer.json();
    for pointer in [
        "/server/service_name",
        "/server/service_version",
        "/server/service_instance_uuid",
        "/server/server_instance_uuid",
        "/runtime/started",
        "/runtime/utcnow",
        "/runtime/uptime",
        "/apiVersion",
        "/links/policy",
    ] {
        assert!(json.pointer(pointer).is_some_and(Value::is_string), "{pointer}: {json}");
    }
    assert_eq!(json["service_mode"], json!({"is_active_mode_of_operation": true, "is_pdp_api_default": false}));
    server.store.state().is_unavailable = true;
    assert_eq!(server.get("/healthcheck").await.status, 503);
    let answer = server.get("/policy").await;
    assert_eq!((answer.status, &answer.headers["retry-after"]), (503, &"1".parse().unwrap()));
}
