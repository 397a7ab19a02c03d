//! The display name and the priority of a request policy are unique among the request policies of the same level, tenant and user.

use proviso_core::PolicyId;
use proviso_crds::PolicySpec;
use proviso_crds::uniqueness::{InUse, SECTION, UniqueField, UniqueFields, UniqueValue};

use crate::error::{Code, Error, FieldViolation};
use crate::namespace_tenants::NamespaceTenants;

/// The reason of the error about a display name that another policy has.
pub(crate) const DISPLAY_NAME_IN_USE: &str = "DISPLAY_NAME_IN_USE";
/// The reason of the error about a priority that another policy has.
pub(crate) const PRIORITY_IN_USE: &str = "PRIORITY_IN_USE";

/// The display name and the priority of a request policy, in their scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UniqueKeys {
    policy: PolicyId,
    values: [UniqueValue; 2],
}

impl UniqueKeys {
    /// Returns the keys of a policy. `None` if the policy is no request policy, or if its level is not valid: then no server serves it.
    #[must_use]
    pub fn of(policy: &PolicyId, spec: &PolicySpec, tenants: &NamespaceTenants) -> Option<Self> {
        let request = spec.request.as_ref()?;
        let fields = UniqueFields::new(request, SECTION, policy.namespace(), policy.name()).ok()?;
        let tenant = policy.namespace().map(|namespace| tenants.tenant(namespace));
        Some(Self { policy: policy.clone(), values: fields.values(tenant) })
    }

    /// Checks that another policy has neither the display name nor the priority. `other` may be the same policy.
    ///
    /// # Errors
    /// Returns an error with [`Code::AlreadyExists`] that names the other policy.
    pub fn check(&self, other: &Self) -> Result<(), Error> {
        if other.policy == self.policy {
            return Ok(());
        }
        let Some(value) = self.values.iter().find(|value| other.values.contains(value)) else { return Ok(()) };
        let reason = match value.field {
            UniqueField::DisplayName => DISPLAY_NAME_IN_USE,
            UniqueField::Priority => PRIORITY_IN_USE,
        };
        let in_use = InUse { value: value.clone(), by: other.policy.clone() }.to_field_error(SECTION);
        let mut error = Error::new(Code::AlreadyExists, reason, in_use.to_string());
        error.violations = vec![FieldViolation { field: in_use.field, description: in_use.message }];
        Err(error.with("policy", other.policy.as_str()))
    }

    /// Returns true if the two have the same scope, display name and priority.
    #[must_use]
    pub fn are_same(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn keys(id: &str, request: &Value) -> UniqueKeys {
        let tenants = NamespaceTenants::new([("team-a".to_owned(), "blue".to_owned())]);
        let spec = json!({"program": {"rego": {"source": "", "dialect": "Request"}}, "request": request});
        UniqueKeys::of(&id.parse().unwrap(), &serde_json::from_value(spec).unwrap(), &tenants).unwrap()
    }

    #[test]
    fn names_and_priorities_are_unique_per_level_tenant_and_user() {
        let named = |name: &str, priority: u32| json!({"displayName": name, "priority": priority});
        let of_user = |user: &str, priority: u32| json!({"displayName": "n", "priority": priority, "user": user});
        for (one, other, expected) in [
            (("cluster.a", named("x", 1)), ("cluster.b", named("x", 2)), Some(DISPLAY_NAME_IN_USE)),
            (("cluster.a", named("x", 1)), ("cluster.b", named("y", 1)), Some(PRIORITY_IN_USE)),
            (("cluster.a", named("x", 1)), ("cluster.b", named("X", 2)), None),
            (("cluster.a", named("x", 1)), ("cluster.a", named("x", 1)), None),
            // The name of the resource is the default of the display name.
            (("cluster.a", json!({"priority": 1})), ("cluster.b", named("a", 2)), Some(DISPLAY_NAME_IN_USE)),
            (("cluster.a", json!({})), ("cluster.b", json!({})), Some(PRIORITY_IN_USE)),
            (("cluster.a", named("x", 1)), ("ns.blue.a", named("x", 1)), None),
            (("cluster.a", named("x", 1)), ("cluster.b", json!({"level": "User", "priority": 1})), None),
            // Both namespaces belong to the tenant blue.
            (("ns.team-a.a", named("x", 1)), ("ns.blue.b", named("x", 2)), Some(DISPLAY_NAME_IN_USE)),
            (("ns.green.a", named("x", 1)), ("ns.blue.b", named("x", 1)), None),
            (("cluster.a", of_user("ana", 1)), ("cluster.b", of_user("ana", 2)), Some(DISPLAY_NAME_IN_USE)),
            (("cluster.a", of_user("ana", 1)), ("cluster.b", of_user("bob", 1)), None),
            (("ns.blue.a", of_user("ana", 1)), ("cluster.b", of_user("ana", 1)), None),
        ] {
            let (new, stored) = (keys(one.0, &one.1), keys(other.0, &other.1));
            let reason = new.check(&stored).err().map(|error| error.reason().to_owned());
            assert_eq!(reason.as_deref(), expected, "{one:?} {other:?}");
            assert_eq!(stored.check(&new).is_err(), expected.is_some(), "the check is symmetric: {one:?} {other:?}");
        }
    }

    #[test]
    fn the_error_names_the_other_policy_and_the_remedy() {
        let request = json!({"displayName": "n", "priority": 7, "user": "ana"});
        let error = keys("ns.team-a.a", &request).check(&keys("ns.blue.b", &json!({"priority": 7, "user": "ana"})));
        let error = error.unwrap_err();
        let expected = "spec.request.priority: 7 is in use by policy ns.blue.b among the policies of the user ana in the tenant blue: \
                        choose another number from 1 to 1000";
        assert_eq!((error.http(), error.message.as_str()), (409, expected));
    }

    #[test]
    fn other_policies_have_no_keys() {
        let spec = json!({"program": {"cel": {"validations": []}}, "admission": {"rules": []}});
        let spec = serde_json::from_value(spec).unwrap();
        assert_eq!(UniqueKeys::of(&"cluster.a".parse().unwrap(), &spec, &NamespaceTenants::default()), None);
    }
}
