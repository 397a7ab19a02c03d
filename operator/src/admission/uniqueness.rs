//! The check of the display name and the priority of a request policy at `kubectl apply`. Every replica keeps the names and priorities
//! of all request policies in caches, so two creations at the same time may both pass: the controller then rolls out one of them
//! (`crate::uniqueness`).

use std::borrow::Cow;
use std::marker::PhantomData;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, Resource, ResourceExt as _};
use proviso_core::PolicyId;
use proviso_crds::uniqueness::{InUse, SECTION, UniqueFields, UniqueValue};
use proviso_crds::{ClusterPolicy, Policy, ServiceRequests};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::review::{Object, Refusal, ReviewedRequest, read};
use super::{API_SERVER_TIMEOUT, Admission};
use crate::cache::{Cache, Cached, Name, name};
use crate::kinds::PolicyObject;
use crate::malformed::MaybeMalformed;
use crate::objects::watch_config;
use crate::uniqueness::{fields, key, keys, tenant};

/// The number of policies in one page of a list, which are in memory at the same time.
const PAGE_SIZE: u32 = 50;

/// A policy without its spec, except for the fields that must be unique.
#[derive(Debug)]
struct NamedPolicy<K> {
    metadata: ObjectMeta,
    unique: Option<UniqueFields>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for NamedPolicy<K> {
    fn clone(&self) -> Self {
        Self { metadata: self.metadata.clone(), unique: self.unique.clone(), kind: PhantomData }
    }
}

/// The names and priorities of all request policies, and the tenants of namespaces.
#[derive(Debug, Default)]
pub(crate) struct RequestPolicies {
    policies: Cache<NamedPolicy<Policy>>,
    cluster_policies: Cache<NamedPolicy<ClusterPolicy>>,
    namespaces: Cache<PartialObjectMeta<Namespace>>,
}

/// The part of the spec of a policy that the check reads.
#[derive(Default, Deserialize)]
struct RequestPart<'a> {
    #[serde(borrow)]
    request: Option<&'a RawValue>,
}

/// Reads the unique fields in the spec of a policy; `None` if it has no requests.
fn unique_fields(object: &Object<'_>, namespace: Option<&str>) -> Result<Option<UniqueFields>, String> {
    let Some(request) = read::<RequestPart<'_>>(object.spec())?.request else { return Ok(None) };
    let request: ServiceRequests = read(request).map_err(|error| format!("{SECTION}: {error}"))?;
    let unique = UniqueFields::new(&request, SECTION, namespace, &object.metadata.name);
    unique.map(Some).map_err(|error| error.to_string())
}

impl RequestPolicies {
    /// Watches the policies and the namespaces until the future is dropped.
    pub async fn follow(&self, client: &Client) {
        let config = || watch_config().page_size(PAGE_SIZE);
        tokio::join!(
            self.policies.follow(Api::all(client.clone()), config()),
            self.cluster_policies.follow(Api::all(client.clone()), config()),
            self.namespaces.follow(Api::all(client.clone()), config()),
        );
    }

    async fn listed(&self) {
        tokio::join!(self.policies.listed(), self.cluster_policies.listed(), self.namespaces.listed());
    }

    /// Returns the values of these fields that `before` does not have, each with the other policies that have the value. `cache` has
    /// the policies of the kind of `own`.
    fn rivals<K: PolicyObject>(
        &self,
        cache: &Cache<NamedPolicy<K>>,
        own: &Name,
        new: &UniqueFields,
        before: Option<&UniqueFields>,
    ) -> Vec<(UniqueValue, Vec<Name>)> {
        let (tenant, namespaces) = match &own.0 {
            Some(namespace) => {
                let (tenant, all) = tenant(&self.namespaces.reader(), namespace);
                (Some(tenant), all.into_iter().map(Some).collect())
            }
            None => (None, vec![None]),
        };
        let values = |fields: &UniqueFields| fields.values(tenant.as_deref());
        let kept = before.map(values);
        let changed = values(new).into_iter().filter(|value| kept.as_ref().is_none_or(|kept| !kept.contains(value)));
        let with_rivals = changed.map(|value| {
            let has_value = |policy: &NamedPolicy<K>| {
                let is_deleted = policy.metadata.deletion_timestamp.is_some();
                !is_deleted && policy.unique.as_ref().is_some_and(|unique| values(unique).contains(&value))
            };
            let found = namespaces.iter().flat_map(|namespace| {
                let mut of_namespace = value.clone();
                of_namespace.scope.tenant.clone_from(namespace);
                cache.reader().by_key(&key(&of_namespace))
            });
            let rivals =
                found.filter(|policy| name(&**policy) != *own && has_value(policy)).map(|policy| name(&*policy));
            (value.clone(), rivals.collect())
        });
        with_rivals.collect()
    }
}

impl Admission {
    /// Returns the refusal of a policy with a name or a priority that another policy has as an error. Values that the policy had before
    /// are not checked, so that it can be changed even if it lost them to another one.
    pub(super) async fn uniqueness_refusal(
        &self,
        request: &ReviewedRequest<'_>,
        object: &Object<'_>,
        namespace: Option<&str>,
    ) -> Result<(), Refusal> {
        let Some(new) = unique_fields(object, namespace)? else { return Ok(()) };
        let before = match request.old_object()? {
            // An object that an earlier version admitted may have another form.
            Some(old) => unique_fields(&old, namespace).unwrap_or_default(),
            None => None,
        };
        // Without a list, the controller alone decides.
        let _ = tokio::time::timeout(API_SERVER_TIMEOUT, self.requests.listed()).await;
        let own = (namespace.map(ToOwned::to_owned), object.metadata.name.clone());
        let in_use = if namespace.is_some() {
            self.values_in_use(&self.requests.policies, &own, &new, before.as_ref()).await
        } else {
            self.values_in_use(&self.requests.cluster_policies, &own, &new, before.as_ref()).await
        };
        if in_use.is_empty() {
            return Ok(());
        }
        Err(Refusal::duplicates(in_use.iter().map(|value| value.to_field_error(SECTION)).collect()))
    }

    async fn values_in_use<K: PolicyObject>(
        &self,
        cache: &Cache<NamedPolicy<K>>,
        own: &Name,
        new: &UniqueFields,
        before: Option<&UniqueFields>,
    ) -> Vec<InUse> {
        let mut in_use = Vec::new();
        for (value, rivals) in self.requests.rivals(cache, own, new, before) {
            for (namespace, name) in rivals {
                let Ok(by) = PolicyId::new(namespace.as_deref(), &name) else { continue };
                if self.still_has::<K>(&(namespace, name), &value).await {
                    in_use.push(InUse { value, by });
                    break;
                }
            }
        }
        in_use
    }

    /// Returns false if the API server shows that a policy does not have the value any more: the cache may be late. If the API server
    /// does not answer, the cache counts.
    async fn still_has<K: PolicyObject>(&self, (namespace, name): &Name, value: &UniqueValue) -> bool {
        let api = K::all(&self.client, namespace.as_deref().unwrap_or_default());
        let Ok(Ok(found)) = tokio::time::timeout(API_SERVER_TIMEOUT, api.get_opt(name)).await else { return true };
        let Some(found) = found.filter(|it| it.meta().deletion_timestamp.is_none()) else { return false };
        match &found.0 {
            Ok(known) => fields(known, known.spec())
                .is_some_and(|fields| fields.values(value.scope.tenant.as_deref()).contains(value)),
            Err(_) => true,
        }
    }
}

impl<K: PolicyObject> Cached for NamedPolicy<K> {
    type Sent = MaybeMalformed<K>;

    fn from_sent(sent: Self::Sent) -> Self {
        let unique = sent.0.as_ref().ok().and_then(|known| fields(known, known.spec()));
        let meta = sent.meta();
        let metadata = ObjectMeta {
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            resource_version: meta.resource_version.clone(),
            deletion_timestamp: meta.deletion_timestamp.clone(),
            ..ObjectMeta::default()
        };
        Self { metadata, unique, kind: PhantomData }
    }

    fn keys(&self) -> Vec<String> {
        self.unique.as_ref().map(|unique| keys(unique, self.namespace().as_deref())).unwrap_or_default()
    }
}

impl<K: PolicyObject> Resource for NamedPolicy<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind(of: &()) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &()) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &()) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &()) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
