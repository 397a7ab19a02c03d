//! Bodies that are too large, too slow or too many.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::requests::raise_open_files;
use crate::support::tls::Pair;
use crate::support::{self, Answer, Folder, Server, forbid, pod, policy, wasm, with};
use crate::{assert_fine, server_with_fine_policies};

/// The maximum size of a body.
const MAX_BODY: usize = 20 << 20;

/// Returns a review of this size. The image, on which the verdict depends, is at its end.
fn large(bytes: usize, image: &str) -> String {
    let mut review = pod("u", "x");
    review["request"]["object"]["metadata"]["annotations"] = json!({"padding": ""});
    review["request"]["object"]["spec"]["containers"][0]["image"] = json!(image);
    let rest = as_sent(&review);
    review["request"]["object"]["metadata"]["annotations"]["padding"] = json!("x".repeat(bytes - rest.len()));
    as_sent(&review)
}

/// Returns the text of a review as an API server writes it: the uid is the first member of the request.
fn as_sent(review: &Value) -> String {
    let mut request = review["request"].clone();
    let uid = request.as_object_mut().unwrap().remove("uid").unwrap();
    let members = request.to_string();
    let members = members.strip_prefix('{').unwrap();
    format!(r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{{"uid":{uid},{members}}}"#)
}

/// Asserts that a review that was not read is denied inside HTTP 200, with its uid.
fn assert_denied(answer: &Answer, code: u16, words: &str) {
    let response = answer.response();
    assert_eq!((&response["uid"], &response["allowed"]), (&json!("u"), &json!(false)), "{}", answer.text);
    assert_eq!(response["status"]["code"], code, "{}", answer.text);
    assert!(answer.message().contains(words), "{}", answer.text);
}

// Reviews have exactly the maximum size, or more, with and without a known length.
#[tokio::test]
async fn a_review_of_20_mib_is_decided_and_a_larger_one_is_denied_with_its_uid() {
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
    let monitor = with(forbid("true", "never"), &json!({"admission": {"mode": "Monitor"}}));
    folder.write("monitor.json", policy("monitor", &monitor));
    folder.write("disabled.json", policy("disabled", &with(forbid("true", "never"), &json!({"enabled": false}))));
    let server = Server::start(folder, &[]).await;
    let larger = large(MAX_BODY + 1, "registry.example.com/web:1");
    for name in ["wasm", "rego"] {
        let path = format!("/validate/cluster.{name}");
        let trusted = server.post(&path, large(MAX_BODY, "registry.example.com/web:1")).await;
        assert!(trusted.is_allowed(), "{}", trusted.text);
        let other = server.post(&path, large(MAX_BODY, "evil.example.com/web:1")).await;
        assert!(!other.is_allowed() && !other.message().contains("error"), "{name}: {}", other.text);
        assert_denied(&server.post(&path, larger.clone()).await, 413, "20 MiB");
    }
    for (path, is_allowed) in [
        ("/validate/cluster.monitor", true),
        ("/validate/cluster.disabled", true),
        ("/audit/cluster.monitor", false),
        ("/validate/cluster.nowhere", false),
        ("/validate_raw/cluster.wasm", false),
    ] {
        let answer = server.post(path, larger.clone()).await;
        assert_eq!(answer.is_allowed(), is_allowed, "{path}: {}", answer.text);
        assert_eq!(answer.response()["uid"], "u", "{path}: {}", answer.text);
    }
    let without_uid = server.post("/validate/cluster.wasm", "x".repeat(MAX_BODY + 1)).await;
    assert_eq!(without_uid.status, StatusCode::BAD_REQUEST, "{}", without_uid.text);
    assert!(without_uid.text.contains("20 MiB"), "{}", without_uid.text);

    let flood = async || {
        for _ in 0..3 {
            assert_denied(&server.post("/validate/cluster.wasm", larger.clone()).await, 413, "20 MiB");
            assert_denied(&chunked(&server, &larger).await, 413, "20 MiB");
        }
    };
    flood().await;
    let before = server.resident();
    for _ in 0..3 {
        flood().await;
    }
    let grown = server.resident().saturating_sub(before) >> 20;
    assert!(grown < 64, "{grown} MiB more after 18 large requests");
    assert_eq!(server.count("proviso_requests_refused_total", &["body_too_large"]).await, 2 + 5 + 1 + 24);
    assert_eq!(server.count("proviso_http_request_memory_bytes", &[]).await, 0);
}

#[tokio::test]
async fn a_review_that_is_too_large_is_denied_over_http1_and_http2() {
    let (folder, pair) = (Folder::new(), Pair::new());
    folder.write("p.json", policy("p", &forbid("true", "no")));
    pair.write(folder.root());
    let at = |name: &str| folder.root().join(name).to_str().unwrap().to_owned();
    let (cert, key) = (at("tls.crt"), at("tls.key"));
    let server = Server::start(folder, &["--tls-cert", &cert, "--tls-key", &key]).await;
    for protocol in ["http/1.1", "h2"] {
        let larger = large(MAX_BODY + (2 << 20), "registry.example.com/web:1");
        let answer = pair.post(&server.listen, protocol, "/validate/cluster.p", larger).await.unwrap();
        assert_denied(&answer, 413, "20 MiB");
    }
}

/// Sends a chunked body without its length, and returns the answer.
async fn chunked(server: &Server, body: &str) -> Answer {
    let stream = TcpStream::connect(&server.listen).await.unwrap();
    let (mut reading, mut writing) = stream.into_split();
    let (listen, body) = (server.listen.clone(), body.to_owned());
    let sending = tokio::spawn(async move {
        let head =
            format!("POST /validate/cluster.wasm HTTP/1.1\r\nhost: {listen}\r\ntransfer-encoding: chunked\r\n\r\n");
        writing.write_all(head.as_bytes()).await?;
        for piece in body.as_bytes().chunks(0x10000) {
            writing.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
            writing.write_all(piece).await?;
            writing.write_all(b"\r\n").await?;
        }
        writing.write_all(b"0\r\n\r\n").await?;
        // Keep the write half: dropping it would close the write side of the connection, as a client does that has gone away.
        std::io::Result::Ok(writing)
    });
    let mut text = Vec::new();
    let answer = loop {
        assert_ne!(reading.read_buf(&mut text).await.unwrap(), 0, "no answer");
        let text = String::from_utf8_lossy(&text);
        if text.contains("\r\n\r\n") {
            let answer = support::parse_answer(&text);
            let length: usize = answer.headers["content-length"].to_str().unwrap().parse().unwrap();
            if answer.text.len() == length {
                break answer;
            }
        }
    };
    sending.await.unwrap().unwrap();
    answer
}

// A client sends the head of a request, but not its body, or only the beginning of its body.
#[tokio::test]
async fn a_body_that_does_not_arrive_times_out() {
    let server = server_with_fine_policies(Folder::new(), &[]).await;
    let begin = async |body: &str| {
        let mut stream = TcpStream::connect(&server.listen).await.unwrap();
        let head = "POST /validate/cluster.fine HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n";
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        stream
    };
    let review = as_sent(&pod("u", "x"));
    let (mut without_uid, mut with_uid) = (begin("{").await, begin(&review[..review.len() / 2]).await);
    assert_fine(&server).await;
    let read = async |stream: &mut TcpStream| {
        let mut answer = Vec::new();
        tokio::time::timeout(support::WAIT_TIMEOUT, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        support::parse_answer(&String::from_utf8(answer).unwrap())
    };
    let answer = read(&mut without_uid).await;
    assert_eq!(answer.status, StatusCode::REQUEST_TIMEOUT, "{}", answer.text);
    // An HTTP error would let the request pass under `failurePolicy: Ignore`.
    assert_denied(&read(&mut with_uid).await, 408, "within 10 s");
}

// 1,000 clients announce 19 GB together, and send almost nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clients_that_announce_large_bodies_take_no_memory() {
    raise_open_files();
    let server = server_with_fine_policies(Folder::new(), &["--request-memory", "64"]).await;
    let before = server.resident();
    let mut slow = Vec::new();
    for _ in 0..1000 {
        let mut stream = TcpStream::connect(&server.listen).await.unwrap();
        let length = MAX_BODY - 1;
        let head = format!("POST /validate/cluster.fine HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{{");
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    assert_fine(&server).await;
    let grown = server.peak().saturating_sub(before) >> 20;
    assert!(grown < 100, "{grown} MiB more");
    let held = server.count("proviso_http_request_memory_bytes", &[]).await;
    assert!(held < 8 << 20, "the requests hold {held} bytes");
    assert_eq!(server.count("proviso_http_requests_refused_total", &[]).await, 0);
}

// One client holds its share of the memory by large bodies that it does not finish.
#[tokio::test(flavor = "multi_thread")]
async fn other_clients_are_served_while_one_client_holds_its_share_of_the_memory() {
    let server = Arc::new(server_with_fine_policies(Folder::new(), &["--request-memory", "32"]).await);
    let mut holders = Vec::new();
    for _ in 0..8 {
        let listen = server.listen.clone();
        holders.push(tokio::spawn(async move {
            loop {
                // The server closes the connection when the time of the body is over, or when there is no memory.
                let holding = async {
                    let mut stream = TcpStream::connect(&listen).await?;
                    let head = "POST /validate/cluster.fine HTTP/1.1\r\nhost: a\r\ncontent-length: 20000000\r\n\r\n";
                    stream.write_all(head.as_bytes()).await?;
                    stream.write_all(&b"x".repeat(8 << 20)).await?;
                    stream.read_u8().await
                };
                let _: std::io::Result<u8> = holding.await;
            }
        }));
    }
    let large = large(10 << 20, "registry.example.com/web:1");
    let post_from = async |address: &str| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
        let mut stream = socket.connect(server.listen.parse().unwrap()).await.unwrap();
        let body = if address == "127.0.0.1" { large.clone() } else { as_sent(&pod("u", "x")) };
        let length = body.len();
        let head = "POST /validate/cluster.fine HTTP/1.1\r\nhost: a\r\nconnection: close";
        stream.write_all(format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        support::parse_answer(&answer)
    };
    server
        .until("no memory for the client", async || {
            assert_eq!(post_from("127.0.0.2").await.message(), "fine");
            post_from("127.0.0.1").await.status == StatusCode::SERVICE_UNAVAILABLE
        })
        .await;
    assert_eq!(post_from("127.0.0.2").await.message(), "fine");
    holders.iter().for_each(tokio::task::JoinHandle::abort);
    server.until("free memory", async || post_from("127.0.0.1").await.status == StatusCode::OK).await;
}
