//! A mock API server for unit tests. It stores written objects as far as the reconciles need them, and records the
//! calls.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::runtime::watcher::Event;
use kube::{Client, ResourceExt as _};
use proviso_core::CallerToken;
use proviso_crds::names::SERVER_LABEL;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::ca::CurrentCa;
use crate::ca::certificate;
use crate::cache::{Cache, Cached, lock};
use crate::context::Context;
use crate::malformed::Reports;
use crate::metrics::Metrics;

/// The namespace of the operator.
const NAMESPACE: &str = "proviso";

#[derive(Clone, Debug, Default)]
pub(crate) struct MockApi(Arc<Mutex<Stored>>);

#[derive(Debug, Default)]
struct Stored {
    calls: Vec<String>,
    /// The objects by their paths.
    objects: HashMap<String, Value>,
    /// The fields of each status that each field manager has applied last, by path and manager.
    applied: HashMap<(String, String), BTreeSet<String>>,
    /// The `resourceVersion` of the last write.
    version: u64,
    /// The requests to refuse, by the method and the path from the resource on, each with the HTTP status.
    refusals: Vec<(String, u16)>,
}

impl MockApi {
    /// Returns the calls since the last invocation, in order. A call is the method and the path from the resource on,
    /// with the field manager of a write, or the reason of an Event.
    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.0).calls)
    }

    /// Refuses one such request with this HTTP status. `call` is the method and the path from the resource on.
    pub fn refuse(&self, call: &str, code: u16) {
        lock(&self.0).refusals.push((call.to_owned(), code));
    }

    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        Client::new(service, NAMESPACE)
    }

    /// Returns the context of reconciles, with a CA and empty caches.
    pub fn context(&self) -> Arc<Context> {
        let pair = certificate::generate_ca(jiff::Timestamp::now(), Duration::from_hours(24)).unwrap();
        let current = CurrentCa { bundle: pair.certificate.clone(), signing: pair };
        let (_, ca) = watch::channel(Some(Arc::new(current)));
        let (client, reports) = (self.client(), Arc::new(Reports::new(self.client())));
        let (retire_after, metrics) = (Duration::from_secs(30), Arc::new(Metrics::new()));
        let usage = Arc::default();
        Arc::new(Context::new(client, NAMESPACE.to_owned(), ca, retire_after, reports, metrics, usage))
    }

    /// Stores the Secret of caller tokens of the policy server `default`. Returns the current token.
    pub fn put_caller_tokens(&self, context: &Context, number: u8) -> CallerToken {
        let token = CallerToken::from_random([number; 32]);
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": "policy-server-default-callers", "namespace": NAMESPACE, "labels": {SERVER_LABEL: "default"},
            },
            "data": {"tokens": STANDARD.encode(token.expose())},
        });
        self.put(&context.caches.secrets, secret);
        token
    }

    /// Stores an object as another client would, and delivers it to its cache as an event of the watch. Returns the
    /// cached object.
    pub fn put<K: Cached>(&self, cache: &Cache<K>, mut object: Value) -> Arc<K> {
        let metadata = &object["metadata"];
        let (name, namespace) = (metadata["name"].as_str().unwrap().to_owned(), metadata["namespace"].as_str());
        let path = format!("{}/{name}", K::url_path(&(), namespace));
        lock(&self.0).write(&path, &mut object);
        let sent: K::Sent = serde_json::from_value(object).unwrap();
        let namespace = sent.namespace();
        cache.apply_event(Event::Apply(sent));
        cache.reader().get(&name, namespace.as_deref()).unwrap()
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let mut object: Value = serde_json::from_slice(&body).unwrap_or_default();
        let path = parts.uri.path();
        let mut manager = parts.uri.query().into_iter().flat_map(|query| query.split('&'));
        let manager = manager.find_map(|part| part.strip_prefix("fieldManager="));
        let about = object["reason"].as_str().or(manager).map(|about| format!(" ({about})")).unwrap_or_default();
        let mut stored = lock(&self.0);
        let call = format!("{} {}", parts.method, from_resource(path));
        stored.calls.push(format!("{call}{about}"));
        if let Some(index) = stored.refusals.iter().position(|(refused, _)| *refused == call) {
            let (_, code) = stored.refusals.remove(index);
            let reason = match code {
                404 => "NotFound",
                409 => "Conflict",
                _ => "Refused",
            };
            let status = json!({"status": "Failure", "code": code, "reason": reason, "message": "by a test"});
            return respond(StatusCode::from_u16(code).unwrap(), &status);
        }
        let path = path.trim_end_matches("/status");
        match parts.method {
            Method::GET | Method::DELETE => stored.objects.get(path).map_or_else(
                || {
                    let details = json!({"name": path.rsplit('/').next()});
                    let status = json!({
                        "status": "Failure", "code": 404, "reason": "NotFound", "message": "gone", "details": details,
                    });
                    respond(StatusCode::NOT_FOUND, &status)
                },
                |object| respond(StatusCode::OK, object),
            ),
            Method::POST => {
                let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap_or("generated"));
                stored.write(&path, &mut object);
                respond(StatusCode::CREATED, &object)
            }
            _ => {
                let content_type = parts.headers.get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
                let is_apply = content_type.is_some_and(|it| it.starts_with("application/apply-patch"));
                if let Some(manager) = manager.filter(|_| is_apply && parts.uri.path().ends_with("/status")) {
                    stored.prune(path, manager, &object);
                }
                stored.write(path, &mut object);
                respond(StatusCode::OK, &object)
            }
        }
    }
}

impl Stored {
    /// Removes the fields of the status that this manager has applied before and applies no more, as server-side apply
    /// does. Conditions have several managers, and are merged by type.
    fn prune(&mut self, path: &str, manager: &str, object: &Value) {
        let fields = object["status"].as_object().into_iter().flatten().map(|(field, _)| field);
        let fields: BTreeSet<_> = fields.filter(|field| *field != "conditions").cloned().collect();
        let before = self.applied.insert((path.to_owned(), manager.to_owned()), fields.clone()).unwrap_or_default();
        let status = self.objects.get_mut(path).and_then(|stored| stored.get_mut("status")?.as_object_mut());
        if let Some(status) = status {
            status.retain(|field, _| fields.contains(field) || !before.contains(field));
        }
    }

    /// Merges the object into the stored one.
    fn write(&mut self, path: &str, object: &mut Value) {
        self.version += 1;
        let stored = self.objects.entry(path.to_owned()).or_insert_with(|| json!({"metadata": {"uid": path}}));
        merge(stored, object);
        stored["metadata"]["name"] = path.rsplit('/').next().into();
        stored["metadata"]["resourceVersion"] = self.version.to_string().into();
        *object = stored.clone();
    }
}

/// Merges as server-side apply does: conditions of other types stay. Removes fields as a merge patch does: by null.
fn merge(stored: &mut Value, written: &Value) {
    match (stored, written) {
        (Value::Object(stored), Value::Object(written)) => {
            for (key, value) in written {
                merge(stored.entry(key).or_insert(Value::Null), value);
            }
            stored.retain(|_, value| !value.is_null());
        }
        (Value::Array(stored), Value::Array(written)) if written.iter().any(|item| item["type"].is_string()) => {
            stored.retain(|item| written.iter().all(|written| written["type"] != item["type"]));
            stored.extend(written.iter().cloned());
        }
        (stored @ Value::Null, Value::Object(_)) => {
            *stored = Map::new().into();
            merge(stored, written);
        }
        (stored, written) => *stored = written.clone(),
    }
}

/// Returns a path without the group, version and namespace.
fn from_resource(path: &str) -> &str {
    let segments = if path.starts_with("/apis/") { 4 } else { 3 };
    let rest = path.splitn(segments + 1, '/').last().unwrap_or_default();
    rest.strip_prefix("namespaces/").and_then(|rest| rest.split_once('/')).map_or(rest, |(_, rest)| rest)
}

fn respond(status: StatusCode, object: &Value) -> Response<Body> {
    Response::builder().status(status).body(Body::from(serde_json::to_vec(object).unwrap())).unwrap()
}
