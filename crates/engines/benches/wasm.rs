//! Measures the overhead of the engine: one evaluation by a guest that does almost nothing.

#![allow(clippy::expect_used, reason = "a failure leaves nothing to measure")]

#[path = "support/review.rs"]
mod review;

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use proviso_engines::Deadline;
use proviso_engines::wasm::{Config, Engine, Program, VerifiedCode};

/// A guest that fetches its payload and accepts the request.
const GUEST: &str = r#"(module
    (import "wapc" "__guest_request" (func $request (param i32 i32)))
    (import "wapc" "__guest_response" (func $respond (param i32 i32)))
    (memory (export "memory") 2)
    (data (i32.const 0) "{\"accepted\":true}")
    (func (export "__guest_call") (param i32 i32) (result i32)
        (call $request (i32.const 100) (i32.const 200))
        (call $respond (i32.const 0) (i32.const 17))
        (i32.const 1)))"#;

fn module(engine: &Engine, wasm: &[u8]) -> proviso_engines::wasm::Module {
    let code = engine.precompile(wasm).expect("a policy");
    engine.load(&VerifiedCode::assume_verified(code)).expect("the code")
}

fn evaluate(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let engine = Engine::new(Config::default()).expect("an engine");
    let review = review::deployment(1);
    let bytes = review.request_json().len();
    let mut bench = |name: &str, wasm: &[u8]| {
        let program = Program::new(module(&engine, wasm), *b"{}");
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| {
                let deadline = Deadline::after(Duration::from_secs(2));
                runtime.block_on(program.evaluate(&review, deadline)).expect("a verdict")
            });
        });
    };
    bench(&format!("wasm/small guest, {bytes} bytes"), &wat::parse_str(GUEST).expect("a module"));
    // `PROVISO_BENCH_WASM` names another module, to compare policies by hand.
    if let Some(path) = std::env::var_os("PROVISO_BENCH_WASM") {
        bench(&format!("wasm/PROVISO_BENCH_WASM, {bytes} bytes"), &std::fs::read(path).expect("a file"));
    }
}

criterion_group!(benches, evaluate);
criterion_main!(benches);
