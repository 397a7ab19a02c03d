//! Tests of `proviso subscriptions` with the REST API: of a server that the test plays, and of a real policy server over a folder.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use proviso_e2e::{Folder, until_with};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::server::{Output, Server as PolicyServer, run};

const WAIT_TIMEOUT: Duration = Duration::from_secs(30);
/// The path of the subscription `collector` in the namespace `team`.
const PATH: &str = "/api/v1alpha1/subscriptions/team/collector";
/// A digest, which no test compares with a body.
const DIGEST: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

/// A server with two subscriptions, each on a page of its own. The component of `collector` rejects version 2 of `cluster.memory` until a resend.
struct Server {
    url: String,
    /// The bodies of the requests to send the policies again.
    resends: Arc<Mutex<Vec<Value>>>,
}

impl Server {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let resends = Arc::new(Mutex::new(Vec::new()));
        let state = Arc::clone(&resends);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, Arc::clone(&state)));
            }
        });
        Ok(Self { url, resends })
    }

    /// Runs `proviso subscriptions` with this server.
    async fn subscriptions(&self, arguments: &[&str]) -> Result<Output> {
        subscriptions(&self.url, arguments).await
    }
}

/// Runs `proviso subscriptions` with the server at this URL.
async fn subscriptions(url: &str, arguments: &[&str]) -> Result<Output> {
    run(&[&["subscriptions"], arguments].concat(), &[("PROVISO_SERVER", url)]).await
}

/// Answers one request, and closes the connection.
async fn converse(stream: TcpStream, resends: Arc<Mutex<Vec<Value>>>) -> Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    while !head.ends_with("\r\n\r\n") {
        let start = head.len();
        if stream.read_line(&mut head).await? == 0 {
            return Ok(());
        }
        if let Some(value) = head[start..].to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let mut words = head.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (code, answer) = answer(method, path, &body, &resends);
    let json = answer.to_string();
    let head = format!(
        "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        json.len()
    );
    stream.write_all((head + &json).as_bytes()).await?;
    Ok(stream.flush().await?)
}

fn answer(method: &str, path: &str, body: &[u8], resends: &Mutex<Vec<Value>>) -> (u16, Value) {
    let mut resends = resends.lock().expect("the lock is not poisoned");
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let is_in = |namespace: &str| !query.contains("namespace=") || query.contains(&format!("namespace={namespace}"));
    match (method, path) {
        ("GET", "/api/v1alpha1/subscriptions") if query.contains("page_token=team%2Fcollector") => {
            let mut other = subscription(&resends);
            other["metadata"] = json!({"namespace": "west", "name": "gateway"});
            if let Some(other) = other.as_object_mut() {
                other.remove("status");
            }
            let found: Vec<_> = is_in("west").then_some(other).into_iter().collect();
            (200, json!({"subscriptions": found, "next_page_token": ""}))
        }
        ("GET", "/api/v1alpha1/subscriptions") => {
            let found: Vec<_> = is_in("team").then(|| summary(&resends)).into_iter().collect();
            let next = if query.contains("namespace=") { "" } else { "team/collector" };
            (200, json!({"subscriptions": found, "next_page_token": next}))
        }
        ("GET", PATH) => {
            let version = |version: &str| json!({"version": version, "digest": DIGEST});
            let body = |version: &str, min: i64| json!({"config": {"min_memory": min}, "policyVersion": version});
            let secret = json!({"configOmitted": true, "policyName": "ns.team.secret.1.xml", "policyVersion": "1"});
            let answer = json!({
                "subscription": subscription(&resends), "service_component_name": "collector", "event": null,
                "policies": [
                    {
                        "id": "cluster.memory", "state": "rejected", "message": "exit code 3: too much",
                        "has": version("1"), "should": version("2"), "diff": "",
                    },
                    {"id": "ns.team.large", "state": "failed", "message": "the body is too large"},
                    {"id": "ns.team.secret", "state": "pending", "should": {"version": "1", "digest": null}, "diff": ""},
                ],
                "has": {"cluster.memory": body("1", 64)},
                "should": {"cluster.memory": body("2", 128), "ns.team.large": null, "ns.team.secret": secret},
            });
            (200, answer)
        }
        ("POST", path) if path.strip_suffix(":resend") == Some(PATH) => {
            resends.push(serde_json::from_slice(body).expect("JSON"));
            (200, json!({"namespace": "team", "name": "collector", "resend": "r1"}))
        }
        _ => (
            404,
            json!({"type": "NOT_FOUND", "title": "Not Found", "status": 404, "detail": format!("there is no {path}")}),
        ),
    }
}

/// Returns the subscription as a list has it: without the policies that the component has.
fn summary(resends: &[Value]) -> Value {
    let mut subscription = subscription(resends);
    if let Some(status) = subscription["status"].as_object_mut() {
        status.remove("policies");
    }
    subscription
}

/// Returns the subscription. After a resend, the component has all its policies.
fn subscription(resends: &[Value]) -> Value {
    let policy = |version: &str| json!({"id": "cluster.memory", "version": version, "digest": DIGEST});
    let condition = |type_: &str, status: &str, reason: &str| {
        json!({
            "type": type_, "status": status, "reason": reason, "message": "m",
            "lastTransitionTime": "2026-11-21T09:30:00Z",
        })
    };
    let status = match resends.last() {
        None => json!({
            "conditions": [condition("Resolved", "True", "Resolved"), condition("Delivered", "False", "Rejected")],
            "summary": "1/2", "policies": [policy("1")],
            "pending": [
                {"id": "cluster.memory", "version": "2"}, {"id": "ns.team.large", "version": "1"},
                {"id": "ns.team.secret", "version": "1"},
            ],
            "rejected": [{"id": "cluster.memory", "version": "2", "digest": DIGEST, "message": "exit code 3: too much"}],
        }),
        Some(_) => json!({
            "conditions": [condition("Resolved", "True", "Resolved"), condition("Delivered", "True", "Delivered")],
            "summary": "2/2", "policies": [policy("2")], "observedResend": "r1",
        }),
    };
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicySubscription",
        "metadata": {"namespace": "team", "name": "collector"},
        "spec": {
            "scn": "collector", "policies": [{"id": "cluster.memory"}],
            "delivery": {"configMap": "collector-policies"},
        },
        "status": status,
    })
}

#[tokio::test]
async fn subscriptions_of_a_server_are_listed_and_compared() -> Result<()> {
    let server = Server::start().await?;
    let output = server.subscriptions(&["list", "-A"]).await?;
    let row = output.out.lines().find(|line| line.starts_with("team/collector")).unwrap_or_default();
    let cells: Vec<_> = row.split_whitespace().take(4).collect();
    ensure!(cells == ["team/collector", "collector", "1/2", "Rejected"], "{output:?}");
    ensure!(output.code == Some(0) && output.out.contains("cluster.memory version 2: exit code 3: too much"));
    ensure!(output.out.lines().any(|line| line.starts_with("west/gateway")), "{output:?}");
    let output = server.subscriptions(&["list"]).await?;
    ensure!(output.out.contains("There is no PolicySubscription in the namespace default."), "{output:?}");

    let output = server.subscriptions(&["status", "collector", "-n", "team", "--diff"]).await?;
    ensure!(output.code == Some(1), "{output:?}");
    for wanted in [
        "cluster.memory  1    2            Rejected  exit code 3: too much\n",
        "--- cluster.memory version 1 (has)\n+++ cluster.memory version 2 (should have)\n",
        "-  min_memory: 64\n",
        "+  min_memory: 128\n",
        "ns.team.large: the body of version 1 (should have): the body is too large\n",
        "ns.team.secret: the body of version 1 (should have): it is confidential, and you may not read it\n",
        "proviso subscriptions resend collector -n team\n",
    ] {
        ensure!(output.out.contains(wanted), "{wanted}: {}", output.out);
    }
    let output = server.subscriptions(&["status", "pvsub/collector", "-n", "team", "-o", "json"]).await?;
    let report: Value = serde_json::from_str(&output.out)?;
    ensure!(report["state"] == "Rejected" && report["scn"] == "collector", "{report:#}");
    ensure!(report["items"][0]["state"] == "Rejected" && report.get("bodies").is_none(), "{report:#}");

    let output = server.subscriptions(&["status", "colector", "-n", "team"]).await?;
    ensure!(output.err.contains("there is no PolicySubscription colector in the namespace team"), "{output:?}");
    ensure!(output.code == Some(1) && output.err.contains("Did you mean collector -n team?"), "{output:?}");
    Ok(())
}

#[tokio::test]
async fn a_resend_waits_for_the_answer_of_the_component() -> Result<()> {
    let server = Server::start().await?;
    let output = server.subscriptions(&["resend", "collector", "-n", "team"]).await?;
    ensure!(output.code == Some(0), "{output:?}");
    ensure!(output.out.ends_with("team/collector: the component has all its policies (2/2)\n"), "{output:?}");
    let values: Vec<Value> = server.resends.lock().expect("the lock is not poisoned").clone();
    ensure!(values == [json!({})], "{values:?}");
    let output = server.subscriptions(&["resend", "collector", "-n", "team", "--wait=false"]).await?;
    ensure!(output.out.contains("subscriptions status collector -n team --watch"), "{output:?}");
    Ok(())
}

/// Writes the policy `cluster.memory` with this text into a folder of manifests.
fn write_policy(manifests: &Path, text: &str) -> Result<()> {
    let policy = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "memory"},
        "spec": {"configuration": {"configName": "memory", "content": {"text": text}}},
    });
    Ok(std::fs::write(manifests.join("memory.json"), policy.to_string())?)
}

#[tokio::test]
async fn a_rejection_of_a_component_of_a_folder_is_shown_and_sent_again() -> Result<()> {
    let folder = Folder::new("cli-server-subscriptions")?;
    let (manifests, components) = (folder.path().join("manifests"), folder.path().join("components"));
    std::fs::create_dir_all(&manifests)?;
    write_policy(&manifests, "small")?;
    let script = r#"case "$2" in *too-large*) echo 'no memory' >&2; exit 3;; esac"#;
    let subscription = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicySubscription",
        "metadata": {"name": "collector", "namespace": "team"},
        "spec": {
            "scn": "collector", "policies": [{"id": "cluster.memory"}],
            "delivery": {"configMap": "collector", "notify": {"exec": {"command": ["sh", "-c", script, "sh"]}}},
        },
    });
    std::fs::write(manifests.join("collector.json"), subscription.to_string())?;
    let components = components.to_str().context("UTF-8")?.to_owned();
    let server = PolicyServer::start_in(folder, &["--deliver-to", &components]).await?;
    let until_status = async |code: i32, wanted: &[&str]| {
        until_with(&format!("{wanted:?}"), WAIT_TIMEOUT, WAIT_TIMEOUT, async || {
            let output = subscriptions(&server.url, &["status", "collector", "-n", "team", "--diff"]).await?;
            let missing = wanted.iter().find(|wanted| !output.out.contains(**wanted));
            ensure!(output.code == Some(code) && missing.is_none(), "{missing:?}: {output:?}");
            Ok(())
        })
        .await
    };
    until_status(0, &["team/collector  Delivered\n", "cluster.memory", "Current", "Differences\nNone.\n"]).await?;
    write_policy(&manifests, "too-large")?;
    until_status(1, &["team/collector  Rejected\n", "no memory", "-  text: small\n", "+  text: too-large\n"]).await?;
    let resend = ["resend", "collector", "-n", "team"];
    let output = subscriptions(&server.url, &resend).await?;
    ensure!(output.code == Some(1) && output.out.contains("no memory"), "{output:?}");
    write_policy(&manifests, "medium")?;
    until_status(0, &["team/collector  Delivered\n"]).await?;
    let output = subscriptions(&server.url, &resend).await?;
    ensure!(output.code == Some(0) && output.out.ends_with("the component has all its policies (1/1)\n"), "{output:?}");
    Ok(())
}
