//! The request policies of the folder: their tenants, and the uniqueness of their display names and priorities. The task of the folder
//! runs one command at a time, so that no other command writes between the check and the write.

use proviso_core::PolicyId;
use proviso_crds::{PolicySpec, TENANT};
use proviso_rest_api::{Error, NamespaceTenants, UniqueKeys};

use super::FolderSource;
use super::object::Object;
use crate::manifests::ObjectId;

impl FolderSource {
    /// Returns the tenants that the manifests of Namespaces name.
    pub(crate) fn tenants(&self) -> NamespaceTenants {
        let tenant = |(namespace, labels): (&String, &crate::manifests::Sourced<_>)| {
            let labels: &proviso_core::matching::Labels = &labels.spec;
            Some((namespace.clone(), labels.get(TENANT)?.clone()))
        };
        NamespaceTenants::new(self.namespaces.iter().filter_map(tenant))
    }

    /// Returns the id of the policy with this uid.
    pub(crate) fn policy_with_uid(&self, uid: &str) -> Option<PolicyId> {
        self.policies().find(|(_, object)| object.uid == uid).map(|(id, _)| id.clone())
    }

    /// Checks that no other request policy has the display name or the priority of this spec. An update that changes neither is always
    /// possible: files may have two policies with the same one.
    pub(super) fn check_unique(
        &self,
        id: &PolicyId,
        before: Option<&PolicySpec>,
        spec: &PolicySpec,
    ) -> Result<(), Error> {
        let tenants = self.tenants();
        let Some(keys) = UniqueKeys::of(id, spec, &tenants) else { return Ok(()) };
        let before = before.and_then(|before| UniqueKeys::of(id, before, &tenants));
        if before.is_some_and(|before| before.are_same(&keys)) {
            return Ok(());
        }
        // A generation that is served keeps its values while a newer version of its policy is refused.
        let others = self.policies().flat_map(|(id, object)| {
            let newest = object.manifest.iter().map(|version| version.spec.as_ref());
            newest.chain(object.record.iter().map(|record| &record.spec)).map(move |spec| (id, spec))
        });
        let mut others = others.filter_map(|(id, spec)| UniqueKeys::of(id, spec, &tenants));
        others.try_for_each(|other| keys.check(&other))
    }

    fn policies(&self) -> impl Iterator<Item = (&PolicyId, &Object)> {
        self.objects.iter().filter_map(|(id, object)| match id {
            ObjectId::Policy(id) => Some((id, object)),
            _ => None,
        })
    }
}
