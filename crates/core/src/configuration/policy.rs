//! A configuration policy in one version: the facts that filters are compared with, without its content.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::names::is_dns_label;
use crate::policy_id::PolicyId;

/// The key of the `configName` in the matching conditions of a policy body (ONAP Policy API).
const CONFIG_NAME: &str = "ConfigName";
/// The key of the owner in the matching conditions of a policy body (ONAP Policy API).
const OWNER: &str = "ONAPName";

/// A version of a configuration policy that may be delivered, or the candidate of an active experiment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigurationPolicy {
    pub id: PolicyId,
    pub version: Version,
    pub config_name: String,
    /// The owner (ONAP: `ONAPName`); `None` if the policy names none.
    pub owner: Option<String>,
    pub attributes: BTreeMap<String, String>,
    /// True if the body is delivered in a Secret, and never in a notification.
    pub is_confidential: bool,
    /// The namespaces whose subscriptions may select the policy, if it is a policy of the cluster.
    pub audience: Audience,
}

/// The namespaces whose subscriptions may select a policy of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Audience {
    #[default]
    All,
    Only(BTreeSet<String>),
}

/// The version of a policy body.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The generation of the policy. For a candidate, it is the generation of the live policy.
    pub generation: i64,
    /// The experiment that the body belongs to; `None` for the body of the policy itself.
    pub candidate: Option<Candidate>,
}

/// The experiment of a candidate body, in one generation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Candidate {
    /// The name of the experiment. An experiment is in the namespace of its policy.
    pub experiment: String,
    /// The generation of the experiment.
    pub generation: i64,
}

/// The error of a text that is not a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a version is `<generation>` or `<generation>/<experiment>/<generation of the experiment>`, not {0:?}")]
pub struct VersionError(String);

impl ConfigurationPolicy {
    /// Returns true if subscriptions of this namespace may select the policy. A policy of a namespace is for its own namespace.
    #[must_use]
    pub fn is_for(&self, namespace: &str) -> bool {
        match (self.id.namespace(), &self.audience) {
            (Some(own), _) => own == namespace,
            (None, Audience::All) => true,
            (None, Audience::Only(namespaces)) => namespaces.contains(namespace),
        }
    }

    /// Returns the value of a matching condition: an attribute, or one of the keys `ConfigName` and `ONAPName`, which no attribute
    /// overrides.
    #[must_use]
    pub fn matching_condition(&self, key: &str) -> Option<&str> {
        match key {
            CONFIG_NAME => Some(&self.config_name),
            OWNER => self.owner.as_deref(),
            _ => self.attributes.get(key).map(String::as_str),
        }
    }

    /// Returns the `matchingConditions` of the policy body.
    #[must_use]
    pub fn matching_conditions(&self) -> BTreeMap<&str, &str> {
        let keys = self.attributes.keys().map(String::as_str).chain([CONFIG_NAME, OWNER]);
        keys.filter_map(|key| Some((key, self.matching_condition(key)?))).collect()
    }
}

impl Version {
    /// Returns the version of the body of a policy itself.
    #[must_use]
    pub const fn of(generation: i64) -> Self {
        Self { generation, candidate: None }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.candidate {
            None => write!(f, "{}", self.generation),
            Some(candidate) => write!(f, "{}/{}/{}", self.generation, candidate.experiment, candidate.generation),
        }
    }
}

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || VersionError(text.chars().take(300).collect());
        let parts: Vec<_> = text.split('/').collect();
        let generation = |text: &str| text.parse().map_err(|_| error());
        match parts[..] {
            [policy] => Ok(Self::of(generation(policy)?)),
            [policy, name, own] if name.split('.').all(is_dns_label) => {
                let candidate = Candidate { experiment: name.to_owned(), generation: generation(own)? };
                Ok(Self { generation: generation(policy)?, candidate: Some(candidate) })
            }
            _ => Err(error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_round_trips_through_its_text() {
        let candidate = Candidate { experiment: "more-memory.v2".to_owned(), generation: 2 };
        for (version, text) in
            [(Version::of(7), "7"), (Version { generation: 7, candidate: Some(candidate) }, "7/more-memory.v2/2")]
        {
            assert_eq!(version.to_string(), text);
            assert_eq!(text.parse::<Version>(), Ok(version));
        }
        for text in ["", "x", "7/", "7/a", "7/A/1", "7/a/x", "7/a/1/2"] {
            assert!(text.parse::<Version>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_attribute_does_not_override_the_config_name() {
        let policy = ConfigurationPolicy {
            id: "cluster.memory".parse().unwrap(),
            version: Version::of(1),
            config_name: "memory".to_owned(),
            owner: None,
            attributes: [("ConfigName", "other"), ("ONAPName", "other"), ("key1", "value1")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            is_confidential: false,
            audience: Audience::All,
        };
        let conditions: Vec<_> = policy.matching_conditions().into_iter().collect();
        assert_eq!(conditions, [("ConfigName", "memory"), ("key1", "value1")]);
    }
}
