//! Malformed requests: each has a defined answer, and the server keeps running.

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{self, Folder, Server, forbid, pod, policy};

/// Starts a server whose policy `a` denies every request with the message "decided".
async fn server() -> Server {
    let folder = Folder::new();
    folder.write("a.json", policy("a", &forbid("true", "decided")));
    Server::start(folder, &[]).await
}

async fn assert_fine(server: &Server) {
    assert_eq!(server.post("/validate/cluster.a", pod("u", "x").to_string()).await.message(), "decided");
    assert_eq!(server.get("/readyz").await.status, StatusCode::OK);
}

/// Returns the review of a Pod with this additional member, which need not be valid JSON.
fn pod_with(member: &str) -> String {
    pod("known", "x").to_string().replacen(r#""object":{"#, &format!(r#""object":{{{member},"#), 1)
}

fn nested(depth: usize) -> String {
    format!("{}1{}", "[".repeat(depth), "]".repeat(depth))
}

// A malformed review has a readable uid. The answer must be a denial with this uid: an HTTP error would let the request pass
// under `failurePolicy: Ignore`.
#[tokio::test]
async fn a_malformed_review_with_a_uid_is_denied_with_that_uid() {
    let server = server().await;
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut review = pod("known", "x");
        change(&mut review);
        review.to_string()
    };
    let review = pod("known", "x").to_string();
    let cases = [
        ("nested 10,000 deep", pod_with(&format!(r#""deep":{}"#, nested(10_000))), "nested deeper than 256"),
        ("nested 300 deep", pod_with(&format!(r#""deep":{}"#, nested(300))), "nested deeper than 256"),
        ("a wrong kind", changed(&|review| review["kind"] = json!("TokenReview")), "kind is \"TokenReview\""),
        (
            "an old version",
            changed(&|review| review["apiVersion"] = json!("admission.k8s.io/v1beta1")),
            "apiVersion is \"admission.k8s.io/v1beta1\"",
        ),
        ("two objects", review.replacen(r#""object":"#, r#""object":{},"object":"#, 1), "duplicate member \"object\""),
        (
            "two operations",
            review.replacen(r#""operation":"#, r#""operation":"DELETE","operation":"#, 1),
            "duplicate member \"operation\"",
        ),
        ("an operation that is none", changed(&|review| review["request"]["operation"] = json!("EXPLODE")), "EXPLODE"),
        ("a kind that is a number", changed(&|review| review["request"]["kind"] = json!(7)), "request: "),
        ("names that are lists", changed(&|review| review["request"]["namespace"] = json!([])), "request: "),
    ];
    for (what, body, wanted) in cases {
        let answer = server.post("/validate/cluster.a", body).await;
        assert_eq!(answer.status, StatusCode::OK, "{what}: {}", answer.text);
        let response = answer.response();
        assert_eq!(response["uid"], "known", "{what}: {}", answer.text);
        assert_eq!(response["allowed"], false, "{what}");
        assert_eq!(response["status"]["code"], 400, "{what}: {}", answer.text);
        assert!(answer.message().contains(wanted), "{what}: {}", answer.text);
        let read: Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!((&read["kind"], &read["apiVersion"]), (&json!("AdmissionReview"), &json!("admission.k8s.io/v1")));
    }
    assert_fine(&server).await;
}

// A malformed review has no readable uid.
#[tokio::test]
async fn a_malformed_review_without_a_uid_is_a_bad_request() {
    let server = server().await;
    let mut no_uid = pod("", "x");
    let empty_uid = no_uid.to_string();
    no_uid["request"].as_object_mut().unwrap().remove("uid");
    let mut number_uid = pod("", "x");
    number_uid["request"]["uid"] = json!(7);
    let mut not_utf8 = pod("known", "x").to_string().into_bytes();
    let at = not_utf8.windows(3).position(|three| three == b"web").unwrap();
    not_utf8[at] = 0xff;
    let mut refused = 0;
    for (what, body, wanted) in [
        ("empty", Bytes::new(), "not an AdmissionReview"),
        ("a list", Bytes::from("[]"), "not an AdmissionReview"),
        ("null", Bytes::from("null"), "not an AdmissionReview"),
        ("a text", Bytes::from("\"review\""), "not an AdmissionReview"),
        ("an empty object", Bytes::from("{}"), "no request"),
        ("no JSON", Bytes::from("kind=AdmissionReview&uid=known"), "not an AdmissionReview"),
        ("cut off", Bytes::from(r#"{"kind":"AdmissionReview","#), "not an AdmissionReview"),
        ("not UTF-8", Bytes::from(not_utf8), "not UTF-8"),
        ("zeros", Bytes::from(vec![0; 100]), "not an AdmissionReview"),
        ("request null", Bytes::from(r#"{"request":null}"#), "no request"),
        ("request a list", Bytes::from(r#"{"request":[]}"#), "request"),
        ("no uid", Bytes::from(no_uid.to_string()), "uid"),
        ("an empty uid", Bytes::from(empty_uid), "uid"),
        ("a uid that is a number", Bytes::from(number_uid.to_string()), "uid"),
        ("nested, nothing else", Bytes::from(nested(10_000)), "nested deeper than 256"),
        (
            "a uid, then cut off",
            Bytes::from(r#"{"request":{"uid":"known","object":"#.to_owned() + &"[".repeat(100_000)),
            "nested",
        ),
        ("a million brackets", Bytes::from("[".repeat(1_000_000)), "nested deeper than 256"),
        ("a million members", Bytes::from("{\"a\":".repeat(1_000_000)), "nested deeper than 256"),
    ] {
        let answer = server.post("/validate/cluster.a", body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{what}: {}", answer.text);
        let error = serde_json::from_str::<Value>(&answer.text).unwrap();
        assert_eq!(error["error"]["code"], 400, "{what}: {}", answer.text);
        assert!(error["error"]["message"].as_str().unwrap().contains(wanted), "{what}: {}", answer.text);
        refused += 1;
    }
    assert_eq!(server.count("proviso_requests_refused_total", &["malformed"]).await, refused);
    assert_fine(&server).await;
}

// A key is duplicated. Some parsers take the first value and others the last, so the policy could decide about another object
// than the API server stores.
#[tokio::test]
async fn duplicate_keys_never_allow_what_one_of_them_forbids() {
    let folder = Folder::new();
    folder.write("a.json", policy("a", &forbid(r#"input.request.object.metadata.name == "bad""#, "bad")));
    let server = Server::start(folder, &[]).await;
    let review = pod("known", "good").to_string();
    assert!(server.post("/validate/cluster.a", review.clone()).await.is_allowed());
    let bad = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"}}"#;
    let first = review.replacen(r#""object":"#, &format!(r#""object":{bad},"object":"#), 1);
    let last = review.replacen(r#""oldObject":"#, &format!(r#""object":{bad},"oldObject":"#), 1);
    let uids = review.replacen(r#""uid":"known""#, r#""uid":"known","uid":"other""#, 1);
    let requests =
        review.replacen(r#""request":"#, &format!(r#""request":{{"uid":"known","object":{bad}}},"request":"#), 1);
    assert!([&first, &last, &uids, &requests].iter().all(|changed| **changed != review), "the review has another form");
    for (what, body) in [("first", first), ("last", last), ("uids", uids), ("requests", requests)] {
        let answer = server.post("/validate/cluster.a", body).await;
        if answer.status != StatusCode::BAD_REQUEST {
            assert!(!answer.is_allowed(), "{what}: {}", answer.text);
            assert_eq!(answer.response()["uid"], "known", "{what}: {}", answer.text);
        }
    }
}

// A raw request is malformed. Only its envelope has a defined form.
#[tokio::test]
async fn malformed_raw_requests_are_answered_like_malformed_reviews() {
    let server = server().await;
    for body in ["", "[]", "{}", "x", r#"{"request":"#, r#"{"uid":"known"}"#] {
        let answer = server.post("/validate_raw/cluster.a", body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body:?}: {}", answer.text);
    }
    let deep = format!(r#"{{"request":{{"uid":"known","deep":{}}}}}"#, nested(10_000));
    let answer = server.post("/validate_raw/cluster.a", deep).await;
    assert_eq!(answer.response()["uid"], "known", "{}", answer.text);
    assert_eq!((answer.is_allowed(), &answer.response()["status"]["code"]), (false, &json!(400)), "{}", answer.text);
    assert!(serde_json::from_str::<Value>(&answer.text).unwrap().get("kind").is_none(), "{}", answer.text);
    assert_fine(&server).await;
}

#[tokio::test]
async fn methods_other_than_post_are_refused() {
    let server = server().await;
    for method in [Method::GET, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS] {
        for path in ["/validate/cluster.a", "/validate_raw/cluster.a/1", "/audit/cluster.nowhere"] {
            let body = Bytes::from(pod("u", "x").to_string());
            let answer = support::ask(&server.listen, method.clone(), path, body).await.unwrap();
            assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}: {}", answer.text);
            assert_eq!(answer.headers["allow"], "POST", "{method} {path}");
            assert!(answer.text.contains("send the review by POST"), "{}", answer.text);
        }
    }
    assert_fine(&server).await;
}

#[tokio::test]
async fn unknown_paths_are_not_found() {
    let server = server().await;
    for (path, wanted) in [
        ("/", "there is nothing at this path"),
        ("/validate", "there is nothing at this path"),
        ("/mutate/cluster.a", "there is nothing at this path"),
        ("/validate/cluster.a/1/2", "there is nothing at this path"),
        ("/readyz", "there is nothing at this path"),
        ("/metrics", "there is nothing at this path"),
        ("//validate/cluster.a", "there is nothing at this path"),
        ("/validate/a", "a policy id is `cluster.<name>`"),
        ("/validate/cluster.", "is not a policy name"),
        ("/validate/cluster.%61", "is not a policy name"),
        ("/validate/../../etc/passwd", "a policy id is"),
        ("/validate/cluster.a/", "is not a generation"),
        ("/validate/cluster.a/0", "is not a generation"),
        ("/validate/cluster.a/01", "is not a generation"),
        ("/validate/cluster.a/-1", "is not a generation"),
        ("/validate/cluster.a/latest", "is not a generation"),
        ("/validate/cluster.a/18446744073709551616", "is not a generation"),
    ] {
        let answer = server.post(path, pod("u", "x").to_string()).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}: {}", answer.text);
        let error = serde_json::from_str::<Value>(&answer.text).unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains(wanted), "{path}: {}", answer.text);
    }
    assert_eq!(
        server.get("/validate/cluster.a").await.status,
        StatusCode::NOT_FOUND,
        "the admin port answers no reviews"
    );
    // The query is ignored: API servers send `?timeout=10s`.
    let answer = server.post("/validate/cluster.a?timeout=10s", pod("u", "x").to_string()).await;
    assert_eq!(answer.message(), "decided");
    assert_fine(&server).await;
}

#[tokio::test]
async fn bytes_that_are_not_http_close_only_their_own_connection() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let server = server().await;
    for garbage in [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"\r\n\r\n\r\n", b"GET\r\n\r\n", &vec![0xff; 100_000]] {
        let mut stream = tokio::net::TcpStream::connect(&server.listen).await.unwrap();
        // The server may close before it has read everything.
        let _ = stream.write_all(garbage).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(support::WAIT_TIMEOUT, stream.read_to_end(&mut answer)).await.expect("closed");
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{garbage:?}");
    }
    assert_fine(&server).await;
}
