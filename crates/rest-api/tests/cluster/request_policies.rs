//! The management of request policies over a real API server: the objects, and races between replicas.

use axum::http::Method;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use proviso_crds::Policy;
use proviso_rest_api::kubernetes::{Access, Authorizer};
use proviso_rest_api::{Caller, Code, Error};
use serde_json::{Value, json};

use crate::test_api::{NAMESPACE, TestApi};

const ADR: &str = "/api/v1/policies";
const PUBLISHED: &str = "/api/v1alpha1/policies";
const LEASE: &str = "proviso-request-policies";

fn published(name: &str, priority: u32) -> Value {
    json!({"display_name": name, "policy_type": "GLOBAL", "priority": priority, "rego_code": "package p\nmain := {}"})
}

fn adr(name: &str, policy_type: &str, tenant: Option<&str>) -> Value {
    let mut body = json!({"name": name, "type": policy_type, "priority": 3, "rego": "package p\nresult := {}"});
    if let Some(tenant) = tenant {
        body["tenant"] = json!(tenant);
    }
    body
}

impl TestApi {
    async fn expect(&self, status: u16, method: Method, path: &str, body: Value) -> Value {
        let (answered, answer) = self.call(method.clone(), path, body).await;
        assert_eq!(answered, status, "{method} {path}: {answer}");
        answer
    }
}

#[tokio::test]
async fn request_policies_are_stored_as_kubernetes_objects() {
    let api = TestApi::start("api-request-policies").await;
    for (namespace, label) in
        [("team-z", "proviso.dev/tenant=blue"), ("team-a", "proviso.dev/tenant=blue"), ("green", "a=b")]
    {
        api.kubectl.run(&["create", "namespace", namespace]).await.unwrap();
        api.kubectl.run(&["label", "namespace", namespace, label]).await.unwrap();
    }

    // The published form: the id is the name of a ClusterPolicy.
    let created = api.expect(201, Method::POST, &format!("{PUBLISHED}?id=sizes"), published("Sizes", 1)).await;
    let object = api.policies().get("sizes").await.unwrap();
    let spec = json!(object.spec);
    assert_eq!((&spec["request"]["displayName"], &spec["request"]["level"]), (&json!("Sizes"), &json!("Global")));
    assert_eq!(spec["program"]["rego"]["entrypoint"], "main");
    assert_eq!(api.get(&format!("{PUBLISHED}/sizes")).await, created);
    let by_server = api.expect(201, Method::POST, PUBLISHED, published("Other", 2)).await;
    assert!(api.policies().get(by_server["id"].as_str().unwrap()).await.is_ok());
    let change = json!({"priority": 9, "create_time": created["create_time"]});
    let patched = api.ok(Method::PATCH, &format!("{PUBLISHED}/sizes"), change).await;
    assert_eq!((&patched["priority"], &patched["display_name"]), (&json!(9), &json!("Sizes")));
    let taken = api.expect(409, Method::PATCH, &format!("{PUBLISHED}/sizes"), json!({"priority": 2})).await;
    assert_eq!(taken["type"], "ALREADY_EXISTS");
    api.expect(409, Method::POST, &format!("{PUBLISHED}?id=sizes"), published("New", 77)).await;
    // The schema of the API server applies too.
    let other = api.expect(400, Method::POST, &format!("{PUBLISHED}?id=sizes"), json!({"display_name": "x"})).await;
    assert_eq!(other["type"], "INVALID_ARGUMENT");

    // The form of the ADR: the first namespace of the tenant, by name.
    let tenant = api.expect(201, Method::POST, ADR, adr("Sizes", "Tenant", Some("blue"))).await;
    let id = tenant["id"].as_str().unwrap();
    let stored = Api::<Policy>::namespaced(api.client.clone(), "team-a").get("sizes").await.unwrap();
    assert_eq!(stored.uid().as_deref(), Some(id));
    assert_eq!(api.get(&format!("{ADR}/{id}")).await["tenant"], "blue");
    // Both namespaces belong to the tenant, so a policy of the other one has the same scope.
    let manifest = json!({
        "apiVersion": "proviso.dev/v1alpha1", "kind": "Policy", "metadata": {"name": "b"},
        "spec": {"request": {"priority": 4}, "program": {"rego": {"dialect": "Request", "source": "package p\nresult := {}"}}},
    });
    let others = Api::<Policy>::namespaced(api.client.clone(), "team-z");
    others.patch("b", &PatchParams::apply("owner"), &Patch::Apply(manifest)).await.unwrap();
    let body = json!({"priority": 4, "rego": "package p\nresult := {}"});
    let taken = api.expect(409, Method::PUT, &format!("{ADR}/{id}"), body).await;
    assert!(taken["detail"].as_str().unwrap().contains("in use by policy ns.team-z.b"), "{taken}");
    api.expect(201, Method::POST, ADR, adr("Sizes", "Tenant", Some("green"))).await;
    for nowhere in ["team-a", "nowhere"] {
        let refused = api.expect(400, Method::POST, ADR, adr("Sizes", "Tenant", Some(nowhere))).await;
        assert!(refused["detail"].as_str().unwrap().starts_with("tenant: no namespace belongs"), "{refused}");
    }
    assert_eq!(api.get(&format!("{ADR}?tenant=blue")).await["policies"].as_array().unwrap().len(), 2);
    assert_eq!(api.get(ADR).await["policies"].as_array().unwrap().len(), 5);
    assert_eq!(api.get(PUBLISHED).await["policies"].as_array().unwrap().len(), 2);

    // /v1 has the same policies, and the same rule.
    let (status, refused) = api.call(Method::POST, "/v1/policies?policyId=cluster.c", json!({"spec": spec})).await;
    assert_eq!((status, &refused["error"]["status"]), (409, &json!("ALREADY_EXISTS")), "{refused}");
    for path in [format!("{ADR}/{id}"), format!("{PUBLISHED}/sizes")] {
        assert_eq!(api.expect(204, Method::DELETE, &path, Value::Null).await, Value::Null);
    }
    for path in [format!("{ADR}/{id}"), format!("{PUBLISHED}/sizes")] {
        assert_eq!(api.expect(404, Method::GET, &path, Value::Null).await["type"], "NOT_FOUND");
    }
}

/// An authorizer for an administrator of one namespace.
struct OnlyNamespace(&'static str);

impl Authorizer for OnlyNamespace {
    async fn authorize(&self, _: Option<&Caller>, access: &Access) -> Result<(), Error> {
        if access.namespace.as_deref() == Some(self.0) {
            return Ok(());
        }
        Err(Error::new(Code::PermissionDenied, "FORBIDDEN", format!("{access:?}")))
    }
}

#[tokio::test]
async fn callers_need_the_permissions_for_the_objects() {
    let api = TestApi::start("api-request-permissions").await;
    for namespace in ["blue", "green"] {
        api.kubectl.run(&["create", "namespace", namespace]).await.unwrap();
    }
    let global = api.expect(201, Method::POST, ADR, adr("Sizes", "Global", None)).await;
    let blue = api.router_with(OnlyNamespace("blue"));
    let call = async |status: u16, method: Method, path: &str, body: Value| {
        let (answered, answer) = TestApi::send(&blue, method.clone(), path, body).await;
        assert_eq!(answered, status, "{method} {path}: {answer}");
        answer
    };
    let own = call(201, Method::POST, ADR, adr("Sizes", "Tenant", Some("blue"))).await;
    let own = format!("{ADR}/{}", own["id"].as_str().unwrap());
    call(200, Method::GET, &own, Value::Null).await;
    call(200, Method::GET, &format!("{ADR}?tenant=blue"), Value::Null).await;
    let global = format!("{ADR}/{}", global["id"].as_str().unwrap());
    let replacement = json!({"priority": 4, "rego": "package p\nresult := {}"});
    for (method, path, body) in [
        (Method::POST, ADR, adr("Mine", "Global", None)),
        (Method::POST, ADR, adr("Mine", "Tenant", Some("green"))),
        (Method::GET, ADR, Value::Null),
        (Method::GET, "/api/v1/policies?tenant=green", Value::Null),
        (Method::GET, "/api/v1/policies?type=Global", Value::Null),
        (Method::GET, global.as_str(), Value::Null),
        (Method::PUT, global.as_str(), replacement.clone()),
        (Method::DELETE, global.as_str(), Value::Null),
        (Method::GET, PUBLISHED, Value::Null),
        (Method::POST, PUBLISHED, published("Mine", 7)),
        (Method::PATCH, "/api/v1alpha1/policies/sizes", json!({"priority": 7})),
        (Method::DELETE, "/api/v1alpha1/policies/sizes", Value::Null),
    ] {
        assert_eq!(call(403, method, path, body).await["type"], "PERMISSION_DENIED", "{path}");
    }
    call(200, Method::PUT, &own, replacement).await;
    call(204, Method::DELETE, &own, Value::Null).await;
    assert_eq!(api.get(&global).await["priority"], 3);
}

#[tokio::test]
async fn one_of_the_concurrent_creations_by_two_replicas_with_one_priority_wins() {
    let api = TestApi::start("api-request-races").await;
    let replicas = [api.another_router(), api.another_router()];
    let calls: Vec<_> = (0..12)
        .map(|index| {
            let (router, body) = (replicas[index % 2].clone(), published(&format!("n{index}"), 5));
            tokio::spawn(async move { TestApi::send(&router, Method::POST, PUBLISHED, body).await })
        })
        .collect();
    let mut statuses = Vec::new();
    for call in calls {
        statuses.push(call.await.unwrap().0);
    }
    statuses.sort_unstable();
    assert_eq!((statuses[0], &statuses[1..]), (201, &[409; 11][..]));
    let stored = api.policies().list(&kube::api::ListParams::default()).await.unwrap();
    assert_eq!(stored.items.len(), 1);
    // The Lease is free again.
    let lease = Api::<Lease>::namespaced(api.client.clone(), NAMESPACE).get(LEASE).await.unwrap();
    assert_eq!(lease.spec.unwrap_or_default().holder_identity, None);
}

#[tokio::test]
async fn a_crashed_holder_of_the_lease_delays_a_change_and_does_not_stop_it() {
    let api = TestApi::start("api-request-lease").await;
    let now = MicroTime(Timestamp::now());
    let lease = Lease {
        metadata: kube::api::ObjectMeta { name: Some(LEASE.to_owned()), ..kube::api::ObjectMeta::default() },
        spec: Some(LeaseSpec {
            holder_identity: Some("crashed".to_owned()),
            lease_duration_seconds: Some(10),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }),
    };
    let leases = Api::<Lease>::namespaced(api.client.clone(), NAMESPACE);
    leases.create(&kube::api::PostParams::default(), &lease).await.unwrap();
    api.expect(201, Method::POST, &format!("{PUBLISHED}?id=a"), published("A", 1)).await;
    let after = leases.get(LEASE).await.unwrap();
    assert_eq!(after.spec.unwrap_or_default().holder_identity, None, "the change has taken and released the Lease");
}

#[tokio::test]
async fn concurrent_patches_are_all_applied() {
    let api = TestApi::start("api-request-patches").await;
    api.expect(201, Method::POST, &format!("{PUBLISHED}?id=a"), published("A", 1)).await;
    let calls: Vec<_> = (0..4)
        .map(|index| {
            let (router, change) = (api.another_router(), json!({"label_selector": {format!("l{index}"): "x"}}));
            tokio::spawn(async move { TestApi::send(&router, Method::PATCH, &format!("{PUBLISHED}/a"), change).await })
        })
        .collect();
    for call in calls {
        let (status, answer) = call.await.unwrap();
        assert_eq!(status, 200, "{answer}");
    }
    let labels = &api.get(&format!("{PUBLISHED}/a")).await["label_selector"];
    assert_eq!(*labels, json!({"l0": "x", "l1": "x", "l2": "x", "l3": "x"}));
}
