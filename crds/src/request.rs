//! `spec.request`: the requests to services that a policy decides about, and the place of the policy in their chain. Source: the ADR
//! "Policy API & Execution Engine" of the DCM project.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{ParseExpressionError, Selector};
use proviso_core::request::{Criteria, Level};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::validation::FieldError;

/// The label of a Namespace with the id of the tenant whose policies are in the namespace. Default: the name of the namespace.
pub const TENANT: &str = "proviso.dev/tenant";
/// The maximum length of `displayName`, in characters.
pub const MAX_DISPLAY_NAME: usize = 255;
/// The maximum length of `description`, in characters.
pub const MAX_DESCRIPTION: usize = 2048;
/// The maximum number of `serviceTypes`.
pub const MAX_SERVICE_TYPES: usize = 100;
/// The range of priorities.
pub const PRIORITIES: std::ops::RangeInclusive<u32> = 1..=1000;
/// The priority of a policy that sets none.
pub const DEFAULT_PRIORITY: u32 = 500;

/// Returns the tenant of a namespace with these labels: the value of the label [`TENANT`], by default the name of the namespace.
#[must_use]
pub fn tenant<'a>(namespace: &'a str, labels: Option<&'a BTreeMap<String, String>>) -> &'a str {
    labels.and_then(|labels| labels.get(TENANT)).map_or(namespace, String::as_str)
}

/// The requests to services that the policy decides about, and the place of the policy in their chain.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRequests {
    /// The name that people see: 1 to 255 characters, unique among the policies of the same level, tenant and user. Default: the name
    /// of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub display_name: Option<String>,
    /// The purpose of the policy: at most 2,048 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub description: Option<String>,
    /// Limits the policy to requests of these service types: at most 100. The service type is that of the binding
    /// (`program.requests.serviceType`), or else `service_type` or `serviceType` of the payload, or else the kind of the object. Default:
    /// all service types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub service_types: Vec<String>,
    /// Limits the policy to requests with these labels: those in `metadata.labels` of the payload and, for Kubernetes objects, those of the
    /// object. The service type is the label `service_type`. Default: all requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// The place of the policy within its level: 1 to 1000; the lowest number is evaluated first. Unique among the policies of the same
    /// level, tenant and user. Default: 500.
    #[serde(default = "priority")]
    #[schemars(range(min = 1, max = 1000))]
    pub priority: u32,
    /// The level of the policy. Global policies are evaluated first, then those of tenants, then those of users. A policy binds the
    /// policies after it. A ClusterPolicy has the level `Global` or `User`, and a Policy the level `Tenant` or `User`. Default: `User` if
    /// `user` is set, otherwise `Global` for a ClusterPolicy and `Tenant` for a Policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<RequestLevel>,
    /// Limits the policy to requests of this user. Only for the level `User`. Default: all users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub user: Option<String>,
}

/// The level of a request policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum RequestLevel {
    /// For all requests. Only for a ClusterPolicy.
    Global,
    /// For the requests of one tenant. Only for a Policy: the label `proviso.dev/tenant` of its Namespace names the tenant, by default the
    /// name of the namespace.
    Tenant,
    /// For the requests of one user, or of all users.
    User,
}

/// The policies among which the display name and the priority of a request policy are unique: those of one level, tenant and user.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestScope {
    pub level: Level,
    /// The tenant of a namespaced policy.
    pub tenant: Option<String>,
    pub user: Option<String>,
}

impl From<RequestLevel> for Level {
    fn from(level: RequestLevel) -> Self {
        match level {
            RequestLevel::Global => Self::Global,
            RequestLevel::Tenant => Self::Tenant,
            RequestLevel::User => Self::User,
        }
    }
}

impl ServiceRequests {
    /// Returns the level of a policy in this namespace (`None` for a ClusterPolicy). `at` is the path of this section.
    ///
    /// # Errors
    /// Returns an error if a policy of this kind cannot have the level, or if the level has no users.
    pub fn level(&self, at: &str, namespace: Option<&str>) -> Result<Level, FieldError> {
        let default = if namespace.is_some() { Level::Tenant } else { Level::Global };
        let level = match self.level {
            Some(level) => level.into(),
            None if self.user.is_some() => Level::User,
            None => default,
        };
        if level != Level::User && level != default {
            let (kind, allowed) = if namespace.is_some() { ("Policy", "Tenant") } else { ("ClusterPolicy", "Global") };
            let message = format!("is {}: the levels of a {kind} are {allowed} and User", level.as_str());
            return Err(FieldError::new(format!("{at}.level"), message));
        }
        if level != Level::User && self.user.is_some() {
            let message = format!("is for the level User, and the level of this policy is {}", level.as_str());
            return Err(FieldError::new(format!("{at}.user"), message));
        }
        Ok(level)
    }

    /// Returns the display name of the policy whose resource has this name.
    #[must_use]
    pub fn display_name<'a>(&'a self, name: &'a str) -> &'a str {
        self.display_name.as_deref().unwrap_or(name)
    }

    /// Returns the criteria of this section. `tenant` is the tenant of a namespaced policy.
    ///
    /// # Errors
    /// Fails if the selector has an unknown operator, or no values for an operator that needs some.
    pub fn criteria(&self, tenant: Option<String>) -> Result<Criteria, ParseExpressionError> {
        let selector = match &self.selector {
            Some(selector) => Selector::try_from(selector.clone())?,
            None => Selector::default(),
        };
        Ok(Criteria { service_types: self.service_types.clone(), selector, tenant, user: self.user.clone() })
    }
}

fn priority() -> u32 {
    DEFAULT_PRIORITY
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn section(section: Value) -> ServiceRequests {
        serde_json::from_value(section).unwrap()
    }

    #[test]
    fn the_level_follows_from_the_kind_and_the_user() {
        for (fields, namespace, expected) in [
            (json!({}), None, Ok(Level::Global)),
            (json!({}), Some("a"), Ok(Level::Tenant)),
            (json!({"user": "u"}), None, Ok(Level::User)),
            (json!({"user": "u"}), Some("a"), Ok(Level::User)),
            (json!({"level": "User"}), None, Ok(Level::User)),
            (json!({"level": "User", "user": "u"}), Some("a"), Ok(Level::User)),
            (json!({"level": "Global"}), None, Ok(Level::Global)),
            (json!({"level": "Global"}), Some("a"), Err("spec.request.level")),
            (json!({"level": "Tenant"}), None, Err("spec.request.level")),
            (json!({"level": "Tenant", "user": "u"}), Some("a"), Err("spec.request.user")),
        ] {
            let level = section(fields.clone()).level("spec.request", namespace);
            assert_eq!(
                level.map_err(|error| error.field),
                expected.map_err(ToOwned::to_owned),
                "{fields} {namespace:?}"
            );
        }
    }

    #[test]
    fn the_default_covers_all_requests_in_the_middle_of_its_level() {
        let section = section(json!({}));
        assert_eq!(section.priority, 500);
        assert_eq!(section.criteria(None).unwrap(), Criteria::default());
    }
}
