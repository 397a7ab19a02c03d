//! Tests over an API server that counts requests.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use axum::http::{Method as Http, StatusCode, header};
use kube::Client;
use serde_json::{Map, Value, json};

use super::*;
use crate::handlers::{Api as Handlers, Call};
use crate::kubernetes::Settings;
use crate::methods;
use crate::operation::{AwaitedEffect, Effect};

fn awaited(effect: Effect, policy: &str) -> AwaitedEffect {
    AwaitedEffect {
        effect,
        policy: policy.parse().unwrap(),
        experiment: Some("e".to_owned()),
        uid: "u".to_owned(),
        version: "1".to_owned(),
        start: None,
    }
}

/// An authorizer that allows everything in one namespace, and records each review.
#[derive(Clone)]
struct OnlyNamespace(&'static str, Arc<Mutex<Vec<Access>>>);

impl Authorizer for OnlyNamespace {
    async fn authorize(&self, _: Option<&Caller>, access: &Access) -> Result<()> {
        self.1.lock().unwrap().push(access.clone());
        let denied = Error::new(Code::PermissionDenied, "FORBIDDEN", "no");
        if access.namespace.as_deref() == Some(self.0) { Ok(()) } else { Err(denied) }
    }
}

/// An API server with operations, and with ten namespaces.
struct Server {
    maps: HashMap<String, ConfigMap>,
    /// True if each namespace was deleted and created again.
    is_renewed: AtomicBool,
    requests: Mutex<Vec<String>>,
}

impl Server {
    /// Returns a server with 1,000 operations that have ended, 100 in each namespace.
    fn new() -> Arc<Self> {
        let mut maps = HashMap::new();
        for index in 0..1000 {
            let awaited = awaited(Effect::Update, &format!("ns.team-{}.p", index % 10));
            let now = serde_json::from_value(json!(Timestamp::now().to_string())).unwrap();
            let mut operation = StoredOperation::new(awaited, now, None);
            operation.finish(OperationResult::Response(json!({"name": "n"})));
            maps.insert(map_name(&operation.id), to_map(&operation, Some("uid-false".to_owned())));
        }
        Arc::new(Self { maps, is_renewed: AtomicBool::new(false), requests: Mutex::default() })
    }

    fn answer(&self, request: &Request) -> (StatusCode, String) {
        let path = request.uri().path();
        let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        let maps = "/api/v1/namespaces/proviso/configmaps";
        let (kind, answer) = if path == maps {
            assert!(accept.contains("as=PartialObjectMetadataList"), "a list loads the bodies: {accept}");
            let items: Vec<_> = self.maps.values().map(|map| json!({"metadata": map.metadata})).collect();
            let kind = "PartialObjectMetadataList";
            ("list", json!({"apiVersion": "meta.k8s.io/v1", "kind": kind, "metadata": {}, "items": items}))
        } else if let Some(map) = path.strip_prefix(&format!("{maps}/")).and_then(|name| self.maps.get(name)) {
            ("body", json!(map))
        } else {
            let name = path.strip_prefix("/api/v1/namespaces/").unwrap();
            let uid = format!("uid-{}", self.is_renewed.load(Ordering::SeqCst));
            ("namespace", json!({"metadata": {"name": name, "uid": uid}}))
        };
        self.requests.lock().unwrap().push(kind.to_owned());
        (StatusCode::OK, answer.to_string())
    }

    /// Lists the operations that a caller with all permissions in `namespace` may list. Returns the response, and the numbers of
    /// lists, of bodies, of reads of a namespace, and of reviews.
    async fn list(self: &Arc<Self>, namespace: &'static str, query: Value) -> (Value, [usize; 4]) {
        self.requests.lock().unwrap().clear();
        let server = Arc::clone(self);
        let router: Router = Router::new().fallback(move |request: Request| {
            let answer = server.answer(&request);
            async move { answer }
        });
        let settings = Settings {
            namespace: "proviso".to_owned(),
            impersonates_callers: false,
            serving_timeout: std::time::Duration::ZERO,
        };
        let reviews = Arc::new(Mutex::default());
        let authorizer = OnlyNamespace(namespace, Arc::clone(&reviews));
        let store = Kubernetes::new(Client::new(router, "proviso"), authorizer, settings);
        let (method, variables) = methods::find(&Http::GET, "/v1/operations").unwrap();
        let query: Map<String, Value> = serde_json::from_value(query).unwrap();
        let call = Call { method, variables, query, body: proviso_http::ReceivedBody::default(), caller: None };
        let response = Handlers::new(Arc::new(store)).call(&call).await.unwrap();
        let requests = self.requests.lock().unwrap();
        let count = |kind: &str| requests.iter().filter(|request| *request == kind).count();
        let reviews = reviews.lock().unwrap().len();
        (response, [count("list"), count("body"), count("namespace"), reviews])
    }
}

fn names(response: &Value) -> Vec<String> {
    let operations = response["operations"].as_array().unwrap();
    operations.iter().map(|operation| operation["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_list_reads_only_the_operations_of_its_page() {
    let server = Server::new();
    // One review for all namespaces, one for each of ten namespaces, and one for each operation of the page.
    let (first, requests) = server.list("team-3", json!({"pageSize": "10"})).await;
    assert_eq!((names(&first).len(), requests), (10, [1, 10, 11, 21]));
    assert!(first["operations"].as_array().unwrap().iter().all(|operation| {
        operation["metadata"]["target"] == "policies/ns.team-3.p/experiments/e" && operation["done"] == true
    }));

    let token = &first["nextPageToken"];
    let (rest, requests) = server.list("team-3", json!({"pageSize": "1000", "pageToken": token})).await;
    assert_eq!((names(&rest).len(), requests), (90, [1, 90, 91, 101]));
    assert_eq!(rest.get("nextPageToken"), None);
    assert!(names(&first).last() < names(&rest).first());

    // A filter reads no operation that cannot match.
    let (pending, requests) = server.list("team-3", json!({"filter": "done=false"})).await;
    assert_eq!((names(&pending).len(), requests), (0, [1, 0, 1, 11]));
}

#[tokio::test]
async fn a_list_of_a_caller_without_permissions_reads_no_operation() {
    let (response, requests) = Server::new().list("elsewhere", json!({})).await;
    assert_eq!((names(&response).len(), requests), (0, [1, 0, 0, 11]));
}

#[tokio::test]
async fn operations_of_an_earlier_namespace_of_the_same_name_are_not_listed() {
    let server = Server::new();
    server.is_renewed.store(true, Ordering::SeqCst);
    let (response, requests) = server.list("team-3", json!({})).await;
    assert_eq!((names(&response).len(), requests), (0, [1, 0, 1, 11]));
}

#[test]
fn the_permission_to_read_an_operation_is_that_of_the_object_that_it_waits_for() {
    for (effect, resource, name) in [
        (Effect::StartPreview, "policyexperiments", "e"),
        (Effect::Delete, "policyexperiments", "e"),
        (Effect::Commit, "policies", "p"),
    ] {
        let access = access_to_read(&awaited(effect, "ns.team.p"));
        let found = (access.verb, access.resource, access.namespace.as_deref(), access.name.as_deref());
        assert_eq!(found, ("get", resource, Some("team"), Some(name)), "{effect:?}");
    }
}
