//! A subscription: the selectors of the policies of a component. Source: "Option #1" and "Option #2" of ONAP DCAE's policy flow.

use std::collections::BTreeMap;
use std::fmt;

use regex::{Regex, RegexBuilder};

use super::policy::ConfigurationPolicy;
use crate::policy_id::PolicyId;

/// The largest compiled regular expression, in bytes.
const MAX_PROGRAM: usize = 1024 * 1024;
/// The longest regular expression, in bytes: 256 characters of four bytes.
const MAX_PATTERN: usize = 1024;

/// The policies that a component subscribes to: every policy that at least one selector selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscription {
    /// The namespace of the subscription. Its policies are the cluster's and those of this namespace.
    pub namespace: String,
    /// `spec.policies`.
    pub selectors: Vec<Selector>,
    /// The experiments whose candidate bodies the component gets instead of the live bodies, while they are active.
    pub canary_for: Vec<CanaryFor>,
}

/// A selector of policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The policy with this id.
    Id(PolicyId),
    /// The policies that meet all criteria of the filter.
    Filter(Filter),
}

/// Criteria that a policy must all meet. A filter without criteria selects every policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// A regular expression that must match the whole policy id (ONAP: `policyName`).
    pub name_regex: Option<String>,
    /// The `configName` of the policy.
    pub config_name: Option<String>,
    /// The owner of the policy (ONAP: `onapName`).
    pub owner: Option<String>,
    /// The matching conditions of the policy, which may have others too (ONAP: `configAttributes`).
    pub attributes: BTreeMap<String, String>,
    /// True if the filter fails when it selects more than one policy.
    pub unique: bool,
}

/// A criterion of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Criterion {
    NameRegex,
    ConfigName,
    Owner,
    /// The attribute with this key.
    Attribute(String),
}

/// An experiment that a subscription is a canary for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CanaryFor {
    pub policy: PolicyId,
    /// The name of the experiment.
    pub experiment: String,
}

/// The error of a filter that cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    #[error("the regular expression {pattern:?} is invalid: {error}")]
    Invalid { pattern: String, error: String },
    #[error("the regular expression has {size} bytes, at most {MAX_PATTERN} are allowed")]
    TooLong { size: usize },
    #[error("the regular expression {pattern:?} is too complex: use smaller repetitions")]
    TooComplex { pattern: String },
}

/// A subscription whose regular expressions are compiled. Compile a subscription once for each generation of it.
#[derive(Clone, Debug)]
pub struct CompiledSubscription {
    pub(super) namespace: String,
    pub(super) selectors: Vec<CompiledSelector>,
    pub(super) canary_for: Vec<CanaryFor>,
}

#[derive(Clone, Debug)]
pub(super) enum CompiledSelector {
    Id(PolicyId),
    Filter(CompiledFilter),
    Invalid(FilterError),
}

/// A filter whose regular expression is compiled.
#[derive(Clone, Debug)]
pub struct CompiledFilter {
    name: Option<Regex>,
    filter: Filter,
}

impl CompiledSubscription {
    /// Compiles a subscription. A selector that cannot be compiled fails in each resolution.
    #[must_use]
    pub fn new(subscription: &Subscription) -> Self {
        let selectors = subscription.selectors.iter().map(|selector| match selector {
            Selector::Id(id) => CompiledSelector::Id(id.clone()),
            Selector::Filter(filter) => match CompiledFilter::new(filter) {
                Ok(filter) => CompiledSelector::Filter(filter),
                Err(error) => CompiledSelector::Invalid(error),
            },
        });
        Self {
            namespace: subscription.namespace.clone(),
            selectors: selectors.collect(),
            canary_for: subscription.canary_for.clone(),
        }
    }

    /// Returns true if a change of this policy may change the resolution: a selector selects the policy. A caller asks for
    /// the policy before its change, and for the policy after it.
    #[must_use]
    pub fn is_concerned_by(&self, policy: &ConfigurationPolicy) -> bool {
        policy.is_for(&self.namespace)
            && (self.canary_for.iter().any(|canary| canary.policy == policy.id)
                || self.selectors.iter().any(|selector| match selector {
                    CompiledSelector::Id(id) => *id == policy.id,
                    CompiledSelector::Filter(filter) => filter.selects(policy),
                    CompiledSelector::Invalid(_) => false,
                }))
    }

    /// Returns true if the subscription may select a policy of this id: a policy of the cluster, or of the subscription's namespace.
    pub(super) fn is_in_scope(&self, id: &PolicyId) -> bool {
        id.namespace().is_none_or(|namespace| namespace == self.namespace)
    }
}

impl Filter {
    /// Checks that the filter can be compiled.
    ///
    /// # Errors
    /// Returns an error if `name_regex` is not valid, or too complex.
    pub fn check(&self) -> Result<(), FilterError> {
        CompiledFilter::new(self).map(drop)
    }
}

impl CompiledFilter {
    /// Compiles a filter.
    ///
    /// # Errors
    /// Returns [`FilterError`] if the regular expression is invalid, too long or too complex.
    pub fn new(filter: &Filter) -> Result<Self, FilterError> {
        let name = filter.name_regex.as_deref().map(compile).transpose()?;
        Ok(Self { name, filter: filter.clone() })
    }

    pub(super) fn is_unique(&self) -> bool {
        self.filter.unique
    }

    /// Returns true if the policy meets every criterion.
    #[must_use]
    pub fn selects(&self, policy: &ConfigurationPolicy) -> bool {
        self.criteria().all(|criterion| self.is_met(&criterion, policy))
    }

    /// Returns the criteria of the filter.
    pub(super) fn criteria(&self) -> impl Iterator<Item = Criterion> {
        let Filter { name_regex, config_name, owner, attributes, .. } = &self.filter;
        let fields = [
            (name_regex.is_some(), Criterion::NameRegex),
            (config_name.is_some(), Criterion::ConfigName),
            (owner.is_some(), Criterion::Owner),
        ];
        let fields = fields.into_iter().filter(|(is_set, _)| *is_set).map(|(_, criterion)| criterion);
        fields.chain(attributes.keys().cloned().map(Criterion::Attribute))
    }

    /// Returns true if the policy meets this criterion of the filter, or if the filter does not have the criterion.
    pub(super) fn is_met(&self, criterion: &Criterion, policy: &ConfigurationPolicy) -> bool {
        let Filter { config_name, owner, attributes, .. } = &self.filter;
        match criterion {
            Criterion::NameRegex => self.name.as_ref().is_none_or(|name| name.is_match(policy.id.as_str())),
            Criterion::ConfigName => config_name.as_ref().is_none_or(|name| *name == policy.config_name),
            Criterion::Owner => owner.is_none() || *owner == policy.owner,
            Criterion::Attribute(key) => {
                attributes.get(key).is_none_or(|value| policy.matching_condition(key) == Some(value.as_str()))
            }
        }
    }
}

impl fmt::Display for Criterion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameRegex => f.write_str("`nameRegex`"),
            Self::ConfigName => f.write_str("`configName`"),
            Self::Owner => f.write_str("`owner`"),
            Self::Attribute(key) => write!(f, "`attributes.{key}`"),
        }
    }
}

/// Compiles a pattern that must match a whole text.
fn compile(pattern: &str) -> Result<Regex, FilterError> {
    if pattern.len() > MAX_PATTERN {
        return Err(FilterError::TooLong { size: pattern.len() });
    }
    let build = |text: &str| {
        RegexBuilder::new(text).size_limit(MAX_PROGRAM).build().map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => FilterError::TooComplex { pattern: pattern.to_owned() },
            error => FilterError::Invalid { pattern: pattern.to_owned(), error: error.to_string() },
        })
    };
    // The pattern alone must be valid: `a)|(b` would be valid between the anchors, and match a part of the text.
    build(pattern)?;
    build(&format!(r"\A(?:{pattern})\z"))
}

#[cfg(test)]
mod tests;
