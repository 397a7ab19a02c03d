//! A host for tests. It echoes, fails or hangs, depending on the operation, and serves objects.

use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use proviso_engines::Deadline;
use proviso_engines::host::{Host, HostCall, HostFuture, Objects, Resource};
use serde_json::Value;

#[derive(Debug, Default)]
pub(crate) struct TestHost {
    pub(crate) objects: Arc<Objects>,
    /// True if requests for the objects never return.
    pub(crate) hangs_on_objects: bool,
    /// The number of requests for the objects.
    pub(crate) object_requests: AtomicU32,
}

impl TestHost {
    /// Returns a host with these objects of one namespaced kind.
    pub(crate) fn with_objects(kind: &str, plural: &str, objects: Vec<Value>) -> Self {
        let resource = Resource {
            api_version: "v1".into(),
            kind: kind.into(),
            plural: plural.into(),
            is_namespaced: true,
            objects: objects.into_iter().map(Arc::new).collect(),
        };
        Self { objects: Arc::new(Objects { resources: vec![resource] }), ..Self::default() }
    }
}

impl Host for TestHost {
    /// Answers a call depending on its operation: `echo` returns the payload, `long` returns a long answer, `hang` never returns,
    /// and every other operation fails.
    fn call<'a>(&'a self, call: HostCall<'a>, _: Deadline) -> HostFuture<'a, Vec<u8>> {
        match call.operation {
            "echo" => Box::pin(ready(Ok(call.payload.to_vec()))),
            "long" => Box::pin(ready(Ok(vec![b' '; 9 << 20]))),
            "hang" => Box::pin(pending()),
            _ => {
                let HostCall { binding, namespace, operation, .. } = call;
                Box::pin(ready(Err(format!("{binding}/{namespace}/{operation}: no"))))
            }
        }
    }

    fn objects(&self, _: Deadline) -> HostFuture<'_, Arc<Objects>> {
        self.object_requests.fetch_add(1, Ordering::Relaxed);
        if self.hangs_on_objects { Box::pin(pending()) } else { Box::pin(ready(Ok(Arc::clone(&self.objects)))) }
    }

    fn namespace<'a>(&'a self, _: &'a str, _: Deadline) -> HostFuture<'a, Option<Arc<Value>>> {
        Box::pin(ready(Ok(None)))
    }
}
