//! The API calls of reconciles, with a mock API server.

use proviso_crds::names::{SERVER_LABEL, field_managers};
use serde_json::{Value, json};

use super::*;
use crate::config::Lifetimes;
use crate::mock_api::MockApi;

struct Cluster {
    api: MockApi,
    context: Arc<Context>,
}

fn server(spec: &Value) -> Value {
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyServer",
        "metadata": {"name": "default", "uid": "server", "generation": 1, "finalizers": [finalizers::POLICIES]},
        "spec": spec,
    })
}

impl Cluster {
    fn new(spec: &Value) -> Self {
        let api = MockApi::default();
        let shared = api.context();
        let hour = std::time::Duration::from_hours(1);
        let lifetimes = Lifetimes {
            authority: 300 * hour,
            certificate: 30 * hour,
            signing_key: 30 * hour,
            caller_token: 30 * hour,
            announcement: hour,
            authority_retirement: hour,
            signing_key_retirement: 24 * hour,
            caller_token_retirement: hour,
        };
        let (namespace, image) = (shared.namespace.clone(), "policy-server:1".to_owned());
        let defaults = ServerDefaults { namespace, image, authenticates_metrics: true };
        api.put(&shared.caches.servers, server(spec));
        Self { api, context: Arc::new(Context::new(shared, Settings { defaults, lifetimes })) }
    }

    /// Reconciles the cached policy server. Returns the API calls.
    async fn reconcile(&self) -> Vec<String> {
        let server = self.context.caches.servers.reader().get("default", None).unwrap();
        reconcile(server, Arc::clone(&self.context)).await.unwrap();
        self.api.calls()
    }
}

fn apply(resource: &str) -> String {
    format!("PATCH {resource} ({})", field_managers::OPERATOR)
}

#[tokio::test]
async fn the_objects_of_a_policy_server_are_created_once() {
    let cluster = Cluster::new(&json!({}));
    let calls = cluster.reconcile().await;
    let expected = [
        "GET secrets/policy-server-default-signing".to_owned(),
        "POST secrets".to_owned(),
        "GET secrets/policy-server-default-callers".to_owned(),
        "POST secrets".to_owned(),
        "GET secrets/policy-server-default-tls".to_owned(),
        "POST secrets".to_owned(),
        apply("serviceaccounts/policy-server-default"),
        apply("roles/policy-server-default"),
        apply("rolebindings/policy-server-default"),
        apply("clusterrolebindings/proviso-policy-server-default"),
        apply("configmaps/policy-server-default-sources"),
        apply("services/policy-server-default-replicas"),
        apply("services/policy-server-default"),
        apply("poddisruptionbudgets/policy-server-default"),
        apply("statefulsets/policy-server-default"),
        apply("policyservers/default/status"),
        "POST events (CertificateIssued)".to_owned(),
    ];
    assert_eq!(calls, expected);
    assert!(cluster.reconcile().await.is_empty());
}

#[tokio::test]
async fn an_object_is_applied_again_if_the_object_or_the_spec_changed() {
    let cluster = Cluster::new(&json!({}));
    cluster.reconcile().await;
    let caches = &cluster.context.caches;
    let service = caches.services.reader().get("policy-server-default", Some("proviso")).unwrap();
    let mut service = serde_json::to_value(&*service).unwrap();
    service["spec"]["type"] = "NodePort".into();
    cluster.api.put(&caches.services, service);
    assert_eq!(cluster.reconcile().await, [apply("services/policy-server-default")]);
    // A change of its status is no difference.
    let replicas = json!({"status": {"replicas": 2, "readyReplicas": 2}});
    let metadata =
        json!({"name": "policy-server-default", "namespace": "proviso", "labels": {SERVER_LABEL: "default"}});
    let mut counted = replicas.clone();
    counted["metadata"] = metadata;
    cluster.api.put(&caches.stateful_sets, counted);
    assert_eq!(cluster.reconcile().await, [apply("policyservers/default/status")]);
    cluster.api.put(&caches.servers, server(&json!({"replicas": 3})));
    let calls = cluster.reconcile().await;
    assert_eq!(calls, [apply("statefulsets/policy-server-default"), apply("policyservers/default/status")]);
    assert!(cluster.reconcile().await.is_empty());
}

#[tokio::test]
async fn a_pod_of_a_lost_node_is_deleted_by_force() {
    let cluster = Cluster::new(&json!({}));
    cluster.reconcile().await;
    let pod = |deleted: &str| {
        json!({
            "metadata": {
                "name": "policy-server-default-0", "namespace": "proviso", "uid": "pod",
                "labels": {SERVER_LABEL: "default"}, "deletionTimestamp": deleted,
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "policy-server-default", "uid": "1"},
                ],
            },
            "spec": {"containers": [], "nodeName": "node-a"},
        })
    };
    let pods = &cluster.context.caches.pods;
    // The kubelet has years to confirm the end of the pod.
    cluster.api.put(pods, pod("2999-01-01T00:00:00Z"));
    assert!(cluster.reconcile().await.is_empty());
    // The mock API server has no node of this name.
    cluster.api.put(pods, pod("2026-01-01T00:00:00Z"));
    let expected = ["GET nodes/node-a", "DELETE pods/policy-server-default-0", "POST events (LostPodDeleted)"];
    assert_eq!(cluster.reconcile().await, expected);
}

#[tokio::test]
async fn a_replica_whose_memory_was_exhausted_is_reported_once() {
    let cluster = Cluster::new(&json!({}));
    cluster.reconcile().await;
    let now = Timestamp::now().to_string();
    let ended = |restarts: u32| {
        json!({
            "metadata": {
                "name": "policy-server-default-0", "namespace": "proviso", "uid": "pod",
                "labels": {SERVER_LABEL: "default"},
            },
            "spec": {"containers": [{"name": "policy-server", "resources": {"limits": {"memory": "256Mi"}}}]},
            "status": {"containerStatuses": [{
                "name": "policy-server", "image": "a", "imageID": "", "ready": true, "restartCount": restarts,
                "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": now}},
            }]},
        })
    };
    let pods = &cluster.context.caches.pods;
    let expected = ["POST events (OutOfMemory)".to_owned(), apply("policyservers/default/status")];
    for restarts in 1..3 {
        cluster.api.put(pods, ended(restarts));
        assert_eq!(cluster.reconcile().await, expected);
        assert!(cluster.reconcile().await.is_empty());
    }
}

#[tokio::test]
async fn a_deleted_policy_server_waits_for_its_policies_without_a_list() {
    let cluster = Cluster::new(&json!({}));
    cluster.reconcile().await;
    let caches = &cluster.context.caches;
    let policy = json!({
        "metadata": {"name": "a", "generation": 1},
        "spec": {"program": {"cel": {"validations": [{"expression": "true"}]}}},
    });
    cluster.api.put(&caches.cluster_policies, policy);
    let mut deleted = server(&json!({}));
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    cluster.api.put(&caches.servers, deleted);
    let calls = cluster.reconcile().await;
    assert_eq!(calls, [apply("policyservers/default/status"), "POST events (PoliciesRemain)".to_owned()]);
    assert!(cluster.reconcile().await.is_empty());
}
