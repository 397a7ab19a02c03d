//! What a kind is called in URLs and whether it has namespaces, as the API server says; and what its refusals mean.

use kube::core::ApiResource;
use kube::core::response::Status;
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client};
use proviso_crds::names::AGGREGATE_LABEL;
use serde_json::Value;

use crate::error::Trouble;
use crate::kind::Kind;

const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;
const METHOD_NOT_ALLOWED: u16 = 405;

/// A kind, found.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub kind: Kind,
    pub api: ApiResource,
    pub is_namespaced: bool,
}

impl Described {
    /// Asks the API server about a kind.
    pub(super) async fn find(client: &Client, kind: &Kind) -> Result<Self, Trouble> {
        match pinned_kind(client, &kind.gvk()).await {
            Ok((api, capabilities)) => {
                let is_namespaced = matches!(capabilities.scope, Scope::Namespaced);
                Ok(Self { kind: kind.clone(), api, is_namespaced })
            }
            Err(kube::Error::Discovery(_)) => Err(Trouble::NoSuchKind),
            // Of a group that is not there it says so in plain text: there is no reason to look at.
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Err(Trouble::NoSuchKind),
            Err(error) => Err(Trouble::NotYet(error.to_string())),
        }
    }

    /// Its objects, in one namespace or all.
    pub(super) fn api<K>(&self, client: &Client, namespace: Option<&str>) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = kube::core::DynamicResourceScope>,
    {
        match namespace.filter(|_| self.is_namespaced) {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.api),
            None => Api::all_with(client.clone(), &self.api),
        }
    }

    /// What a refusal means that will not pass by itself soon; none for others.
    pub(super) fn trouble(&self, status: &Status) -> Option<Trouble> {
        if status.code == NOT_FOUND {
            return Some(Trouble::NoSuchKind);
        }
        if status.code == METHOD_NOT_ALLOWED {
            return Some(Trouble::NotWatched);
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
        Some(Trouble::Forbidden { resource, said: status.message.clone(), command })
    }
}

/// An object as programs see it: with its types, which lists leave out, and without what nobody decides by.
pub(super) fn to_value(described: &Described, mut object: kube::core::DynamicObject) -> Value {
    object.metadata.managed_fields = None;
    object.types = Some(kube::core::TypeMeta {
        api_version: described.kind.api_version.clone(),
        kind: described.kind.kind.clone(),
    });
    // An object that was JSON can be JSON again.
    serde_json::to_value(object).unwrap_or_default()
}
