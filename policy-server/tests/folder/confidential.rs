//! Requests about Secrets and tokens: what policies say about them is not kept, and wildcards do not cover reviews of credentials.

use serde_json::{Value, json};

use crate::support::{Folder, Server, experiment, pod, policy, rego};

/// A policy that puts a part of each Secret into its messages.
const LEAK: &str = "package test\ndeny contains input.request.object.data.password";

fn about(resource: &str, group: &str, kind: &str) -> Value {
    let mut review = pod("u", "x");
    review["request"]["resource"] = json!({"group": group, "version": "v1", "resource": resource});
    review["request"]["kind"] = json!({"group": group, "version": "v1", "kind": kind});
    review["request"]["object"] = json!({"kind": kind, "metadata": {"name": "x"}, "data": {"password": "hunter2"}});
    review
}

#[tokio::test]
async fn messages_about_secrets_reach_the_caller_and_no_log() {
    let folder = Folder::new();
    folder.write("live.json", policy("live", &rego(LEAK)));
    let source = "package test\ndeny contains concat(\" \", [\"new\", input.request.object.data.password])";
    let candidate = rego(source);
    folder.write("candidate.json", experiment("candidate", "live", &candidate));
    let server = Server::start(folder, &[]).await;
    let answer = server.post("/validate/cluster.live", about("secrets", "", "Secret").to_string()).await;
    assert_eq!(answer.message(), "hunter2");
    let lines = server.until_previews(1).await;
    assert_eq!(lines[0]["divergence"], "MessageDiffers", "{lines:#?}");
    for side in ["live", "preview"] {
        assert!(lines[0][side]["message"].as_str().unwrap().starts_with("(redacted"), "{lines:#?}");
    }
    server.until("the line about the denial", async || server.event("request denied").is_some()).await;
    let denied = server.event("request denied").unwrap();
    assert!(denied["denial"].as_str().unwrap().starts_with("(redacted") && denied["kind"] == "Secret", "{denied}");
    let all = [server.stderr.all(), server.stdout.all()].concat().join("\n");
    assert!(!all.contains("hunter2"), "{all}");
    // The message about another object is logged.
    server.post("/validate/cluster.live", about("configmaps", "", "ConfigMap").to_string()).await;
    server
        .until("the line about the denial", async || {
            server.events("request denied").iter().any(|event| event["denial"] == "hunter2")
        })
        .await;
}

#[tokio::test]
async fn a_policy_on_everything_sees_no_token_reviews() {
    let folder = Folder::new();
    folder.write("all.json", policy("all", &rego("package test\ndeny contains \"no\"")));
    let rules = json!([{"operations": ["*"], "apiGroups": ["authentication.k8s.io"], "apiVersions": ["*"], "resources": ["*"]}]);
    let mut named = rego("package test\ndeny contains \"no\"");
    named["admission"] = json!({"rules": rules});
    folder.write("named.json", policy("named", &named));
    let server = Server::start(folder, &[]).await;
    let tokens = about("tokenreviews", "authentication.k8s.io", "TokenReview").to_string();
    let access = about("subjectaccessreviews", "authorization.k8s.io", "SubjectAccessReview").to_string();
    for (name, review, is_allowed) in
        [("all", &tokens, true), ("all", &access, true), ("named", &tokens, false), ("named", &access, true)]
    {
        let answer = server.post(&format!("/validate/cluster.{name}"), review.clone()).await;
        assert_eq!(answer.is_allowed(), is_allowed, "{name}: {}", answer.text);
    }
}
