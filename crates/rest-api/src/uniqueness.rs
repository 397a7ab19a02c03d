//! The display name and the priority of a request policy are unique among the request policies of the same level, tenant and user.

use proviso_core::PolicyId;
use proviso_crds::{PolicySpec, RequestScope};

use crate::error::{Code, Error, FieldViolation};
use crate::namespace_tenants::NamespaceTenants;

/// The reason of the error about a display name that another policy has.
pub(crate) const DISPLAY_NAME_IN_USE: &str = "DISPLAY_NAME_IN_USE";
/// The reason of the error about a priority that another policy has.
pub(crate) const PRIORITY_IN_USE: &str = "PRIORITY_IN_USE";

/// The display name and the priority of a request policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UniqueKeys {
    pub policy: PolicyId,
    pub scope: RequestScope,
    pub display_name: String,
    pub priority: u32,
}

impl UniqueKeys {
    /// Returns the keys of a policy. `None` if the policy is no request policy, or if its level is not valid: then no server serves it.
    #[must_use]
    pub fn of(policy: &PolicyId, spec: &PolicySpec, tenants: &NamespaceTenants) -> Option<Self> {
        let request = spec.request.as_ref()?;
        let tenant = policy.namespace().map(|namespace| tenants.tenant(namespace).to_owned());
        let scope = request.scope("spec.request", tenant).ok()?;
        let display_name = request.display_name(policy.name()).to_owned();
        Some(Self { policy: policy.clone(), scope, display_name, priority: request.priority })
    }

    /// Checks that another policy has neither the display name nor the priority. `other` may be the same policy.
    ///
    /// # Errors
    /// Returns an error with [`Code::AlreadyExists`] that names the other policy.
    pub fn check(&self, other: &Self) -> Result<(), Error> {
        if other.policy == self.policy || other.scope != self.scope {
            return Ok(());
        }
        let scope = scope_name(&self.scope);
        let (reason, field, value, remedy) = if other.display_name == self.display_name {
            (DISPLAY_NAME_IN_USE, "spec.request.displayName", format!("{:?}", self.display_name), "choose another name")
        } else if other.priority == self.priority {
            (PRIORITY_IN_USE, "spec.request.priority", self.priority.to_string(), "choose another number")
        } else {
            return Ok(());
        };
        let policy = other.policy.as_str();
        let description = format!("{value} is in use by policy {policy} among the {scope}: {remedy}");
        let mut error = Error::new(Code::AlreadyExists, reason, format!("{field}: {description}"));
        error.violations = vec![FieldViolation { field: field.to_owned(), description }];
        Err(error.with("policy", policy))
    }

    /// Returns true if the two have the same scope, display name and priority.
    #[must_use]
    pub fn are_same(&self, other: &Self) -> bool {
        (&self.scope, &self.display_name, self.priority) == (&other.scope, &other.display_name, other.priority)
    }
}

/// Returns the name of a scope, such as `Tenant policies of tenant blue`.
fn scope_name(scope: &RequestScope) -> String {
    let owners = [("tenant", &scope.tenant), ("user", &scope.user)].into_iter();
    let owners = owners.filter_map(|(kind, owner)| Some(format!("{kind} {}", owner.as_ref()?))).collect::<Vec<_>>();
    let of = if owners.is_empty() { String::new() } else { format!(" of {}", owners.join(" and ")) };
    format!("{} policies{of}", scope.level.as_str())
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
        let expected = "spec.request.priority: 7 is in use by policy ns.blue.b among the User policies of tenant blue and user ana: \
                        choose another number";
        assert_eq!((error.http(), error.message.as_str()), (409, expected));
    }

    #[test]
    fn other_policies_have_no_keys() {
        let spec = json!({"program": {"cel": {"validations": []}}, "admission": {"rules": []}});
        let spec = serde_json::from_value(spec).unwrap();
        assert_eq!(UniqueKeys::of(&"cluster.a".parse().unwrap(), &spec, &NamespaceTenants::default()), None);
    }
}
