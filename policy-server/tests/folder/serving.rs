//! Tests of answers and connections: modes, mutation, raw requests, keep-alive, shutdown and TLS.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use hyper::StatusCode;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::tls::{Pair, replace};
use crate::support::{
    self, Folder, Server, example, experiment, forbid, manifest, pod, policy, rego, wapc, wasm, with,
};

fn create(name: &str) -> String {
    pod("u", name).to_string()
}

/// Returns the spec with these members in its `admission` section.
fn admitting(spec: Value, admission: &Value) -> Value {
    with(spec, &json!({"admission": admission}))
}

/// Returns the patch of a `response`.
fn patch_of(response: &Value) -> json_patch::Patch {
    assert_eq!(response["patchType"], "JSONPatch", "{response}");
    let bytes = base64::engine::general_purpose::STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

#[tokio::test]
async fn the_mode_monitor_allows_all_requests_and_counts_denials() {
    let folder = Folder::new();
    let noisy = rego("package test\ndeny contains \"no\" if true\nwarn contains \"careful\" if true");
    folder.write("a.json", policy("a", &admitting(noisy, &json!({"mode": "Monitor"}))));
    let server = Server::start(folder, &[]).await;
    let response = server.post("/validate/cluster.a", create("x")).await.response();
    assert_eq!(response, json!({"uid": "u", "allowed": true, "warnings": ["careful"]}));
    assert_eq!(server.count("proviso_evaluations_total", &["cluster.a", "monitored"]).await, 1);
    // `/audit` answers with the verdict of the program.
    let audited = server.post("/audit/cluster.a", create("x")).await;
    assert_eq!((audited.is_allowed(), audited.message()), (false, "no".to_owned()));
}

#[tokio::test]
async fn a_policy_that_changes_an_object_without_mutating_denies() {
    let folder = Folder::new();
    let mut object = pod("u", "x")["request"]["object"].take();
    object["metadata"]["labels"]["owner"] = json!("unknown");
    folder.write("m.wasm", wapc::answering(&json!({"accepted": true, "mutated_object": object})));
    folder.write("may.json", policy("may", &admitting(wasm("m.wasm"), &json!({"mutating": true}))));
    folder.write("may-not.json", policy("may-not", &wasm("m.wasm")));
    let server = Server::start(folder, &[]).await;
    let mut changed = pod("u", "x")["request"]["object"].take();
    json_patch::patch(&mut changed, &patch_of(&server.post("/validate/cluster.may", create("x")).await.response()))
        .unwrap();
    assert_eq!(changed, object);
    assert_eq!(server.count("proviso_evaluations_total", &["cluster.may\"", "mutated"]).await, 1);

    let answer = server.post("/validate/cluster.may-not", create("x")).await;
    let response = answer.response();
    assert_eq!((&response["allowed"], &response["status"]["code"]), (&json!(false), &json!(500)), "{response}");
    assert!(
        answer.message().contains("spec.admission.mutating is false") && response.get("patch").is_none(),
        "{response}"
    );
    let audited = server.post("/audit/cluster.may-not", create("x")).await.response();
    assert_eq!(audited["allowed"], true, "an audit does not fail if the program changes the object: {audited}");
}

#[tokio::test]
async fn a_custom_message_replaces_the_original_which_becomes_a_cause() {
    let folder = Folder::new();
    folder.write(
        "a.json",
        policy("a", &admitting(forbid("true", "label owner is missing"), &json!({"message": "see go/labels"}))),
    );
    let server = Server::start(folder, &[]).await;
    let status = server.post("/validate/cluster.a", create("x")).await.response()["status"].take();
    assert_eq!(
        status,
        json!({"message": "see go/labels", "details": {"causes": [{"message": "label owner is missing"}]}})
    );
    assert_eq!(server.post("/audit/cluster.a", create("x")).await.message(), "label owner is missing");
}

#[tokio::test]
async fn disabled_policies_and_policies_that_do_not_match_are_not_evaluated() {
    let folder = Folder::new();
    let rules = |resource: &str| json!({"rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]}]});
    let trap = || wasm("trap.wasm");
    folder.write("trap.wasm", wapc::executing("unreachable"));
    folder.write("disabled.json", policy("disabled", &with(trap(), &json!({"enabled": false}))));
    folder.write("services.json", policy("services", &admitting(trap(), &rules("services"))));
    folder.write(
        "labels.json",
        policy("labels", &admitting(trap(), &json!({"objectSelector": {"matchLabels": {"app": "db"}}}))),
    );
    folder.write("pods.json", policy("pods", &admitting(forbid("true", "asked"), &rules("pods"))));
    let full: Value = serde_json::from_str(&policy("x", &forbid("true", "asked"))).unwrap();
    for namespace in ["default", "shop"] {
        let mut spec = manifest("Policy", "own", &full["spec"]).parse::<Value>().unwrap();
        spec["metadata"]["namespace"] = json!(namespace);
        folder.write(&format!("{namespace}.json"), spec.to_string());
    }
    let server = Server::start(folder, &[]).await;
    for (name, why) in [
        ("disabled", "spec.enabled is false"),
        ("services", "spec.admission.rules does not cover the request"),
        ("labels", "spec.admission.objectSelector does not cover the request"),
    ] {
        let response = server.post(&format!("/validate/cluster.{name}"), create("x")).await.response();
        assert_eq!(response, json!({"uid": "u", "allowed": true, "auditAnnotations": {"not-asked": why}}), "{name}");
        assert_eq!(server.count("proviso_evaluations_total", &[&format!("cluster.{name}\""), "skipped"]).await, 1);
    }
    assert!(server.details().await.contains("[ ] cluster.disabled generation 1 disabled"));
    assert_eq!(server.post("/validate/cluster.pods", create("x")).await.message(), "asked");
    assert_eq!(server.post("/validate/ns.default.own", create("x")).await.message(), "asked");
    // An enabled policy is evaluated again.
    server.folder.write("disabled.json", policy("disabled", &forbid("true", "asked")));
    server.until_details("[+] cluster.disabled generation 2 live").await;
    assert_eq!(server.post("/validate/cluster.disabled", create("x")).await.message(), "asked");
}

#[tokio::test]
async fn raw_requests_are_evaluated_without_an_admission_review() {
    let folder = Folder::new();
    let mutated = json!({"uid": "known", "user": "ann", "approved": true});
    folder.write("deny.wasm", wapc::answering(&json!({"accepted": false, "message": "no", "code": 418})));
    folder.write("change.wasm", wapc::answering(&json!({"accepted": true, "mutated_object": mutated})));
    folder.write("deny.json", policy("deny", &wasm("deny.wasm")));
    folder.write("change.json", policy("change", &admitting(wasm("change.wasm"), &json!({"mutating": true}))));
    folder.write("rego.json", policy("rego", &forbid(r#"input.request.user != "ann""#, "not ann")));
    let server = Server::start(folder, &[]).await;
    let ask = async |name: &str, request: Value| {
        let answer =
            server.post(&format!("/validate_raw/cluster.{name}"), json!({"request": request}).to_string()).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        answer.text.parse::<Value>().unwrap()
    };
    // The answer has the uid of the request, or an empty uid if the request has none.
    let denial =
        |uid: &str| json!({"response": {"uid": uid, "allowed": false, "status": {"message": "no", "code": 418}}});
    assert_eq!(ask("deny", json!({"uid": "known"})).await, denial("known"));
    for request in [json!({}), json!({"uid": 7}), json!([1]), json!("text"), json!(1.5), json!(true)] {
        assert_eq!(ask("deny", request).await, denial(""));
    }
    assert_eq!(ask("rego", json!({"user": "ann"})).await["response"]["allowed"], true);
    assert_eq!(ask("rego", json!({"user": "bob"})).await["response"]["status"]["message"], "not ann");
    let mut request = json!({"uid": "known", "user": "ann"});
    let patch = patch_of(&ask("change", request.clone()).await["response"]);
    json_patch::patch(&mut request, &patch).unwrap();
    assert_eq!(request, mutated);
}

#[tokio::test]
async fn modules_of_every_mode_are_served() {
    let folder = Folder::new();
    for name in ["service-types", "required-probes", "approved-regions"] {
        folder.write(&format!("{name}.wasm"), std::fs::read(example(&format!("policies/{name}/{name}.wasm"))).unwrap());
        let manifest = std::fs::read_to_string(example(&format!("quickstart/{name}.yaml"))).unwrap();
        folder.write(&format!("{name}.yaml"), manifest.replace(&format!("file://../policies/{name}/"), "file://./"));
    }
    let server = Server::start(folder, &[]).await;
    let service = |r#type: &str| {
        let mut review = pod("u", "shop");
        let request = &mut review["request"];
        request["kind"]["kind"] = json!("Service");
        request["resource"]["resource"] = json!("services");
        request["object"] = json!({"kind": "Service", "metadata": {"name": "shop"}, "spec": {"type": r#type}});
        review.to_string()
    };
    let path = "/validate/cluster.service-types";
    assert_eq!(server.post(path, service("NodePort")).await.response(), json!({"uid": "u", "allowed": true}));
    let message = "a Service of type LoadBalancer is not allowed here, only ClusterIP, NodePort";
    assert_eq!(server.post(path, service("LoadBalancer")).await.message(), message);

    let deployment = std::fs::read_to_string(example("reviews/deployment-create-unlabelled.json")).unwrap();
    let denial = server.post("/validate/cluster.required-probes", deployment).await;
    assert!(denial.message().contains("has no readinessProbe"), "{}", denial.text);

    let ask = async |region: &str| {
        let request = json!({"request": {"uid": "7", "environment": "production", "region": region}});
        server.post("/validate_raw/cluster.approved-regions", request.to_string()).await.response()
    };
    assert_eq!(ask("eu-1").await, json!({"uid": "7", "allowed": true}));
    assert_eq!(ask("us-1").await["status"]["message"], "production runs in eu-1, not in us-1");

    let wrong = json!({"program": {"wasm": {"module": "file://./service-types.wasm", "mode": "wapc"}}});
    server.folder.write("wrong.json", policy("wrong", &wrong));
    server.until_details("spec.program.wasm.mode: `mode` says kubewarden-wapc, which is for a waPC module").await;
}

// In a cluster, the API server evaluates the conditions. Over a folder, the policy server does.
#[tokio::test]
async fn match_conditions_exclude_requests() {
    let folder = Folder::new();
    let about = |expression: &str| {
        admitting(forbid("true", "no"), &json!({"matchConditions": [{"name": "a", "expression": expression}]}))
    };
    folder.write("live.json", policy("live", &about("request.name != 'exempt'")));
    folder.write("next.json", experiment("next", "live", &about("request.name == 'exempt'")));
    folder.write("broken.json", policy("broken", &about("object.spec.replicas > 1")));
    let server = Server::start(folder, &[]).await;
    let ask = async |name: &str, policy: &str| {
        server.post(&format!("/validate/cluster.{policy}"), pod(name, name).to_string()).await
    };
    assert!(ask("exempt", "live").await.is_allowed());
    assert_eq!(ask("other", "live").await.message(), "no");
    for (uid, divergence) in [("exempt", "NewlyDenied"), ("other", "NewlyAllowed")] {
        server.until(uid, async || server.previews().iter().any(|it| it["request"]["uid"] == uid)).await;
        let lines = server.previews();
        let line = lines.iter().find(|it| it["request"]["uid"] == uid).unwrap();
        assert_eq!(line["divergence"], divergence, "{line}");
    }
    let failed = ask("other", "broken").await;
    assert_eq!(failed.response()["status"]["code"], 500, "a condition that fails denies: {}", failed.text);

    server.folder.write("broken.json", policy("broken", &about("object.")));
    server.until_details("spec.admission.matchConditions[0].expression").await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let folder = Folder::new();
    folder.write("a.json", policy("a", &rego("package test\ndeny contains input.request.name")));
    let server = Server::start(folder, &[]).await;
    let mut stream = TcpStream::connect(&server.listen).await.unwrap();
    let request = |number: u32| {
        let body = pod(&format!("uid-{number}"), &format!("pod-{number}")).to_string();
        let close = if number == 49 { "connection: close\r\n" } else { "" };
        let length = body.len();
        format!("POST /validate/cluster.a HTTP/1.1\r\nhost: a\r\n{close}content-length: {length}\r\n\r\n{body}")
    };
    let requests: Vec<_> = (0..50).map(request).collect();
    stream.write_all(requests.concat().as_bytes()).await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    let found: Vec<_> = support::parse_answers(&answers)
        .iter()
        .map(|answer| (answer.response()["uid"].clone(), json!(answer.message())))
        .collect();
    let wanted: Vec<_> =
        (0..50).map(|number| (json!(format!("uid-{number}")), json!(format!("pod-{number}")))).collect();
    assert_eq!(found, wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_makes_the_server_unready_drains_it_and_exits_with_0() {
    let folder = Folder::new();
    folder.write("fine.json", policy("fine", &forbid("true", "fine")));
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    folder.write("loop.json", policy("loop", &with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 20}))));
    let mut server = Server::start(folder, &["--shutdown-delay", "8s"]).await;
    let before = server.post("/validate/cluster.fine", create("x")).await;
    assert!(!before.headers.contains_key("connection"), "{:?}", before.headers);
    let slow = server.begin("/validate/cluster.loop", create("x")).await;
    let signalled = Instant::now();
    server.signal(Signal::TERM);
    server.until("not ready", async || server.get("/readyz").await.status == StatusCode::SERVICE_UNAVAILABLE).await;
    assert!(server.details().await.contains("readyz check failed: the server is shutting down"));
    for _ in 0..10 {
        let answer = server.post("/validate/cluster.fine", create("x")).await;
        assert_eq!(answer.message(), "fine");
        assert_eq!(answer.headers["connection"], "close");
        assert_eq!(server.get("/livez").await.status, StatusCode::OK);
    }
    // A draining server accepts no new connections, and answers the running requests.
    server.until("the listener's end", async || TcpStream::connect(&server.listen).await.is_err()).await;
    assert!(signalled.elapsed() >= Duration::from_secs(8), "the listener was closed before the delay was over");
    assert!(!slow.is_finished(), "the slow request is still running");
    assert_eq!(server.get("/readyz").await.status, StatusCode::SERVICE_UNAVAILABLE, "probes see the shutdown");
    let slow = slow.await.unwrap();
    assert_eq!(slow.response()["status"]["code"], 500, "{}", slow.text);
    assert_eq!(server.exit_code().await, Some(0), "{:#?}", server.stderr.all());
    assert!(server.event("stopped").is_some());
}

#[tokio::test]
async fn an_idle_connection_does_not_delay_the_shutdown() {
    let folder = Folder::new();
    folder.write("fine.json", policy("fine", &forbid("true", "fine")));
    let mut server = Server::start(folder, &["--shutdown-delay", "0s"]).await;
    let mut idle = TcpStream::connect(&server.listen).await.unwrap();
    let body = create("x");
    let request =
        format!("POST /validate/cluster.fine HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    idle.write_all(request.as_bytes()).await.unwrap();
    assert!(idle.read(&mut [0; 4096]).await.unwrap() > 0);
    let signalled = Instant::now();
    server.signal(Signal::TERM);
    assert_eq!(server.exit_code().await, Some(0));
    // If the server waited for the client, the shutdown would take 35 s.
    assert!(signalled.elapsed() < Duration::from_secs(25), "{:?}", signalled.elapsed());
    // The client may be sending a request now: it is told to repeat it.
    let mut rest = String::new();
    idle.read_to_string(&mut rest).await.unwrap();
    assert!(rest.starts_with("HTTP/1.1 503") && rest.contains("retry-after: 1"), "{rest}");
}

/// Starts a server with TLS. The certificate and the key are in the folder `tls` beside the manifests.
async fn server_with(pair: &Pair) -> Server {
    let folder = Folder::new();
    let tls = folder.root().join("tls");
    std::fs::create_dir(&tls).unwrap();
    pair.write(&tls);
    folder.write("fine.json", policy("fine", &forbid("true", "fine")));
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    folder.write("loop.json", policy("loop", &with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 10}))));
    let (cert, key) = (tls.join("tls.crt"), tls.join("tls.key"));
    let arguments = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    Server::start(folder, &arguments).await
}

#[tokio::test]
async fn tls_is_served_over_http_1_and_2_and_plain_http_is_refused() {
    let pair = Pair::new();
    let server = server_with(&pair).await;
    for protocol in ["http/1.1", "h2"] {
        let answer = pair.post(&server.listen, protocol, "/validate/cluster.fine", create("x")).await.unwrap();
        assert_eq!(answer.message(), "fine", "{protocol}");
    }
    assert_eq!(server.count("proviso_tls_pair_valid", &[]).await, 1);
    assert!(Pair::new().connect(&server.listen, "h2").await.is_err(), "a client that trusts another certificate");
    let mut plain = TcpStream::connect(&server.listen).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_policy_does_not_delay_others_on_the_same_http_2_connection() {
    use http_body_util::{BodyExt as _, Full};
    let pair = Pair::new();
    let server = server_with(&pair).await;
    let stream = hyper_util::rt::TokioIo::new(pair.connect(&server.listen, "h2").await.unwrap());
    let executor = hyper_util::rt::TokioExecutor::new();
    let (sender, driver) = hyper::client::conn::http2::handshake(executor, stream).await.unwrap();
    tokio::spawn(driver);
    let ask = |name: &str| {
        let mut sender = sender.clone();
        let request = hyper::Request::post(format!("https://localhost/validate/cluster.{name}"));
        let request = request.body(Full::new(bytes::Bytes::from(create("x")))).unwrap();
        async move {
            let response = sender.send_request(request).await.unwrap();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            serde_json::from_slice::<Value>(&body).unwrap()["response"].take()
        }
    };
    let slow = tokio::spawn(ask("loop"));
    for _ in 0..20 {
        assert_eq!(ask("fine").await["status"]["message"], "fine");
    }
    assert!(!slow.is_finished());
    assert_eq!(slow.await.unwrap()["status"]["code"], 500);
}

#[tokio::test]
async fn a_new_certificate_is_used_and_an_invalid_pair_is_refused() {
    let (first, second, third) = (Pair::new(), Pair::new(), Pair::new());
    let server = server_with(&first).await;
    let tls = server.folder.root().join("tls");
    let shows =
        async |pair: &Pair| pair.post(&server.listen, "h2", "/validate/cluster.fine", create("x")).await.is_ok();
    let valid = async || server.count("proviso_tls_pair_valid", &[]).await;
    assert!(shows(&first).await);
    // An established connection keeps its certificate.
    let mut established = first.connect(&server.listen, "http/1.1").await.unwrap();
    second.write(&tls);
    server.until("the second certificate", async || shows(&second).await).await;
    assert!(!shows(&first).await);
    let body = create("x");
    let request = format!(
        "POST /validate/cluster.fine HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    established.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    established.read_to_string(&mut answer).await.unwrap();
    assert_eq!(support::parse_answer(&answer).message(), "fine");

    for (what, file, content) in [
        ("a key of another certificate", "tls.key", third.key.as_str()),
        ("half a certificate", "tls.crt", &second.cert[..second.cert.len() / 2]),
        ("an empty certificate", "tls.crt", ""),
        ("no key", "tls.key", "no key"),
    ] {
        replace(&tls.join(file), content);
        server.until(what, async || valid().await == 0).await;
        assert!(shows(&second).await, "{what}");
        second.write(&tls);
        server.until("the restored pair", async || valid().await == 1).await;
    }
    std::fs::remove_file(tls.join("tls.crt")).unwrap();
    server.until("the missing certificate", async || valid().await == 0).await;
    assert!(shows(&second).await);
    assert!(server.event("new certificate refused, the old one stays").is_some());
    third.write(&tls);
    server.until("the third certificate", async || shows(&third).await).await;
    assert_eq!(valid().await, 1);
}

/// Returns the time since the Unix epoch.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

fn ago(time: Duration) -> Duration {
    now().saturating_sub(time)
}

#[tokio::test]
async fn a_certificate_that_is_not_valid_now_does_not_replace_a_valid_one() {
    let hour = Duration::from_hours(1);
    let first = Pair::new();
    let server = server_with(&first).await;
    let tls = server.folder.root().join("tls");
    let shows =
        async |pair: &Pair| pair.post(&server.listen, "h2", "/validate/cluster.fine", create("x")).await.is_ok();
    let valid = async || server.count("proviso_tls_pair_valid", &[]).await;
    let refusals = || server.events("new certificate refused, the old one stays");

    let expired = Pair::valid_between(ago(2 * hour), ago(hour));
    expired.write(&tls);
    server.until("the refusal", async || refusals().iter().any(|it| it["error"].to_string().contains("expired"))).await;
    server.until("the metric", async || valid().await == 0).await;
    assert!(shows(&first).await);

    // A certificate that is not valid yet is used when its time has come, although the files do not change again.
    let next = Pair::valid_between(now() + Duration::from_secs(12), now() + hour);
    next.write(&tls);
    let is_early = |it: &Value| it["error"].to_string().contains("its notBefore is");
    server.until("the refusal", async || refusals().iter().any(is_early)).await;
    assert!(shows(&first).await);
    server.until("the next certificate", async || shows(&next).await).await;
    server.until("the metric", async || valid().await == 1).await;
    // The log has each refusal once, and not at every poll: of both pairs, and perhaps of half of each.
    assert!(refusals().len() <= 4, "{:#?}", refusals());
}

#[tokio::test]
async fn a_server_whose_certificate_is_not_valid_starts_and_reports_it() {
    let hour = Duration::from_hours(1);
    for (pair, cause) in [
        (Pair::valid_between(ago(2 * hour), ago(hour)), "its notAfter is"),
        (Pair::valid_between(now() + hour, now() + 2 * hour), "its notBefore is"),
    ] {
        let server = server_with(&pair).await;
        assert_eq!(server.count("proviso_tls_pair_valid", &[]).await, 0, "{cause}");
        let logged = server.event("clients refuse the certificate in use").unwrap();
        assert!(logged["error"].to_string().contains(cause), "{logged}");
        // Another pair is used at once.
        let renewed = Pair::new();
        renewed.write(&server.folder.root().join("tls"));
        let answers = async || renewed.post(&server.listen, "h2", "/validate/cluster.fine", create("x")).await.is_ok();
        server.until("the renewed certificate", answers).await;
        server.until("the metric", async || server.count("proviso_tls_pair_valid", &[]).await == 1).await;
    }
}

#[tokio::test]
async fn a_certificate_that_expires_in_use_is_reported() {
    let pair = Pair::valid_between(ago(Duration::from_hours(1)), now() + Duration::from_secs(4));
    let server = server_with(&pair).await;
    server.until("the metric", async || server.count("proviso_tls_pair_valid", &[]).await == 0).await;
    let logged = || server.event("clients refuse the certificate in use");
    server.until("the log line", async || logged().is_some()).await;
    let logged = logged().unwrap();
    assert!(logged["error"].to_string().contains("its notAfter is"), "{logged}");
}

#[tokio::test(flavor = "multi_thread")]
async fn constantly_changing_certificates_break_no_handshake() {
    let pairs: Vec<Pair> = (0..6).map(|_| Pair::new()).collect();
    let server = server_with(&pairs[0]).await;
    let tls = server.folder.root().join("tls");
    let (asked, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let post = async |pairs: &[Pair], protocol: &str| {
        Pair::post_to_any(pairs, &server.listen, protocol, "/validate/cluster.fine", create("x")).await
    };
    // Each request uses a new connection.
    let ask = async |protocol: &str| {
        while !is_over.load(Ordering::Relaxed) {
            let answer = post(&pairs, protocol).await.unwrap_or_else(|error| panic!("{protocol}: {error:#}"));
            assert_eq!(answer.message(), "fine");
            asked.fetch_add(1, Ordering::Relaxed);
        }
    };
    // The pair changes at each poll of the server. At first, each new certificate is half-written or does not fit the old key.
    let rotate = async {
        let mut number = 0;
        while number < pairs.len() || asked.load(Ordering::Relaxed) <= 100 {
            let old = std::slice::from_ref(&pairs[number % pairs.len()]);
            number += 1;
            let pair = &pairs[number % pairs.len()];
            let half = if number % 2 == 0 { pair.cert.len() / 2 } else { pair.cert.len() };
            std::fs::write(tls.join("tls.crt"), &pair.cert[..half]).unwrap();
            server.until("half a pair", async || server.count("proviso_tls_pair_valid", &[]).await == 0).await;
            assert!(post(old, "h2").await.is_ok(), "the old one stays");
            std::fs::write(tls.join("tls.crt"), &pair.cert).unwrap();
            std::fs::write(tls.join("tls.key"), &pair.key).unwrap();
            server.until("the new pair", async || post(std::slice::from_ref(pair), "h2").await.is_ok()).await;
        }
        is_over.store(true, Ordering::Relaxed);
    };
    tokio::join!(rotate, ask("http/1.1"), ask("h2"), ask("h2"));
}

#[tokio::test]
async fn clients_that_do_not_speak_tls_do_not_delay_others() {
    let pair = Pair::new();
    let server = server_with(&pair).await;
    let mut silent_clients = Vec::new();
    for number in 0..100 {
        let mut stream = TcpStream::connect(&server.listen).await.unwrap();
        if number % 2 == 0 {
            // The first bytes of a TLS record.
            stream.write_all(b"\x16\x03\x01").await.unwrap();
        }
        silent_clients.push(stream);
    }
    for _ in 0..10 {
        let answer = pair.post(&server.listen, "h2", "/validate/cluster.fine", create("x")).await.unwrap();
        assert_eq!(answer.message(), "fine");
    }
    for mut stream in silent_clients {
        let mut rest = Vec::new();
        let closing = stream.read_to_end(&mut rest);
        let _ = tokio::time::timeout(support::WAIT_TIMEOUT, closing)
            .await
            .expect("closed at the deadline of the handshake");
    }
}

#[tokio::test]
async fn the_safe_defaults_example_patches_a_pod_once() {
    let folder = Folder::new();
    let module = support::example("policies/safe-defaults/safe-defaults.wasm");
    std::fs::copy(module, folder.manifests().join("m.wasm")).unwrap();
    let settings = json!({"settings": {"labels": {"proviso.dev/safe-defaults": "v1"}}});
    folder.write("safe.json", policy("safe", &admitting(with(wasm("m.wasm"), &settings), &json!({"mutating": true}))));
    let server = Server::start(folder, &[]).await;
    let recorded = std::fs::read_to_string(support::example("reviews/pod-create.json")).unwrap();
    let response = server.post("/validate/cluster.safe", recorded.clone()).await.response();
    assert_eq!(response["allowed"], true);
    let mut review: Value = recorded.parse().unwrap();
    let before = review["request"]["object"].take();
    let mut after = before.clone();
    json_patch::patch(&mut after, &patch_of(&response)).unwrap();
    assert_eq!(after["metadata"]["labels"]["proviso.dev/safe-defaults"], "v1");
    assert_eq!(after["metadata"]["labels"]["owner"], before["metadata"]["labels"]["owner"], "what was there stays");
    assert_eq!(after["spec"]["securityContext"]["runAsNonRoot"], true, "{after:#}");
    assert_eq!(after["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"], false, "{after:#}");
    // The policy has nothing to change in its own result.
    review["request"]["object"] = after;
    let again = server.post("/validate/cluster.safe", review.to_string()).await.response();
    assert_eq!((&again["allowed"], again.get("patch")), (&json!(true), None), "{again}");
}

#[tokio::test]
async fn denials_are_logged_with_object_and_user_in_every_mode() {
    let folder = Folder::new();
    folder.write("deny.json", policy("deny", &forbid("true", "no")));
    folder.write("monitor.json", policy("monitor", &admitting(forbid("true", "no"), &json!({"mode": "Monitor"}))));
    let server = Server::start(folder, &[]).await;
    for (name, is_allowed) in [("deny", false), ("monitor", true)] {
        let answer = server.post(&format!("/validate/cluster.{name}"), pod(name, "web").to_string()).await;
        assert_eq!(answer.is_allowed(), is_allowed);
        let line = || server.events("request denied").into_iter().find(|line| line["request_uid"] == name);
        server.until("the line", async || line().is_some()).await;
        let line = line().unwrap();
        for (field, value) in [
            ("policy", json!(format!("cluster.{name}"))),
            ("operation", json!("CREATE")),
            ("kind", json!("Pod")),
            ("namespace", json!("default")),
            ("name", json!("web")),
            ("user", json!("ann")),
            ("denial", json!("no")),
            ("allowed", json!(is_allowed)),
            ("omitted", json!(0)),
        ] {
            assert_eq!(line[field], value, "{field}: {line}");
        }
    }
}
