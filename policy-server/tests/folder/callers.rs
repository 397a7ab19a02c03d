//! Callers that the server knows by the token in the path. The tests take the part of API servers, and of a pod that reaches the port.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use hyper::{Method, StatusCode};

use crate::support::tls::replace;
use crate::support::{self, Folder, Server, experiment, forbid, pod, policy};

const OLD: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const NEW: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";

fn path(token: &str, endpoint: &str) -> String {
    format!("/t/{token}{endpoint}")
}

/// A server with a policy, its experiment, and a file of tokens.
struct Guarded {
    server: Server,
    tokens: PathBuf,
}

impl Guarded {
    async fn start() -> Self {
        let folder = Folder::new();
        let tokens = folder.root().join("tokens");
        std::fs::write(&tokens, format!("{OLD}\n")).unwrap();
        folder.write("a.json", policy("a", &forbid("true", "decided")));
        folder.write("e.json", experiment("e", "a", &forbid("false", "")));
        let server = Server::start(folder, &["--caller-tokens", tokens.to_str().unwrap()]).await;
        Self { server, tokens }
    }

    async fn status(&self, token: &str) -> StatusCode {
        let answer = self.server.post(&path(token, "/validate/cluster.a"), pod("u", "x").to_string()).await;
        assert!(answer.status != StatusCode::OK || answer.message() == "decided", "{}", answer.text);
        answer.status
    }

    async fn until_status(&self, token: &str, expected: StatusCode) {
        self.server.until(token, async || self.status(token).await == expected).await;
    }
}

#[tokio::test]
async fn a_caller_without_a_token_gets_the_same_refusal_for_every_request_and_adds_no_preview() {
    let guarded = Guarded::start().await;
    let server = &guarded.server;
    let (upper, longer, shorter) = (OLD.to_uppercase(), format!("{OLD}0"), &OLD[..63]);
    let mut answers = Vec::new();
    for unknown in [
        "/validate/cluster.a".to_owned(),
        "/validate/cluster.a/1".to_owned(),
        "/validate/cluster.nowhere".to_owned(),
        "/validate/no policy id".replace(' ', "%20"),
        "/validate_raw/cluster.a".to_owned(),
        "/audit/cluster.a".to_owned(),
        "/preview/cluster.a/e/1".to_owned(),
        "/".to_owned(),
        "/t/".to_owned(),
        "/t//validate/cluster.a".to_owned(),
        format!("/t/{OLD}"),
        format!("/validate/cluster.a?token={OLD}"),
        format!("//t/{OLD}/validate/cluster.a"),
        path(NEW, "/validate/cluster.a"),
        path(&upper, "/validate/cluster.a"),
        path(&longer, "/validate/cluster.a"),
        path(shorter, "/validate/cluster.a"),
        path(&format!("{}%30", &OLD[1..]), "/validate/cluster.a"),
    ] {
        let answer = server.post(&unknown, pod("u", "x").to_string()).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{unknown}");
        answers.push(answer.text);
        // The method is not checked before the token either.
        let got = support::ask(&server.listen, Method::GET, &unknown, "".into()).await.unwrap();
        assert_eq!(got.status, StatusCode::UNAUTHORIZED, "{unknown}");
        answers.push(got.text);
    }
    assert!(answers.iter().all(|text| *text == answers[0]), "{answers:#?}");
    assert_eq!(server.count("proviso_requests_refused_total", &["unknown_caller"]).await, answers.len() as u64);
    assert_eq!(server.count("proviso_evaluations_total", &[]).await, 0);

    assert_eq!(guarded.status(OLD).await, StatusCode::OK);
    let previews = server.until_previews(1).await;
    assert_eq!(previews.len(), 1, "a request without a token was previewed: {previews:#?}");
    let unknown = server.post(&path(OLD, "/validate/cluster.nowhere"), pod("u", "x").to_string()).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND, "a known caller learns the cause");

    // The token is in no output, also not at the log level debug.
    let outputs = [
        server.stderr.all().join("\n"),
        server.stdout.all().join("\n"),
        server.details().await,
        server.get("/metrics").await.text,
        unknown.text,
    ];
    for output in outputs {
        assert!(!output.contains(OLD), "{output}");
    }
}

#[tokio::test]
async fn no_request_is_lost_in_a_rotation_of_tokens() {
    let guarded = Guarded::start().await;
    // 0: webhooks send the old token; 1: the new one; 2: the end.
    let (phase, answered) = (AtomicU32::new(0), AtomicU32::new(0));
    let asking = async {
        loop {
            let token = match phase.load(Ordering::Relaxed) {
                0 => OLD,
                1 => NEW,
                _ => return,
            };
            assert_eq!(guarded.status(token).await, StatusCode::OK, "after {answered:?} answers");
            answered.fetch_add(1, Ordering::Relaxed);
        }
    };
    let rotating = async {
        assert_eq!(guarded.status(NEW).await, StatusCode::UNAUTHORIZED);
        replace(&guarded.tokens, &format!("{OLD}\n{NEW}\n"));
        guarded.until_status(NEW, StatusCode::OK).await;
        phase.store(1, Ordering::Relaxed);
        replace(&guarded.tokens, &format!("{NEW}\n{OLD}\n"));
        let replaced = "replaced, because its file has changed";
        guarded.server.until("the new order", async || guarded.server.events(replaced).len() == 2).await;
        // API servers that do not know the new webhook yet still send the old token.
        assert_eq!(guarded.status(OLD).await, StatusCode::OK);
        replace(&guarded.tokens, &format!("{NEW}\n"));
        guarded.until_status(OLD, StatusCode::UNAUTHORIZED).await;
        phase.store(2, Ordering::Relaxed);
    };
    tokio::join!(asking, rotating);
    assert!(answered.load(Ordering::Relaxed) > 10, "{answered:?} answers");
}

#[tokio::test]
async fn a_token_file_that_cannot_be_used_keeps_the_last_tokens_and_accepts_no_others() {
    let guarded = Guarded::start().await;
    let refused = async |change: &dyn Fn()| {
        let warnings = || guarded.server.events("new content of its file refused, the old one stays").len();
        let before = warnings();
        change();
        guarded.server.until("a warning", async || warnings() > before).await;
        assert_eq!(guarded.status(OLD).await, StatusCode::OK);
        assert_eq!(guarded.status(NEW).await, StatusCode::UNAUTHORIZED);
        // A valid content ends the state in which no other warning is written.
        replace(&guarded.tokens, &format!("{OLD}\n{NEW}\n"));
        guarded.until_status(NEW, StatusCode::OK).await;
        replace(&guarded.tokens, &format!("{OLD}\n"));
        guarded.until_status(NEW, StatusCode::UNAUTHORIZED).await;
    };
    for content in ["", "short\n", "0123456789abcdef/../../validate/x\n"] {
        refused(&|| replace(&guarded.tokens, content)).await;
    }
    refused(&|| std::fs::remove_file(&guarded.tokens).unwrap()).await;
    let log = guarded.server.stderr.all().join("\n");
    assert!(!log.contains("0123456789abcdef"), "{log}");
}
