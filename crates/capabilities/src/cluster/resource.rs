//! Discovery of kinds, and the meaning of the API server's error responses.

use kube::core::ApiResource;
use kube::core::response::Status;
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client};
use proviso_crds::names::AGGREGATE_LABEL;
use serde_json::Value;

use crate::error::KindUnavailable;
use crate::kind::Kind;

const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;
const METHOD_NOT_ALLOWED: u16 = 405;

/// A kind with its resource, as the API server's discovery returns it.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedKind {
    pub kind: Kind,
    pub api: ApiResource,
    pub is_namespaced: bool,
}

impl ResolvedKind {
    /// Resolves a kind by the API server's discovery.
    pub(super) async fn discover(client: &Client, kind: &Kind) -> Result<Self, KindUnavailable> {
        match pinned_kind(client, &kind.gvk()).await {
            Ok((api, capabilities)) => {
                let is_namespaced = matches!(capabilities.scope, Scope::Namespaced);
                Ok(Self { kind: kind.clone(), api, is_namespaced })
            }
            Err(kube::Error::Discovery(_)) => Err(KindUnavailable::NotServed),
            // For an unknown API group the response is plain text, so only the code can be checked.
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Err(KindUnavailable::NotServed),
            Err(error) => Err(KindUnavailable::NotReady(error.to_string())),
        }
    }

    /// Returns the API of the objects, in one namespace or in all.
    pub(super) fn api<K>(&self, client: &Client, namespace: Option<&str>) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = kube::core::DynamicResourceScope>,
    {
        match namespace.filter(|_| self.is_namespaced) {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.api),
            None => Api::all_with(client.clone(), &self.api),
        }
    }

    /// Returns the meaning of an error response that a retry cannot repair; `None` for other responses.
    pub(super) fn cause(&self, status: &Status) -> Option<KindUnavailable> {
        if status.code == NOT_FOUND {
            return Some(KindUnavailable::NotServed);
        }
        if status.code == METHOD_NOT_ALLOWED {
            return Some(KindUnavailable::NotWatchable);
        }
        if status.code != FORBIDDEN {
            return None;
        }
        let (plural, group) = (&self.api.plural, &self.api.group);
        let resource = if group.is_empty() { plural.clone() } else { format!("{plural}.{group}") };
        let role = format!("proviso-reads-{resource}");
        let command = format!(
            "kubectl create clusterrole {role} --verb=get,list,watch --resource={resource} && \
             kubectl label clusterrole {role} {AGGREGATE_LABEL}=true"
        );
        Some(KindUnavailable::Forbidden { resource, message: status.message.clone(), command })
    }
}

/// Returns an object as programs read it: with `apiVersion` and `kind`, which lists omit, and without `managedFields`.
pub(super) fn to_value(resolved: &ResolvedKind, mut object: kube::core::DynamicObject) -> Value {
    object.metadata.managed_fields = None;
    object.types =
        Some(kube::core::TypeMeta { api_version: resolved.kind.api_version.clone(), kind: resolved.kind.kind.clone() });
    // An object that was parsed from JSON always serializes.
    serde_json::to_value(object).unwrap_or_default()
}
