//! The names and priorities of request policies in a cluster (docs/adr/0035): finds the policies that may have the same ones, by
//! indexes of the caches, and decides with `proviso_crds::uniqueness` which of them has each. `admission::uniqueness` has the check at
//! `kubectl apply`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt as _};
use proviso_core::PolicyId;
use proviso_crds::uniqueness::{self, Claim, InUse, SECTION, UniqueFields, UniqueValue};
use proviso_crds::{PolicySpec, RevisionRole, TENANT};

use crate::cache::{Index, Name, Reader, lock, name, reference};
use crate::caches::Caches;
use crate::kinds::{self, PolicyObject};
use crate::malformed::{MaybeMalformed, by_uid};
use crate::revisions::Revision;

/// Returns the keys by which caches find the objects with these fields. `namespace` is that of a Policy. The keys have the namespace
/// in place of the tenant, because only the Namespace names its tenant.
pub(crate) fn keys(fields: &UniqueFields, namespace: Option<&str>) -> Vec<String> {
    fields.values(namespace).iter().map(key).collect()
}

/// Returns the key of a value whose scope has a namespace in place of the tenant. No uid has such a form. Objects with different values
/// may share a key: the values are compared again.
pub(crate) fn key(UniqueValue { scope, field, value }: &UniqueValue) -> String {
    let (level, namespace) = (scope.level.as_str(), scope.tenant.as_deref().unwrap_or_default());
    let user = scope.user.as_ref().map(|user| format!("={user}")).unwrap_or_default();
    format!("unique {level} {namespace} {user} {} {value}", field.as_str())
}

/// Returns the unique fields of a policy; `None` if it has no requests, or no valid level.
pub(crate) fn fields(policy: &impl Resource, spec: &PolicySpec) -> Option<UniqueFields> {
    let request = spec.request.as_ref()?;
    UniqueFields::new(request, SECTION, policy.namespace().as_deref(), &policy.name_any()).ok()
}

/// Returns the cache keys of a policy.
pub(crate) fn by_uid_and_fields<K: PolicyObject>(object: &MaybeMalformed<K>) -> Vec<String> {
    let fields = object.0.as_ref().ok().and_then(|known| fields(known, known.spec()));
    let keys = fields.map(|fields| keys(&fields, object.namespace().as_deref())).unwrap_or_default();
    by_uid(object).into_iter().chain(keys).collect()
}

/// Returns the tenant of a namespace, and the namespaces with the same tenant.
pub(crate) fn tenant(namespaces: &Reader<PartialObjectMeta<Namespace>>, namespace: &str) -> (String, BTreeSet<String>) {
    let label = |namespace: &str| namespaces.get(namespace, None)?.labels().get(TENANT).cloned();
    let tenant = label(namespace).unwrap_or_else(|| namespace.to_owned());
    let labelled = namespaces.by_key(&tenant).into_iter().map(|it| it.name_any());
    let unlabelled = label(&tenant).is_none().then(|| tenant.clone());
    // A namespace that is not cached yet has the tenant of its name.
    let all = labelled.chain(unlabelled).chain([namespace.to_owned()]).collect();
    (tenant, all)
}

/// The caches that show which policies of one kind have which names and priorities. Policies of the other kind have other levels or no
/// tenant, so their names and priorities are other ones.
pub(crate) struct Uniqueness<K: PolicyObject> {
    policies: Reader<MaybeMalformed<K>>,
    revisions: Reader<MaybeMalformed<Revision>>,
    namespaces: Reader<PartialObjectMeta<Namespace>>,
    /// The policies that lost a value, by the ids of the policies that have it.
    losers: Arc<Mutex<Index>>,
}

impl<K: PolicyObject> Clone for Uniqueness<K> {
    fn clone(&self) -> Self {
        Self {
            policies: self.policies.clone(),
            revisions: self.revisions.clone(),
            namespaces: self.namespaces.clone(),
            losers: Arc::clone(&self.losers),
        }
    }
}

impl<K: PolicyObject> Uniqueness<K> {
    pub fn new(caches: &Caches) -> Self {
        Self {
            policies: K::cache(caches).reader(),
            revisions: caches.revisions.reader(),
            namespaces: caches.namespaces.reader(),
            losers: Arc::default(),
        }
    }

    /// Returns the names and priorities of a policy that other policies have, so that its newest generation may not become live. A later
    /// change of these policies queues this policy again: see [`Self::of_policy`].
    pub fn losses(&self, policy: &impl Resource) -> Vec<InUse> {
        let own = name(policy);
        let claims = self.claims(own.clone());
        let position = claims.keys().position(|name| *name == own);
        let claims: Vec<Claim> = claims.into_values().collect();
        let losses = position.map(|own| uniqueness::arbitrate(&claims).swap_remove(own)).unwrap_or_default();
        if losses.is_empty() {
            lock(&self.losers).remove(&own);
        } else {
            lock(&self.losers).insert(own, losses.iter().map(|loss| loss.by.to_string()).collect());
        }
        losses
    }

    /// Returns the claims of a policy and of all policies that decide about it: those with the same value, those with a value of these,
    /// and so on.
    fn claims(&self, policy: Name) -> BTreeMap<Name, Claim> {
        let (mut claims, mut next) = (BTreeMap::new(), vec![policy]);
        while let Some(name) = next.pop() {
            if claims.contains_key(&name) {
                continue;
            }
            let Some(claim) = self.claim(&name) else { continue };
            for key in self.keys_of(&claim, name.0.as_deref()) {
                next.extend(self.policies.names(&key));
                next.extend(self.revisions.by_key(&key).iter().filter_map(|revision| policy_of::<K>(revision)));
            }
            claims.insert(name, claim);
        }
        claims
    }

    /// Returns the claim of a policy; `None` if it has none, because it does not exist, is being deleted, or has no requests.
    fn claim(&self, (namespace, name): &Name) -> Option<Claim> {
        let policy = self.policies.get(name, namespace.as_deref())?;
        if policy.meta().deletion_timestamp.is_some() {
            return None;
        }
        let newest = policy.0.as_ref().ok().and_then(|known| fields(known, known.spec()));
        let uid = policy.uid()?;
        let revisions = self.revisions.by_key(&uid);
        let live = revisions.iter().filter_map(|revision| revision.0.as_ref().ok());
        let live = live.filter(|revision| revision.role == RevisionRole::Live && revision.is_marked_live());
        let live = live.max_by_key(|revision| revision.policy_ref.generation).and_then(|it| it.unique.clone());
        if newest.is_none() && live.is_none() {
            return None;
        }
        Some(Claim {
            policy: PolicyId::new(namespace.as_deref(), name).ok()?,
            tenant: namespace.as_ref().map(|namespace| tenant(&self.namespaces, namespace).0),
            live,
            newest,
            age: Some((policy.creation_timestamp().map(|time| time.0).unwrap_or_default(), uid)),
        })
    }

    /// Returns the keys of the objects with a value of this claim, in all namespaces of its tenant.
    fn keys_of(&self, claim: &Claim, namespace: Option<&str>) -> BTreeSet<String> {
        let namespaces = match namespace {
            Some(namespace) => tenant(&self.namespaces, namespace).1.into_iter().map(Some).collect(),
            None => vec![None],
        };
        let all = claim.live.iter().chain(&claim.newest);
        all.flat_map(|fields| namespaces.iter().flat_map(|namespace| keys(fields, namespace.as_deref()))).collect()
    }

    /// Maps a policy to the policies that its change may concern: those that lost a value to it, and those with one of its values.
    pub fn of_policy(&self) -> impl Fn(&MaybeMalformed<K>) -> Vec<ObjectRef<MaybeMalformed<K>>> + use<K> {
        let uniqueness = self.clone();
        move |policy| uniqueness.rivals(policy)
    }

    /// Maps a Namespace to the policies that a change of its tenant concerns: its policies, and their rivals.
    pub fn of_namespace(&self) -> impl Fn(&PartialObjectMeta<Namespace>) -> Vec<ObjectRef<MaybeMalformed<K>>> + use<K> {
        let uniqueness = self.clone();
        move |namespace| {
            let has_request = |policy: &MaybeMalformed<K>| {
                policy.namespace() == namespace.metadata.name
                    && policy.0.as_ref().is_ok_and(|known| known.spec().request.is_some())
            };
            let policies = uniqueness.policies.store().state_filter(has_request);
            policies.iter().flat_map(|policy| uniqueness.rivals(policy)).collect()
        }
    }

    fn rivals(&self, policy: &MaybeMalformed<K>) -> Vec<ObjectRef<MaybeMalformed<K>>> {
        let Ok(id) = kinds::id(policy) else { return Vec::new() };
        let own = name(policy);
        let losers = lock(&self.losers).get(id.as_str());
        let keys = self.claim(&own).map(|claim| self.keys_of(&claim, own.0.as_deref())).unwrap_or_default();
        let sharing = keys.iter().flat_map(|key| self.policies.names(key));
        let rivals: BTreeSet<Name> = losers.into_iter().chain(sharing).filter(|rival| *rival != own).collect();
        rivals.iter().map(|(namespace, name)| reference(name, namespace.as_deref())).collect()
    }
}

/// Returns the name of the policy of a revision; `None` if it is of the other kind, or cannot be read.
fn policy_of<K: PolicyObject>(revision: &MaybeMalformed<Revision>) -> Option<Name> {
    let policy = &revision.0.as_ref().ok()?.policy_ref;
    (policy.kind == K::KIND).then(|| (policy.namespace.clone(), policy.name.clone()))
}

#[cfg(test)]
mod tests;
