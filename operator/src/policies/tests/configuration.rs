//! Policies that configure components: no policy server, no webhook, no replicas.

use proviso_crds::PolicyPhase;
use proviso_crds::names::{CONFIGURATION, POINT_LABEL, POLICY_LABEL};

use super::*;

/// A generation of a policy with this content.
fn configuring(generation: i64, content: &Value) -> Value {
    let mut policy = policy(generation);
    policy["spec"] = json!({"configuration": {"configName": "memory", "content": content}});
    policy
}

/// Content whose body is larger than 512 KiB.
fn too_large() -> Value {
    json!({"text": "x".repeat(600 * 1024)})
}

/// A policy of the cluster that configures components, without policy servers, pods and webhooks.
fn cluster(generation: i64, body: &Value) -> Cluster {
    let api = MockApi::default();
    let context = api.context();
    api.put(&context.caches.cluster_policies, configuring(generation, body));
    Cluster { api, context, refusals: Refusals::default() }
}

impl Cluster {
    /// Writes another generation of the policy. The mock API server merges specs, so the content must have the same keys.
    fn edit_configuration(&self, generation: i64, content: &Value) {
        self.api.put(&self.context.caches.cluster_policies, configuring(generation, content));
    }

    fn status(&self) -> proviso_crds::PolicyStatus {
        let policy = self.context.caches.cluster_policies.reader().get("a", None).unwrap();
        policy.0.as_ref().unwrap().status.clone().unwrap_or_default()
    }

    /// Returns the status and the reason of each condition of the policy.
    fn conditions(&self) -> Vec<String> {
        let conditions = self.status().conditions;
        conditions.iter().map(|it| format!("{}={} {}", it.type_, it.status, it.reason)).collect()
    }

    fn revision(&self, generation: i64) -> Arc<MaybeMalformed<Revision>> {
        let name = format!("cluster.a-{generation}");
        self.context.caches.revisions.reader().get(&name, Some("proviso")).unwrap()
    }

    async fn settle(&self) {
        for _ in 0..3 {
            self.reconcile().await;
        }
        assert!(self.reconcile().await.is_empty());
    }
}

fn validation_of(revision: &str) -> String {
    format!("PATCH {revision}/status ({})", field_managers::OPERATOR_VALIDATION)
}

#[tokio::test]
async fn a_valid_generation_is_live_without_a_policy_server() {
    let cluster = cluster(1, &json!({"min": 1}));
    let (status, revision_status) = (status_of(POLICY), status_of(REVISION));
    assert_eq!(cluster.reconcile().await, ["POST policyrevisions", &status]);
    let expected = [validation_of(REVISION), revision_status, "POST events (Live)".to_owned(), status];
    assert_eq!(cluster.reconcile().await, expected);
    assert!(cluster.reconcile().await.is_empty());
    let status = cluster.status();
    assert_eq!((status.phase, status.live_generation), (Some(PolicyPhase::Active), Some(1)));
    assert_eq!((status.replicas, status.mode), (None, None));
    let conditions =
        ["Scheduled=True RevisionCreated", "Initialized=True Validated", "Ready=True Deliverable", "Live=True Live"];
    assert_eq!(cluster.conditions(), conditions);
    // Policy servers watch the revisions with their label.
    let revision = cluster.revision(1);
    assert_eq!(revision.labels().get(POINT_LABEL).map(String::as_str), Some(CONFIGURATION));
    assert!(revision.labels().contains_key(POLICY_LABEL) && !revision.labels().contains_key(SERVER_LABEL));
}

#[tokio::test]
async fn the_last_good_generation_stays_live_until_a_valid_one_follows() {
    let cluster = cluster(1, &json!({"text": "a"}));
    cluster.settle().await;
    cluster.edit_configuration(2, &too_large());
    cluster.settle().await;
    let status = cluster.status();
    assert_eq!((status.phase, status.live_generation), (Some(PolicyPhase::Failed), Some(1)));
    let conditions = [
        "Scheduled=True RevisionCreated",
        "Initialized=False Invalid",
        "Ready=False NotInitialized",
        "Live=False NotInitialized",
    ];
    assert_eq!(cluster.conditions(), conditions);
    let initialized = status.conditions.condition(ConditionType::Initialized).unwrap();
    assert!(initialized.message.starts_with("spec.configuration.content: "), "{}", initialized.message);
    let live = status.conditions.condition(ConditionType::Live).unwrap();
    assert_eq!(live.message, "not yet; components go on getting generation 1");
    assert_eq!((cluster.live_condition(1), cluster.live_condition(2)), ("True".to_owned(), String::new()));

    cluster.edit_configuration(3, &json!({"text": "b"}));
    cluster.settle().await;
    assert_eq!((cluster.status().phase, cluster.status().live_generation), (Some(PolicyPhase::Active), Some(3)));
    assert_eq!((cluster.live_condition(1), cluster.live_condition(3)), ("False".to_owned(), "True".to_owned()));
    // The operator does not keep the content of a generation that is not live any more.
    let has_content = |generation| cluster.revision(generation).0.as_ref().unwrap().configuration.is_some();
    assert!(!has_content(1) && has_content(3));
}

#[tokio::test]
async fn a_disabled_policy_is_removed_from_components() {
    let cluster = cluster(1, &json!({"min": 1}));
    cluster.settle().await;
    let mut disabled = configuring(2, &json!({"min": 1}));
    disabled["spec"]["enabled"] = false.into();
    cluster.api.put(&cluster.context.caches.cluster_policies, disabled);
    cluster.settle().await;
    assert_eq!((cluster.status().phase, cluster.status().live_generation), (Some(PolicyPhase::Disabled), None));
    assert_eq!(cluster.live_condition(1), "False");
    let status = cluster.status();
    let live = status.conditions.condition(ConditionType::Live).unwrap();
    assert_eq!(live.message, "spec.enabled is false: the policy is removed from components");
}

#[tokio::test]
async fn a_deleted_policy_is_not_live_before_its_revisions_are_deleted() {
    let cluster = cluster(1, &json!({"min": 1}));
    cluster.settle().await;
    let mut deleted = configuring(1, &json!({"min": 1}));
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    cluster.api.put(&cluster.context.caches.cluster_policies, deleted);
    assert_eq!(cluster.reconcile().await, [status_of(REVISION)]);
    assert_eq!(cluster.live_condition(1), "False");
}

#[tokio::test]
async fn a_policy_of_a_namespace_needs_no_policy_server() {
    let api = MockApi::default();
    let context = api.context();
    let mut object = configuring(1, &json!({"min": 1}));
    (object["kind"], object["metadata"]["namespace"]) = ("Policy".into(), "team".into());
    // No policy server of this name exists, and the policy is not refused for that.
    object["spec"]["policyServer"] = "missing".into();
    api.put(&context.caches.policies, object);
    for _ in 0..2 {
        let policy = context.caches.policies.reader().get("a", Some("team")).unwrap();
        let uniqueness = Uniqueness::new(&context.caches);
        reconcile::<Policy>(&policy, &Refusals::default(), &uniqueness, &context).await.unwrap();
    }
    let policy = context.caches.policies.reader().get("a", Some("team")).unwrap();
    let status = policy.0.as_ref().unwrap().status.clone().unwrap();
    assert_eq!((status.phase, status.live_generation), (Some(PolicyPhase::Active), Some(1)));
}
