//! Policies and requests that misbehave, and what must hold all the same. The numbers are those of the list of faults
//! that the design asks for.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy knows only #[test] functions as tests"
)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use rustix::process::{Resource, Rlimit};
use serde_json::{Value, json};
use support::{Answer, Folder, Server, experiment, forbid, pod, policy, rego, wapc, wasm, with};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What Kubewarden says too: dashboards look for it.
const TOO_LONG: &str = "Policy execution interrupted because it exceeded the allowed execution time";
/// The largest body that is read.
const MAX_BODY: usize = 7 << 20;

/// A server with the policy `fine`, in wasm and in Rego, beside the ones under test.
async fn server_beside_fine_policies(folder: Folder, arguments: &[&str]) -> Server {
    folder.write("fine.wasm", wapc::answering(&json!({"accepted": false, "message": "fine"})));
    folder.write("fine.json", policy("fine", &wasm("fine.wasm")));
    folder.write("fine-rego.json", policy("fine-rego", &forbid("true", "fine")));
    Server::start(folder, arguments).await
}

/// The fine policies give their right answers, and the server is ready.
async fn assert_fine(server: &Server) {
    for name in ["fine", "fine-rego"] {
        assert_eq!(ask(server, name).await.message(), "fine");
    }
    assert_eq!(server.get("/readyz").await.status, StatusCode::OK);
}

async fn ask(server: &Server, name: &str) -> Answer {
    server.post(&format!("/validate/cluster.{name}"), pod("u", "x").to_string()).await
}

/// A failed evaluation: a denial with code 500 and the request's uid, inside HTTP 200.
fn assert_failed(answer: &Answer, words: &str) {
    let response = answer.response();
    assert_eq!((&response["uid"], &response["allowed"]), (&json!("u"), &json!(false)), "{}", answer.text);
    assert_eq!(response["status"]["code"], 500, "{}", answer.text);
    assert!(answer.message().contains(words), "{words}: {}", answer.text);
}

// FAULTS 1: bytes that are no wasm, and modules that do not compile.
#[tokio::test]
async fn a_module_that_does_not_compile_leaves_the_last_good_generation_serving() {
    let folder = Folder::new();
    folder.write("m.wasm", wapc::answering(&json!({"accepted": false, "message": "good"})));
    folder.write("a.json", policy("a", &wasm("m.wasm")));
    let server = Server::start(folder, &[]).await;
    let wat = |text: &str| wat::parse_str(text).unwrap();
    let truncated = wapc::answering(&json!({"accepted": true}));
    for (what, reason, module) in [
        ("no wasm", "CompileError", b"#!/bin/sh\nexit 0\n".to_vec()),
        ("empty", "CompileError", Vec::new()),
        ("truncated", "CompileError", truncated[..truncated.len() / 2].to_vec()),
        ("a type error", "CompileError", wat("(module (func (export \"__guest_call\") (result i32) i64.const 1))")),
        ("no exports", "CompileError", wat("(module)")),
        (
            "no memory",
            "CompileError",
            wat("(module (func (export \"__guest_call\") (param i32 i32) (result i32) i32.const 1))"),
        ),
        (
            "an unknown import",
            "Unsupported",
            wat("(module (import \"env\" \"system\" (func)) (memory (export \"memory\") 1))"),
        ),
    ] {
        let place = format!("{}.wasm", what.replace(' ', "-"));
        server.folder.write(&place, module);
        server.folder.write("a.json", policy("a", &wasm(&place)));
        server
            .until_details(&format!("[-] cluster.a generation 1 live; the newest version does not work: {reason}: "))
            .await;
        assert_eq!(ask(&server, "a").await.message(), "good", "{what}");
        assert_eq!(server.get("/readyz").await.status, StatusCode::OK, "{what}");
        // So that the next one is seen to fail by itself.
        server.folder.write("a.json", policy("a", &wasm("m.wasm")));
        server.until_details("[+] cluster.a generation 1 live").await;
    }
}

// FAULTS 3: settings that the policy refuses.
#[tokio::test]
async fn refused_settings_are_reported_in_the_policys_own_words() {
    let folder = Folder::new();
    folder.write("m.wasm", wapc::answering(&json!({"accepted": false, "message": "good"})));
    folder.write("a.json", policy("a", &wasm("m.wasm")));
    let server = Server::start(folder, &[]).await;
    let words = "the label \"owner\" needs a pattern";
    server.folder.write("strict.wasm", wapc::refusing_settings(words));
    server.folder.write("a.json", policy("a", &wasm("strict.wasm")));
    let wanted = format!("SettingsInvalid: the policy refused its settings: {words}");
    server.until_details(&wanted).await;
    assert!(server.details().await.contains("[-] cluster.a generation 1 live"));
    assert_eq!(ask(&server, "a").await.message(), "good");
    assert_eq!(server.count("proviso_failing", &[]).await, 1);

    // The same for a policy that was never good: it denies, and says why.
    server.folder.write("b.json", policy("b", &wasm("strict.wasm")));
    server.until_details("[-] cluster.b denies everything").await;
    assert_failed(&ask(&server, "b").await, &wanted);
}

// FAULTS 4: huge and deep settings.
#[tokio::test]
async fn a_settings_bomb_is_refused_with_its_size_and_stops_nothing_else() {
    let server = server_beside_fine_policies(Folder::new(), &[]).await;
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let bomb = |settings: &str| {
        policy("bomb", &forbid("true", "x")).replace("\"program\"", &format!("\"settings\":{settings},\"program\""))
    };
    let huge = format!("{{\"text\": {:?}}}", "x".repeat(300 * 1024));
    for (settings, wanted) in [
        (huge, "spec.settings: has 307211 bytes as JSON, at most 262144 (256 KiB) are allowed"),
        (format!("{{\"deep\": {}}}", nested(100)), "spec.settings: is nested deeper than 64 levels"),
        (format!("{{\"deep\": {}}}", nested(100_000)), "bomb.json:1: document 1: "),
    ] {
        server.folder.write("bomb.json", bomb(&settings));
        server.until_details(wanted).await;
        assert_fine(&server).await;
        // Where the document still says whose it is, that policy denies.
        let answer = ask(&server, "bomb").await;
        if answer.status != StatusCode::NOT_FOUND {
            assert_failed(&answer, wanted);
        }
        server.folder.remove("bomb.json");
        server.until("recovery", async || !server.details().await.contains("[-]")).await;
    }
    // Lists in lists on one line, 40 KB of them: a parser that keeps a path for each takes gigabytes.
    let lists = format!(
        "apiVersion: proviso.dev/v1alpha1\nkind: ClusterPolicy\nmetadata: {{name: bomb}}\nspec:\n  settings:\n    deep:\n      {}1\n",
        "- ".repeat(20_000)
    );
    server.folder.write("bomb.yaml", lists);
    server.until_details("bomb.yaml:1: document 1: ").await;
    assert!(server.peak() < 512 << 20, "{} MiB were taken to refuse it", server.peak() >> 20);
    server.folder.remove("bomb.yaml");
    server.until("recovery", async || !server.details().await.contains("[-]")).await;
    // What is just allowed works.
    let text = "x".repeat(256 * 1024 - 11);
    server.folder.write("bomb.json", bomb(&format!("{{\"text\": {text:?}}}")));
    server.until_details("[+] cluster.bomb generation 1 live").await;
}

// FAULTS 5: an endless loop under load.
#[tokio::test(flavor = "multi_thread")]
async fn an_endless_loop_is_denied_within_its_budget_while_others_go_on() {
    let folder = Folder::new();
    folder.write("loop.wasm", wapc::doing(wapc::ENDLESS));
    folder.write("loop.json", policy("loop", &with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 4}))));
    let server = server_beside_fine_policies(folder, &[]).await;
    let started = Instant::now();
    let mut loops = Vec::new();
    for _ in 0..8 {
        loops.push(server.begin("/validate/cluster.loop", pod("u", "x").to_string()).await);
    }
    let mut answered = 0;
    while !loops.iter().any(tokio::task::JoinHandle::is_finished) {
        assert_fine(&server).await;
        answered += 1;
    }
    assert!(started.elapsed() >= Duration::from_secs(4), "the budget was used");
    // Alone it is some thousand; one that waits for a loop would be none.
    assert!(answered >= 20, "only {answered} others were answered meanwhile");
    for answer in loops {
        assert_failed(&answer.await.unwrap(), TOO_LONG);
    }
    assert_eq!(server.count("proviso_evaluations_total", &["cluster.loop", "failed"]).await, 8);
    assert_fine(&server).await;
}

// FAULTS 5: whose budget it is.
#[tokio::test]
async fn a_policys_own_timeout_overrides_the_servers() {
    let folder = Folder::new();
    folder.write("loop.wasm", wapc::doing(wapc::ENDLESS));
    folder.write("short.json", policy("short", &wasm("loop.wasm")));
    folder.write("long.json", policy("long", &with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 3}))));
    let server = Server::start(folder, &["--evaluation-timeout", "100ms"]).await;
    let long = server.begin("/validate/cluster.long", pod("u", "x").to_string()).await;
    let started = Instant::now();
    assert_failed(&ask(&server, "short").await, TOO_LONG);
    assert!(started.elapsed() >= Duration::from_millis(100));
    assert!(!long.is_finished(), "the flag's budget is over, the policy's own is not");
    assert_failed(&long.await.unwrap(), TOO_LONG);
    assert!(started.elapsed() >= Duration::from_millis(2900));
}

// FAULTS 6: memory, tables, the stack and copying.
#[tokio::test]
async fn a_guest_that_takes_too_much_is_denied_and_the_server_stays_as_it_was() {
    let folder = Folder::new();
    let all_memory = "(loop $again (br_if $again (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))";
    for (name, body) in [
        (
            // Each page is written to, so that it is really taken.
            "memory",
            "(loop $again
                (if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then unreachable))
                (memory.fill (i32.shl (i32.sub (memory.size) (i32.const 16)) (i32.const 16)) (i32.const 1) (i32.const 0x100000))
                (br $again)) (i32.const 1)".to_owned(),
        ),
        (
            "table",
            "(loop $again
                (if (i32.eq (table.grow $table (ref.null func) (i32.const 10000)) (i32.const -1)) (then unreachable))
                (br $again)) (i32.const 1)".to_owned(),
        ),
        (
            "stack",
            "(drop (call $recurse (i64.const 1) (i64.const 2) (i64.const 3) (i64.const 4))) (i32.const 1)".to_owned(),
        ),
        (
            "copy-outside",
            "(memory.copy (i32.const 0) (i32.const 0) (i32.const 0x7fffffff)) (i32.const 1)".to_owned(),
        ),
        (
            "copy-forever",
            format!(
                "{all_memory} (loop $again
                    (memory.copy (i32.const 0) (i32.const 1) (i32.sub (i32.shl (memory.size) (i32.const 16)) (i32.const 1)))
                    (br $again)) (i32.const 1)"
            ),
        ),
    ] {
        folder.write(&format!("{name}.wasm"), wapc::doing(&body));
        folder.write(&format!("{name}.json"), policy(name, &wasm(&format!("{name}.wasm"))));
    }
    let server = server_beside_fine_policies(folder, &["--evaluation-timeout", "3s"]).await;
    for (name, wanted) in [
        ("memory", "it had asked for more memory than its limit of 131072 KiB"),
        ("table", "the policy trapped: wasm trap: wasm `unreachable` instruction executed"),
        ("stack", "call stack exhausted"),
        ("copy-outside", "out of bounds memory access"),
        ("copy-forever", TOO_LONG),
    ] {
        assert_failed(&ask(&server, name).await, wanted);
        assert_fine(&server).await;
    }
    // Memory that a guest took is given back.
    let before = server.resident();
    for _ in 0..10 {
        assert_failed(&ask(&server, "memory").await, "limit");
    }
    let grown = server.resident().saturating_sub(before) >> 20;
    assert!(grown < 160, "{grown} MiB more after ten guests that each took 128");
    assert_fine(&server).await;
}

// FAULTS 6: several at once have their limits each.
#[tokio::test(flavor = "multi_thread")]
async fn many_greedy_guests_at_once_do_not_end_the_server() {
    let folder = Folder::new();
    let recursion = "(drop (call $recurse (i64.const 1) (i64.const 2) (i64.const 3) (i64.const 4))) (i32.const 1)";
    folder.write("stack.wasm", wapc::doing(recursion));
    folder.write("stack.json", policy("stack", &wasm("stack.wasm")));
    let server = server_beside_fine_policies(folder, &[]).await;
    let mut asked = Vec::new();
    for _ in 0..40 {
        asked.push(server.begin("/validate/cluster.stack", pod("u", "x").to_string()).await);
    }
    for answer in asked {
        assert_failed(&answer.await.unwrap(), "call stack exhausted");
    }
    assert_fine(&server).await;
}

// FAULTS 8: an HTTP error would let the request pass under `failurePolicy: Ignore`.
#[tokio::test]
async fn whatever_a_policy_does_wrong_is_a_denial_inside_http_200() {
    let folder = Folder::new();
    let mutating = json!({"admission": {"mutating": true}});
    for (name, module) in [
        ("trap", wapc::doing("unreachable")),
        ("error", wapc::failing("no such tenant")),
        ("silence", wapc::doing("(i32.const 1)")),
        ("refusal", wapc::doing("(i32.const 0)")),
        ("no-json", wapc::saying("accepted, I think")),
        ("no-verdict", wapc::saying("{}")),
        ("wrong-type", wapc::saying(r#"{"accepted": "yes"}"#)),
        ("invented", wapc::saying(r#"{"accepted": true, "mutated_object": {"kind": "Pod"}}"#)),
        ("outside", wapc::doing("(call $respond (i32.const 0x70000000) (i32.const 8)) (i32.const 1)")),
        ("endless-answer", wapc::doing("(call $respond (i32.const 0) (i32.const -1)) (i32.const 1)")),
    ] {
        folder.write(&format!("{name}.wasm"), module);
        folder.write(&format!("{name}.json"), policy(name, &with(wasm(&format!("{name}.wasm")), &mutating)));
    }
    let main = |response: &str| with(rego(&format!("package test\nmain := {response}")), &mutating);
    let patch = |patch: Value| {
        main(&json!({"response": {"allowed": true, "patchType": "JSONPatch", "patch": patch}}).to_string())
    };
    for (name, spec) in [
        ("patch-text", patch(json!("%%% no base64"))),
        ("patch-json", patch(json!("bm8gSlNPTg=="))),
        ("patch-operation", patch(json!([{"op": "explode", "path": "/metadata"}]))),
        ("patch-path", patch(json!([{"op": "remove", "path": "/metadata/labels/nowhere"}]))),
        ("patch-type", main(r#"{"response": {"allowed": true, "patchType": "MergePatch", "patch": "e30="}}"#)),
        ("no-allowed", main(r#"{"response": {"uid": "u"}}"#)),
        ("undefined", rego("package test\nmain := {\"allowed\": true} if input.request.nothing")),
        (
            "conflict",
            rego(
                "package test\nmain := {\"allowed\": true} if input.request.object.spec\nmain := {\"allowed\": false} if input.request.object.kind",
            ),
        ),
    ] {
        folder.write(&format!("{name}.json"), policy(name, &spec));
    }
    let server = server_beside_fine_policies(folder, &[]).await;
    for (name, wanted) in [
        ("trap", "the policy trapped"),
        ("error", "no such tenant"),
        ("silence", "gave no answer"),
        ("refusal", "gave no reason"),
        ("no-json", "answer is not valid"),
        ("no-verdict", "answer is not valid"),
        ("wrong-type", "answer is not valid"),
        ("outside", "internal server error"),
        ("endless-answer", "internal server error"),
        ("patch-text", "not base64"),
        ("patch-json", "no JSON Patch"),
        ("patch-operation", "is not valid"),
        ("patch-path", "does not apply"),
        ("patch-type", "patchType other than JSONPatch"),
        ("no-allowed", "is not valid"),
        ("undefined", "is undefined"),
        ("conflict", "internal server error"),
    ] {
        assert_failed(&ask(&server, name).await, wanted);
    }
    // An object for a DELETE, which has none to change.
    let mut delete = pod("u", "x");
    delete["request"]["operation"] = json!("DELETE");
    delete["request"]["oldObject"] = delete["request"]["object"].take();
    let answer = server.post("/validate/cluster.invented", delete.to_string()).await;
    assert_failed(&answer, "changed the object of a request that has none");
    let answer = server.post("/validate/cluster.patch-path", delete.to_string()).await;
    assert_failed(&answer, "the request has no object");
    assert_fine(&server).await;
}

// FAULTS 9: Rego that is heavy when it runs.
#[tokio::test(flavor = "multi_thread")]
async fn heavy_rego_ends_at_its_deadline_and_holds_up_nobody() {
    let folder = Folder::new();
    let budget = json!({"timeoutEvalSeconds": 8});
    for (name, condition) in [
        (
            "loops",
            "count([1 | some a in numbers.range(1, 100000); some b in numbers.range(1, 100000); a == b + 1e9]) > 0",
        ),
        (
            "regex",
            r#"count([1 | some i in numbers.range(1, 100000); regex.match(sprintf("((a*)*)*b%d{1,20}$", [i]), input.request.object.metadata.annotations.text)]) > 0"#,
        ),
    ] {
        // Only a real request has a text: policies are tried on one that says nothing before they are accepted.
        let condition = format!("input.request.object.metadata.annotations.text; {condition}");
        folder.write(&format!("{name}.json"), policy(name, &with(forbid(&condition, "found"), &budget)));
    }
    let server = server_beside_fine_policies(folder, &[]).await;
    let mut review = pod("u", "x");
    review["request"]["object"]["metadata"]["annotations"] = json!({"text": "a".repeat(100_000)});
    let details = server.details().await;
    assert!(details.contains("[+] cluster.loops") && details.contains("[+] cluster.regex"), "{details}");
    let mut asked = Vec::new();
    for name in ["loops", "regex"] {
        asked.push(server.begin(&format!("/validate/cluster.{name}"), review.to_string()).await);
    }
    for _ in 0..5 {
        assert_fine(&server).await;
    }
    let others_came_first = !asked.iter().any(tokio::task::JoinHandle::is_finished);
    for answer in asked {
        assert_failed(&answer.await.unwrap(), TOO_LONG);
    }
    assert!(others_came_first, "they waited for the heavy ones");
    assert_fine(&server).await;
}

// FAULTS 9: Rego that could take the interpreter, and with it the process, along.
#[tokio::test]
async fn no_rego_source_ends_the_server() {
    let server = server_beside_fine_policies(Folder::new(), &[]).await;
    let package = |rules: &str| rego(&format!("package test\n{rules}"));
    let recursion = "deny contains \"x\" if f(1)\nf(n) if f(n + 1)";
    let mutual = "deny contains \"x\" if a\na if b\nb if a";
    let brackets = format!("deny contains \"x\" if {}1{}", "[".repeat(400), "]".repeat(400));
    let chain = format!("deny contains \"x\" if 1{} == 0", " + 1".repeat(20_000));
    let negations = format!("deny contains \"x\" if {}false", "not ".repeat(5000));
    for (what, reason, rules) in [
        ("recursion", "Unsupported", recursion),
        ("mutual recursion", "Unsupported", mutual),
        ("brackets", "", brackets.as_str()),
        ("chain", "", chain.as_str()),
        ("negations", "", negations.as_str()),
        ("pattern", "CompileError", "deny contains \"x\" if regex.match(\"(((a{1,1000}){1,1000}){1,1000})\", \"x\")"),
        ("no end", "CompileError", "deny contains \"x\" if {"),
        ("no rule", "CompileError", ""),
    ] {
        server.folder.write("bad.json", policy("bad", &package(rules)));
        server.until_details(&format!("[-] cluster.bad denies everything: no generation works: {reason}")).await;
        server.until("the reason", async || !server.details().await.contains("being prepared")).await;
        assert_failed(&ask(&server, "bad").await, "spec.program.rego.source: ");
        assert_fine(&server).await;
        server.folder.remove("bad.json");
        server.until(what, async || !server.details().await.contains("[-]")).await;
    }
    // These compile. Whatever they come to, they come to it within their time, and alone.
    for expression in [
        "x := 1 / 0; x",
        "count(numbers.range(1, 1000000000000)) > 0",
        "bits.lsh(1, 1000000000000) > 0",
        "substring(\"äöü\", 1, 1) == \"x\"",
        "sprintf(\"%d %s %v\", [input.request.object, input.request.uid, [1]]) == \"x\"",
        "strings.replace_n({\"\": \"x\"}, \"aaa\") == \"x\"",
        "indexof(\"ä\", \"\") == 5",
        "count(net.cidr_expand(\"::/0\")) > 0",
        "time.add_date(9223372036854775807, 9223372036, 1, 1) > 0",
        "glob.match(\"{{{{[[[[\", [], \"x\")",
        "regex.match(concat(\"\", [\"(((a{1,1000}){1,1000})\", \"{1,1000})\"]), \"x\")",
        "json.unmarshal(concat(\"\", [\"[\" | some i in numbers.range(1, 200000)]))",
        "count(concat(\"\", [\"xxxxxxxxxxxxxxxx\" | some i in numbers.range(1, 2000000)])) > 0",
        "to_number(\"1e999999999\") > 0",
        "semver.compare(\"1.0.0-\", \"x\") == 0",
        "walk(input, [path, value]); path[1000000] == value",
    ] {
        server
            .folder
            .write("odd.json", policy("odd", &forbid(&format!("input.request.name == \"x\"; {expression}"), "x")));
        server.until_details("[+] cluster.odd generation 1 live").await;
        let answer = ask(&server, "odd").await;
        let code = &answer.response()["status"]["code"];
        assert!(answer.is_allowed() || answer.message() == "x" || *code == 500, "{expression}: {}", answer.text);
        assert_fine(&server).await;
        server.folder.remove("odd.json");
        server.until(expression, async || !server.details().await.contains("cluster.odd")).await;
    }
}

/// A review of this many bytes; what decides stands at its end.
fn large(bytes: usize, image: &str) -> String {
    let mut review = pod("u", "x");
    review["request"]["object"]["metadata"]["annotations"] = json!({"padding": ""});
    review["request"]["object"]["spec"]["containers"][0]["image"] = json!(image);
    let rest = review.to_string();
    review["request"]["object"]["metadata"]["annotations"]["padding"] = json!("x".repeat(bytes - rest.len()));
    review.to_string()
}

// FAULTS 10: large reviews.
#[tokio::test]
async fn a_review_of_7_mib_is_decided_and_a_larger_one_refused_with_memory_flat() {
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
            let told = server.post("/validate/cluster.wasm", large(8 << 20, "registry.example.com/web:1")).await;
            assert_eq!(told.status, StatusCode::PAYLOAD_TOO_LARGE);
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

/// Sends a body in chunks without telling its length; the status of the answer.
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
        // Dropping it would close the connection's half, as one who is not interested in an answer any more.
        std::io::Result::Ok(writing)
    });
    let mut answer = Vec::new();
    while !answer.windows(4).any(|four| four == b"\r\n\r\n") {
        assert_ne!(reading.read_buf(&mut answer).await.unwrap(), 0, "no answer");
    }
    sending.await.unwrap().unwrap();
    support::parse_answer(&String::from_utf8(answer).unwrap()).status.as_u16()
}

// FAULTS 12: clients that begin requests and do not end them.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_slow_clients_are_closed_at_the_deadline_and_hold_up_nobody() {
    const CLIENTS: usize = 1000;
    let limit = rustix::process::getrlimit(Resource::Nofile);
    // The server inherits it.
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    assert!(limit.maximum.is_none_or(|maximum| maximum > 2000), "`ulimit -Hn` allows only {limit:?} open files");
    let server = Arc::new(server_beside_fine_policies(Folder::new(), &[]).await);
    let opened = Instant::now();
    let mut slow = Vec::new();
    for client in 0..CLIENTS {
        let mut stream = TcpStream::connect(&server.listen).await.unwrap();
        // A tenth of them says nothing at all.
        if client % 10 != 0 {
            stream.write_all(b"POST /validate/cluster.fine HTTP/1.1\r\nhost: ").await.unwrap();
        }
        slow.push(tokio::spawn(async move {
            let mut answer = Vec::new();
            // Reset or closed: both are an end.
            let _ = stream.read_to_end(&mut answer).await;
            assert!(!String::from_utf8_lossy(&answer).contains("200"), "an answer to no request");
        }));
    }
    for _ in 0..20 {
        assert_fine(&server).await;
    }
    if opened.elapsed() < Duration::from_secs(9) {
        assert_eq!(slow.iter().filter(|task| task.is_finished()).count(), 0, "others were served meanwhile");
    }
    for task in slow {
        tokio::time::timeout(support::PATIENCE, task).await.expect("closed at the deadline of 10 s").unwrap();
    }
    assert!(opened.elapsed() >= Duration::from_secs(9));
    assert_fine(&server).await;
}

// FAULTS 12: a body that never comes.
#[tokio::test]
async fn a_body_that_does_not_arrive_is_given_up() {
    let server = server_beside_fine_policies(Folder::new(), &[]).await;
    let mut stream = TcpStream::connect(&server.listen).await.unwrap();
    stream.write_all(b"POST /validate/cluster.fine HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{").await.unwrap();
    assert_fine(&server).await;
    let mut answer = Vec::new();
    tokio::time::timeout(support::PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    let answer = support::parse_answer(&String::from_utf8(answer).unwrap());
    assert_eq!(answer.status, StatusCode::REQUEST_TIMEOUT, "{}", answer.text);
}

// FAULTS 12: more evaluations than places.
#[tokio::test(flavor = "multi_thread")]
async fn overload_is_answered_503_with_retry_after_and_never_allowed() {
    let folder = Folder::new();
    folder.write("loop.wasm", wapc::doing(wapc::ENDLESS));
    folder.write("loop.json", policy("loop", &with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 5}))));
    folder.write("allow.wasm", wapc::answering(&json!({"accepted": true})));
    folder.write("allow.json", policy("allow", &wasm("allow.wasm")));
    let server = server_beside_fine_policies(folder, &["--concurrency", "2", "--evaluation-timeout", "200ms"]).await;
    let mut loops = Vec::new();
    for _ in 0..2 {
        loops.push(server.begin("/validate/cluster.loop", pod("u", "x").to_string()).await);
    }
    // Once both places are taken, whoever finds none within its budget is sent away.
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
    // Rego takes no place of a wasm instance.
    assert_eq!(ask(&server, "fine-rego").await.message(), "fine");
    assert!(!loops.iter().any(tokio::task::JoinHandle::is_finished));
    assert!(server.count("proviso_requests_refused_total", &["overloaded"]).await >= 31);
    for answer in loops {
        assert_failed(&answer.await.unwrap(), TOO_LONG);
    }
    assert_fine(&server).await;
    assert!(ask(&server, "allow").await.is_allowed());
}

// FAULTS 12: a flood of requests to one slow policy.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_answered_by_503_or_a_denial_and_ends() {
    let folder = Folder::new();
    folder.write("loop.wasm", wapc::doing(wapc::ENDLESS));
    folder.write("loop.json", policy("loop", &with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 1}))));
    let server = server_beside_fine_policies(folder, &["--concurrency", "2"]).await;
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
    // One after the other they would take 100 s.
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert!(surplus > 0, "200 endless evaluations on 2 places were not too much");
    assert_fine(&server).await;
}

// FAULTS 13: generations and policies that are not here.
#[tokio::test]
async fn an_unknown_generation_is_retried_and_an_unknown_policy_is_not() {
    let folder = Folder::new();
    folder.write("broken.json", policy("broken", &rego("package test\ndeny contains")));
    let server = server_beside_fine_policies(folder, &[]).await;
    for (path, words) in [
        ("/validate/cluster.fine/2", "cluster.fine has no generation 2 here: 1 is live"),
        ("/validate_raw/cluster.fine/7", "cluster.fine has no generation 7 here"),
        ("/audit/cluster.fine/18446744073709551615", "has no generation 18446744073709551615 here"),
        ("/validate/cluster.broken/1", "cluster.broken has no generation 1 here, and none that works"),
    ] {
        let answer = server.post(path, pod("u", "x").to_string()).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{path}: {}", answer.text);
        assert_eq!(answer.headers["retry-after"], "1", "{path}");
        assert!(answer.text.contains(words), "{path}: {}", answer.text);
    }
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

// FAULTS 37: experiments that misbehave.
#[tokio::test]
async fn a_failing_experiment_leaves_the_live_verdict_alone_and_is_counted() {
    let folder = Folder::new();
    for (name, module) in [
        ("trap", wapc::doing("unreachable")),
        ("loop", wapc::doing(wapc::ENDLESS)),
        ("flood", wapc::doing("(loop $again (call $log (i32.const 0) (i32.const 65536)) (br $again)) (i32.const 1)")),
        ("noise", wapc::doing("(call $respond (i32.const 0) (i32.const 0x20000)) (i32.const 1)")),
    ] {
        folder.write(&format!("{name}.wasm"), module);
        folder.write(&format!("{name}.json"), experiment(name, "fine", &wasm(&format!("{name}.wasm"))));
    }
    let server = server_beside_fine_policies(folder, &["--evaluation-timeout", "300ms"]).await;
    server.until_details("experiment cluster.noise generation 1 previews cluster.fine").await;
    for _ in 0..3 {
        assert_eq!(ask(&server, "fine").await.message(), "fine");
    }
    let lines = server.until_previews(12).await;
    for (name, error, words) in [
        ("trap", "Failed", "the policy trapped"),
        ("loop", "DeadlineExceeded", TOO_LONG),
        ("flood", "DeadlineExceeded", TOO_LONG),
        ("noise", "InvalidAnswer", "is not valid"),
    ] {
        let id = format!("cluster.{name}");
        let own: Vec<_> = lines.iter().filter(|line| line["experiment"] == id.as_str()).collect();
        assert_eq!(own.len(), 3, "{name}");
        for line in own {
            assert_eq!(line["divergence"], "ExperimentError", "{line}");
            assert_eq!((&line["preview"]["allowed"], &line["preview"]["code"]), (&json!(false), &json!(500)), "{line}");
            assert_eq!(line["preview"]["error"], error, "{line}");
            assert!(line["preview"]["message"].as_str().unwrap().contains(words), "{line}");
            assert_eq!((&line["live"]["allowed"], &line["live"]["message"]), (&json!(false), &json!("fine")), "{line}");
        }
        let labels = [id.as_str(), "ExperimentError"];
        assert_eq!(server.count("proviso_preview_evaluations_total", &labels).await, 3);
    }
    assert_fine(&server).await;
}

// FAULTS 37: a flood of requests while an experiment never ends.
#[tokio::test]
async fn previews_that_find_no_place_are_dropped_and_counted_and_the_live_answers_come() {
    let folder = Folder::new();
    folder.write("loop.wasm", wapc::doing(wapc::ENDLESS));
    let endless = with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 30}));
    folder.write("loop.json", experiment("loop", "fine", &endless));
    let server = server_beside_fine_policies(folder, &["--preview-queue", "1"]).await;
    server.until_details("experiment cluster.loop generation 1 previews cluster.fine").await;
    // Each of these would take 30 s if it waited for the experiment.
    let started = Instant::now();
    for _ in 0..50 {
        assert_eq!(ask(&server, "fine").await.message(), "fine");
    }
    assert!(started.elapsed() < Duration::from_secs(25), "50 live answers took {:?}", started.elapsed());
    assert!(server.previews().is_empty(), "the experiment was still under way");
    server.until("drops", async || server.count("proviso_preview_dropped_total", &["cluster.loop"]).await >= 40).await;
    assert_fine(&server).await;
}
