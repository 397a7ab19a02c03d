//! Proviso's own routes.

use serde_json::{Value, json};

use crate::calls::Server;
use crate::memory_store::{UPDATE, event, subscription};

#[tokio::test]
async fn subscriptions_are_listed_in_pages() {
    let server = Server::new();
    let json = server.get("/api/v1alpha1/subscriptions").await.json();
    let names: Vec<_> =
        json["subscriptions"].as_array().unwrap().iter().map(|it| it["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!((names, &json["next_page_token"]), (vec!["gateway", "collector"], &json!("")));
    let collector = &json["subscriptions"][1];
    assert_eq!(
        (&collector["kind"], &collector["metadata"]["namespace"]),
        (&json!("PolicySubscription"), &json!("team"))
    );
    assert_eq!(collector["spec"]["delivery"]["configMap"], "collector-policies");
    assert_eq!(collector["status"].get("policies"), None);
    let first = server.get("/api/v1alpha1/subscriptions?max_page_size=1").await.json();
    assert_eq!(
        (&first["subscriptions"][0]["metadata"]["name"], &first["next_page_token"]),
        (&json!("gateway"), &json!("edge/gateway"))
    );
    let second = server.get("/api/v1alpha1/subscriptions?max_page_size=1&page_token=edge/gateway").await.json();
    assert_eq!(
        (&second["subscriptions"][0]["metadata"]["name"], &second["next_page_token"]),
        (&json!("collector"), &json!(""))
    );
    let edge = server.get("/api/v1alpha1/subscriptions?namespace=edge").await.json();
    assert_eq!(edge["subscriptions"].as_array().unwrap().len(), 1);
    for (query, field) in [("max_page_size=x", "max_page_size: "), ("page=1", "page: is not a parameter")] {
        let refused = server.get(&format!("/api/v1alpha1/subscriptions?{query}")).await;
        assert_eq!(
            (refused.status, &refused.headers["content-type"]),
            (400, &"application/problem+json".parse().unwrap())
        );
        let problem: Value = serde_json::from_str(&refused.text).unwrap();
        assert!(problem["detail"].as_str().unwrap().starts_with(field), "{problem}");
    }
}

#[tokio::test]
async fn a_subscription_shows_what_its_component_has_and_should_have() {
    let server = Server::new();
    let json = server.get("/api/v1alpha1/subscriptions/team/collector").await.json();
    assert_eq!((&json["event"], &json["service_component_name"]), (&event(UPDATE, 2), &json!("team.collector")));
    assert_eq!(json["subscription"]["metadata"]["name"], "collector");
    let [memory, secret] = [&json["policies"][0], &json["policies"][1]];
    assert_eq!((&memory["id"], &memory["state"]), (&json!("cluster.memory"), &json!("pending")));
    assert_eq!((&memory["has"]["version"], &memory["should"]["version"]), (&json!("2"), &json!("3")));
    assert_eq!(
        (&json["has"]["cluster.memory"]["config"], &json["should"]["cluster.memory"]["config"]),
        (&json!({"min": 2}), &json!({"min": 8}))
    );
    let diff = memory["diff"].as_str().unwrap();
    assert!(diff.contains("-    \"min\": 2\n") && diff.contains("+    \"min\": 8\n"), "{diff}");
    assert_eq!((&secret["state"], secret.get("diff")), (&json!("current"), None));
    assert_eq!(json["policies"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn each_policy_of_a_subscription_has_a_state() {
    let server = Server::new();
    let spec = json!({
        "scn": "states", "delivery": {"configMap": "c"},
        "policies": [{"id": "cluster.memory"}, {"id": "cluster.computed"}, {"id": "cluster.broken"}, {"id": "cluster.kept"}],
    });
    let digest = format!("sha256:{}", "0".repeat(64));
    let entry = |id: &str| json!({"id": id, "version": "1", "digest": digest});
    let mut states = subscription("edge", "states", &spec);
    states.status = serde_json::from_value(json!({
        "policies": [entry("cluster.kept"), entry("cluster.removed"), entry("cluster.refused")],
        "unconfirmed": ["cluster.computed"],
        "rejected": [{"id": "cluster.refused", "message": "busy"}],
    }))
    .unwrap();
    {
        let mut state = server.store.state();
        state.subscriptions.push(states);
        state.unreadable = vec!["cluster.kept".parse().unwrap()];
    }
    let json = server.get("/api/v1alpha1/subscriptions/edge/states").await.json();
    let found: Vec<_> = json["policies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|policy| format!("{} {}", policy["id"].as_str().unwrap(), policy["state"].as_str().unwrap()))
        .collect();
    let expected = [
        "cluster.broken failed",
        "cluster.computed unconfirmed",
        "cluster.kept kept",
        "cluster.memory pending",
        "cluster.refused rejected",
        "cluster.removed pending",
    ];
    assert_eq!(found, expected);
    let message = |index: usize| json["policies"][index]["message"].as_str();
    assert_eq!((&json["should"]["cluster.broken"], json["has"].as_object().unwrap().len()), (&Value::Null, 0));
    assert_eq!((message(0), message(4)), (Some("the body is too large"), Some("busy")));
    // A template is computed for the component.
    assert_eq!(json["should"]["cluster.computed"]["config"], json!({"component": "states"}));
}

#[tokio::test]
async fn a_resend_is_requested_by_name() {
    let server = Server::new();
    let path = "/api/v1alpha1/subscriptions/team/collector";
    let answer = server.call("POST", &format!("{path}:resend"), "").await;
    let expected = json!({"namespace": "team", "name": "collector", "resend": "r-1"});
    assert_eq!((answer.status, answer.json()), (200, expected));
    assert_eq!(server.call("POST", path, "").await.status, 405);
    assert_eq!(server.call("DELETE", path, "").await.status, 405);
    assert_eq!(server.call("POST", "/api/v1alpha1/subscriptions/team/other:resend", "").await.status, 404);
    assert_eq!(server.store.state().resends, ["collector"]);
}
