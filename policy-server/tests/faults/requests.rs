//! Requests that are too slow or too many, and requests for unknown policies and generations.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use rustix::process::{Resource, Rlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{TOO_LONG, ask, assert_failed, assert_fine, server_with_fine_policies};

use crate::support::{self, Folder, pod, policy, rego, wapc, wasm, with};

/// Raises the limit of open files, which the server inherits.
pub fn raise_open_files() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    assert!(limit.maximum.is_none_or(|maximum| maximum > 2000), "`ulimit -Hn` allows only {limit:?} open files");
}

// 1,000 clients start a request and do not finish it (slow loris).
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_slow_clients_are_closed_at_the_deadline() {
    const CLIENTS: usize = 1000;
    raise_open_files();
    let server = Arc::new(server_with_fine_policies(Folder::new(), &[]).await);
    let opened = Instant::now();
    // An API server opens connections that it needs later. They stay open, although they send nothing for longer than a head may take.
    let mut unused = TcpStream::connect(&server.listen).await.unwrap();
    let mut slow = Vec::new();
    for _ in 0..CLIENTS {
        let mut stream = TcpStream::connect(&server.listen).await.unwrap();
        stream.write_all(b"POST /validate/cluster.fine HTTP/1.1\r\nhost: ").await.unwrap();
        slow.push(tokio::spawn(async move {
            let mut answer = Vec::new();
            // The server may close or reset the connection.
            let _ = stream.read_to_end(&mut answer).await;
            assert!(!String::from_utf8_lossy(&answer).contains("200"), "an answer to no request");
        }));
    }
    let mut answered = 0;
    while !slow.iter().any(tokio::task::JoinHandle::is_finished) {
        assert_fine(&server).await;
        answered += 1;
    }
    assert!(opened.elapsed() >= Duration::from_secs(9), "closed before the deadline of 10 s");
    // If other requests waited for the slow clients, at most one would be answered.
    assert!(answered >= 5, "only {answered} other requests were answered meanwhile");
    for task in slow {
        tokio::time::timeout(support::WAIT_TIMEOUT, task).await.expect("closed at the deadline of 10 s").unwrap();
    }
    assert_fine(&server).await;
    let review = pod("u", "x").to_string();
    let head = "POST /validate/cluster.fine HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: ";
    unused.write_all(format!("{head}{}\r\n\r\n{review}", review.len()).as_bytes()).await.unwrap();
    let mut answer = String::new();
    unused.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

// All places are taken.
#[tokio::test(flavor = "multi_thread")]
async fn overload_is_answered_503_with_retry_after_and_never_allowed() {
    let folder = Folder::new();
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    for name in ["loop", "loop-too"] {
        folder
            .write(&format!("{name}.json"), policy(name, &with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 20}))));
    }
    folder.write("allow.wasm", wapc::answering(&json!({"accepted": true})));
    folder.write("allow.json", policy("allow", &wasm("allow.wasm")));
    let server = server_with_fine_policies(folder, &["--concurrency", "2"]).await;
    let mut loops = Vec::new();
    for name in ["loop", "loop-too"] {
        loops.push(server.begin(&format!("/validate/cluster.{name}"), pod("u", "x").to_string()).await);
    }
    // When both places are taken, an evaluation that gets none in time is refused.
    let is_overloaded = async || ask(&server, "allow").await.status == StatusCode::SERVICE_UNAVAILABLE;
    server.until("overload", is_overloaded).await;
    let mut surplus = Vec::new();
    for _ in 0..30 {
        surplus.push(server.begin("/validate/cluster.allow", pod("u", "x").to_string()).await);
    }
    for answer in surplus {
        let answer = answer.await.unwrap();
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.text);
        let seconds: u32 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!(seconds >= 1 && answer.text.contains("overloaded"), "{}", answer.text);
        assert!(!answer.text.contains("allowed"), "{}", answer.text);
    }
    // All engines share the places.
    assert_eq!(ask(&server, "fine-rego").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(server.count("proviso_evaluations_refused_total", &["cluster.fine-rego", "total"]).await >= 1);
    assert!(!loops.iter().any(tokio::task::JoinHandle::is_finished));
    assert!(server.count("proviso_requests_refused_total", &["overloaded"]).await >= 31);
    for answer in loops {
        assert_failed(&answer.await.unwrap(), TOO_LONG);
    }
    // A loop ends at its next tick. On a busy machine, its thread, which has the lowest CPU priority, may wait for it.
    server.until("a free place", async || ask(&server, "allow").await.status == StatusCode::OK).await;
    assert_fine(&server).await;
    assert!(ask(&server, "allow").await.is_allowed());
}

// 200 requests arrive for one slow policy.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_requests_is_answered_with_503_or_a_denial() {
    let folder = Folder::new();
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    folder.write("loop.json", policy("loop", &with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 1}))));
    let server = server_with_fine_policies(folder, &["--concurrency", "2"]).await;
    let started = Instant::now();
    let mut asked = Vec::new();
    for _ in 0..200 {
        asked.push(server.begin("/validate/cluster.loop", pod("u", "x").to_string()).await);
    }
    let mut surplus = 0_u32;
    for answer in asked {
        let answer = answer.await.unwrap();
        if answer.status == StatusCode::OK {
            assert_failed(&answer, TOO_LONG);
        } else {
            assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.text);
            assert!(answer.headers["retry-after"].to_str().unwrap().parse::<u32>().unwrap() >= 1);
            surplus += 1;
        }
    }
    // Two at a time, they would take 100 s.
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert!(surplus > 0, "none of 200 endless evaluations with one place was refused");
    assert_fine(&server).await;
}

// The server does not have the requested generation or policy.
#[tokio::test]
async fn an_unknown_generation_is_answered_503_and_an_unknown_policy_404() {
    let folder = Folder::new();
    folder.write("broken.json", policy("broken", &rego("package test\ndeny contains")));
    let server = server_with_fine_policies(folder, &[]).await;
    for (path, words) in [
        ("/validate/cluster.fine/2", "cluster.fine has no generation 2 here: 1 is live"),
        ("/validate_raw/cluster.fine/7", "cluster.fine has no generation 7 here"),
        ("/audit/cluster.fine/18446744073709551615", "has no generation 18446744073709551615 here"),
        ("/validate/cluster.broken/2", "cluster.broken has no generation 2 here, and none that works"),
    ] {
        let answer = server.post(path, pod("u", "x").to_string()).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{path}: {}", answer.text);
        assert_eq!(answer.headers["retry-after"], "1", "{path}");
        assert!(answer.text.contains(words), "{path}: {}", answer.text);
    }
    // Another replica cannot serve a generation that does not work: the request is denied, also under `Ignore`.
    let answer = server.post("/validate/cluster.broken/1", pod("u", "x").to_string()).await;
    assert!(!answer.is_allowed(), "{}", answer.text);
    assert!(answer.message().starts_with("generation 1 of cluster.broken does not work here: CompileError: "));
    for path in [
        "/validate/cluster.nowhere",
        "/validate/cluster.nowhere/1",
        "/validate/ns.default.fine",
        "/audit/cluster.nowhere",
    ] {
        let answer = server.post(path, pod("u", "x").to_string()).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}: {}", answer.text);
        assert!(answer.text.contains("there is no policy"), "{path}: {}", answer.text);
        assert!(!answer.headers.contains_key("retry-after"), "{path}");
    }
    let answer = ask(&server, "broken").await;
    assert_failed(&answer, "cluster.broken has no generation that works: CompileError: spec.program.rego.source: ");
    assert!(answer.message().contains("broken.json:1: document 1"), "{}", answer.text);
    assert_fine(&server).await;
}
