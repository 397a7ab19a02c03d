//! The losses of policies, read from caches.

use kube::runtime::watcher::Event;
use proviso_crds::fixtures::condition;
use proviso_crds::names::POLICY_LABEL;
use proviso_crds::{ClusterPolicy, Policy};
use serde_json::{Value, json};

use super::*;
use crate::context::Context;
use crate::mock_api::MockApi;

struct Cluster {
    api: MockApi,
    context: Arc<Context>,
}

/// Returns a policy that was created at this second. `namespace` is that of a Policy.
fn policy(namespace: Option<&str>, name: &str, second: u32, request: &Value) -> Value {
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": if namespace.is_some() { "Policy" } else { "ClusterPolicy" },
        "metadata": {
            "namespace": namespace, "name": name, "uid": format!("uid-{name}"), "generation": 1,
            "creationTimestamp": format!("2026-11-21T09:20:{second:02}Z"),
        },
        "spec": {"program": {"cel": {"validations": [{"expression": "true"}]}}, "request": request},
    })
}

/// Returns the revision of a generation of this policy, which is live.
fn live(policy: &Value, generation: i64) -> Value {
    let (kind, metadata) = (&policy["kind"], &policy["metadata"]);
    let reference = json!({
        "kind": kind, "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"],
        "generation": generation,
    });
    let mut spec = policy["spec"].clone();
    spec["policyServer"] = "default".into();
    json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "PolicyRevision",
        "metadata": {
            "namespace": "proviso", "name": format!("{}-{generation}", metadata["name"].as_str().unwrap()),
            "labels": {POLICY_LABEL: metadata["uid"]},
        },
        "spec": {"policyServer": "default", "policyRef": reference, "role": "Live", "enabled": true, "data": spec},
        "status": {"conditions": [condition("Live", "True", "Live", "", generation)]},
    })
}

impl Cluster {
    fn new() -> Self {
        let api = MockApi::default();
        let context = api.context();
        Self { api, context }
    }

    fn put(&self, object: Value) {
        let caches = &self.context.caches;
        match object["kind"].as_str().unwrap() {
            "Policy" => drop(self.api.put(&caches.policies, object)),
            "ClusterPolicy" => drop(self.api.put(&caches.cluster_policies, object)),
            "PolicyRevision" => drop(self.api.put(&caches.revisions, object)),
            _ => drop(self.api.put(&caches.namespaces, object)),
        }
    }

    fn put_namespace(&self, name: &str, tenant: Option<&str>) {
        let labels = tenant.map(|tenant| json!({TENANT: tenant}));
        self.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}));
    }
}

/// Returns the losses of a policy, such as `priority cluster.a`.
fn lost<K: PolicyObject>(uniqueness: &Uniqueness<K>, namespace: Option<&str>, name: &str) -> Vec<String> {
    let policy = uniqueness.policies.get(name, namespace).unwrap();
    let losses = uniqueness.losses(&*policy);
    losses.iter().map(|loss| format!("{} {}", loss.value.field.as_str(), loss.by)).collect()
}

fn names<K: PolicyObject>(references: &[ObjectRef<MaybeMalformed<K>>]) -> Vec<&str> {
    references.iter().map(|reference| reference.name.as_str()).collect()
}

#[tokio::test]
async fn the_older_policy_and_the_live_generation_have_a_priority() {
    let cluster = Cluster::new();
    let uniqueness = Uniqueness::<ClusterPolicy>::new(&cluster.context.caches);
    let (first, second) = (policy(None, "a", 1, &json!({})), policy(None, "b", 2, &json!({})));
    cluster.put(first.clone());
    cluster.put(second.clone());
    assert_eq!(lost(&uniqueness, None, "a"), Vec::<String>::new());
    assert_eq!(lost(&uniqueness, None, "b"), ["priority cluster.a"]);
    // A race may make the younger one live.
    cluster.put(live(&second, 1));
    assert_eq!(lost(&uniqueness, None, "a"), ["priority cluster.b"]);
    assert_eq!(lost(&uniqueness, None, "b"), Vec::<String>::new());
    // The live generation has its priority until the next one is live.
    cluster.put(policy(None, "b", 2, &json!({"priority": 7})));
    assert_eq!(lost(&uniqueness, None, "a"), ["priority cluster.b"]);
    let mut retired = live(&second, 1);
    retired["status"]["conditions"][0]["status"] = "False".into();
    cluster.put(retired);
    assert_eq!(lost(&uniqueness, None, "a"), Vec::<String>::new());
}

#[tokio::test]
async fn a_policy_that_is_being_deleted_has_no_name_and_no_priority() {
    let cluster = Cluster::new();
    let uniqueness = Uniqueness::<ClusterPolicy>::new(&cluster.context.caches);
    let first = policy(None, "a", 1, &json!({}));
    cluster.put(first.clone());
    cluster.put(live(&first, 1));
    cluster.put(policy(None, "b", 2, &json!({})));
    assert_eq!(lost(&uniqueness, None, "b"), ["priority cluster.a"]);
    let mut deleted = first;
    deleted["metadata"]["deletionTimestamp"] = json!("2026-11-21T09:21:00Z");
    cluster.put(deleted);
    assert_eq!(lost(&uniqueness, None, "b"), Vec::<String>::new());
}

#[tokio::test]
async fn a_change_of_the_winner_queues_the_loser() {
    let cluster = Cluster::new();
    let uniqueness = Uniqueness::<ClusterPolicy>::new(&cluster.context.caches);
    cluster.put(policy(None, "a", 1, &json!({"priority": 1})));
    cluster.put(policy(None, "b", 2, &json!({"priority": 1})));
    cluster.put(policy(None, "c", 3, &json!({"priority": 3})));
    assert_eq!(lost(&uniqueness, None, "b"), ["priority cluster.a"]);
    cluster.put(policy(None, "a", 1, &json!({"priority": 2})));
    let changed = uniqueness.policies.get("a", None).unwrap();
    assert_eq!(names(&uniqueness.of_policy()(&changed)), ["b"], "the priorities differ now, but b waits for a");
    assert_eq!(lost(&uniqueness, None, "b"), Vec::<String>::new());
    assert!(uniqueness.of_policy()(&changed).is_empty(), "b waits for nothing");
    // A policy with the same priority may have to wait now.
    cluster.put(policy(None, "a", 1, &json!({"priority": 3})));
    let changed = uniqueness.policies.get("a", None).unwrap();
    assert_eq!(names(&uniqueness.of_policy()(&changed)), ["c"]);
}

#[tokio::test]
async fn the_namespaces_of_a_tenant_share_their_names_and_priorities() {
    let cluster = Cluster::new();
    let uniqueness = Uniqueness::<Policy>::new(&cluster.context.caches);
    for (namespace, tenant) in [("a", None), ("b", Some("t")), ("c", Some("t")), ("d", Some("a"))] {
        cluster.put_namespace(namespace, tenant);
    }
    let mut policies = Vec::new();
    for (namespace, second) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        policies.push(policy(Some(namespace), &format!("in-{namespace}"), second, &json!({})));
    }
    for policy in &policies {
        cluster.put(policy.clone());
    }
    let all = || ["a", "b", "c", "d"].map(|namespace| lost(&uniqueness, Some(namespace), &format!("in-{namespace}")));
    let loss = |by: &str| vec![format!("priority ns.{by}.in-{by}")];
    assert_eq!(all(), [vec![], vec![], loss("b"), loss("a")], "a tenant has the name of its namespace by default");
    // The namespace `c` moves to the tenant `a`: the policy of `d` waits for the policy of `a` in any case.
    cluster.put_namespace("c", Some("a"));
    let namespace = cluster.context.caches.namespaces.reader().get("c", None).unwrap();
    assert_eq!(names(&uniqueness.of_namespace()(&namespace)), ["in-a", "in-d"]);
    assert_eq!(all(), [vec![], vec![], loss("a"), loss("a")]);
    // Two live policies after a change of a tenant: the older one has the priority.
    cluster.put(live(&policies[2], 1));
    cluster.put(live(&policies[3], 1));
    assert_eq!(all()[2..], [vec![], loss("c")]);
}

#[tokio::test]
async fn the_policies_that_a_policy_loses_to_are_found_across_others() {
    let cluster = Cluster::new();
    let uniqueness = Uniqueness::<ClusterPolicy>::new(&cluster.context.caches);
    let named = |name: &str, priority: u32| json!({"displayName": name, "priority": priority});
    cluster.put(policy(None, "a", 1, &named("x", 1)));
    cluster.put(policy(None, "b", 2, &named("x", 2)));
    cluster.put(policy(None, "c", 3, &named("y", 2)));
    assert_eq!(
        lost(&uniqueness, None, "c"),
        Vec::<String>::new(),
        "b lost its name to a, and does not block its priority"
    );
    let mut deleted = policy(None, "a", 1, &named("x", 1));
    deleted["metadata"]["resourceVersion"] = "1000".into();
    let deleted = serde_json::from_value(deleted).unwrap();
    cluster.context.caches.cluster_policies.apply_event(Event::Delete(deleted));
    assert_eq!(lost(&uniqueness, None, "c"), ["priority cluster.b"]);
}
