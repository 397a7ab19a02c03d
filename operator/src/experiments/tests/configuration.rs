//! Experiments on policies that configure components.

use proviso_crds::CanaryResult;
use proviso_crds::names::{CONFIGURATION, POINT_LABEL};

use super::*;

/// Returns the spec of a policy with this content.
fn spec(content: &Value) -> Value {
    json!({"configuration": {"configName": "memory", "content": content}})
}

fn configuring_experiment(status: &Value, content: &Value) -> Value {
    let mut experiment = experiment(status);
    experiment["spec"]["policy"] = spec(content);
    experiment
}

/// One experiment on a live policy, without policy servers and pods.
fn cluster(status: &Value, candidate: &Value) -> Cluster {
    let api = MockApi::default();
    let context = api.context();
    let (mut policy, mut live) = (policy(), live());
    policy["spec"] = spec(&json!({"min": 1}));
    live["spec"]["data"] = spec(&json!({"min": 1}));
    live["metadata"]["labels"][POINT_LABEL] = CONFIGURATION.into();
    live["status"]["conditions"] =
        json!([condition("Live", "True", "Live", "", 1), condition("Initialized", "True", "Validated", "", 1)]);
    api.put(&context.caches.cluster_policies, policy);
    api.put(&context.caches.revisions, live);
    api.put(&context.caches.cluster_experiments, configuring_experiment(status, candidate));
    Cluster { api, context, timers: Timers::default() }
}

/// A subscription in the namespace `team` that is a canary for the experiment.
fn subscription(name: &str, status: &Value) -> Value {
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicySubscription",
        "metadata": {"namespace": "team", "name": name, "uid": name, "generation": 1},
        "spec": {
            "scn": name, "policies": [{"id": "cluster.a"}], "delivery": {"configMap": name},
            "canaryFor": [{"policy": "cluster.a", "experiment": "e"}],
        },
        "status": status,
    })
}

fn validation() -> String {
    format!("PATCH {CANDIDATE}/status ({})", field_managers::OPERATOR_VALIDATION)
}

#[tokio::test]
async fn a_valid_candidate_is_previewed_at_once_and_its_canaries_are_reported() {
    let cluster = cluster(&preview("ACTIVE"), &json!({"min": 2}));
    let digest = format!("sha256:{}", "0".repeat(64));
    let delivered = json!({"policies": [{"id": "cluster.a", "version": "1/e/1", "digest": digest}]});
    let rejected = json!({"rejected": [{"id": "cluster.a", "version": "1/e/1", "message": "exit code 3"}]});
    for (name, status) in [("b", &rejected), ("a", &delivered), ("c", &json!({}))] {
        cluster.api.put(&cluster.context.caches.subscriptions, subscription(name, status));
    }
    assert_eq!(cluster.reconcile().await, [status_of_operator(), "POST policyrevisions".to_owned()]);
    assert_eq!(cluster.condition(ConditionType::Previewing), "False Preparing");
    assert!(cluster.status().canaries.is_empty(), "the candidate is not validated yet");
    let candidate = cluster.context.caches.revisions.reader().get("experiment.cluster.e-1", Some("proviso")).unwrap();
    assert_eq!(candidate.labels().get(POINT_LABEL).map(String::as_str), Some(CONFIGURATION));
    assert!(!candidate.labels().contains_key(SERVER_LABEL));

    let event = "POST events (Previewing)".to_owned();
    assert_eq!(cluster.reconcile().await, [validation(), event, status_of_operator()]);
    assert_eq!(cluster.condition(ConditionType::Initialized), "True Validated");
    assert_eq!(cluster.condition(ConditionType::Previewing), "True Previewing");
    let status = cluster.status();
    let canaries: Vec<_> = status.canaries.iter().map(|it| (it.name.as_str(), it.result)).collect();
    let expected = [("b", CanaryResult::Rejected), ("c", CanaryResult::Waiting), ("a", CanaryResult::Delivered)];
    assert_eq!(canaries, expected);
    assert_eq!(status.canaries[0].message.as_deref(), Some("exit code 3"));
    assert_eq!((status.divergence, status.replicas), (None, None));
    assert!(cluster.reconcile().await.is_empty());
}

#[tokio::test]
async fn a_preview_without_canaries_names_the_missing_field() {
    let cluster = cluster(&preview("ACTIVE"), &json!({"min": 2}));
    cluster.reconcile().await;
    cluster.reconcile().await;
    let message = "no component gets it: no PolicySubscription names it in spec.canaryFor";
    assert_eq!(cluster.message(), message);
}

#[tokio::test]
async fn a_candidate_that_is_not_valid_suspends_its_preview() {
    let cluster = cluster(&preview("ACTIVE"), &json!({"text": "x".repeat(600 * 1024)}));
    cluster.reconcile().await;
    let (state, event) = (format!("PATCH {EXPERIMENT}/status"), "POST events (Invalid)".to_owned());
    assert_eq!(cluster.reconcile().await, [validation(), state, event]);
    let cause = cluster.status().preview_metadata.unwrap().stop_cause.unwrap();
    assert!(cause.message.starts_with("spec.configuration.content: "), "{cause:?}");
}

#[tokio::test]
async fn a_stop_waits_for_no_replica() {
    let cluster = cluster(&preview("ACTIVE"), &json!({"min": 2}));
    cluster.api.put(&cluster.context.caches.subscriptions, subscription("a", &json!({})));
    cluster.reconcile().await;
    cluster.reconcile().await;
    assert_eq!(cluster.status().canaries.len(), 1);
    let stopped = configuring_experiment(&preview("SUSPENDED"), &json!({"min": 2}));
    cluster.api.put(&cluster.context.caches.cluster_experiments, stopped);
    assert_eq!(cluster.reconcile().await, [format!("PATCH {CANDIDATE}"), status_of_operator()]);
    assert_eq!(cluster.condition(ConditionType::Previewing), "False Stopping");
    assert!(cluster.status().canaries.is_empty());
    assert_eq!(cluster.reconcile().await, [format!("DELETE {CANDIDATE}")]);
    cluster.forget_candidate();
    cluster.reconcile().await;
    assert_eq!(cluster.condition(ConditionType::Previewing), "False Suspended");
}

#[tokio::test]
async fn a_commit_needs_only_a_valid_candidate() {
    let cluster = cluster(&commit_intent(), &json!({"min": 2}));
    assert!(cluster.reconcile().await.contains(&"POST policyrevisions".to_owned()));
    assert!(cluster.reconcile().await.contains(&validation()));
    assert_eq!(cluster.condition(ConditionType::Initialized), "True Validated");
}

#[test]
fn a_subscription_triggers_the_experiments_that_it_names() {
    let triggered = |policy: &str| {
        let mut object = subscription("a", &json!({}));
        object["spec"]["canaryFor"][0]["policy"] = policy.into();
        let object = serde_json::from_value(object).unwrap();
        let cluster = super::super::configuration::of_subscription::<ClusterPolicyExperiment>(&object).len();
        let namespaced = super::super::configuration::of_subscription::<proviso_crds::PolicyExperiment>(&object).len();
        (cluster, namespaced)
    };
    assert_eq!(triggered("cluster.a"), (1, 0));
    assert_eq!(triggered("ns.team.a"), (0, 1));
    assert_eq!(triggered("ns.other.a"), (0, 0));
}
