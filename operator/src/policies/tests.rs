//! The API calls of reconciles, with a mock API server.

mod configuration;

use proviso_core::CallerToken;
use proviso_crds::fixtures::{condition, replica};
use proviso_crds::names::{ROLLBACK_TO, field_managers};
use proviso_crds::{ClusterPolicy, ConditionType, Conditions as _, Policy};
use serde_json::{Value, json};

use super::*;
use crate::mock_api::MockApi;

const REVISION: &str = "policyrevisions/cluster.a-1";
const WEBHOOK: &str = "validatingwebhookconfigurations/proviso-cluster.a";
const POLICY: &str = "clusterpolicies/a";

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

/// Returns the call that writes the status of an object as the operator.
fn status_of(object: &str) -> String {
    format!("PATCH {object}/status ({})", field_managers::OPERATOR)
}

fn apply_webhook() -> String {
    format!("PATCH {WEBHOOK} ({})", field_managers::OPERATOR)
}

/// One policy and two Ready pods of its policy server.
struct Cluster {
    api: MockApi,
    context: Arc<Context>,
    refusals: Refusals,
}

impl Cluster {
    fn new() -> Self {
        let api = MockApi::default();
        let context = api.context();
        for number in 0..2 {
            api.put(&context.caches.pods, pod(number));
        }
        api.put(&context.caches.cluster_policies, policy(1));
        api.put_caller_tokens(&context, 1);
        Self { api, context, refusals: Refusals::default() }
    }

    /// Reconciles the cached policy. Returns the API calls.
    async fn reconcile(&self) -> Vec<String> {
        self.try_reconcile().await.unwrap();
        self.api.calls()
    }

    async fn try_reconcile(&self) -> Result<Action, Error> {
        let policy = self.context.caches.cluster_policies.reader().get("a", None).unwrap();
        let uniqueness = Uniqueness::new(&self.context.caches);
        reconcile::<ClusterPolicy>(&policy, &self.refusals, &uniqueness, &self.context).await
    }

    /// Writes the status of the revision of a generation, as the policy server does.
    fn write_revision_status(&self, generation: i64, status: &Value) {
        let metadata = json!({"name": format!("cluster.a-{generation}"), "namespace": "proviso"});
        self.api.put(&self.context.caches.revisions, json!({"metadata": metadata, "status": status}));
    }

    /// Returns the status of the condition `Live` of the revision of a generation; empty if it has none.
    fn live_condition(&self, generation: i64) -> String {
        let name = format!("cluster.a-{generation}");
        let revision = self.context.caches.revisions.reader().get(&name, Some("proviso")).unwrap();
        let conditions = &revision.0.as_ref().unwrap().status.conditions;
        conditions.condition(ConditionType::Live).map(|live| live.status.clone()).unwrap_or_default()
    }

    /// Returns the cached webhook configuration.
    fn webhook(&self) -> Value {
        let webhook = self.context.caches.validating.reader().get("proviso-cluster.a", None).unwrap();
        serde_json::to_value(&*webhook).unwrap()
    }

    /// Returns a cluster in which the first generation of the policy is live.
    async fn live() -> Self {
        let cluster = Self::new();
        cluster.reconcile().await;
        cluster.write_revision_status(1, &loaded(&[0, 1]));
        cluster.reconcile().await;
        cluster.reconcile().await;
        cluster.api.calls();
        cluster
    }

    /// Writes the second generation of the policy, and reconciles until its revision waits for the policy server.
    async fn edit(&self) {
        self.api.put(&self.context.caches.cluster_policies, policy(2));
        assert_eq!(self.reconcile().await, ["POST policyrevisions".to_owned(), status_of(POLICY)]);
        assert_eq!(self.reconcile().await, [status_of("policyrevisions/cluster.a-2"), status_of(POLICY)]);
    }

    /// Writes a request for a rollback, as a client does.
    fn request_rollback(&self, generation: &str) {
        let mut annotated = policy(1);
        annotated["metadata"]["annotations"] = json!({ROLLBACK_TO: generation});
        self.api.put(&self.context.caches.cluster_policies, annotated);
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
    let (status, revision_status) = (status_of(POLICY), status_of(REVISION));
    assert_eq!(cluster.reconcile().await, ["POST policyrevisions", &status]);
    assert_eq!(cluster.reconcile().await, [revision_status.as_str(), &status]);
    assert!(cluster.reconcile().await.is_empty(), "the policy server has not prepared it yet");
    cluster.write_revision_status(1, &loaded(&[0]));
    assert_eq!(cluster.reconcile().await, [status.as_str()], "a replica is missing");
    cluster.write_revision_status(1, &loaded(&[0, 1]));
    let webhook = apply_webhook();
    assert_eq!(cluster.reconcile().await, [revision_status.as_str(), &webhook, "POST events (Live)", &status]);
    assert!(cluster.reconcile().await.is_empty());
}

#[tokio::test]
async fn a_settled_policy_causes_no_api_call() {
    let cluster = Cluster::live().await;
    cluster.api.put(&cluster.context.caches.pods, pod(0));
    cluster.write_revision_status(1, &loaded(&[0, 1]));
    assert!(cluster.reconcile().await.is_empty());
}

#[tokio::test]
async fn the_mark_of_an_aborted_commit_stays_and_causes_no_write() {
    let cluster = Cluster::live().await;
    let mut marked = policy(1);
    marked["status"]["abortedCommit"] = "id".into();
    cluster.api.put(&cluster.context.caches.cluster_policies, marked);
    assert!(cluster.reconcile().await.is_empty());
    cluster.edit().await;
    let policy = cluster.context.caches.cluster_policies.reader().get("a", None).unwrap();
    let status = policy.0.as_ref().unwrap().status.clone().unwrap();
    assert_eq!(status.aborted_commit.as_deref(), Some("id"));
}

#[tokio::test]
async fn a_changed_webhook_is_applied_again() {
    let cluster = Cluster::live().await;
    let mut webhook = cluster.webhook();
    webhook["webhooks"][0]["failurePolicy"] = "Ignore".into();
    cluster.api.put(&cluster.context.caches.validating, webhook);
    assert_eq!(cluster.reconcile().await, [apply_webhook()]);
    assert!(cluster.reconcile().await.is_empty());
}

#[tokio::test]
async fn an_edit_is_on_record_before_the_switch_and_the_old_generation_is_replaced_after_it() {
    let cluster = Cluster::live().await;
    cluster.edit().await;
    cluster.write_revision_status(2, &loaded(&[0, 1]));
    let (record, replaced) = (status_of("policyrevisions/cluster.a-2"), status_of(REVISION));
    // The switch fails at first: the old generation is not replaced yet.
    cluster.api.refuse(&format!("PATCH {WEBHOOK}"), 503);
    assert!(cluster.try_reconcile().await.is_err());
    assert_eq!(cluster.api.calls(), [record, apply_webhook()]);
    assert_eq!((cluster.live_condition(1), cluster.live_condition(2)), ("True".to_owned(), "True".to_owned()));
    let event = "POST events (Live)".to_owned();
    assert_eq!(cluster.reconcile().await, [apply_webhook(), replaced, event, status_of(POLICY)]);
    assert_eq!((cluster.live_condition(1), cluster.live_condition(2)), ("False".to_owned(), "True".to_owned()));
    assert!(cluster.reconcile().await.is_empty());
}

#[tokio::test]
async fn a_refused_switch_is_a_condition_and_an_event_until_it_succeeds() {
    let cluster = Cluster::live().await;
    let live = || {
        let policy = cluster.context.caches.cluster_policies.reader().get("a", None).unwrap();
        let status = policy.0.as_ref().unwrap().status.clone().unwrap();
        let live = status.conditions.condition(ConditionType::Live).unwrap().clone();
        (live.status, live.reason, live.message, status.live_generation)
    };
    cluster.edit().await;
    cluster.write_revision_status(2, &loaded(&[0, 1]));
    let (record, replaced) = (status_of("policyrevisions/cluster.a-2"), status_of(REVISION));
    let switch = format!("PATCH {WEBHOOK}");
    let event = "POST events (KubernetesError)".to_owned();
    for calls in [vec![record, apply_webhook(), event, status_of(POLICY)], vec![apply_webhook()]] {
        cluster.api.refuse(&switch, 403);
        assert!(cluster.try_reconcile().await.is_err());
        assert_eq!(cluster.api.calls(), calls);
        let message = "the operator cannot apply this generation: by a test; generation 1 goes on answering";
        assert_eq!(live(), ("False".to_owned(), "KubernetesError".to_owned(), message.to_owned(), Some(1)));
    }
    let event = "POST events (Live)".to_owned();
    assert_eq!(cluster.reconcile().await, [apply_webhook(), replaced, event, status_of(POLICY)]);
    assert_eq!((live().0, live().3), ("True".to_owned(), Some(2)));

    // The live generation stays live if its webhook cannot be restored.
    let mut webhook = cluster.webhook();
    webhook["webhooks"][0]["failurePolicy"] = "Ignore".into();
    cluster.api.put(&cluster.context.caches.validating, webhook);
    cluster.api.refuse(&switch, 403);
    assert!(cluster.try_reconcile().await.is_err());
    let message = "the operator cannot apply this generation: by a test; it was live before";
    assert_eq!(live(), ("Unknown".to_owned(), "KubernetesError".to_owned(), message.to_owned(), Some(2)));
}

#[tokio::test]
async fn a_hand_edit_of_the_path_is_put_back_to_the_record() {
    let cluster = Cluster::live().await;
    cluster.edit().await;
    let failed = condition("Initialized", "False", "CompileError", "no", 2);
    cluster.write_revision_status(2, &json!({"conditions": [failed]}));
    cluster.reconcile().await;
    let expected = CallerToken::from_random([1; 32]).path(&"/validate/cluster.a/1");
    // The last paths have no token, and an old one.
    let old = CallerToken::from_random([0; 32]).path(&"/validate/cluster.a/1");
    for path in
        ["/validate/cluster.a/2", "/validate/cluster.a/7", "/validate/cluster.b/1", "/validate/cluster.a/1", &old]
    {
        let mut webhook = cluster.webhook();
        webhook["webhooks"][0]["clientConfig"]["service"]["path"] = path.into();
        cluster.api.put(&cluster.context.caches.validating, webhook);
        let calls = cluster.reconcile().await;
        assert!(calls.contains(&apply_webhook()), "{path}: {calls:?}");
        let restored = cluster.webhook();
        assert_eq!(restored["webhooks"][0]["clientConfig"]["service"]["path"], *expected, "{path}");
        assert_eq!(cluster.live_condition(1), "True", "{path}");
        assert!(cluster.reconcile().await.is_empty(), "{path}");
    }
    assert_eq!(cluster.live_condition(2), "False", "a webhook called generation 2, and no longer does");
}

#[tokio::test]
async fn another_token_changes_the_webhook_and_nothing_else() {
    let cluster = Cluster::live().await;
    let token = cluster.api.put_caller_tokens(&cluster.context, 2);
    assert_eq!(cluster.reconcile().await, [apply_webhook()]);
    let path = &cluster.webhook()["webhooks"][0]["clientConfig"]["service"]["path"];
    assert_eq!(*path, token.path(&"/validate/cluster.a/1"));
    assert_eq!(cluster.live_condition(1), "True");
    assert!(cluster.reconcile().await.is_empty());
}

#[tokio::test]
async fn a_refused_rollback_is_a_condition_and_an_event() {
    let cluster = Cluster::live().await;
    cluster.request_rollback("1");
    let rollback = format!("PATCH {POLICY}");
    cluster.api.refuse(&rollback, 422);
    let condition = format!("PATCH {POLICY}/status ({})", field_managers::OPERATOR_ROLLBACK);
    let (revision, event) = (format!("GET {REVISION}"), "POST events (RollbackRefused)".to_owned());
    let refusal = [revision, rollback.clone(), event, condition.clone(), rollback.clone()];
    assert_eq!(cluster.reconcile().await, refusal);
    // The annotation is removed, and the condition stays until the next generation.
    cluster.api.put(&cluster.context.caches.cluster_policies, policy(1));
    assert!(cluster.reconcile().await.is_empty());
    cluster.api.put(&cluster.context.caches.cluster_policies, policy(2));
    assert_eq!(cluster.reconcile().await, [condition, "POST policyrevisions".to_owned(), status_of(POLICY)]);
}

#[tokio::test]
async fn a_refused_rollback_whose_annotation_stays_delays_nothing_else() {
    let cluster = Cluster::live().await;
    cluster.request_rollback("1");
    for _ in 0..2 {
        cluster.api.refuse(&format!("PATCH {POLICY}"), 403);
    }
    assert!(cluster.reconcile().await.contains(&"POST events (RollbackRefused)".to_owned()));
    assert!(cluster.reconcile().await.is_empty(), "the request is repeated at once");
    let mut webhook = cluster.webhook();
    webhook["webhooks"][0]["failurePolicy"] = "Ignore".into();
    cluster.api.put(&cluster.context.caches.validating, webhook);
    assert_eq!(cluster.reconcile().await, [apply_webhook()]);
    // A rollback that fails for another reason is tried again after the rest of the reconcile.
    cluster.request_rollback("2");
    cluster.api.refuse(&format!("PATCH {POLICY}/status"), 500);
    let mut webhook = cluster.webhook();
    webhook["webhooks"][0]["failurePolicy"] = "Ignore".into();
    cluster.api.put(&cluster.context.caches.validating, webhook);
    assert!(cluster.try_reconcile().await.is_err());
    assert_eq!(cluster.api.calls().last(), Some(&apply_webhook()));
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
