//! The uniqueness of request policies in a cluster. A change reads all request policies and writes one, while it holds a Lease: no other
//! replica of this store writes in between. The reads are not from a cache.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DynamicObject, ListParams, ObjectList};
use kube::{Api, ResourceExt as _};
use proviso_core::PolicyId;
use proviso_crds::{PolicySpec, TENANT};
use uuid::Uuid;

use super::failure::from_kube;
use super::object::{self, Kind};
use super::{Authorizer, Kubernetes, Result};
use crate::namespace_tenants::NamespaceTenants;
use crate::uniqueness::UniqueKeys;

/// The maximum number of policies in one answer of the API server. With the largest Rego modules, which `kubectl apply` stores a second time
/// in an annotation, one answer has about 25 MiB.
const CHUNK: u32 = 50;

impl<A: Authorizer> Kubernetes<A> {
    /// Writes a policy. If this changes the display name or the priority of a request policy, holds the Lease and checks before the
    /// write that no other policy has them. `before` is the stored spec; `None` for a new policy. `rehearse` is the same write as a dry
    /// run: a policy that the API server refuses, or that takes long to compile, must not hold the Lease.
    pub(super) async fn write_unique(
        &self,
        id: &PolicyId,
        before: Option<&PolicySpec>,
        spec: &PolicySpec,
        rehearse: impl Future<Output = Result<DynamicObject>> + Send,
        write: impl Future<Output = Result<DynamicObject>> + Send,
    ) -> Result<DynamicObject> {
        if spec.request.is_none() {
            return write.await;
        }
        // The label of a Namespace does not matter here: it is the same for both.
        let keys = |spec: &PolicySpec| UniqueKeys::of(id, spec, &NamespaceTenants::default());
        if let (Some(before), Some(after)) = (before.and_then(keys), keys(spec))
            && before.are_same(&after)
        {
            return write.await;
        }
        rehearse.await?;
        self.lease
            .hold(async {
                self.check_unique(id, spec).await?;
                write.await
            })
            .await
    }

    async fn check_unique(&self, id: &PolicyId, spec: &PolicySpec) -> Result<()> {
        let tenants = self.namespace_tenants().await?;
        // The API server refuses a level that the kind cannot have.
        let Some(keys) = UniqueKeys::of(id, spec, &tenants) else { return Ok(()) };
        // Only these policies can have the same level, tenant and user.
        let namespaces = match id.namespace() {
            None => vec![None],
            Some(namespace) => tenants.namespaces(tenants.tenant(namespace)).into_iter().map(Some).collect(),
        };
        for namespace in namespaces {
            let api = self.api(Kind::Policy, namespace);
            let find = |object: &DynamicObject| {
                // A policy that is being deleted is not served for long.
                object.metadata.deletion_timestamp.is_none().then_some(())?;
                let stored = object::policy(object).ok()?;
                keys.check(&UniqueKeys::of(&stored.id, &stored.spec, &tenants)?).err()
            };
            let found = find_in_pages(async |page| api.list(&page).await, find).await;
            if let Some(in_use) = found.map_err(|error| from_kube(&error, "policies"))? {
                return Err(in_use);
            }
        }
        Ok(())
    }

    /// Returns the id of the policy with this uid. Reads the metadata of the policies in chunks, and one lookup at a time, because callers
    /// are authorized after it.
    pub(super) async fn find_uid(&self, uid: &str) -> Result<Option<PolicyId>> {
        // The API server makes UUIDs. Another text needs no list.
        if Uuid::try_parse(uid).is_err() {
            return Ok(None);
        }
        let _turn = self.lookups.lock().await;
        for is_namespaced in [false, true] {
            let api = Api::<DynamicObject>::all_with(self.client.clone(), &Kind::Policy.resource(is_namespaced));
            let found = find_in_pages(
                async |page| api.list_metadata(&page).await,
                |policy| (policy.uid().as_deref() == Some(uid)).then(|| (policy.namespace(), policy.name_any())),
            );
            let found = found.await.map_err(|error| from_kube(&error, Kind::Policy.plural(is_namespaced)));
            if let Some((namespace, name)) = found? {
                return Ok(PolicyId::new(namespace.as_deref(), &name).ok());
            }
        }
        Ok(None)
    }

    /// Returns the tenants that the labels of Namespaces name.
    pub(super) async fn namespace_tenants(&self) -> Result<NamespaceTenants> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let labeled = namespaces.list_metadata(&ListParams::default().labels(TENANT)).await;
        let labeled = labeled.map_err(|error| from_kube(&error, "namespaces"))?;
        let tenant = |namespace: kube::core::PartialObjectMeta<Namespace>| {
            Some((namespace.name_any(), namespace.labels().get(TENANT)?.clone()))
        };
        Ok(NamespaceTenants::new(labeled.items.into_iter().filter_map(tenant)))
    }
}

/// Reads a list of policies in chunks, so that the memory is limited, until `find` returns a value. The API server reads the newest
/// versions (a list without `resourceVersion`).
async fn find_in_pages<K: Clone, T, F: Future<Output = kube::Result<ObjectList<K>>>>(
    list: impl Fn(ListParams) -> F,
    find: impl Fn(&K) -> Option<T>,
) -> kube::Result<Option<T>> {
    let mut page = ListParams::default().limit(CHUNK);
    loop {
        let chunk = list(page.clone()).await?;
        if let Some(found) = chunk.items.iter().find_map(&find) {
            return Ok(Some(found));
        }
        match chunk.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page.continue_token = Some(token),
            None => return Ok(None),
        }
    }
}
