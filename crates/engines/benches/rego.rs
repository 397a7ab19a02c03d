//! Measures one evaluation of a policy like Gatekeeper's required labels as in the policy server: on a blocking thread, with
//! the request parsed from its JSON.

#![allow(clippy::expect_used, reason = "a failure leaves nothing to measure")]

#[path = "support/review.rs"]
mod review;

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use proviso_engines::Deadline;
use proviso_engines::rego::{Dialect, Program};
use serde_json::json;

const POLICY: &str = r#"
package k8srequiredlabels

violation[{"msg": msg, "details": {"missing_labels": missing}}] {
  provided := {label | input.review.object.metadata.labels[label]}
  required := {label | label := input.parameters.labels[_].key}
  missing := required - provided
  count(missing) > 0
  msg := sprintf("you must provide labels: %v", [missing])
}
"#;

fn required_labels(criterion: &mut Criterion) {
    let settings = json!({"labels": [{"key": "app"}, {"key": "cost-center"}]});
    let program = Program::compile(POLICY, Dialect::Gatekeeper, None, &settings).expect("a policy");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().expect("a runtime");
    for containers in [1, 12] {
        let review = review::deployment(containers);
        let name = format!("rego/required labels, {} bytes", review.request_json().len());
        criterion.bench_function(&name, |bencher| {
            bencher.iter(|| {
                let deadline = Deadline::after(Duration::from_secs(10));
                let verdict = runtime.block_on(program.evaluate(&review, deadline)).expect("a verdict");
                assert!(!verdict.allowed);
            });
        });
    }
}

criterion_group!(benches, required_labels);
criterion_main!(benches);
