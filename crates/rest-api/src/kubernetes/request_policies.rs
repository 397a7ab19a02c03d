//! The uniqueness of request policies in a cluster. A change reads all request policies and writes one, while it holds a Lease: no other
//! replica of this store writes in between. The reads are not from a cache.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DynamicObject, ListParams};
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
        let apis = namespaces.into_iter().map(|namespace| self.api(Kind::Policy, namespace)).collect();
        for_each_policy(apis, |object| {
            // A policy that is being deleted is not served for long.
            if object.metadata.deletion_timestamp.is_some() {
                return Ok(());
            }
            let Ok(stored) = object::policy(object) else { return Ok(()) };
            UniqueKeys::of(&stored.id, &stored.spec, &tenants).map_or(Ok(()), |other| keys.check(&other))
        })
        .await
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
            let mut parameters = ListParams::default().limit(CHUNK);
            loop {
                let list = api.list_metadata(&parameters).await;
                let list = list.map_err(|error| from_kube(&error, Kind::Policy.plural(is_namespaced)))?;
                if let Some(found) = list.items.iter().find(|policy| policy.uid().as_deref() == Some(uid)) {
                    return Ok(PolicyId::new(found.namespace().as_deref(), &found.name_any()).ok());
                }
                match list.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => parameters.continue_token = Some(token),
                    None => break,
                }
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

/// Calls `visit` with each policy of these APIs, in chunks, so that the memory is limited. The API server reads the newest versions (a
/// list without `resourceVersion`).
async fn for_each_policy(
    apis: Vec<Api<DynamicObject>>,
    mut visit: impl FnMut(&DynamicObject) -> Result<()> + Send,
) -> Result<()> {
    for api in apis {
        let mut parameters = ListParams::default().limit(CHUNK);
        loop {
            let list = api.list(&parameters).await.map_err(|error| from_kube(&error, "policies"))?;
            list.items.iter().try_for_each(&mut visit)?;
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters.continue_token = Some(token),
                None => break,
            }
        }
    }
    Ok(())
}
