//! One evaluation of four validations: as the server does it, on a thread of its own, with the object read
//! from its JSON.

#![allow(clippy::expect_used, reason = "nothing to measure then")]

use std::time::Duration;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use proviso_core::Review;
use proviso_engines::Deadline;
use proviso_engines::cel::{Program, Validation};
use serde_json::json;

const EXPRESSIONS: [&str; 4] = [
    "object.spec.replicas <= params.maxReplicas",
    "has(object.metadata.labels) && 'app' in object.metadata.labels",
    "object.spec.template.spec.containers.all(c, params.registries.exists(r, c.image.startsWith(r)))",
    "object.spec.template.spec.containers.all(c, has(c.resources) && has(c.resources.limits))",
];

/// A Deployment under review, with so many containers.
fn review(containers: usize) -> Review {
    let container = |n: usize| {
        json!({"name": format!("c{n}"), "image": "registry.example/team/app:1.2.3", "args": ["--verbose", "--port=8080"],
               "env": [{"name": "MODE", "value": "production"}], "ports": [{"containerPort": 8080, "protocol": "TCP"}],
               "resources": {"limits": {"cpu": "500m", "memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "64Mi"}}})
    };
    let containers: Vec<_> = (0..containers).map(container).collect();
    let request = json!({
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "operation": "CREATE", "name": "app", "namespace": "team",
        "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
        "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
        "userInfo": {"username": "alice", "groups": ["system:authenticated", "developers"]},
        "object": {"apiVersion": "apps/v1", "kind": "Deployment",
                   "metadata": {"name": "app", "namespace": "team", "labels": {"app": "app", "tier": "web"}},
                   "spec": {"replicas": 3, "template": {"spec": {"containers": containers}}}},
    });
    Review::admission(Bytes::from(json!({"request": request}).to_string())).expect("a review")
}

fn four_validations(criterion: &mut Criterion) {
    let validation = |expression: &str| Validation { expression: expression.into(), ..Validation::default() };
    let params = json!({"maxReplicas": 5, "registries": ["registry.example/"]});
    let program = Program::compile(EXPRESSIONS.map(validation).into(), &params).expect("a policy");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().expect("a runtime");
    for containers in [1, 12] {
        let review = review(containers);
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
