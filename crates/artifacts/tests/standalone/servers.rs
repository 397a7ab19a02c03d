//! Modules over HTTPS, and servers that do not mean well: where they lead, how much they send, how long they take.
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Request;
use hyper::body::Incoming;
use proviso_artifacts::{Digest, FetchError, MAX_MODULE, Wanted};

use crate::support::{Server, broken, endless, ok, redirect, status, with};

const MODULE: &[u8] = b"\0asm module";

#[tokio::test]
async fn a_module_comes_over_https_and_is_the_one_that_was_asked_for() {
    let server = Server::https(|request| match request.uri().to_string().as_str() {
        "/a.wasm?v=1" => ok(MODULE),
        _ => status(404),
    })
    .await;
    let digest = Some(Digest::of(MODULE));
    let module = server.fetch("a.wasm?v=1", Wanted { digest, ..Wanted::default() }).await.unwrap();
    assert_eq!((&module.bytes[..], Some(module.digest)), (MODULE, digest));

    let other = Some(Digest::of(b"other"));
    let error = server.fetch("a.wasm?v=1", Wanted { digest: other, ..Wanted::default() }).await.unwrap_err();
    assert!(matches!(error, FetchError::Digest { .. }) && error.reason().as_str() == "VerificationError", "{error}");
    let error = server.fetch("a.wasm?v=1", Wanted { pin: other, ..Wanted::default() }).await.unwrap_err();
    assert!(matches!(error, FetchError::Moved { .. }) && error.reason().as_str() == "VerificationError", "{error}");
    let error = server.refuse("b.wasm").await;
    assert!(matches!(error, FetchError::NotFound { may_come: true, .. }), "{error}");

    // The authority is known for this server only.
    std::fs::write(server.sources(), "{}").unwrap();
    let error = server.refuse("a.wasm?v=1").await;
    assert!(error.to_string().contains("TLS does not come about"), "{error}");
}

#[tokio::test]
async fn an_insecure_source_of_https_needs_no_certificate_that_is_known_and_still_speaks_tls() {
    let server = Server::https(|_| ok(MODULE)).await;
    std::fs::write(server.sources(), format!("insecureSources: ['{}']", server.address)).unwrap();
    assert!(server.fetch("a.wasm", Wanted::default()).await.is_ok());
    let plain = Server::http(|_| ok(MODULE)).await;
    let error = plain.refuse("a.wasm").await;
    assert!(matches!(error, FetchError::Connect { .. }), "{error}");
    assert_eq!(plain.seen(), [""; 0], "what was asked for over HTTPS is never asked for without");
}

#[tokio::test]
async fn redirects_are_followed_within_https() {
    let server = Server::https(|request| match request.uri().path() {
        "/folder/first" => redirect("second"),
        "/folder/second" => redirect("/third?token=t"),
        "/third" => ok(MODULE),
        _ => redirect("/loop"),
    })
    .await;
    assert!(server.fetch("folder/first", Wanted::default()).await.is_ok());
    assert_eq!(server.seen(), ["/folder/first -", "/folder/second -", "/third?token=t -"]);
    let error = server.refuse("loop").await;
    assert!(matches!(error, FetchError::Redirect { .. }) && !error.is_passing(), "{error}");
    assert_eq!(server.seen().len(), 3 + 6, "five redirects and no more");
}

#[tokio::test]
async fn a_redirect_to_where_no_module_comes_from_is_refused() {
    for (to, wanted) in [
        ("https://169.254.169.254/latest/meta-data?token=t", "169.254.169.254"),
        ("https://[::ffff:169.254.169.254]/", "169.254.169.254"),
        ("https://[fe80::1]/", "fe80::1"),
        ("https://0x7f.0.0.1.0/", "it is no URL"),
        ("https://0.0.0.0:1/", "0.0.0.0"),
        ("http://127.0.0.1:1/a.wasm?token=t", "it is plain HTTP, and this began with HTTPS"),
        ("file:///etc/passwd", "it is not https"),
        ("gopher://127.0.0.1/", "it is not https"),
    ] {
        let server = Server::https(move |_| redirect(to)).await;
        let error = server.refuse("a.wasm").await;
        assert!(error.to_string().contains(wanted), "{to}: {error}");
        assert!(!error.is_passing() && error.reason().as_str() == "PullError", "{to}: {error}");
        assert!(!error.to_string().contains("token"), "{error}");
    }
    // Nor does the reference itself lead there.
    let server = Server::https(|_| ok(MODULE)).await;
    for reference in [
        "https://169.254.169.254/a.wasm",
        "https://2852039166/a.wasm",
        "registry://169.254.169.254/a:v1",
        "registry://[fe80::1]:5000/a:v1",
    ] {
        let error = server.refuse(reference).await;
        assert!(error.to_string().contains("link-local") && !error.is_passing(), "{reference}: {error}");
    }
}

#[tokio::test]
async fn a_body_without_an_end_is_cut_off_at_the_limit() {
    let server = Server::https(|request| match request.uri().path() {
        "/endless" => endless(1 << 20, Duration::ZERO),
        _ => with(endless(1, Duration::from_mins(1)), "content-length", &(MAX_MODULE + 1).to_string()),
    })
    .await;
    for path in ["endless", "announced"] {
        let error = server.refuse(path).await;
        assert!(matches!(error, FetchError::TooLarge { limit: MAX_MODULE, .. }), "{path}: {error}");
        assert!(error.to_string().contains(&server.address) && !error.is_passing(), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_takes_too_long_is_not_waited_for() {
    let server = Server::https(|request| match request.uri().path() {
        "/slow" => endless(1, Duration::from_millis(5)),
        _ => endless(1, Duration::from_hours(1)),
    })
    .await;
    // One that takes connections and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("https://{}/a.wasm", silent.local_addr().unwrap());
    for reference in ["slow", "stalled", &silent] {
        let start = Instant::now();
        let fetcher = server.fetcher().within(Duration::from_millis(300));
        let error = fetcher.fetch(&server.reference(reference), Wanted::default()).await.unwrap_err();
        assert!(matches!(error, FetchError::Timeout { .. }) && error.is_passing(), "{reference}: {error}");
        assert!(error.to_string().contains("within 0.3 s"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10), "{reference}: {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn what_may_pass_is_told_from_what_will_not() {
    let server = Server::https(|request| match request.uri().path().trim_start_matches('/') {
        "broken" => broken(),
        code => status(code.parse().unwrap()),
    })
    .await;
    for (path, is_passing, wanted) in [
        ("429", true, "429 Too Many Requests: it is asked too often"),
        ("500", true, "500 Internal Server Error"),
        ("503", true, "look at the server"),
        ("408", true, "408"),
        ("401", true, "401 Unauthorized and wants credentials"),
        ("403", true, "403 Forbidden and wants credentials"),
        ("400", false, "is this the right address?"),
        ("410", false, "410 Gone"),
        ("204", false, "204 No Content"),
        ("304", false, "304 Not Modified"),
        ("broken", true, "broke off"),
    ] {
        let error = server.refuse(path).await;
        assert!(error.to_string().contains(wanted), "{path}: {error}");
        assert!(error.to_string().contains(&server.address), "{path}: {error}");
        assert_eq!((error.is_passing(), error.reason().as_str()), (is_passing, "PullError"), "{path}: {error}");
    }
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for reference in [format!("https://{closed}/a.wasm"), "https://nowhere.invalid/a.wasm".to_owned()] {
        let error = server.refuse(&reference).await;
        assert!(matches!(error, FetchError::Connect { .. }) && error.is_passing(), "{error}");
    }
}

/// A manifest of one module.
fn manifest(module: &[u8]) -> String {
    let (kind, digest) = ("application/vnd.wasm.content.layer.v1+wasm", Digest::of(module));
    format!(r#"{{"layers": [{{"mediaType": "{kind}", "digest": "{digest}", "size": {}}}]}}"#, module.len())
}

fn authorization(request: &Request<Incoming>) -> &str {
    request.headers().get("authorization").map_or("", |value| value.to_str().unwrap())
}

/// A registry that wants tokens, which it hands out itself: `t-ann` to ann, `t-anyone` to anybody.
async fn registry_with_tokens(repository: &'static str) -> Server {
    let address = Arc::new(std::sync::OnceLock::<String>::new());
    let own = Arc::clone(&address);
    let server = Server::http(move |request| {
        let path = request.uri().path();
        let wants = if repository == "private" { "Bearer t-ann" } else { "Bearer t-anyone" };
        let challenge = format!(
            r#"Bearer realm="http://{}/token?x=1",service="registry",scope="repository:{repository}:pull""#,
            own.get().unwrap()
        );
        match (path, authorization(request)) {
            ("/token", "Basic YW5uOnA=") => ok(r#"{"token": "t-ann"}"#),
            ("/token", "") => ok(r#"{"access_token": "t-anyone"}"#),
            ("/token", _) => status(401),
            (_, shown) if shown != wants => with(status(401), "www-authenticate", &challenge),
            (path, _) if path.contains("/manifests/") => ok(manifest(MODULE)),
            _ => ok(MODULE),
        }
    })
    .await;
    address.set(server.address.clone()).unwrap();
    server
}

#[tokio::test]
async fn a_registry_gets_the_token_that_it_asks_for() {
    let server = registry_with_tokens("public").await;
    let reference = format!("registry://{}/public:v1", server.address);
    assert_eq!(server.fetch(&reference, Wanted::default()).await.unwrap().bytes, MODULE);
    let blob = Digest::of(MODULE);
    assert_eq!(
        server.seen(),
        [
            "/v2/public/manifests/v1 -".to_owned(),
            "/token?x=1&service=registry&scope=repository%3Apublic%3Apull -".to_owned(),
            "/v2/public/manifests/v1 Bearer t-anyone".to_owned(),
            format!("/v2/public/blobs/{blob} Bearer t-anyone"),
        ]
    );

    let server = registry_with_tokens("private").await;
    let reference = format!("registry://{}/private:v1", server.address);
    let error = server.refuse(&reference).await;
    assert!(error.to_string().contains("401 Unauthorized and wants credentials"), "{error}");
    server.write_secret(&server.address);
    assert_eq!(server.fetch(&reference, Wanted::default()).await.unwrap().bytes, MODULE);
}

#[tokio::test]
async fn a_place_of_tokens_is_trusted_no_more_than_any_other_server() {
    for (realm, wanted) in [
        ("https://169.254.169.254/token", "link-local"),
        ("http://127.0.0.1:1/token", "127.0.0.1:1 speaks plain HTTP"),
        ("token", "sent a challenge that is not understood: \"token\" is no URL"),
        ("data:token", "\"data:token\" is no URL"),
    ] {
        let challenge = format!(r#"Bearer realm="{realm}""#);
        let server = Server::http(move |_| with(status(401), "www-authenticate", &challenge)).await;
        server.write_secret(&server.address);
        let error = server.refuse(&format!("registry://{}/a:v1", server.address)).await;
        assert!(error.to_string().contains(wanted), "{realm}: {error}");
    }
    // One that sends no token.
    for (answer, wanted) in [("{}", "there is none in it"), ("<html>", "it is no JSON"), (r#"{"token": "\n"}"#, "odd")]
    {
        let own = Arc::new(std::sync::OnceLock::<String>::new());
        let address = Arc::clone(&own);
        let server = Server::http(move |request| {
            let challenge = format!(r#"Bearer realm="http://{}/token""#, address.get().unwrap());
            let is_token = request.uri().path() == "/token";
            if is_token { ok(answer) } else { with(status(401), "www-authenticate", &challenge) }
        })
        .await;
        own.set(server.address.clone()).unwrap();
        let error = server.refuse(&format!("registry://{}/a:v1", server.address)).await;
        assert!(error.to_string().contains(wanted) && !error.is_passing(), "{answer}: {error}");
    }
}

#[tokio::test]
async fn credentials_are_shown_to_the_registry_and_not_to_where_it_redirects() {
    let storage = Server::http(|_| ok(MODULE)).await;
    let to = format!("http://{}/storage", storage.address);
    let server = Server::http(move |request| match (request.uri().path(), authorization(request)) {
        (_, "") => with(status(401), "www-authenticate", "Basic realm=\"a\""),
        (path, _) if path.contains("/manifests/") => ok(manifest(MODULE)),
        _ => redirect(&to),
    })
    .await;
    server.write_secret(&server.address);
    let sources = format!("insecureSources: ['{}', '{}']", server.address, storage.address);
    std::fs::write(server.sources(), sources).unwrap();
    let module = server.fetch(&format!("registry://{}/a:v1", server.address), Wanted::default()).await.unwrap();
    assert_eq!(module.bytes, MODULE);
    assert_eq!(storage.seen(), ["/storage -"]);
    assert!(server.seen().iter().any(|seen| seen.ends_with("Basic YW5uOnA=")), "{:?}", server.seen());

    // Nor does another server than the registry get any by asking.
    let greedy = Server::http(|_| with(status(401), "www-authenticate", "Basic realm=\"b\"")).await;
    let to = format!("http://{}/", greedy.address);
    let server = Server::http(move |_| redirect(&to)).await;
    server.write_secret(&server.address);
    let sources = format!("insecureSources: ['{}', '{}']", server.address, greedy.address);
    std::fs::write(server.sources(), sources).unwrap();
    let error = server.refuse(&format!("registry://{}/a:v1", server.address)).await;
    assert!(error.to_string().starts_with(&greedy.address), "{error}");
    assert_eq!(greedy.seen(), ["/ -"]);
}

#[tokio::test]
async fn a_registry_that_sends_something_else_than_was_asked_for_is_found_out() {
    let server = Server::http(|request| {
        if request.uri().path().contains("/manifests/") { ok(manifest(MODULE)) } else { ok("\0asm module, and more") }
    })
    .await;
    let by_digest = format!("registry://{}/a@{}", server.address, Digest::of(b"another manifest"));
    let by_tag = format!("registry://{}/a:v1", server.address);
    for (reference, what) in [(&by_digest, "sent a manifest"), (&by_tag, "sent a module")] {
        let error = server.refuse(reference).await;
        assert!(
            matches!(error, FetchError::Corrupt { .. }) && error.reason().as_str() == "VerificationError",
            "{error}"
        );
        assert!(error.to_string().contains(what) && !error.is_passing(), "{error}");
    }
}
