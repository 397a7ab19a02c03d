//! The writes of policies and experiments, each attributed to the caller: the store writes as the caller, or records the caller in an
//! annotation.

use axum::http;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::core::request::Error as RequestError;
use proviso_crds::names::{CHANGED_BY, field_managers};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::failure::from_kube;
use super::object::Kind;
use super::{Authorizer, Kubernetes, Result, impersonation};
use crate::error::{Code, Error};
use crate::store::Caller;

/// A request to the API server, as kube builds it.
type BuiltRequest = std::result::Result<http::Request<Vec<u8>>, RequestError>;

pub(super) fn post_params() -> PostParams {
    PostParams { field_manager: Some(field_managers::API.to_owned()), ..PostParams::default() }
}

/// The effect of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write {
    Stored,
    /// The API server checks the write as any other, with all webhooks, and stores nothing.
    DryRun,
}

impl Write {
    fn params(self) -> PostParams {
        PostParams { dry_run: self == Self::DryRun, ..post_params() }
    }
}

pub(super) fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(field_managers::API.to_owned()), ..PatchParams::default() }
}

impl<A: Authorizer> Kubernetes<A> {
    pub(super) async fn create(
        &self,
        caller: Option<&Caller>,
        kind: Kind,
        mut object: DynamicObject,
        name: &str,
        write: Write,
    ) -> Result<DynamicObject> {
        self.set_changed_by(caller, &mut object);
        let requests = self.requests(kind, object.namespace().as_deref());
        self.send(caller, requests.create(&write.params(), body(&object)), name).await
    }

    /// Replaces the object in the version that it has.
    pub(super) async fn replace(
        &self,
        caller: Option<&Caller>,
        kind: Kind,
        mut object: DynamicObject,
        name: &str,
        write: Write,
    ) -> Result<DynamicObject> {
        self.set_changed_by(caller, &mut object);
        let requests = self.requests(kind, object.namespace().as_deref());
        self.send(caller, requests.replace(&object.name_any(), &write.params(), body(&object)), name).await
    }

    /// Deletes this object, but not another one of the same name. If `is_exact`, deletes it only in this version.
    pub(super) async fn delete(
        &self,
        caller: Option<&Caller>,
        kind: Kind,
        object: &DynamicObject,
        name: &str,
        is_exact: bool,
    ) -> Result<()> {
        let resource_version = object.resource_version().filter(|_| is_exact);
        let preconditions = Some(Preconditions { uid: object.uid(), resource_version });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        let requests = self.requests(kind, object.namespace().as_deref());
        // The API server answers with the object, or with a `Status`.
        self.send::<Value>(caller, requests.delete(&object.name_any(), &parameters), name).await.map(drop)
    }

    /// Changes the status of the experiment in the version that it has. The permission of a caller to start, stop or commit an
    /// experiment does not include the permission to write its status, so the store always writes it as itself.
    pub(super) async fn patch_status(
        &self,
        object: &DynamicObject,
        status: Value,
        name: &str,
    ) -> Result<DynamicObject> {
        let patch = json!({"metadata": {"resourceVersion": object.resource_version()}, "status": status});
        let api = self.api(Kind::Experiment, object.namespace().as_deref());
        let patched = api.patch_status(&object.name_any(), &patch_params(), &Patch::Merge(patch)).await;
        patched.map_err(|error| from_kube(&error, name))
    }

    /// Records the caller in the annotation of the experiment, before a write of its status. Returns the experiment in its new
    /// version. The version of the spec, and so the etag, stays.
    pub(super) async fn record_caller(
        &self,
        caller: Option<&Caller>,
        object: DynamicObject,
        name: &str,
    ) -> Result<DynamicObject> {
        let user = caller.map(|caller| caller.user.as_str());
        if object.annotations().get(CHANGED_BY).map(String::as_str) == user {
            return Ok(object);
        }
        let patch = json!({"metadata": {
            "resourceVersion": object.resource_version(), "annotations": {CHANGED_BY: user},
        }});
        let api = self.api(Kind::Experiment, object.namespace().as_deref());
        match api.patch(&object.name_any(), &patch_params(), &Patch::Merge(patch)).await {
            Ok(patched) => Ok(patched),
            Err(error) => {
                let error = from_kube(&error, name);
                if [Code::Aborted, Code::NotFound].contains(&error.code) {
                    return Err(error);
                }
                // The log has the caller too.
                tracing::warn!(experiment = name, %error, "cannot record the caller in the annotation of the experiment");
                Ok(object)
            }
        }
    }

    /// Sets the annotation with the caller. The store removes the annotation if it writes as the caller, because the audit log of
    /// the API server has the caller then.
    fn set_changed_by(&self, caller: Option<&Caller>, object: &mut DynamicObject) {
        let recorded = caller.filter(|_| !self.settings.impersonates_callers);
        match recorded {
            Some(caller) => object.annotations_mut().insert(CHANGED_BY.to_owned(), caller.user.clone()),
            None => object.annotations_mut().remove(CHANGED_BY),
        };
    }

    fn requests(&self, kind: Kind, namespace: Option<&str>) -> Request {
        Request::new(self.api(kind, namespace).resource_url())
    }

    /// Sends a request, as the caller if the store impersonates callers.
    async fn send<T: DeserializeOwned>(&self, caller: Option<&Caller>, request: BuiltRequest, name: &str) -> Result<T> {
        let mut request = request.map_err(|error| Error::new(Code::Internal, "REQUEST", format!("{name}: {error}")))?;
        if let Some(caller) = caller.filter(|_| self.settings.impersonates_callers) {
            request.headers_mut().extend(impersonation::headers(caller)?);
        }
        self.client.request(request).await.map_err(|error| from_kube(&error, name))
    }
}

fn body(object: &DynamicObject) -> Vec<u8> {
    // Serializing does not fail: the keys of every map are strings.
    serde_json::to_vec(object).unwrap_or_default()
}
