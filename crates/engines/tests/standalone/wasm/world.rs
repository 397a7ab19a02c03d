//! A host for tests: it echoes, fails, hangs, and has objects.

use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use proviso_engines::Deadline;
use proviso_engines::host::{Asked, Host, HostCall, Objects, Resource};
use serde_json::Value;

#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) objects: Arc<Objects>,
    /// Never tells its objects.
    pub(crate) hides: bool,
    /// How often it was asked for them.
    pub(crate) asked: AtomicU32,
}

impl World {
    /// One with these objects of one kind, which have namespaces.
    pub(crate) fn of(kind: &str, plural: &str, objects: Vec<Value>) -> Self {
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

impl Host for World {
    /// The operation says what becomes of the payload.
    fn call<'a>(&'a self, call: HostCall<'a>, _: Deadline) -> Asked<'a, Vec<u8>> {
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

    fn objects(&self, _: Deadline) -> Asked<'_, Arc<Objects>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.hides { Box::pin(pending()) } else { Box::pin(ready(Ok(Arc::clone(&self.objects)))) }
    }

    fn namespace<'a>(&'a self, _: &'a str, _: Deadline) -> Asked<'a, Option<Arc<Value>>> {
        Box::pin(ready(Ok(None)))
    }
}
