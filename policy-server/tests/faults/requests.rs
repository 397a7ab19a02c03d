//! Requests that are too large, too slow or too many, and requests for unknown policies and generations.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use rustix::process::{Resource, Rlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{TOO_LONG, ask, assert_failed, assert_fine, server_with_fine_policies};

use crate::support::{self, Folder, Server, forbid, pod, policy, rego, wapc, wasm, with};

/// The maximum size of a body.
const MAX_BODY: usize = 7 << 20;

/// Returns a review of this size. The image, on which the verdict depends, is at its end.
fn large(bytes: usize, image: &str) -> String {
    let mut review = pod("u", "x");
    review["request"]["object"]["metadata"]["annotations"] = json!({"padding": ""});
    review["request"]["object"]["spec"]["containers"][0]["image"] = json!(image);
    let rest = review.to_string();
    review["request"]["object"]["metadata"]["annotations"]["padding"] = json!("x".repeat(bytes - rest.len()));
    review.to_string()
}

// Reviews have exactly the maximum size, or more, with and without a known length.
#[tokio::test]
async fn a_review_of_7_mib_is_decided_and_a_larger_one_is_refused() {
    let folder = Folder::new();
    std::fs::copy(
        support::example("policies/trusted-registries/trusted-registries.wasm"),
        folder.manifests().join("m.wasm"),
    )
    .unwrap();
    let registries = json!({"settings": {"registries": ["registry.example.com"]}, "timeoutEvalSeconds": 30});
    folder.write("wasm.json", policy("wasm", &with(wasm("m.wasm"), &registries)));
    let condition = "not startswith(input.request.object.spec.containers[0].image, input.parameters.registries[0])";
    folder.write("rego.json", policy("rego", &with(forbid(condition, "not trusted"), &registries)));
    let server = Server::start(folder, &[]).await;
    for name in ["wasm", "rego"] {
        let path = format!("/validate/cluster.{name}");
        let trusted = server.post(&path, large(MAX_BODY, "registry.example.com/web:1")).await;
        assert!(trusted.is_allowed(), "{}", trusted.text);
        let other = server.post(&path, large(MAX_BODY, "evil.example.com/web:1")).await;
        assert!(!other.is_allowed() && !other.message().contains("error"), "{name}: {}", other.text);
        let larger = server.post(&path, large(MAX_BODY + 1, "registry.example.com/web:1")).await;
        assert_eq!(larger.status, StatusCode::PAYLOAD_TOO_LARGE, "{}", larger.text);
        assert!(larger.text.contains("7 MiB"), "{}", larger.text);
    }

    let flood = async || {
        for _ in 0..10 {
            let answer = server.post("/validate/cluster.wasm", large(8 << 20, "registry.example.com/web:1")).await;
            assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
            assert_eq!(chunked(&server, 8 << 20).await, 413);
            assert!(
                server.post("/validate/cluster.wasm", large(MAX_BODY, "registry.example.com/web:1")).await.is_allowed()
            );
        }
    };
    flood().await;
    let before = server.resident();
    for _ in 0..3 {
        flood().await;
    }
    let grown = server.resident().saturating_sub(before) >> 20;
    assert!(grown < 64, "{grown} MiB more after 90 large requests");
    assert_eq!(server.count("proviso_requests_refused_total", &["body_too_large"]).await, 82);
}

/// Sends a chunked body without its length, and returns the status of the answer.
async fn chunked(server: &Server, bytes: usize) -> u16 {
    let stream = TcpStream::connect(&server.listen).await.unwrap();
    let (mut reading, mut writing) = stream.into_split();
    let listen = server.listen.clone();
    let sending = tokio::spawn(async move {
        let head =
            format!("POST /validate/cluster.wasm HTTP/1.1\r\nhost: {listen}\r\ntransfer-encoding: chunked\r\n\r\n");
        writing.write_all(head.as_bytes()).await?;
        let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
        for _ in 0..bytes / 0x10000 {
            writing.write_all(chunk.as_bytes()).await?;
        }
        writing.write_all(b"0\r\n\r\n").await?;
        // Keep the write half: dropping it would close the write side of the connection, as a client does that has gone away.
        std::io::Result::Ok(writing)
    });
    let mut answer = Vec::new();
    while !answer.windows(4).any(|four| four == b"\r\n\r\n") {
        assert_ne!(reading.read_buf(&mut answer).await.unwrap(), 0, "no answer");
    }
    sending.await.unwrap().unwrap();
    support::parse_answer(&String::from_utf8(answer).unwrap()).status.as_u16()
}

// 1,000 clients start a request and do not finish it (slow loris).
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_slow_clients_are_closed_at_the_deadline() {
    const CLIENTS: usize = 1000;
    let limit = rustix::process::getrlimit(Resource::Nofile);
    // The server inherits this limit.
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    assert!(limit.maximum.is_none_or(|maximum| maximum > 2000), "`ulimit -Hn` allows only {limit:?} open files");
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

// A client sends the head of a request, but not its body.
#[tokio::test]
async fn a_body_that_does_not_arrive_times_out() {
    let server = server_with_fine_policies(Folder::new(), &[]).await;
    let mut stream = TcpStream::connect(&server.listen).await.unwrap();
    stream.write_all(b"POST /validate/cluster.fine HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{").await.unwrap();
    assert_fine(&server).await;
    let mut answer = Vec::new();
    tokio::time::timeout(support::WAIT_TIMEOUT, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    let answer = support::parse_answer(&String::from_utf8(answer).unwrap());
    assert_eq!(answer.status, StatusCode::REQUEST_TIMEOUT, "{}", answer.text);
}

// There are more evaluations than permits.
#[tokio::test(flavor = "multi_thread")]
async fn overload_is_answered_503_with_retry_after_and_never_allowed() {
    let folder = Folder::new();
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    folder.write("loop.json", policy("loop", &with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 10}))));
    folder.write("allow.wasm", wapc::answering(&json!({"accepted": true})));
    folder.write("allow.json", policy("allow", &with(wasm("allow.wasm"), &json!({"timeoutEvalSeconds": 1}))));
    let server = server_with_fine_policies(folder, &["--concurrency", "2"]).await;
    let mut loops = Vec::new();
    for _ in 0..2 {
        loops.push(server.begin("/validate/cluster.loop", pod("u", "x").to_string()).await);
    }
    // When both permits are taken, an evaluation that gets none within its timeout is refused.
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
    // Rego needs no permit of a wasm instance.
    assert_eq!(ask(&server, "fine-rego").await.message(), "fine");
    assert!(!loops.iter().any(tokio::task::JoinHandle::is_finished));
    assert!(server.count("proviso_requests_refused_total", &["overloaded"]).await >= 31);
    for answer in loops {
        assert_failed(&answer.await.unwrap(), TOO_LONG);
    }
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
    assert!(surplus > 0, "none of 200 endless evaluations with 2 permits was refused");
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
