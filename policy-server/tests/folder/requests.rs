//! Requests to services, with the examples: the two APIs, their errors, and a policy that changes while the server serves.

use std::path::Path;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Answer, Folder, Server, ask};

pub const ADR: &str = "/api/v1/engine/evaluate";
const PUBLISHED: &str = "/api/v1alpha1/policies:evaluateRequest";
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/requests");

/// Returns a folder with the request policies of the examples.
fn examples() -> Folder {
    let folder = Folder::new();
    for file in std::fs::read_dir(Path::new(EXAMPLES).join("policies")).unwrap() {
        let file = file.unwrap();
        folder.write(file.file_name().to_str().unwrap(), std::fs::read_to_string(file.path()).unwrap());
    }
    folder
}

fn example(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(Path::new(EXAMPLES).join("requests").join(name)).unwrap()).unwrap()
}

async fn post(server: &Server, path: &str, body: &str) -> Answer {
    ask(&server.listen, Method::POST, path, body.to_owned().into()).await.unwrap()
}

/// Posts a request. Returns the status and the answer, which has the content type of its status.
pub async fn evaluate(server: &Server, path: &str, body: &Value) -> (StatusCode, Value) {
    let answer = post(server, path, &body.to_string()).await;
    let content_type = if answer.status == StatusCode::OK { "application/json" } else { "application/problem+json" };
    assert_eq!(answer.headers["content-type"], content_type, "{}", answer.text);
    (answer.status, serde_json::from_str(&answer.text).unwrap())
}

#[tokio::test]
async fn the_chain_patches_constrains_and_chooses_a_provider() {
    let server = Server::start(examples(), &[]).await;
    let (status, answer) = evaluate(&server, ADR, &example("vm.json")).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(answer["status"], "MODIFIED");
    let payload = json!({
        "service_type": "vm", "image": "debian-13", "memory_gib": 16, "metadata": {"labels": {"stage": "test"}},
        "cost_center": "cc-100", "cpu": 1,
    });
    assert_eq!(answer["payload"], payload);
    assert_eq!(answer["serviceProvider"]["value"], "east-1");
    assert_eq!(answer["constraints"]["cpu"]["maximum"], 8);
    let trail: Vec<_> =
        answer["trail"].as_array().unwrap().iter().map(|entry| entry["policy"].as_str().unwrap()).collect();
    let expected = ["cluster.billing", "cluster.vm-sizes", "ns.team-blue.defaults", "ns.team-blue.ana-test-machines"];
    assert_eq!(trail, expected);
}

#[tokio::test]
async fn a_value_that_a_constraint_forbids_is_rejected_in_the_name_of_its_policy() {
    let server = Server::start(examples(), &[]).await;
    let (status, problem) = evaluate(&server, ADR, &example("vm-large.json")).await;
    assert_eq!(
        (status, &problem["type"], &problem["status"]),
        (StatusCode::FORBIDDEN, &json!("REJECTED"), &json!(403))
    );
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("`cpu`") && detail.contains("ns.team-blue.defaults"), "{detail}");
    let (status, problem) = evaluate(&server, ADR, &example("database.json")).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(problem["detail"].as_str().unwrap().ends_with("the cost center cc-099 is closed"), "{problem}");
    assert_eq!(problem["trail"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn the_published_api_has_its_own_answers_and_statuses() {
    let server = Server::start(examples(), &[]).await;
    let request = |spec: Value| json!({"service_instance": {"spec": spec}});
    let vm = request(json!({"service_type": "vm", "image": "i", "cpu": 2, "memory_gib": 2, "cost_center": "cc-1"}));
    let (status, answer) = evaluate(&server, PUBLISHED, &vm).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let expected = json!({
        "evaluated_service_instance": vm["service_instance"], "selected_provider": "", "status": "APPROVED",
    });
    assert_eq!(answer, expected);
    let (status, problem) =
        evaluate(&server, PUBLISHED, &request(json!({"service_type": "db", "cost_center": "cc-099"}))).await;
    assert_eq!((status, &problem["type"]), (StatusCode::NOT_ACCEPTABLE, &json!("REJECTED")), "{problem}");
    assert_eq!(problem.get("trail"), None);
    let (status, problem) = evaluate(&server, PUBLISHED, &request(json!({"image": "i"}))).await;
    assert_eq!((status, &problem["type"]), (StatusCode::BAD_REQUEST, &json!("INVALID_ARGUMENT")));
    assert!(
        problem["detail"].as_str().unwrap().starts_with("service_instance.spec.service_type: is missing"),
        "{problem}"
    );
}

#[tokio::test]
async fn a_policy_that_weakens_an_earlier_one_is_a_conflict_that_names_both() {
    let folder = examples();
    let source = "package p\nresult := {\"patch\": {\"cost_center\": \"mine\"}}";
    folder.write(
        "weaker.json",
        json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy",
            "metadata": {"name": "weaker", "namespace": "team-blue"},
            "spec": {"request": {"priority": 900}, "program": {"rego": {"dialect": "Request", "source": source}}},
        })
        .to_string(),
    );
    let server = Server::start(folder, &[]).await;
    let (status, problem) = evaluate(&server, ADR, &example("vm.json")).await;
    assert_eq!((status, &problem["type"]), (StatusCode::CONFLICT, &json!("POLICY_CONFLICT")), "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    for part in ["Policy Conflict Error", "ns.team-blue.weaker", "cluster.billing", "`cost_center`", "generation 1"] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
    // Another tenant's requests do not meet the policy.
    let mut other = example("vm.json");
    (other["tenant"], other["payload"]["cpu"]) = (json!("green"), json!(2));
    assert_eq!(evaluate(&server, ADR, &other).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_request_policy_answers_no_reviews() {
    let server = Server::start(examples(), &[]).await;
    let review = r#"{"request": {"uid": "u"}}"#;
    let answer = post(&server, "/validate_raw/cluster.billing", review).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND, "{}", answer.text);
    assert!(answer.text.contains("decides about requests to services"), "{}", answer.text);
}

#[tokio::test]
async fn a_bad_body_is_refused_with_its_field() {
    let server = Server::start(examples(), &[]).await;
    for (body, words) in [
        ("", "the body: "),
        ("[]", "the body: "),
        (r#"{"payload": {}, "users": "a"}"#, "users"),
        (r#"{"payload": {}, "user": 1}"#, "user: "),
        (r#"{"payload": {}, "tenant": ""}"#, "tenant: must have 1 to 253 bytes"),
        (r#"{"payload": []}"#, "payload: the payload is a list"),
        (r#"{"payload": {}} {}"#, "the body: "),
    ] {
        let answer = post(&server, ADR, body).await;
        let problem: Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!((answer.status, &problem["type"]), (StatusCode::BAD_REQUEST, &json!("INVALID_ARGUMENT")), "{body}");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{body}: {problem}");
    }
    let large = json!({"payload": {"a": "x".repeat(2 << 20)}}).to_string();
    assert_eq!(post(&server, ADR, &large).await.status, StatusCode::PAYLOAD_TOO_LARGE);
    let answer = ask(&server.listen, Method::GET, ADR, String::new().into()).await.unwrap();
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_policy_of_which_no_generation_has_worked_refuses_the_requests_that_it_covers() {
    let folder = examples();
    let broken = |types: &Value| {
        json!({
            "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "broken"},
            "spec": {
                "request": {"serviceTypes": types, "priority": 900},
                "program": {"rego": {"dialect": "Request", "source": "package p\nresult := {"}},
            },
        })
        .to_string()
    };
    folder.write("broken.json", broken(&json!(["database"])));
    let server = Server::start(folder, &[]).await;
    let (status, problem) = evaluate(&server, ADR, &example("database.json")).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(problem["detail"].as_str().unwrap().contains("cluster.broken"), "{problem}");
    assert_eq!(evaluate(&server, ADR, &example("vm.json")).await.0, StatusCode::OK, "it covers no virtual machines");
}
