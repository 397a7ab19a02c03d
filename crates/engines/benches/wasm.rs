//! What the engine adds to a policy: one evaluation by a guest that does next to nothing.
#![allow(clippy::expect_used, reason = "without its module there is nothing to measure")]

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use proviso_core::Review;
use proviso_engines::Deadline;
use proviso_engines::wasm::{Config, Engine, Program, VerifiedCode};

/// Takes its payload and accepts.
const GUEST: &str = r#"(module
    (import "wapc" "__guest_request" (func $request (param i32 i32)))
    (import "wapc" "__guest_response" (func $respond (param i32 i32)))
    (memory (export "memory") 2)
    (data (i32.const 0) "{\"accepted\":true}")
    (func (export "__guest_call") (param i32 i32) (result i32)
        (call $request (i32.const 100) (i32.const 200))
        (call $respond (i32.const 0) (i32.const 17))
        (i32.const 1)))"#;

/// A review of about 5 KB: a pod with 40 annotations.
fn review() -> Review {
    let annotations: Vec<_> = (0..40).map(|index| format!(r#""example.com/{index}":"{}""#, "a".repeat(90))).collect();
    let body = format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u","operation":"CREATE",
            "object":{{"kind":"Pod","metadata":{{"annotations":{{{}}}}}}},"oldObject":null}}}}"#,
        annotations.join(",")
    );
    Review::admission(body.into()).expect("a review")
}

fn module(engine: &Engine, wasm: &[u8]) -> proviso_engines::wasm::Module {
    let code = engine.precompile(wasm).expect("a policy");
    engine.load(&VerifiedCode::assume_verified(code)).expect("the code")
}

fn evaluate(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let engine = Engine::new(Config::default()).expect("an engine");
    let review = review();
    let mut bench = |name: &str, wasm: &[u8]| {
        let program = Program::new(module(&engine, wasm), *b"{}");
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| {
                let deadline = Deadline::after(Duration::from_secs(2));
                runtime.block_on(program.evaluate(&review, deadline)).expect("a verdict")
            });
        });
    };
    bench("wasm evaluate, 5 KB review, small guest", &wat::parse_str(GUEST).expect("a module"));
    // Another module, to compare policies by hand.
    if let Some(path) = std::env::var_os("PROVISO_BENCH_WASM") {
        bench("wasm evaluate, 5 KB review, PROVISO_BENCH_WASM", &std::fs::read(path).expect("a file"));
    }
}

criterion_group!(benches, evaluate);
criterion_main!(benches);
