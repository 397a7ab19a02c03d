//! Measures one evaluation of four CEL validations as in the policy server: on a blocking thread, with the object parsed from
//! its JSON.

#![allow(clippy::expect_used, reason = "a failure leaves nothing to measure")]

#[path = "support/review.rs"]
mod review;

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use proviso_engines::Deadline;
use proviso_engines::cel::{Program, Validation};
use serde_json::json;

const EXPRESSIONS: [&str; 4] = [
    "object.spec.replicas <= params.maxReplicas",
    "has(object.metadata.labels) && 'app' in object.metadata.labels",
    "object.spec.template.spec.containers.all(c, params.registries.exists(r, c.image.startsWith(r)))",
    "object.spec.template.spec.containers.all(c, has(c.resources) && has(c.resources.limits))",
];

fn four_validations(criterion: &mut Criterion) {
    let validation = |expression: &str| Validation { expression: expression.into(), ..Validation::default() };
    let params = json!({"maxReplicas": 5, "registries": ["registry.example.com/"]});
    let program = Program::compile(Vec::from(EXPRESSIONS.map(validation)), &params).expect("a policy");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().expect("a runtime");
    for containers in [1, 12] {
        let review = review::deployment(containers);
        let name = format!("cel/four validations, {} bytes", review.request_json().len());
        criterion.bench_function(&name, |bencher| {
            bencher.iter(|| {
                let deadline = Deadline::after(Duration::from_secs(10));
                let verdict = runtime.block_on(program.evaluate(&review, deadline)).expect("a verdict");
                assert!(verdict.allowed);
            });
        });
    }
}

criterion_group!(benches, four_validations);
criterion_main!(benches);
