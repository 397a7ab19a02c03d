//! `spec.admission`: which requests to the Kubernetes API a policy decides about, and what its verdict does.

use k8s_openapi::api::admissionregistration::v1::{MatchCondition, RuleWithOperations};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::ParseExpressionError;
use proviso_core::{Enforcement, Match};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which requests to the Kubernetes API a policy decides about, and what its verdict does.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Admission {
    /// Operations and resources, as in a ValidatingWebhookConfiguration.
    #[schemars(length(min = 1))]
    pub rules: Vec<RuleWithOperations>,
    /// Only objects in namespaces with these labels. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Only objects with these labels, before or after the request. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_selector: Option<LabelSelector>,
    /// CEL expressions that must all be true for the policy to be asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_conditions: Vec<MatchCondition>,
    /// Whether other versions of the resources in `rules` are covered too. Default: Equivalent.
    #[serde(default)]
    pub match_policy: MatchPolicy,
    /// What the API server does when the policy server does not answer. Default: Fail.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// How long the API server waits for an answer, in seconds: 1 to 30. Default: 10.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 30))]
    pub timeout_seconds: u32,
    /// Whether the policy may change objects. A change by a policy that may not is a denial. Default: false.
    #[serde(default)]
    pub mutating: bool,
    /// Whether denials bite. Default: Protect.
    #[serde(default)]
    pub mode: Mode,
    /// Replaces the message of every denial; the program's own becomes a cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether audits of existing objects ask this policy. Default: true.
    #[serde(default = "background_audit")]
    pub background_audit: bool,
}

/// Whether other versions of a resource are covered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum MatchPolicy {
    Exact,
    #[default]
    Equivalent,
}

/// What happens to a request when the policy server does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum FailurePolicy {
    /// It is denied.
    #[default]
    Fail,
    /// It is let through.
    Ignore,
}

/// Whether denials bite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Mode {
    /// A denial denies.
    #[default]
    Protect,
    /// Everything is allowed and nothing is changed; denials show in logs and metrics.
    Monitor,
}

impl Admission {
    /// What this section covers.
    ///
    /// # Errors
    /// When a selector has an unknown operator or lacks values.
    pub fn to_match(&self) -> Result<Match, ParseExpressionError> {
        Match::new(
            self.rules.clone(),
            self.namespace_selector.clone(),
            self.object_selector.clone(),
            self.match_policy == MatchPolicy::Exact,
        )
    }

    /// What this section does to verdicts.
    #[must_use]
    pub fn to_enforcement(&self) -> Enforcement {
        Enforcement {
            mode: match self.mode {
                Mode::Protect => proviso_core::Mode::Protect,
                Mode::Monitor => proviso_core::Mode::Monitor,
            },
            mutating: self.mutating,
            message: self.message.clone(),
        }
    }
}

fn timeout_seconds() -> u32 {
    10
}

fn background_audit() -> bool {
    true
}
