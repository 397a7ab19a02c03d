//! Modules that do not compile, run too long, take too much memory, trap, or give invalid answers.

use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::{TOO_LONG, ask, assert_failed, assert_fine, server_with_fine_policies};

use crate::support::{Folder, Server, pod, policy, rego, wapc, wasm, with};

// The bytes are not a wasm module, or the module does not compile.
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
        // Restore the working module, so that the failure of the next module is visible.
        server.folder.write("a.json", policy("a", &wasm("m.wasm")));
        server.until_details("[+] cluster.a generation 1 live").await;
    }
}

// Policies loop endlessly while other policies are called.
#[tokio::test(flavor = "multi_thread")]
async fn an_endless_loop_is_denied_at_its_timeout_and_does_not_delay_others() {
    let folder = Folder::new();
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    for (name, seconds) in [("loop", 5), ("long", 30)] {
        let spec = with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": seconds}));
        folder.write(&format!("{name}.json"), policy(name, &spec));
    }
    let server = server_with_fine_policies(folder, &[]).await;
    let begin = async |name: &str| {
        let mut loops = Vec::new();
        for _ in 0..8 {
            loops.push(server.begin(&format!("/validate/cluster.{name}"), pod("u", "x").to_string()).await);
        }
        loops
    };
    let long = begin("long").await;
    for _ in 0..20 {
        assert_fine(&server).await;
    }
    let started = Instant::now();
    for answer in begin("loop").await {
        assert_failed(&answer.await.unwrap(), TOO_LONG);
    }
    assert!(started.elapsed() >= Duration::from_secs(5), "denied before the timeout");
    // The long loops take 30 s. They still run, so no other request has waited for them.
    assert!(!long.iter().any(tokio::task::JoinHandle::is_finished), "the other requests waited for the loops");
    long.iter().for_each(tokio::task::JoinHandle::abort);
    assert_eq!(server.count("proviso_evaluations_total", &["cluster.loop", "failed"]).await, 8);
    assert_fine(&server).await;
}

// The flag and the policy have different timeouts.
#[tokio::test]
async fn a_policys_own_timeout_overrides_the_servers() {
    let folder = Folder::new();
    folder.write("loop.wasm", wapc::executing(wapc::ENDLESS));
    folder.write("short.json", policy("short", &wasm("loop.wasm")));
    folder.write("long.json", policy("long", &with(wasm("loop.wasm"), &json!({"timeoutEvalSeconds": 10}))));
    let server = Server::start(folder, &["--evaluation-timeout", "1s"]).await;
    let began = Instant::now();
    let long = server.begin("/validate/cluster.long", pod("u", "x").to_string()).await;
    let started = Instant::now();
    assert_failed(&ask(&server, "short").await, TOO_LONG);
    assert!(started.elapsed() >= Duration::from_secs(1));
    assert!(!long.is_finished(), "the timeout of the flag is over, the timeout of the policy is not");
    assert_failed(&long.await.unwrap(), TOO_LONG);
    assert!(began.elapsed() >= Duration::from_secs(10));
}

// A guest grows its memory or a table, recurses, or copies memory endlessly.
#[tokio::test]
async fn a_guest_that_exceeds_its_limits_is_denied() {
    let folder = Folder::new();
    let all_memory = "(loop $again (br_if $again (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))";
    for (name, body) in [
        (
            // The guest writes to a quarter of its memory, so that the kernel really allocates it. More would take too much CPU time on
            // a busy machine.
            "memory",
            "(loop $again
                (if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then unreachable))
                (memory.fill (i32.shl (i32.sub (memory.size) (i32.const 16)) (i32.const 16)) (i32.const 1) (i32.const 0x40000))
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
        folder.write(&format!("{name}.wasm"), wapc::executing(&body));
        // The other guests must reach their limits before the timeout, even on a busy machine.
        let seconds = if name == "copy-forever" { 3 } else { 30 };
        let spec = with(wasm(&format!("{name}.wasm")), &json!({"timeoutEvalSeconds": seconds}));
        folder.write(&format!("{name}.json"), policy(name, &spec));
    }
    let server = server_with_fine_policies(folder, &[]).await;
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
    // The server releases the memory of a guest.
    let before = server.resident();
    for _ in 0..10 {
        assert_failed(&ask(&server, "memory").await, "limit");
    }
    let grown = server.resident().saturating_sub(before) >> 20;
    assert!(grown < 64, "{grown} MiB more after ten guests that took 32 MiB each");
    assert_fine(&server).await;
}

// Many guests exhaust their stacks at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn many_guests_that_exhaust_their_stacks_do_not_crash_the_server() {
    let folder = Folder::new();
    let recursion = "(drop (call $recurse (i64.const 1) (i64.const 2) (i64.const 3) (i64.const 4))) (i32.const 1)";
    folder.write("stack.wasm", wapc::executing(recursion));
    folder.write("stack.json", policy("stack", &wasm("stack.wasm")));
    let server = server_with_fine_policies(folder, &[]).await;
    let mut asked = Vec::new();
    for _ in 0..40 {
        asked.push(server.begin("/validate/cluster.stack", pod("u", "x").to_string()).await);
    }
    for answer in asked {
        assert_failed(&answer.await.unwrap(), "call stack exhausted");
    }
    assert_fine(&server).await;
}

// A guest traps, or gives an invalid answer or patch. An HTTP error would let the request pass under `failurePolicy: Ignore`.
#[tokio::test]
async fn every_failed_evaluation_is_a_denial_inside_http_200() {
    let folder = Folder::new();
    let mutating = json!({"admission": {"mutating": true}});
    for (name, module) in [
        ("trap", wapc::executing("unreachable")),
        ("error", wapc::failing("no such tenant")),
        ("silence", wapc::executing("(i32.const 1)")),
        ("refusal", wapc::executing("(i32.const 0)")),
        ("no-json", wapc::answering_text("accepted, I think")),
        ("no-verdict", wapc::answering_text("{}")),
        ("wrong-type", wapc::answering_text(r#"{"accepted": "yes"}"#)),
        ("invented", wapc::answering_text(r#"{"accepted": true, "mutated_object": {"kind": "Pod"}}"#)),
        ("outside", wapc::executing("(call $respond (i32.const 0x70000000) (i32.const 8)) (i32.const 1)")),
        ("endless-answer", wapc::executing("(call $respond (i32.const 0) (i32.const -1)) (i32.const 1)")),
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
    let server = server_with_fine_policies(folder, &[]).await;
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
        ("patch-json", "not a JSON Patch"),
        ("patch-operation", "is not valid"),
        ("patch-path", "does not apply"),
        ("patch-type", "patchType other than JSONPatch"),
        ("no-allowed", "is not valid"),
        ("undefined", "is undefined"),
        ("conflict", "internal server error"),
    ] {
        assert_failed(&ask(&server, name).await, wanted);
    }
    // The policy returns a changed object for a DELETE, which has no object.
    let mut delete = pod("u", "x");
    delete["request"]["operation"] = json!("DELETE");
    delete["request"]["oldObject"] = delete["request"]["object"].take();
    let answer = server.post("/validate/cluster.invented", delete.to_string()).await;
    assert_failed(&answer, "`mutated_object` is set, but the request has no object");
    let answer = server.post("/validate/cluster.patch-path", delete.to_string()).await;
    assert_failed(&answer, "the request has no object");
    assert_fine(&server).await;
}
