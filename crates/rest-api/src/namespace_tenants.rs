//! The tenants of namespaces: the label `proviso.dev/tenant` of a Namespace names the tenant of its policies, by default the name of
//! the namespace.

use std::collections::BTreeMap;

use proviso_core::names::is_dns_label;
use proviso_crds::TENANT;

use crate::error::Error;

/// The tenants that the labels of Namespaces name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceTenants(BTreeMap<String, String>);

impl NamespaceTenants {
    /// Returns the tenants of these namespaces: each has the value of its label [`TENANT`]. Other namespaces belong to the tenant of
    /// their name.
    #[must_use]
    pub fn new(labeled: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(labeled.into_iter().collect())
    }

    /// Returns the tenant of a namespace.
    #[must_use]
    pub fn tenant<'a>(&'a self, namespace: &'a str) -> &'a str {
        self.0.get(namespace).map_or(namespace, String::as_str)
    }

    /// Returns the namespaces of a tenant, sorted by name: those with the label first, then the namespace with the name of the tenant
    /// if its label does not name another tenant. The last one need not exist.
    #[must_use]
    pub fn namespaces<'a>(&'a self, tenant: &'a str) -> Vec<&'a str> {
        let labeled = self.0.iter().filter(|(_, name)| *name == tenant).map(|(namespace, _)| namespace.as_str());
        let own = (is_dns_label(tenant) && tenant.len() <= 63 && !self.0.contains_key(tenant)).then_some(tenant);
        labeled.chain(own).collect()
    }

    /// Returns the namespace of the new policies of a tenant: the first of [`Self::namespaces`].
    ///
    /// # Errors
    /// Returns an error if no namespace can belong to the tenant.
    pub fn namespace<'a>(&'a self, tenant: &'a str) -> Result<&'a str, Error> {
        self.namespaces(tenant).first().copied().ok_or_else(|| no_namespace(tenant))
    }
}

/// Returns the error for a tenant without a namespace.
pub(crate) fn no_namespace(tenant: &str) -> Error {
    let message = format!(
        "no namespace belongs to the tenant {tenant:?}: set the label {TENANT} of a Namespace to this tenant, or create a Namespace \
         of this name"
    );
    Error::invalid("tenant", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_of_a_namespace_names_its_tenant() {
        let labels = [("team-z", "blue"), ("team-a", "blue"), ("green", "blue"), ("red", "red")];
        let tenants =
            NamespaceTenants::new(labels.map(|(namespace, tenant)| (namespace.to_owned(), tenant.to_owned())));
        assert_eq!(["team-a", "red", "other"].map(|namespace| tenants.tenant(namespace)), ["blue", "red", "other"]);
        for (tenant, expected) in [
            // The namespace `blue` has no label.
            ("blue", &["green", "team-a", "team-z", "blue"][..]),
            ("red", &["red"]),
            ("other", &["other"]),
            // The namespace of this name belongs to another tenant, and a policy in it would decide for that tenant.
            ("green", &[]),
            ("Not/A/Name", &[]),
        ] {
            assert_eq!(tenants.namespaces(tenant), expected, "{tenant}");
            assert_eq!(tenants.namespace(tenant).ok(), expected.first().copied(), "{tenant}");
        }
        let error = tenants.namespace("green").unwrap_err();
        assert!(error.message.starts_with("tenant: no namespace belongs to the tenant \"green\""), "{error}");
    }
}
