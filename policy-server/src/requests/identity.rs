//! The user and the tenant of a request: those of its caller, or those that its body names. Pure.

use std::collections::BTreeMap;

use proviso_core::matching::Labels;
use proviso_crds::tenant;
use proviso_rest_api::Problem;
use serde::{Deserialize, Deserializer};

/// The maximum length of the id of a user or a tenant, in bytes.
const MAX_ID: usize = 253;
/// The prefix of the user names of service accounts. Namespace and name follow.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The user and the tenant of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub user: String,
    /// The tenant of the namespace of a service account; `None` for another user.
    pub tenant: Option<String>,
}

/// A field of a body that names a user or a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum IdField {
    /// The body does not have the field.
    #[default]
    Missing,
    /// The field is `null`: no user, or no tenant.
    Null,
    Id(String),
}

impl<'de> Deserialize<'de> for IdField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let id = Option::<String>::deserialize(deserializer)?;
        Ok(id.map_or(Self::Null, Self::Id))
    }
}

impl IdField {
    /// Returns the id; `None` if the body does not have the field, or if it is `null`.
    fn into_id(self) -> Option<String> {
        if let Self::Id(id) = self { Some(id) } else { None }
    }

    fn is_missing(&self) -> bool {
        matches!(self, Self::Missing)
    }
}

/// The user and the tenant in a body.
#[derive(Debug, Default)]
pub(super) struct Named {
    pub user: IdField,
    pub tenant: IdField,
}

/// The user and the tenant of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub user: Option<String>,
    pub tenant: Option<String>,
}

impl Own {
    /// Returns the user and the tenant of a caller. `namespaces` has the labels that name tenants.
    ///
    /// # Errors
    /// Returns an error if the caller is a service account of a namespace that is not known yet.
    pub fn of(user: &str, namespaces: &BTreeMap<String, Labels>) -> Result<Self, Problem> {
        let account = user.strip_prefix(SERVICE_ACCOUNT).and_then(|account| account.split_once(':'));
        let tenant = match account {
            None => None,
            Some((namespace, _)) if namespaces.contains_key(namespace) => {
                Some(tenant(namespace, namespaces.get(namespace)).to_owned())
            }
            Some((namespace, _)) => {
                let message = format!("the labels of the Namespace {namespace} of the caller are not known yet");
                return Err(Problem::unavailable(&message));
            }
        };
        Ok(Self { user: user.to_owned(), tenant })
    }

    /// Returns the identity of a caller that may only name itself.
    fn into_identity_of(self, Named { user, tenant }: Named) -> Result<Identity, Problem> {
        let own = Identity { user: Some(self.user), tenant: self.tenant };
        for (field, named, own) in [("user", user, &own.user), ("tenant", tenant, &own.tenant)] {
            if named.is_missing() {
                continue;
            }
            let named = named.into_id();
            if named != *own {
                let text = |id: &Option<String>| id.as_ref().map_or_else(|| "none".to_owned(), |id| format!("{id:?}"));
                return Err(Problem::forbidden(&format!(
                    "{field}: is {}, and yours is {}: leave the field out, or bind your user to the ClusterRole \
                     proviso-request-portal to send requests of others",
                    text(&named),
                    text(own)
                )));
            }
        }
        Ok(own)
    }
}

impl Named {
    /// Checks the lengths of the ids.
    ///
    /// # Errors
    /// Returns an error that names the field.
    pub fn check(self) -> Result<Self, Problem> {
        for (field, id) in [("user", &self.user), ("tenant", &self.tenant)] {
            if matches!(id, IdField::Id(id) if id.is_empty() || id.len() > MAX_ID) {
                return Err(Problem::invalid(&format!("{field}: must have 1 to {MAX_ID} bytes")));
            }
        }
        Ok(self)
    }

    /// Returns the identity that the body names, for a server whose callers may name each user and tenant.
    pub fn into_identity(self) -> Identity {
        Identity { user: self.user.into_id(), tenant: self.tenant.into_id() }
    }

    /// Returns the identity of the request of an authenticated caller. A caller that may not impersonate can only name itself. A caller
    /// that may impersonate must name both: if it forgot the tenant of its customer, the policies of that tenant would be skipped.
    ///
    /// # Errors
    /// Returns an error that names the field.
    pub fn of_caller(self, own: Own, may_impersonate: bool) -> Result<Identity, Problem> {
        let missing = [("user", &self.user), ("tenant", &self.tenant)].into_iter().find(|(_, id)| id.is_missing());
        match missing {
            Some((field, _)) if may_impersonate => Err(Problem::invalid(&format!(
                "{field}: is missing: you may send requests of others, so name `user` and `tenant`; `null` means none"
            ))),
            _ if may_impersonate => Ok(self.into_identity()),
            _ => own.into_identity_of(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use proviso_crds::TENANT;

    use super::*;

    fn namespaces() -> BTreeMap<String, Labels> {
        let labelled = Labels::from([(TENANT.to_owned(), "blue".to_owned())]);
        BTreeMap::from([("team-blue".to_owned(), labelled), ("team-green".to_owned(), Labels::new())])
    }

    fn status(problem: &Problem) -> u16 {
        problem.to_response().status().as_u16()
    }

    #[test]
    fn the_tenant_of_a_service_account_is_that_of_its_namespace() {
        for (user, wanted) in [
            ("system:serviceaccount:team-blue:app", Ok(Some("blue"))),
            ("system:serviceaccount:team-green:app", Ok(Some("team-green"))),
            ("system:serviceaccount:unknown:app", Err(503)),
            ("system:serviceaccount:", Ok(None)),
            ("ana", Ok(None)),
            ("blue", Ok(None)),
        ] {
            let own = Own::of(user, &namespaces());
            let found = own.as_ref().map(|own| own.tenant.as_deref()).map_err(status);
            assert_eq!(found, wanted, "{user}");
        }
    }

    #[test]
    fn only_a_caller_that_may_impersonate_can_name_others_and_it_must_name_both() {
        let id = |id: &str| IdField::Id(id.to_owned());
        let (none, missing) = (IdField::Null, IdField::Missing);
        let own = Own { user: "app".to_owned(), tenant: Some("blue".to_owned()) };
        let itself = Ok((Some("app"), Some("blue")));
        for (user, tenant, plain, portal) in [
            (missing.clone(), missing.clone(), itself, Err(400)),
            (id("app"), id("blue"), itself, itself),
            (id("app"), missing.clone(), itself, Err(400)),
            (missing.clone(), id("blue"), itself, Err(400)),
            (id("ana"), id("blue"), Err(403), Ok((Some("ana"), Some("blue")))),
            (id("app"), id("green"), Err(403), Ok((Some("app"), Some("green")))),
            (id("ana"), missing.clone(), Err(403), Err(400)),
            (none.clone(), missing.clone(), Err(403), Err(400)),
            (missing, none.clone(), Err(403), Err(400)),
            (id("app"), none.clone(), Err(403), Ok((Some("app"), None))),
            (none.clone(), none, Err(403), Ok((None, None))),
        ] {
            for (may_impersonate, wanted) in [(false, plain), (true, portal)] {
                let named = Named { user: user.clone(), tenant: tenant.clone() };
                let identity = named.of_caller(own.clone(), may_impersonate);
                let found = identity.as_ref().map(|it| (it.user.as_deref(), it.tenant.as_deref())).map_err(status);
                assert_eq!(found, wanted, "{user:?} {tenant:?} {may_impersonate}");
            }
        }
    }

    #[test]
    fn a_caller_without_a_tenant_may_say_so() {
        let own = Own { user: "ana".to_owned(), tenant: None };
        let named = Named { user: IdField::Missing, tenant: IdField::Null };
        assert!(named.of_caller(own, false).is_ok_and(|identity| identity.tenant.is_none()));
    }

    #[test]
    fn an_id_has_a_limited_length() {
        let named = |user: &str| Named { user: IdField::Id(user.to_owned()), tenant: IdField::Missing };
        for (user, is_valid) in
            [("", false), ("a", true), (&"a".repeat(MAX_ID), true), (&"a".repeat(MAX_ID + 1), false)]
        {
            assert_eq!(named(user).check().is_ok(), is_valid, "{} bytes", user.len());
        }
    }
}
