//! The results of selectors and canaries, with the reasons why a selector selects nothing.

use std::fmt;

use super::{MAX_POLICIES, Resolution};
use crate::configuration::subscription::{Criterion, FilterError};
use crate::failure::{Failure, Reason};
use crate::policy_id::PolicyId;

/// The maximum number of policies that a message names.
const MAX_NAMED: usize = 5;

/// The result of one selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectorOutcome {
    /// The ids of the selected policies, sorted. At least one.
    Selected(Vec<PolicyId>),
    /// The selector works, and selects no policy.
    Nothing(NotSelected),
    /// The selector does not work. The component keeps the policies that it has.
    Failed(SelectionError),
}

/// The reason why a selector selects no policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSelected {
    /// The policy does not exist, is disabled, has no section `configuration`, or has no version that can be delivered.
    NotFound(PolicyId),
    /// The policy is in another namespace than the subscription.
    OtherNamespace(PolicyId),
    /// No policy meets all criteria of the filter.
    NoMatch {
        /// The number of policies that the filter was compared with.
        policies: usize,
        /// For each criterion, the number of policies that meet it.
        alone: Vec<(Criterion, usize)>,
    },
}

/// The error of a selector that does not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    #[error("`filter.nameRegex`: {0}")]
    Filter(#[from] FilterError),
    #[error(
        "the filter is `unique`, and selects {} policies ({}): add criteria, or remove `unique`",
        .policies.len(), names(.policies)
    )]
    NotUnique { policies: Vec<PolicyId> },
    #[error(
        "the selector selects {selected} policies, and the subscription {total} with it, at most {MAX_POLICIES} are allowed: add criteria, or use several subscriptions"
    )]
    TooMany { selected: usize, total: usize },
    #[error("the policy {policy} cannot be read: see its status")]
    Unreadable { policy: PolicyId },
}

/// The result of one `canaryFor` of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CanaryOutcome {
    /// The component gets the candidate body.
    Delivered,
    /// The experiment does not exist, or is not active. The component gets the live body.
    NotActive,
    /// The policy of the experiment has no live version.
    PolicyNotFound,
    /// The policy of the experiment is in another namespace than the subscription.
    OtherNamespace,
    /// The subscription is a canary for several active experiments of this policy. The component gets the live body.
    Conflict,
    /// No selector selects the candidate.
    NotSelected,
}

impl SelectionError {
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Filter(_) => Reason::INVALID,
            Self::NotUnique { .. } => Reason::new("NotUnique"),
            Self::TooMany { .. } => Reason::new("TooManyPolicies"),
            Self::Unreadable { .. } => Reason::new("PolicyUnreadable"),
        }
    }
}

impl CanaryOutcome {
    /// Returns the name of the outcome for a status.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "Delivered",
            Self::NotActive => "NotActive",
            Self::PolicyNotFound => "PolicyNotFound",
            Self::OtherNamespace => "OtherNamespace",
            Self::Conflict => "Conflict",
            Self::NotSelected => "NotSelected",
        }
    }
}

impl Resolution {
    /// Returns the failures of selectors, with the path of the field in each message.
    pub fn failures(&self) -> impl Iterator<Item = Failure> {
        self.selectors.iter().enumerate().filter_map(|(index, outcome)| match outcome {
            SelectorOutcome::Failed(error) => {
                Some(Failure::new(error.reason(), format!("spec.policies[{index}]: {error}")))
            }
            SelectorOutcome::Selected(_) | SelectorOutcome::Nothing(_) => None,
        })
    }

    /// Returns the reasons of the selectors that select nothing, with the path of the field in each message.
    pub fn warnings(&self) -> impl Iterator<Item = Failure> {
        self.selectors.iter().enumerate().filter_map(|(index, outcome)| match outcome {
            SelectorOutcome::Nothing(why) => {
                Some(Failure::new(Reason::new("NoPolicySelected"), format!("spec.policies[{index}]: {why}")))
            }
            SelectorOutcome::Selected(_) | SelectorOutcome::Failed(_) => None,
        })
    }
}

impl fmt::Display for NotSelected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(id) => {
                write!(f, "there is no enabled configuration policy {id} with a version that can be delivered")
            }
            Self::OtherNamespace(id) => {
                write!(
                    f,
                    "the policy {id} is in another namespace: a subscription selects policies of the cluster and of its own namespace"
                )
            }
            Self::NoMatch { policies: 0, .. } => f.write_str(
                "the filter selects nothing: there are no configuration policies of the cluster and of this namespace",
            ),
            Self::NoMatch { policies, alone } => {
                write!(f, "the filter selects none of {policies} policies; each criterion alone:")?;
                for (index, (criterion, count)) in alone.iter().enumerate() {
                    write!(f, "{} {criterion} {count}", if index > 0 { "," } else { "" })?;
                }
                Ok(())
            }
        }
    }
}

fn names(policies: &[PolicyId]) -> String {
    let named: Vec<_> = policies.iter().take(MAX_NAMED).map(PolicyId::as_str).collect();
    let more = if policies.len() > MAX_NAMED { ", …" } else { "" };
    named.join(", ") + more
}
