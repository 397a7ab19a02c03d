//! Modules over HTTPS and from registries, and limits for hostile servers: redirects, size and time.
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Request;
use hyper::body::Incoming;
use proviso_artifacts::{Digest, FetchError, FetchOptions, MAX_MODULE, TenantLimits};

use crate::support::{Server, broken, endless, ok, redirect, status, with};

const MODULE: &[u8] = b"\0asm module";

#[tokio::test]
async fn a_module_over_https_must_have_the_requested_digest() {
    let server = Server::https(|request| match request.uri().to_string().as_str() {
        "/a.wasm?v=1" => ok(MODULE),
        _ => status(404),
    })
    .await;
    let digest = Some(Digest::of(MODULE));
    let module = server.fetch("a.wasm?v=1", FetchOptions { digest, ..FetchOptions::default() }).await.unwrap();
    assert_eq!((&module.bytes[..], Some(module.digest)), (MODULE, digest));

    let other = Some(Digest::of(b"other"));
    let error =
        server.fetch("a.wasm?v=1", FetchOptions { digest: other, ..FetchOptions::default() }).await.unwrap_err();
    assert!(matches!(error, FetchError::Digest { .. }) && error.reason().as_str() == "VerificationError", "{error}");
    let error = server.fetch("a.wasm?v=1", FetchOptions { pin: other, ..FetchOptions::default() }).await.unwrap_err();
    assert!(matches!(error, FetchError::Moved { .. }) && error.reason().as_str() == "VerificationError", "{error}");
    let error = server.refuse("b.wasm").await;
    assert!(matches!(error, FetchError::NotFound { may_appear: true, .. }), "{error}");

    // Without the sources no CA of this server is trusted.
    std::fs::write(server.sources(), "{}").unwrap();
    let error = server.refuse("a.wasm?v=1").await;
    assert!(error.to_string().contains("the TLS handshake failed"), "{error}");
}

#[tokio::test]
async fn an_insecure_source_over_https_accepts_any_certificate_but_needs_tls() {
    let server = Server::https(|_| ok(MODULE)).await;
    std::fs::write(server.sources(), format!("insecureSources: ['{}']", server.address)).unwrap();
    assert!(server.fetch("a.wasm", FetchOptions::default()).await.is_ok());
    let plain = Server::http(|_| ok(MODULE)).await;
    let error = plain.refuse("a.wasm").await;
    assert!(matches!(error, FetchError::Connect { .. }), "{error}");
    assert_eq!(plain.seen(), [""; 0], "a request for an https URL was repeated over plain HTTP");
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
    assert!(server.fetch("folder/first", FetchOptions::default()).await.is_ok());
    assert_eq!(server.seen(), ["/folder/first -", "/folder/second -", "/third?token=t -"]);
    let error = server.refuse("loop").await;
    assert!(matches!(error, FetchError::Redirect { .. }) && !error.is_transient(), "{error}");
    assert_eq!(server.seen().len(), 3 + 6, "the client follows five redirects");
}

#[tokio::test]
async fn a_fetch_for_a_namespaced_policy_does_not_connect_to_internal_addresses() {
    fn tenant(limits: &TenantLimits) -> FetchOptions<'_> {
        FetchOptions { tenant: Some(limits), ..FetchOptions::default() }
    }
    let internal = Server::https(|_| ok(MODULE)).await;
    let to = format!("https://{}/a.wasm", internal.address);
    let server = Server::https(move |_| redirect(&to)).await;
    // `server` is in the sources, so that an administrator has configured it. The target of its redirect is not.
    let limits = TenantLimits::default();
    let error = server.fetch("a.wasm", tenant(&limits)).await.unwrap_err();
    assert!(error.to_string().contains("it has the address 127.0.0.1"), "{error}");
    assert_eq!(error.category(), "its server does not return it");
    assert_eq!((server.seen().len(), internal.seen().len()), (1, 0));
    let other = server.fetch(&format!("https://{}/a.wasm", internal.address), tenant(&limits)).await.unwrap_err();
    assert_eq!(other.category(), error.category());
    let image = format!("registry://{}/a:v1", internal.address);
    let refused = server.fetch(&image, tenant(&limits)).await.unwrap_err();
    assert!(refused.to_string().contains("it has the address 127.0.0.1"), "{refused}");

    // With the server in `namespacedRegistries`, only its unknown certificate is refused.
    let listed = TenantLimits { private_servers: vec![internal.address.parse().unwrap()], ..TenantLimits::default() };
    let error = server.fetch("a.wasm", tenant(&listed)).await.unwrap_err();
    assert!(error.to_string().contains("the TLS handshake failed"), "{error}");
}

#[tokio::test]
async fn a_redirect_to_a_refused_address_or_scheme_is_refused() {
    for (to, wanted) in [
        ("https://169.254.169.254/latest/meta-data?token=t", "169.254.169.254"),
        ("https://[::ffff:169.254.169.254]/", "169.254.169.254"),
        ("https://[fe80::1]/", "fe80::1"),
        ("https://0x7f.0.0.1.0/", "it is not a URL"),
        ("https://0.0.0.0:1/", "0.0.0.0"),
        ("http://127.0.0.1:1/a.wasm?token=t", "it is plain HTTP, and the request began with HTTPS"),
        ("file:///etc/passwd", "it is not an https URL"),
        ("gopher://127.0.0.1/", "it is not an https URL"),
    ] {
        let server = Server::https(move |_| redirect(to)).await;
        let error = server.refuse("a.wasm").await;
        assert!(error.to_string().contains(wanted), "{to}: {error}");
        assert!(!error.is_transient() && error.reason().as_str() == "PullError", "{to}: {error}");
        assert!(!error.to_string().contains("token"), "{error}");
    }
    // The same limits apply to the reference itself.
    let server = Server::https(|_| ok(MODULE)).await;
    for reference in [
        "https://169.254.169.254/a.wasm",
        "https://2852039166/a.wasm",
        "registry://169.254.169.254/a:v1",
        "registry://[fe80::1]:5000/a:v1",
    ] {
        let error = server.refuse(reference).await;
        assert!(error.to_string().contains("link-local") && !error.is_transient(), "{reference}: {error}");
    }
}

#[tokio::test]
async fn a_body_above_the_size_limit_is_refused() {
    let server = Server::https(|request| match request.uri().path() {
        "/endless" => endless(1 << 20, Duration::ZERO),
        _ => with(endless(1, Duration::from_mins(1)), "content-length", &(MAX_MODULE + 1).to_string()),
    })
    .await;
    for path in ["endless", "announced"] {
        let error = server.refuse(path).await;
        assert!(matches!(error, FetchError::TooLarge { limit: MAX_MODULE, .. }), "{path}: {error}");
        assert!(error.to_string().contains(&server.address) && !error.is_transient(), "{error}");
    }
}

#[tokio::test]
async fn a_fetch_from_a_slow_server_times_out() {
    let server = Server::https(|request| match request.uri().path() {
        "/slow" => endless(1, Duration::from_millis(5)),
        _ => endless(1, Duration::from_hours(1)),
    })
    .await;
    // This server accepts connections and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("https://{}/a.wasm", silent.local_addr().unwrap());
    for reference in ["slow", "stalled", &silent] {
        let start = Instant::now();
        let fetcher = server.fetcher().with_timeout(Duration::from_millis(300));
        let error = fetcher.fetch(&server.reference(reference), FetchOptions::default()).await.unwrap_err();
        assert!(matches!(error, FetchError::Timeout { .. }) && error.is_transient(), "{reference}: {error}");
        assert!(error.to_string().contains("within 0.3 s"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10), "{reference}: {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn errors_are_transient_or_permanent_by_their_status() {
    let server = Server::https(|request| match request.uri().path().trim_start_matches('/') {
        "broken" => broken(),
        code => status(code.parse().unwrap()),
    })
    .await;
    for (path, is_transient, wanted) in [
        ("429", true, "429 Too Many Requests: the rate limit is reached"),
        ("500", true, "500 Internal Server Error"),
        ("503", true, "check that server"),
        ("408", true, "408"),
        ("401", true, "401 Unauthorized and wants credentials"),
        ("403", true, "403 Forbidden and wants credentials"),
        ("400", false, "check that this is the right address"),
        ("410", false, "410 Gone"),
        ("204", false, "204 No Content"),
        ("304", false, "304 Not Modified"),
        ("broken", true, "broke off"),
    ] {
        let error = server.refuse(path).await;
        assert!(error.to_string().contains(wanted), "{path}: {error}");
        assert!(error.to_string().contains(&server.address), "{path}: {error}");
        assert_eq!((error.is_transient(), error.reason().as_str()), (is_transient, "PullError"), "{path}: {error}");
    }
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for reference in [format!("https://{closed}/a.wasm"), "https://nowhere.invalid/a.wasm".to_owned()] {
        let error = server.refuse(&reference).await;
        assert!(matches!(error, FetchError::Connect { .. }) && error.is_transient(), "{error}");
    }
}

/// Returns the manifest of a module.
fn manifest(module: &[u8]) -> String {
    let (kind, digest) = ("application/vnd.wasm.content.layer.v1+wasm", Digest::of(module));
    format!(r#"{{"layers": [{{"mediaType": "{kind}", "digest": "{digest}", "size": {}}}]}}"#, module.len())
}

fn authorization(request: &Request<Incoming>) -> &str {
    request.headers().get("authorization").map_or("", |value| value.to_str().unwrap())
}

/// Starts a registry that is its own token server: it gives `t-ann` to the user ann, and `t-anyone` without credentials.
async fn registry_with_tokens(repository: &'static str) -> Server {
    let address = Arc::new(std::sync::OnceLock::<String>::new());
    let own = Arc::clone(&address);
    let server = Server::http(move |request| {
        let path = request.uri().path();
        let required = if repository == "private" { "Bearer t-ann" } else { "Bearer t-anyone" };
        let challenge = format!(
            r#"Bearer realm="http://{}/token?x=1",service="registry",scope="repository:{repository}:pull""#,
            own.get().unwrap()
        );
        match (path, authorization(request)) {
            ("/token", "Basic YW5uOnA=") => ok(r#"{"token": "t-ann"}"#),
            ("/token", "") => ok(r#"{"access_token": "t-anyone"}"#),
            ("/token", _) => status(401),
            (_, value) if value != required => with(status(401), "www-authenticate", &challenge),
            (path, _) if path.contains("/manifests/") => ok(manifest(MODULE)),
            _ => ok(MODULE),
        }
    })
    .await;
    address.set(server.address.clone()).unwrap();
    server
}

#[tokio::test]
async fn a_registry_receives_the_token_that_it_requests() {
    let server = registry_with_tokens("public").await;
    let reference = format!("registry://{}/public:v1", server.address);
    assert_eq!(server.fetch(&reference, FetchOptions::default()).await.unwrap().bytes, MODULE);
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
    assert_eq!(server.fetch(&reference, FetchOptions::default()).await.unwrap().bytes, MODULE);
}

#[tokio::test]
async fn a_token_server_has_the_limits_of_any_other_server() {
    for (realm, wanted) in [
        ("https://169.254.169.254/token", "link-local"),
        ("http://127.0.0.1:1/token", "127.0.0.1:1 speaks plain HTTP"),
        ("token", "sent a challenge that is not understood: \"token\" is not a URL"),
        ("data:token", "\"data:token\" is not a URL"),
    ] {
        let challenge = format!(r#"Bearer realm="{realm}""#);
        let server = Server::http(move |_| with(status(401), "www-authenticate", &challenge)).await;
        server.write_secret(&server.address);
        let error = server.refuse(&format!("registry://{}/a:v1", server.address)).await;
        assert!(error.to_string().contains(wanted), "{realm}: {error}");
    }
    // Token servers whose response has no valid token.
    for (answer, wanted) in [
        ("{}", "it has neither `token` nor `access_token`"),
        ("<html>", "it is not JSON"),
        (r#"{"token": "\n"}"#, "characters that are not allowed in a header"),
    ] {
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
        assert!(error.to_string().contains(wanted) && !error.is_transient(), "{answer}: {error}");
    }
}

#[tokio::test]
async fn credentials_go_to_the_registry_and_not_to_redirect_targets() {
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
    let module = server.fetch(&format!("registry://{}/a:v1", server.address), FetchOptions::default()).await.unwrap();
    assert_eq!(module.bytes, MODULE);
    assert_eq!(storage.seen(), ["/storage -"]);
    assert!(server.seen().iter().any(|seen| seen.ends_with("Basic YW5uOnA=")), "{:?}", server.seen());

    // A redirect target that requests credentials gets none.
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
async fn content_with_another_digest_than_requested_is_refused() {
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
        assert!(error.to_string().contains(what) && !error.is_transient(), "{error}");
    }
}
