//! The grants of programs, with a folder of objects.

use std::sync::Arc;

use proviso_engines::{Host as _, HostCall};
use serde_json::{Value, json};

use crate::support::{call_host, default_deadline, folder, host_for, host_with, names};

const POD: (&str, &str) = ("v1", "Pod");
const LIST: &str = "kubernetes/list_resources_by_namespace";
const ALL: &str = "kubernetes/list_resources_all";
const GET: &str = "kubernetes/get_resource";
const CAN_I: &str = "kubernetes/can_i";

fn pod(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"nodeName": "n"},
    })
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

fn test_objects() -> Vec<Value> {
    vec![pod("a", "one"), pod("a", "two"), pod("b", "three"), namespace("a")]
}

fn request_for(kind: (&str, &str), more: &Value) -> Value {
    let mut request = json!({"api_version": kind.0, "kind": kind.1});
    for (name, value) in more.as_object().unwrap() {
        request[name] = value.clone();
    }
    request
}

#[tokio::test]
async fn a_call_needs_the_capability_and_the_kind() {
    let (host_context, _) = folder(test_objects());
    let get = request_for(POD, &json!({"namespace": "a", "name": "one"}));
    for (capabilities, kinds, wanted) in [
        (
            &[][..],
            &[POD][..],
            "kubernetes/get_resource: this policy is not allowed to call this host capability: add it to spec.hostCapabilities",
        ),
        (&["oci/*", "kubernetes/can_i"], &[POD], "spec.hostCapabilities"),
        (&["*"], &[], "this policy is not allowed to read Pod of v1: add the kind to spec.contextAwareResources"),
        (&["*"], &[("apps/v1", "Pod"), ("v1", "Secret")], "spec.contextAwareResources"),
        (&["kubernetes/get_resource"], &[POD], ""),
    ] {
        let answer = call_host(&host_with(&host_context, capabilities, kinds, None), GET, get.clone()).await;
        match answer {
            Ok(object) => assert_eq!((wanted, object), ("", pod("a", "one"))),
            Err(error) => assert!(!wanted.is_empty() && error.contains(wanted), "{capabilities:?}: {error}"),
        }
    }
}

#[tokio::test]
async fn each_program_reads_only_its_own_kinds() {
    let (host_context, _) = folder(test_objects());
    let (first, second) =
        (host_for(&host_context, &[POD], None), host_for(&host_context, &[("v1", "Namespace")], None));
    assert!(call_host(&first, ALL, request_for(POD, &json!({}))).await.is_ok());
    assert!(call_host(&second, ALL, request_for(POD, &json!({}))).await.is_err());
    let objects = second.objects(default_deadline()).await.unwrap();
    assert_eq!(objects.resources.iter().map(|it| it.plural.as_str()).collect::<Vec<_>>(), ["namespaces"]);
}

#[tokio::test]
async fn an_unknown_capability_is_refused_with_all_grants() {
    let (host_context, _) = folder(Vec::new());
    let host = host_for(&host_context, &[POD], None);
    for (binding, namespace, operation) in [
        ("kubewarden", "kubernetes", "ingresses"),
        ("kubewarden", "kubernetes", "namespaces"),
        ("kubewarden", "oci/v1", "verify"),
        ("kubewarden", "", ""),
        ("other", "kubernetes", "can_i"),
    ] {
        let call = HostCall { binding, namespace, operation, payload: b"{}" };
        let error = host.call(call, default_deadline()).await.unwrap_err();
        assert!(error.contains("there is no such host capability"), "{error}");
    }
    for verify in ["oci/v1/verify", "oci/v2/verify"] {
        assert!(call_host(&host, verify, json!({})).await.unwrap_err().contains("invalid request"));
    }
    // Each program may log.
    let call = HostCall { binding: "kubewarden", namespace: "tracing", operation: "log", payload: b"{}" };
    let without_grants = host_with(&host_context, &[], &[], None);
    assert_eq!(without_grants.call(call, default_deadline()).await, Ok(Vec::new()));
}

#[tokio::test]
async fn a_namespaced_policy_cannot_access_other_namespaces() {
    let (host_context, _) = folder(test_objects());
    let host = host_for(&host_context, &[POD, ("v1", "Namespace")], Some("a"));
    let list = call_host(&host, LIST, request_for(POD, &json!({"namespace": "a"}))).await.unwrap();
    assert_eq!(names(&list), ["one", "two"]);
    let review = |namespace: Value| {
        let attributes = json!({"namespace": namespace, "verb": "get", "resource": "pods"});
        json!({"subject_access_review": {"user": "u", "resource_attributes": attributes}})
    };
    for (call, request, wanted) in [
        (LIST, request_for(POD, &json!({"namespace": "b"})), "cannot access the namespace b"),
        (ALL, request_for(POD, &json!({})), "cannot access the whole cluster: list_resources_by_namespace"),
        (GET, request_for(POD, &json!({"namespace": "b", "name": "three"})), "cannot access the namespace b"),
        (GET, request_for(("v1", "Namespace"), &json!({"name": "a"})), "cannot access Namespace"),
        (CAN_I, review(json!("b")), "cannot access the namespace b"),
        (CAN_I, review(Value::Null), "set `resource_attributes.namespace`"),
        (CAN_I, review(json!("a")), "permissions cannot be checked without a cluster"),
    ] {
        let error = call_host(&host, call, request).await.unwrap_err();
        assert!(error.contains(wanted), "{call}: {error}");
    }
    let deadline = default_deadline();
    let objects = host.objects(deadline).await.unwrap();
    assert_eq!(objects.resources[0].objects.len(), 2);
    assert!(objects.resources[1].objects.is_empty(), "cluster-scoped objects are not in this namespace");
    assert!(host.namespace("a", deadline).await.unwrap().is_some());
    assert!(host.namespace("b", deadline).await.is_err());
}

#[tokio::test]
async fn invalid_requests_are_refused_with_the_reason() {
    let (host_context, _) = folder(test_objects());
    let host = host_for(&host_context, &[POD, ("v1", "Namespace")], None);
    let namespaces = ("v1", "Namespace");
    for (call, request, wanted) in [
        (LIST, request_for(POD, &json!({})), "`namespace` is missing"),
        (LIST, request_for(POD, &json!({"namespace": "../b"})), "is not a namespace name"),
        (LIST, request_for(namespaces, &json!({"namespace": "a"})), "is cluster-scoped: use list_resources_all"),
        (ALL, request_for(POD, &json!({"label_selector": "a in b"})), "the label_selector \"a in b\" is invalid"),
        (ALL, request_for(POD, &json!({"field_selector": "spec.nodeName=n"})), "without a cluster"),
        (ALL, request_for(POD, &json!({"limit": 1})), "unknown field `limit`"),
        (ALL, json!({"kind": "Pod"}), "missing field `api_version`"),
        (GET, request_for(POD, &json!({"name": "one"})), "is namespaced"),
        (GET, request_for(namespaces, &json!({"name": "a", "namespace": "a"})), "`namespace` must not be set"),
        (GET, request_for(POD, &json!({"name": "a/b", "namespace": "a"})), "is not an object name"),
        (GET, request_for(POD, &json!({"name": "four", "namespace": "a"})), "there is no Pod of v1 a/four"),
        (CAN_I, json!({"subject_access_review": {"user": "u"}}), "needs exactly one of"),
    ] {
        let error = call_host(&host, call, request.clone()).await.unwrap_err();
        assert!(error.contains(wanted), "{call} {request}: {error}");
    }
}

#[tokio::test]
async fn the_object_snapshot_is_reused_until_an_object_changes() {
    let (host_context, objects) = folder(test_objects());
    let host = host_for(&host_context, &[POD], None);
    let deadline = default_deadline();
    let first = host.objects(deadline).await.unwrap();
    objects.replace(test_objects());
    assert!(Arc::ptr_eq(&first, &host.objects(deadline).await.unwrap()));
    objects.replace(vec![pod("a", "other")]);
    let second = host.objects(deadline).await.unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    assert_eq!((first.resources[0].objects.len(), second.resources[0].objects.len()), (3, 1));
}
