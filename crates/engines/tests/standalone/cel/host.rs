//! A host for tests, which records its calls.

use std::collections::BTreeMap;
use std::future::{pending, ready};
use std::sync::{Arc, Mutex};

use proviso_engines::Deadline;
use proviso_engines::host::{Host, HostCall, HostFuture, Objects};
use serde_json::{Value, json};

#[derive(Debug, Default)]
pub struct TestHost {
    pub namespaces: BTreeMap<String, Arc<Value>>,
    /// True if the host never answers.
    pub hangs: bool,
    pub calls: Mutex<Vec<String>>,
}

impl TestHost {
    pub fn with_namespace(name: &str, namespace: Value) -> Self {
        Self { namespaces: [(name.to_owned(), Arc::new(namespace))].into(), ..Self::default() }
    }

    pub fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    fn record(&self, call: impl Into<String>) {
        self.calls.lock().unwrap().push(call.into());
    }
}

impl Host for TestHost {
    /// Allows the verb `get` for the user `alice` and for the `ServiceAccount` `default/robot`. The review of the resource
    /// `broken` has an evaluation error, and the review of the resource `away` fails.
    fn call<'a>(&'a self, call: HostCall<'a>, _: Deadline) -> HostFuture<'a, Vec<u8>> {
        assert_eq!((call.binding, call.namespace, call.operation), ("kubewarden", "kubernetes", "can_i"));
        let payload: Value = serde_json::from_slice(call.payload).unwrap();
        self.record(payload["subject_access_review"].to_string());
        if self.hangs {
            return Box::pin(pending());
        }
        let review = &payload["subject_access_review"];
        let attributes = &review["resource_attributes"];
        let path = &review["non_resource_attributes"];
        let user = review["user"].as_str().unwrap();
        let answer = match (attributes["resource"].as_str(), attributes["verb"].as_str(), path["path"].as_str()) {
            (Some("broken"), ..) => json!({"allowed": false, "evaluationError": "it is broken"}),
            (Some("away"), ..) => return Box::pin(ready(Err("the API server is away".to_owned()))),
            (_, Some("get"), _) if user == "alice" || user == "system:serviceaccount:default:robot" => {
                json!({"allowed": true, "reason": "a role allows it"})
            }
            (_, _, Some("/healthz")) => json!({"allowed": path["verb"] == "get"}),
            _ => json!({"allowed": false, "reason": "no role allows it"}),
        };
        Box::pin(ready(Ok(answer.to_string().into_bytes())))
    }

    fn objects(&self, _: Deadline) -> HostFuture<'_, Arc<Objects>> {
        Box::pin(ready(Ok(Arc::default())))
    }

    fn namespace<'a>(&'a self, name: &'a str, _: Deadline) -> HostFuture<'a, Option<Arc<Value>>> {
        self.record(format!("the Namespace {name}"));
        if self.hangs {
            return Box::pin(pending());
        }
        Box::pin(ready(Ok(self.namespaces.get(name).cloned())))
    }
}
