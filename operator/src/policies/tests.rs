//! The API calls of reconciles, with a mock API server.

use proviso_crds::ClusterPolicy;
use proviso_crds::fixtures::{condition, replica};
use proviso_crds::names::field_managers;
use serde_json::{Value, json};

use super::*;
use crate::mock_api::MockApi;

const REVISION: &str = "policyrevisions/cluster.a-1";

fn policy(generation: i64) -> Value {
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "ClusterPolicy",
        "metadata": {"name": "a", "uid": "policy", "generation": generation, "finalizers": [finalizers::REVISIONS]},
        "spec": {
            "program": {"cel": {"validations": [{"expression": "true"}]}},
            "admission": {"rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]},
        },
    })
}

fn pod(number: usize) -> Value {
    json!({
        "metadata": {
            "name": format!("policy-server-default-{number}"), "namespace": "proviso", "uid": format!("pod-{number}"),
            "labels": {SERVER_LABEL: "default"},
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// Returns the status of a revision that is prepared, and that these replicas have loaded.
fn loaded(replicas: &[usize]) -> Value {
    let item = |number: &usize| {
        replica(&format!("policy-server-default-{number}"), &format!("pod-{number}"), "True", "Loaded")
    };
    let replicas: Vec<_> = replicas.iter().map(item).collect();
    json!({"conditions": [condition("Initialized", "True", "Prepared", "", 1)], "replicas": replicas})
}

/// One policy and two Ready pods of its policy server.
struct Cluster {
    api: MockApi,
    context: Arc<Context>,
}

impl Cluster {
    fn new() -> Self {
        let api = MockApi::default();
        let context = api.context();
        for number in 0..2 {
            api.put(&context.caches.pods, pod(number));
        }
        api.put(&context.caches.cluster_policies, policy(1));
        Self { api, context }
    }

    /// Reconciles the cached policy. Returns the API calls.
    async fn reconcile(&self) -> Vec<String> {
        let policy = self.context.caches.cluster_policies.reader().get("a", None).unwrap();
        reconcile::<ClusterPolicy>(policy, Arc::clone(&self.context)).await.unwrap();
        self.api.calls()
    }

    /// Writes the status of the first revision, as the policy server does.
    fn write_revision_status(&self, status: &Value) {
        let metadata = json!({"name": "cluster.a-1", "namespace": "proviso"});
        self.api.put(&self.context.caches.revisions, json!({"metadata": metadata, "status": status}));
    }

    /// Returns a cluster in which the first generation of the policy is live.
    async fn live() -> Self {
        let cluster = Self::new();
        cluster.reconcile().await;
        cluster.write_revision_status(&loaded(&[0, 1]));
        cluster.reconcile().await;
        cluster.reconcile().await;
        cluster.api.calls();
        cluster
    }
}

#[tokio::test]
async fn a_new_policy_gets_its_finalizer_first() {
    let cluster = Cluster::new();
    let mut new = policy(1);
    new["metadata"]["finalizers"] = json!([]);
    cluster.api.put(&cluster.context.caches.cluster_policies, new);
    assert_eq!(cluster.reconcile().await, ["PATCH clusterpolicies/a"]);
}

#[tokio::test]
async fn a_generation_gets_a_revision_and_then_the_webhook() {
    let cluster = Cluster::new();
    let status = format!("PATCH clusterpolicies/a/status ({})", field_managers::OPERATOR);
    let revision_status = format!("PATCH {REVISION}/status ({})", field_managers::OPERATOR);
    assert_eq!(cluster.reconcile().await, ["POST policyrevisions", &status]);
    assert_eq!(cluster.reconcile().await, [revision_status.as_str(), &status]);
    assert!(cluster.reconcile().await.is_empty(), "the policy server has not prepared it yet");
    cluster.write_revision_status(&loaded(&[0]));
    assert_eq!(cluster.reconcile().await, [status.as_str()], "a replica is missing");
    cluster.write_revision_status(&loaded(&[0, 1]));
    let webhook = format!("PATCH validatingwebhookconfigurations/proviso-cluster.a ({})", field_managers::OPERATOR);
    assert_eq!(cluster.reconcile().await, [revision_status.as_str(), &webhook, "POST events (Live)", &status]);
    assert!(cluster.reconcile().await.is_empty());
}

#[tokio::test]
async fn a_settled_policy_causes_no_api_call() {
    let cluster = Cluster::live().await;
    cluster.api.put(&cluster.context.caches.pods, pod(0));
    cluster.write_revision_status(&loaded(&[0, 1]));
    assert!(cluster.reconcile().await.is_empty());
}

#[tokio::test]
async fn a_changed_webhook_is_applied_again() {
    let cluster = Cluster::live().await;
    let name = "proviso-cluster.a";
    let webhook = cluster.context.caches.validating.reader().get(name, None).unwrap();
    let mut webhook = serde_json::to_value(&*webhook).unwrap();
    webhook["webhooks"][0]["failurePolicy"] = "Ignore".into();
    cluster.api.put(&cluster.context.caches.validating, webhook);
    let apply = format!("PATCH validatingwebhookconfigurations/{name} ({})", field_managers::OPERATOR);
    assert_eq!(cluster.reconcile().await, [apply.as_str()]);
    assert!(cluster.reconcile().await.is_empty());
}

#[tokio::test]
async fn a_deleted_policy_deletes_its_webhook_and_reads_nothing() {
    let cluster = Cluster::live().await;
    let mut deleted = policy(1);
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    cluster.api.put(&cluster.context.caches.cluster_policies, deleted);
    let calls = cluster.reconcile().await;
    let webhook = "DELETE validatingwebhookconfigurations/proviso-cluster.a".to_owned();
    assert!(calls.contains(&webhook), "{calls:?}");
    assert!(!calls.iter().any(|call| call.starts_with("GET")), "{calls:?}");
}
