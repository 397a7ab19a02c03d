//! The time until a server with 100 policies is ready: for a first start with an empty state folder, and for a restart.
//!
//! `cargo bench -p policy-server --bench restart`; `PROVISO_BENCH_POLICIES` (100).

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may panic"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Instant;

use serde_json::json;
use support::{Folder, Server, cel, example, policy, rego, wasm};

fn main() {
    let policies = std::env::var("PROVISO_BENCH_POLICIES").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let folder = Folder::new();
        for module in ["trusted-registries", "safe-defaults"] {
            let path = example(&format!("policies/{module}/{module}.wasm"));
            folder.write(&format!("{module}.wasm"), std::fs::read(path).expect("the example module"));
        }
        for index in 0..policies {
            let mut spec = match index % 4 {
                0 => wasm("trusted-registries.wasm"),
                1 => wasm("safe-defaults.wasm"),
                2 => rego("package p\ndeny contains msg if {\n  not input.request.object.metadata.labels.owner\n  msg := \"no owner\"\n}\n"),
                _ => cel("object.metadata.name != 'x'", "not x"),
            };
            let settings = [json!({"registries": ["registry.example.com"]}), json!({}), json!({}), json!({})];
            spec["settings"] = settings[index % 4].clone();
            folder.write(&format!("p{index}.json"), policy(&format!("p{index}"), &spec));
        }
        let state = folder.state();
        let state = ["--state-dir", state.to_str().expect("a path in UTF-8")];
        let mut folder = folder;
        for name in ["first start", "restart"] {
            let start = Instant::now();
            let server = Server::start(folder, &state).await;
            println!("{name} with {policies} policies: ready after {:.0} ms", start.elapsed().as_secs_f64() * 1000.0);
            let details = server.details().await;
            assert_eq!(details.matches("generation 1 live").count(), policies, "{details}");
            folder = server.stop().await;
        }
    });
}
