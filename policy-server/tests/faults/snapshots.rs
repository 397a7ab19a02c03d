//! Modules that keep a value of their initialisation, such as the time. A snapshot of such a module would keep the value for as
//! long as the compiled module is cached.

use serde_json::json;

use crate::ask;
use crate::support::{Folder, Server, policy, wapc, wasm};

/// Returns a module that reads the clock when it initialises itself. It denies each request with that time as the message: 16
/// letters, one for each hexadecimal digit.
fn clock_at_initialisation() -> Vec<u8> {
    let (before, after) = (r#"{\"accepted\":false,\"message\":\""#, r#"\"}"#);
    wat::parse_str(format!(
        r#"(module
            (import "wapc" "__guest_response" (func $respond (param i32 i32)))
            (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
            (memory (export "memory") 1)
            (data (i32.const 100) "{{\"valid\":true}}")
            (data (i32.const 200) "{before}0123456789abcdef{after}")
            (func (export "_initialize") (local $digit i32) (local $time i64)
                (drop (call $clock (i32.const 0) (i64.const 0) (i32.const 8)))
                (local.set $time (i64.load (i32.const 8)))
                (loop $next
                    (i32.store8
                        (i32.add (i32.const 229) (local.get $digit))
                        (i32.add (i32.const 97) (i32.wrap_i64 (i64.and (local.get $time) (i64.const 15)))))
                    (local.set $time (i64.shr_u (local.get $time) (i64.const 4)))
                    (local.set $digit (i32.add (local.get $digit) (i32.const 1)))
                    (br_if $next (i32.lt_u (local.get $digit) (i32.const 16)))))
            (func (export "__guest_call") (param $operation_length i32) (param i32) (result i32)
                (if (i32.eq (local.get $operation_length) (i32.const 17))
                    (then (call $respond (i32.const 100) (i32.const 14)))
                    (else (call $respond (i32.const 200) (i32.const 47))))
                (i32.const 1)))"#
    ))
    .unwrap()
}

// A guest reads the clock at its start, and the compiled module is cached.
#[tokio::test]
async fn a_time_that_a_guest_caches_at_its_start_is_the_time_of_the_evaluation() {
    let folder = Folder::new();
    let state = folder.state();
    let state = ["--state-dir", state.to_str().unwrap()];
    folder.write("clock.wasm", clock_at_initialisation());
    folder.write("clock.json", policy("clock", &wasm("clock.wasm")));
    let mut server = Server::start(folder, &state).await;
    let refusal = || server.event("the module has no snapshot: each evaluation initialises it");
    server.until("the log line", async || refusal().is_some()).await;
    assert_eq!(refusal().unwrap()["cause"], "the module reads the clock during its initialisation");
    for _ in 0..2 {
        let (first, second) = (ask(&server, "clock").await.message(), ask(&server, "clock").await.message());
        assert!(first.len() == 16 && first != second, "{first} {second}");
        // After the restart, the module comes from the cache.
        server = Server::start(server.stop().await, &state).await;
        server.until_details("[+] cluster.clock generation 1 live").await;
    }
}

// One policy permits snapshots, and another policy with the same module does not.
#[tokio::test]
async fn two_policies_with_one_module_can_use_snapshots_differently() {
    let folder = Folder::new();
    let state = folder.state();
    folder.write("m.wasm", wapc::answering(&json!({"accepted": false, "message": "no"})));
    let mut without_snapshot = wasm("m.wasm");
    without_snapshot["program"]["wasm"]["snapshot"] = false.into();
    folder.write("default.json", policy("default", &wasm("m.wasm")));
    folder.write("without.json", policy("without", &without_snapshot));
    let server = Server::start(folder, &["--state-dir", state.to_str().unwrap()]).await;
    for name in ["default", "without"] {
        assert_eq!(ask(&server, name).await.message(), "no");
    }
    let files = walkdir::WalkDir::new(state.join("compiled")).into_iter().map(Result::unwrap);
    let names: Vec<_> = files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    let compiled = |ending: &str| names.iter().filter(|name| name.ends_with(ending)).count();
    assert_eq!((compiled(".cwasm"), compiled("-without-snapshot.cwasm")), (2, 1), "{names:?}");
}
