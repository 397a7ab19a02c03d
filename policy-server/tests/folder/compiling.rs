//! The limits of compilation: a module that exhausts its compiler is refused, and other policies keep serving.

use serde_json::json;

use crate::support::{Folder, Server, forbid, pod, policy, wapc, wasm};

#[tokio::test]
async fn a_module_that_exhausts_its_compiler_ends_only_its_compiler() {
    let folder = Folder::new();
    folder.write("good.json", policy("good", &forbid("true", "good")));
    let server = Server::start(folder, &[]).await;
    let before = server.resident();
    server.folder.write("bomb.wasm", wapc::bomb());
    server.folder.write("bomb.json", policy("bomb", &wasm("bomb.wasm")));
    server.until_details("compiling it takes more than 256 MiB of memory, far more than its size explains").await;
    let details = server.details().await;
    assert!(details.contains("cluster.bomb denies everything: no generation works: CompileError"), "{details}");
    assert!(details.contains("[+] cluster.good generation 1 live"), "{details}");
    let grown = server.peak().saturating_sub(before) >> 20;
    assert!(grown < 80, "the server itself took {grown} MiB for it");

    // A normal module compiles within the same limits.
    let answer = wapc::answering(&json!({"accepted": false, "message": "compiled"}));
    server.folder.write("small.wasm", answer);
    server.folder.write("small.json", policy("small", &wasm("small.wasm")));
    server.until_details("[+] cluster.small generation 1 live").await;
    assert_eq!(server.post("/validate/cluster.small", pod("u", "x").to_string()).await.message(), "compiled");
}

#[tokio::test]
async fn the_flag_limits_the_memory_of_a_compiler() {
    let folder = Folder::new();
    folder.write("a.wasm", wapc::bomb());
    folder.write("a.json", policy("a", &wasm("a.wasm")));
    let server = Server::start(folder, &["--compile-memory", "100"]).await;
    server.until_details("compiling it takes more than 100 MiB of memory: make it smaller, or raise").await;
}

/// Returns a module that accepts its settings and takes about a second to compile.
fn long() -> Vec<u8> {
    let function = format!("(func (param i32) {})", "(local.set 0 (i32.add (local.get 0) (i32.const 1)))".repeat(250));
    wat::parse_str(format!(
        r#"(module (import "wapc" "__guest_response" (func $respond (param i32 i32)))
            (memory (export "memory") 1) (data (i32.const 0) "{{\"valid\":true}}")
            (func (export "__guest_call") (param i32 i32) (result i32)
                (call $respond (i32.const 0) (i32.const 14)) (i32.const 1))
            {})"#,
        function.repeat(500)
    ))
    .unwrap()
}

#[tokio::test]
async fn a_compilation_that_times_out_is_tried_again() {
    let folder = Folder::new();
    folder.write("a.wasm", long());
    folder.write("a.json", policy("a", &wasm("a.wasm")));
    folder.write("good.json", policy("good", &forbid("true", "good")));
    let server = Server::start(folder, &["--compile-timeout", "100ms"]).await;
    let too_long = "CompileTimeout: spec.program.wasm: compiling it took longer than 100ms: make it smaller, or raise";
    server.until_details(too_long).await;
    server.until_details("[+] cluster.good generation 1 live").await;
    let denied = server.post("/validate/cluster.a", pod("u", "x").to_string()).await;
    assert!(denied.message().contains("CompileTimeout"), "{}", denied.text);
    let rejected = [r#"result="rejected""#];
    server.until("a second try", async || server.metric("proviso_rollouts_total", &rejected).await > 1.0).await;

    // With a longer timeout, the same module is served.
    let patient = Server::start(server.stop().await, &[]).await;
    patient.until_details("[+] cluster.a generation 1 live").await;
}

#[tokio::test]
async fn an_invalid_module_is_reported_with_the_message_of_the_compiler() {
    let folder = Folder::new();
    let server = Server::start(folder, &[]).await;
    for (module, wanted) in [
        (b"<html>".to_vec(), "CompileError: spec.program.wasm: these bytes are no WebAssembly module"),
        (wat::parse_str("(module)").unwrap(), "CompileError: spec.program.wasm: the module does not export `memory`"),
        (b"\0asm\x0d\0\x01\0".to_vec(), "Unsupported: spec.program.wasm: this is a WebAssembly component"),
    ] {
        server.folder.write("a.wasm", &module);
        server.folder.write("a.json", policy("a", &wasm("a.wasm")));
        server.until_details(wanted).await;
    }
}
