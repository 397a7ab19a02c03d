//! The permissions of callers.

use serde_json::{Value, json};

use crate::calls::{Server, request};

#[tokio::test]
async fn a_forbidden_component_has_the_answer_of_an_unknown_one() {
    let server = Server::new();
    for path in [
        "/service_component/{}",
        "/service_component_all/{}",
        "/dti/{}",
        "/v1/kv/{}:dti",
        "/v1/kv/{}?recurse",
        "/policy_latest/{}",
        "/api/v1alpha1/subscriptions/team/{}",
    ] {
        let known = if path.contains("policy_latest") {
            "cluster.memory"
        } else if path.contains("subscriptions") {
            "collector"
        } else {
            "team.collector"
        };
        let [forbidden, unknown] = [known, "cluster.unknown"].map(|name| path.replace("{}", name));
        let (forbidden, unknown) = (server.get_limited(&forbidden).await, server.get_limited(&unknown).await);
        assert_eq!((forbidden.status, unknown.status), (404, 404), "{path}");
        assert_eq!(forbidden.text.replace(known, "cluster.unknown"), unknown.text, "{path}");
    }
}

#[tokio::test]
async fn the_permission_for_a_component_does_not_include_its_secrets_and_other_config_maps() {
    let server = Server::new();
    server.grant(&["get subscription team/collector"]);
    let path = "/service_component_all/team.collector";
    let refused = server.get_limited(path).await;
    assert_eq!(refused.status, 403);
    assert!(refused.text.contains("the ConfigMap \"collector\""), "{}", refused.text);
    server.grant(&["get configmap team/collector"]);
    let json = server.get_limited(path).await.json();
    let reference = json!({"configOmitted": true, "policyName": "ns.team.secret.1.xml", "policyVersion": "1"});
    assert_eq!(json["policies"]["items"][1], reference);
    let key = "/v1/kv/team.collector:policies/items/ns.team.secret?raw";
    assert_eq!(serde_json::from_str::<Value>(&server.get_limited(key).await.text).unwrap(), reference);
    let own = server.get_limited("/api/v1alpha1/subscriptions/team/collector").await;
    assert!(!own.text.contains(r#""key":"k""#), "{}", own.text);
    server.grant(&["get secrets team"]);
    assert_eq!(server.get_limited(path).await.json()["policies"]["items"][1]["config"], json!({"key": "k"}));
    // The component of another namespace is not included.
    assert_eq!(server.get_limited("/service_component_all/gateway-1").await.status, 404);
}

#[tokio::test]
async fn confidential_bodies_of_policies_need_the_permission_for_secrets() {
    let server = Server::new();
    server.grant(&["get policy ns.team.secret", "list policies team"]);
    let reference = json!({"configOmitted": true, "policyName": "ns.team.secret.1.xml", "policyVersion": "1"});
    let find = async |server: &Server| {
        let found = server.send(request("limited", "POST", "/policies_latest", r#"{"policyName": ".*"}"#)).await.json();
        let one = server.get_limited("/policy_latest/ns.team.secret").await.json();
        let ids: Vec<_> = found["latest_policies"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(ids, ["ns.team.secret"], "policies of the cluster are not listed");
        (found["latest_policies"]["ns.team.secret"]["policy_body"].clone(), one["policy_body"].clone())
    };
    assert_eq!(find(&server).await, (reference.clone(), reference));
    server.grant(&["get secrets team"]);
    let (found, one) = find(&server).await;
    assert_eq!((&found["config"], &one["config"]), (&json!({"key": "k"}), &json!({"key": "k"})));
}

#[tokio::test]
async fn lists_have_only_the_namespaces_that_the_caller_may_list() {
    let server = Server::new();
    assert_eq!(server.get_limited("/policy").await.json()["policy_filters"], json!({}));
    server.grant(&["list subscriptions edge"]);
    let json = server.get_limited("/policy").await.json();
    assert_eq!(json["policies"], json!({}));
    assert_eq!(json["policy_filters"].as_object().unwrap().keys().collect::<Vec<_>>(), ["edge/gateway/0"]);
    let json = server.get_limited("/policy/components").await.json();
    assert_eq!(json["node_instances"].as_array().unwrap().len(), 1);
    let json = server.get_limited("/api/v1alpha1/subscriptions").await.json();
    assert_eq!(json["subscriptions"].as_array().unwrap().len(), 1);
    // The policies of the components need their own permission, and are not removed without it.
    let json = server.get_limited("/policies_latest").await.json();
    assert_eq!((&json["latest_policies"], &json["policy_update"]["removed_policies"]), (&json!({}), &json!({})));
}

#[tokio::test]
async fn changes_need_the_permission_to_patch() {
    let server = Server::new();
    server.grant(&["list subscriptions *", "get subscription edge/gateway"]);
    let resend = "/api/v1alpha1/subscriptions/edge/gateway:resend";
    let update = r#"{"catch_up": true}"#;
    for (method, path, body) in [("GET", "/catch_up", ""), ("PUT", "/policy", update), ("POST", resend, "")] {
        let refused = server.send(request("limited", method, path, body)).await;
        assert_eq!(refused.status, 403, "{path}");
        assert!(refused.text.contains("patch"), "{}", refused.text);
    }
    {
        let state = server.store.state();
        assert!(state.catch_ups.is_empty() && state.resends.is_empty());
    }
    server.grant(&["patch subscriptions edge", "patch subscription edge/gateway"]);
    assert_eq!(server.get_limited("/catch_up").await.status, 200);
    assert_eq!(server.send(request("limited", "PUT", "/policy", update)).await.status, 200);
    assert_eq!(server.send(request("limited", "POST", resend, "")).await.status, 200);
    let state = server.store.state();
    let expected = ("limited".to_owned(), vec!["gateway".to_owned()]);
    assert_eq!(state.catch_ups, [expected.clone(), expected]);
    assert_eq!(state.resends, ["gateway"]);
}
