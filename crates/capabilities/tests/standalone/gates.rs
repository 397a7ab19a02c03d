//! The two gates, and the world that is a folder.

use std::sync::Arc;

use proviso_engines::{Host as _, HostCall};
use serde_json::{Value, json};

use crate::support::{ask, folder, names, reading, soon, with};

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

fn some_objects() -> Vec<Value> {
    vec![pod("a", "one"), pod("a", "two"), pod("b", "three"), namespace("a")]
}

fn of(kind: (&str, &str), more: &Value) -> Value {
    let mut request = json!({"api_version": kind.0, "kind": kind.1});
    for (name, value) in more.as_object().unwrap() {
        request[name] = value.clone();
    }
    request
}

#[tokio::test]
async fn every_call_stands_behind_both_gates() {
    let (world, _) = folder(some_objects());
    let get = of(POD, &json!({"namespace": "a", "name": "one"}));
    for (capabilities, kinds, wanted) in [
        (&[][..], &[POD][..], "kubernetes/get_resource: this policy may not call it: name it in spec.hostCapabilities"),
        (&["oci/*", "kubernetes/can_i"], &[POD], "spec.hostCapabilities"),
        (&["*"], &[], "this policy may not read Pod of v1: name it in spec.contextAwareResources"),
        (&["*"], &[("apps/v1", "Pod"), ("v1", "Secret")], "spec.contextAwareResources"),
        (&["kubernetes/get_resource"], &[POD], ""),
    ] {
        let answer = ask(&with(&world, capabilities, kinds, None), GET, get.clone()).await;
        match answer {
            Ok(object) => assert_eq!((wanted, object), ("", pod("a", "one"))),
            Err(error) => assert!(!wanted.is_empty() && error.contains(wanted), "{capabilities:?}: {error}"),
        }
    }
}

#[tokio::test]
async fn each_member_has_its_own_resources() {
    let (world, _) = folder(some_objects());
    let (first, second) = (reading(&world, &[POD], None), reading(&world, &[("v1", "Namespace")], None));
    assert!(ask(&first, ALL, of(POD, &json!({}))).await.is_ok());
    assert!(ask(&second, ALL, of(POD, &json!({}))).await.is_err());
    let given = second.objects(soon()).await.unwrap();
    assert_eq!(given.resources.iter().map(|it| it.plural.as_str()).collect::<Vec<_>>(), ["namespaces"]);
}

#[tokio::test]
async fn what_is_no_capability_is_none_whatever_is_allowed() {
    let (world, _) = folder(Vec::new());
    let host = reading(&world, &[POD], None);
    for (binding, namespace, operation) in [
        ("kubewarden", "kubernetes", "ingresses"),
        ("kubewarden", "kubernetes", "namespaces"),
        ("kubewarden", "oci/v1", "verify"),
        ("kubewarden", "", ""),
        ("other", "kubernetes", "can_i"),
    ] {
        let call = HostCall { binding, namespace, operation, payload: b"{}" };
        let error = host.call(call, soon()).await.unwrap_err();
        assert!(error.contains("there is no such host capability"), "{error}");
    }
    for verify in ["oci/v1/verify", "oci/v2/verify"] {
        assert!(ask(&host, verify, json!({})).await.unwrap_err().contains("the request is not understood"));
    }
    // Anybody may log.
    let call = HostCall { binding: "kubewarden", namespace: "tracing", operation: "log", payload: b"{}" };
    let nobody = with(&world, &[], &[], None);
    assert_eq!(nobody.call(call, soon()).await, Ok(Vec::new()));
}

#[tokio::test]
async fn a_policy_of_a_namespace_sees_nothing_else() {
    let (world, _) = folder(some_objects());
    let host = reading(&world, &[POD, ("v1", "Namespace")], Some("a"));
    let list = ask(&host, LIST, of(POD, &json!({"namespace": "a"}))).await.unwrap();
    assert_eq!(names(&list), ["one", "two"]);
    let review = |namespace: Value| {
        let attributes = json!({"namespace": namespace, "verb": "get", "resource": "pods"});
        json!({"subject_access_review": {"user": "u", "resource_attributes": attributes}})
    };
    for (call, request, wanted) in [
        (LIST, of(POD, &json!({"namespace": "b"})), "reads nothing of the namespace b"),
        (ALL, of(POD, &json!({})), "has no view of the whole cluster: list_resources_by_namespace"),
        (GET, of(POD, &json!({"namespace": "b", "name": "three"})), "reads nothing of the namespace b"),
        (GET, of(("v1", "Namespace"), &json!({"name": "a"})), "reads nothing of Namespace"),
        (CAN_I, review(json!("b")), "reads nothing of the namespace b"),
        (CAN_I, review(Value::Null), "give the `namespace`"),
        (CAN_I, review(json!("a")), "permissions cannot be asked without a cluster"),
    ] {
        let error = ask(&host, call, request).await.unwrap_err();
        assert!(error.contains(wanted), "{call}: {error}");
    }
    let deadline = soon();
    let given = host.objects(deadline).await.unwrap();
    assert_eq!(given.resources[0].objects.len(), 2);
    assert!(given.resources[1].objects.is_empty(), "what belongs to no namespace is not of this one");
    assert!(host.namespace("a", deadline).await.unwrap().is_some());
    assert!(host.namespace("b", deadline).await.is_err());
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused() {
    let (world, _) = folder(some_objects());
    let host = reading(&world, &[POD, ("v1", "Namespace")], None);
    let namespaces = ("v1", "Namespace");
    for (call, request, wanted) in [
        (LIST, of(POD, &json!({})), "`namespace` is missing"),
        (LIST, of(POD, &json!({"namespace": "../b"})), "is no namespace"),
        (LIST, of(namespaces, &json!({"namespace": "a"})), "belongs to no namespace: use list_resources_all"),
        (ALL, of(POD, &json!({"label_selector": "a in b"})), "the label_selector \"a in b\" is not understood"),
        (ALL, of(POD, &json!({"field_selector": "spec.nodeName=n"})), "without a cluster"),
        (ALL, of(POD, &json!({"limit": 1})), "unknown field `limit`"),
        (ALL, json!({"kind": "Pod"}), "missing field `api_version`"),
        (GET, of(POD, &json!({"name": "one"})), "belongs to a namespace"),
        (GET, of(namespaces, &json!({"name": "a", "namespace": "a"})), "`namespace` must be none"),
        (GET, of(POD, &json!({"name": "a/b", "namespace": "a"})), "is no name of an object"),
        (GET, of(POD, &json!({"name": "four", "namespace": "a"})), "there is no Pod of v1 a/four"),
        (CAN_I, json!({"subject_access_review": {"user": "u"}}), "needs exactly one of"),
    ] {
        let error = ask(&host, call, request.clone()).await.unwrap_err();
        assert!(error.contains(wanted), "{call} {request}: {error}");
    }
}

#[tokio::test]
async fn objects_are_the_very_same_until_one_changes() {
    let (world, objects) = folder(some_objects());
    let host = reading(&world, &[POD], None);
    let deadline = soon();
    let first = host.objects(deadline).await.unwrap();
    objects.replace(some_objects());
    assert!(Arc::ptr_eq(&first, &host.objects(deadline).await.unwrap()));
    objects.replace(vec![pod("a", "other")]);
    let second = host.objects(deadline).await.unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    assert_eq!((first.resources[0].objects.len(), second.resources[0].objects.len()), (3, 1));
}
