//! What the benches of the interpreters review.

use bytes::Bytes;
use proviso_core::Review;
use serde_json::json;

/// A Deployment under review, with so many containers.
pub(crate) fn deployment(containers: usize) -> Review {
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
