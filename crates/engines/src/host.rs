//! What a program may ask of the world outside. Engines know no network and no Kubernetes: who runs a program gives it one of
//! these, and has checked before whether the program may ask at all.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;

use crate::Deadline;

/// What comes of asking a [`Host`]; the error is a text for the policy's author.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// A call of a guest's, as waPC names it: `kubewarden`, `oci`, `v1/verify`.
#[derive(Clone, Copy, Debug)]
pub struct HostCall<'a> {
    pub binding: &'a str,
    pub namespace: &'a str,
    pub operation: &'a str,
    /// As the guest wrote it: JSON, if it is well behaved.
    pub payload: &'a [u8],
}

/// The world as one program may see it: each member of a group has its own.
///
/// All methods answer by the deadline that they are given.
pub trait Host: fmt::Debug + Send + Sync {
    /// Answers a call. A call that the program has no right to is an error.
    fn call<'a>(&'a self, call: HostCall<'a>, deadline: Deadline) -> Asked<'a, Vec<u8>>;

    /// The Kubernetes objects that the program may read, for programs that are given them together with the request. The
    /// very same `Arc` as long as none of them changes: what was made of it can be kept.
    fn objects(&self, deadline: Deadline) -> Asked<'_, Arc<Objects>>;

    /// A Namespace, for `namespaceObject`; none where there is no such.
    fn namespace<'a>(&'a self, name: &'a str, deadline: Deadline) -> Asked<'a, Option<Arc<Value>>>;
}

/// Kubernetes objects at one moment.
#[derive(Debug, Default)]
pub struct Objects {
    pub resources: Vec<Resource>,
}

/// All objects of one kind, as far as they may be seen.
#[derive(Debug)]
pub struct Resource {
    /// Such as `v1` or `networking.k8s.io/v1`.
    pub api_version: String,
    pub kind: String,
    /// The name in URLs, such as `ingresses`.
    pub plural: String,
    pub is_namespaced: bool,
    pub objects: Vec<Arc<Value>>,
}

/// The world of a program that may ask nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoHost;

impl Host for NoHost {
    fn call<'a>(&'a self, call: HostCall<'a>, _: Deadline) -> Asked<'a, Vec<u8>> {
        let HostCall { binding, namespace, operation, .. } = call;
        let why = format!("{binding}/{namespace}/{operation}: this policy may not call the host");
        Box::pin(std::future::ready(Err(why)))
    }

    fn objects(&self, _: Deadline) -> Asked<'_, Arc<Objects>> {
        Box::pin(std::future::ready(Ok(Arc::default())))
    }

    fn namespace<'a>(&'a self, name: &'a str, _: Deadline) -> Asked<'a, Option<Arc<Value>>> {
        let why = format!("the Namespace {name}: this policy may not read it");
        Box::pin(std::future::ready(Err(why)))
    }
}

/// The world of a program that may ask for objects that are known beforehand, and nothing else: for tests of policies.
#[derive(Clone, Debug, Default)]
pub struct Fixed(pub Arc<Objects>);

impl Host for Fixed {
    fn call<'a>(&'a self, call: HostCall<'a>, _: Deadline) -> Asked<'a, Vec<u8>> {
        let HostCall { binding, namespace, operation, .. } = call;
        let why = format!("{binding}/{namespace}/{operation}: there is no host to call");
        Box::pin(std::future::ready(Err(why)))
    }

    fn objects(&self, _: Deadline) -> Asked<'_, Arc<Objects>> {
        Box::pin(std::future::ready(Ok(Arc::clone(&self.0))))
    }

    /// Found among the objects.
    fn namespace<'a>(&'a self, name: &'a str, _: Deadline) -> Asked<'a, Option<Arc<Value>>> {
        let namespaces = self.0.resources.iter().filter(|of| of.api_version == "v1" && of.kind == "Namespace");
        let mut objects = namespaces.flat_map(|of| &of.objects);
        let found = objects.find(|object| object["metadata"]["name"] == name).cloned();
        Box::pin(std::future::ready(Ok(found)))
    }
}
