//! Guests call their host with whatever addresses, lengths and bytes the fuzzer comes up with: an evaluation may fail, but it
//! ends in time, and the process goes on. The first byte chooses the calling convention, the rest is what the guest does.

#![no_main]

use std::future::ready;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use proviso_core::Review;
use proviso_engines::host::{Asked, Host, HostCall, Objects};
use proviso_engines::wasm::{Config, Engine, ExecutionMode, Module, Program, VerifiedCode};
use proviso_engines::Deadline;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

const BUDGET: Duration = Duration::from_millis(100);
/// What ending late may cost under a sanitizer, on a busy machine.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Echo;

impl Host for Echo {
    fn call<'a>(&'a self, call: HostCall<'a>, _: Deadline) -> Asked<'a, Vec<u8>> {
        let answer = if call.operation == "echo" { Ok(call.payload.to_vec()) } else { Err("no".to_owned()) };
        Box::pin(ready(answer))
    }

    fn objects(&self, _: Deadline) -> Asked<'_, Arc<Objects>> {
        Box::pin(ready(Ok(Arc::default())))
    }

    fn namespace<'a>(&'a self, _: &'a str, _: Deadline) -> Asked<'a, Option<Arc<Value>>> {
        Box::pin(ready(Ok(None)))
    }
}

static GUESTS: LazyLock<[(ExecutionMode, Module); 3]> = LazyLock::new(|| {
    let engine = Engine::new(Config { memory_limit: 1 << 20, concurrency: 4 }).expect("an engine");
    [
        (ExecutionMode::KubewardenWapc, include_str!("../guests/wapc.wat")),
        (ExecutionMode::Opa, include_str!("../guests/opa.wat")),
        (ExecutionMode::Wasi, include_str!("../guests/wasi.wat")),
    ]
    .map(|(mode, text)| {
        let wasm = wat::parse_str(text).expect("a guest");
        let code = engine.precompile(&wasm).expect("it compiles");
        (mode, engine.load(&VerifiedCode::assume_verified(code)).expect("it loads"))
    })
});

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().expect("a runtime"));

static REVIEW: LazyLock<Review> = LazyLock::new(|| {
    let review = br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","object":{}}}"#;
    Review::admission(review.as_slice().into()).expect("a review")
});

fuzz_target!(|script: &[u8]| {
    let Some((choice, script)) = script.split_first() else { return };
    let (mode, module) = &GUESTS[usize::from(*choice) % GUESTS.len()];
    let program = Program::new(module.clone(), script).in_mode(*mode).with_host(Arc::new(Echo));
    let start = Instant::now();
    RUNTIME.block_on(async {
        drop(program.validate_settings(Deadline::after(BUDGET)).await);
        drop(program.evaluate(&REVIEW, Deadline::after(BUDGET)).await);
    });
    assert!(start.elapsed() < 2 * BUDGET + GRACE, "it took {:?}", start.elapsed());
});
