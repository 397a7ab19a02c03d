//! The interface through which a program reads external data. Engines access neither the network nor Kubernetes: the caller
//! that runs a program checks the program's permissions and passes it a [`Host`].

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;

use crate::Deadline;

/// The result of a [`Host`] method. The error is a text for the policy's author.
pub type HostFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// A call from a guest to its host, split as in waPC: for example `kubewarden`, `oci`, `v1/verify`.
#[derive(Clone, Copy, Debug)]
pub struct HostCall<'a> {
    pub binding: &'a str,
    pub namespace: &'a str,
    pub operation: &'a str,
    /// The bytes that the guest passed. By convention JSON, but unchecked.
    pub payload: &'a [u8],
}

/// The external data that one program may access. Each member of a group has its own host.
///
/// Every method returns by the deadline that the caller passes.
pub trait Host: fmt::Debug + Send + Sync {
    /// Answers a call. Returns an error if the program has no permission for the call.
    fn call<'a>(&'a self, call: HostCall<'a>, deadline: Deadline) -> HostFuture<'a, Vec<u8>>;

    /// Returns the Kubernetes objects that the program may read, for engines that pass them together with the request.
    /// Returns the same `Arc` as long as no object changes, so that callers can cache the data that they derive from it.
    fn objects(&self, deadline: Deadline) -> HostFuture<'_, Arc<Objects>>;

    /// Returns a Namespace, for `namespaceObject`; `None` if the Namespace does not exist.
    fn namespace<'a>(&'a self, name: &'a str, deadline: Deadline) -> HostFuture<'a, Option<Arc<Value>>>;
}

/// A snapshot of Kubernetes objects.
#[derive(Debug, Default)]
pub struct Objects {
    pub resources: Vec<Resource>,
}

/// All objects of one kind that the program may read.
#[derive(Debug)]
pub struct Resource {
    /// The group and version, such as `v1` or `networking.k8s.io/v1`.
    pub api_version: String,
    pub kind: String,
    /// The plural name in URLs, such as `ingresses`.
    pub plural: String,
    pub is_namespaced: bool,
    pub objects: Vec<Arc<Value>>,
}

/// The host of a program that may access no external data. Refuses every call.
#[derive(Clone, Copy, Debug)]
pub struct NoHost;

impl Host for NoHost {
    fn call<'a>(&'a self, call: HostCall<'a>, _: Deadline) -> HostFuture<'a, Vec<u8>> {
        let HostCall { binding, namespace, operation, .. } = call;
        let why = format!("{binding}/{namespace}/{operation}: this policy may not call the host");
        Box::pin(std::future::ready(Err(why)))
    }

    fn objects(&self, _: Deadline) -> HostFuture<'_, Arc<Objects>> {
        Box::pin(std::future::ready(Ok(Arc::default())))
    }

    fn namespace<'a>(&'a self, name: &'a str, _: Deadline) -> HostFuture<'a, Option<Arc<Value>>> {
        let why = format!("the Namespace {name}: this policy may not read it");
        Box::pin(std::future::ready(Err(why)))
    }
}

/// A host that serves a fixed set of objects and refuses every call, for tests of policies.
#[derive(Clone, Debug, Default)]
pub struct FixedObjects(pub Arc<Objects>);

impl Host for FixedObjects {
    fn call<'a>(&'a self, call: HostCall<'a>, _: Deadline) -> HostFuture<'a, Vec<u8>> {
        let HostCall { binding, namespace, operation, .. } = call;
        let why = format!("{binding}/{namespace}/{operation}: there is no host to call");
        Box::pin(std::future::ready(Err(why)))
    }

    fn objects(&self, _: Deadline) -> HostFuture<'_, Arc<Objects>> {
        Box::pin(std::future::ready(Ok(Arc::clone(&self.0))))
    }

    /// Looks the Namespace up in the fixed objects.
    fn namespace<'a>(&'a self, name: &'a str, _: Deadline) -> HostFuture<'a, Option<Arc<Value>>> {
        let is_namespace = |resource: &&Resource| resource.api_version == "v1" && resource.kind == "Namespace";
        let mut objects = self.0.resources.iter().filter(is_namespace).flat_map(|resource| &resource.objects);
        let found = objects.find(|object| object["metadata"]["name"] == name).cloned();
        Box::pin(std::future::ready(Ok(found)))
    }
}
