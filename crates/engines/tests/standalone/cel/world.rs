//! A host of these tests: it counts what it is asked.

use std::collections::BTreeMap;
use std::future::{pending, ready};
use std::sync::{Arc, Mutex};

use proviso_engines::Deadline;
use proviso_engines::host::{Asked, Host, HostCall, Objects};
use serde_json::{Value, json};

#[derive(Debug, Default)]
pub struct World {
    pub namespaces: BTreeMap<String, Arc<Value>>,
    /// Whether no answer ever comes.
    pub hangs: bool,
    pub asked: Mutex<Vec<String>>,
}

impl World {
    pub fn with_namespace(name: &str, namespace: Value) -> Self {
        Self { namespaces: [(name.to_owned(), Arc::new(namespace))].into(), ..Self::default() }
    }

    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn ask(&self, what: impl Into<String>) {
        self.asked.lock().unwrap().push(what.into());
    }
}

impl Host for World {
    /// Alice may get, and so may the `ServiceAccount` `default/robot`; nobody may do anything to `broken`.
    fn call<'a>(&'a self, call: HostCall<'a>, _: Deadline) -> Asked<'a, Vec<u8>> {
        assert_eq!((call.binding, call.namespace, call.operation), ("kubewarden", "kubernetes", "can_i"));
        let payload: Value = serde_json::from_slice(call.payload).unwrap();
        self.ask(payload["subject_access_review"].to_string());
        if self.hangs {
            return Box::pin(pending());
        }
        let review = &payload["subject_access_review"];
        let attributes = &review["resource_attributes"];
        let path = &review["non_resource_attributes"];
        let who = review["user"].as_str().unwrap();
        let answer = match (attributes["resource"].as_str(), attributes["verb"].as_str(), path["path"].as_str()) {
            (Some("broken"), ..) => json!({"allowed": false, "evaluationError": "it is broken"}),
            (Some("away"), ..) => return Box::pin(ready(Err("the API server is away".to_owned()))),
            (_, Some("get"), _) if who == "alice" || who == "system:serviceaccount:default:robot" => {
                json!({"allowed": true, "reason": "a role says so"})
            }
            (_, _, Some("/healthz")) => json!({"allowed": path["verb"] == "get"}),
            _ => json!({"allowed": false, "reason": "no role says so"}),
        };
        Box::pin(ready(Ok(answer.to_string().into_bytes())))
    }

    fn objects(&self, _: Deadline) -> Asked<'_, Arc<Objects>> {
        Box::pin(ready(Ok(Arc::default())))
    }

    fn namespace<'a>(&'a self, name: &'a str, _: Deadline) -> Asked<'a, Option<Arc<Value>>> {
        self.ask(format!("the Namespace {name}"));
        if self.hangs {
            return Box::pin(pending());
        }
        Box::pin(ready(Ok(self.namespaces.get(name).cloned())))
    }
}
