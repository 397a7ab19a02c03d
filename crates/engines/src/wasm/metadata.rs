//! The metadata of a Kubewarden policy, which is a custom section of its module.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use wasmparser::{Parser, Payload};

use crate::CompileError;

const SECTION: &str = "io.kubewarden.metadata";

/// The annotations of a policy module (`kwctl annotate`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// The version of Kubewarden's policy protocol. Only `v1` exists.
    pub protocol_version: Option<String>,
    /// The requests that the policy is written for. Only a suggestion: the rules of the policy object apply.
    #[serde(default)]
    pub rules: Vec<Rule>,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// True if the policy may change requests. Default: false.
    #[serde(default)]
    pub mutating: bool,
    /// True if audit scans may apply the policy to existing objects. Default: true.
    #[serde(default = "default_true")]
    pub background_audit: bool,
    /// The way in which the host calls the module. Default: `kubewarden-wapc`.
    #[serde(default)]
    pub execution_mode: ExecutionMode,
    /// The kind of requests that the policy evaluates. Default: `kubernetes`.
    #[serde(default)]
    pub policy_type: PolicyType,
    /// The Kubernetes objects that the policy reads.
    #[serde(default)]
    pub context_aware_resources: Vec<ContextAwareResource>,
    /// The host capabilities that the policy calls, as patterns such as `oci/v1/*`.
    #[serde(default)]
    pub host_capabilities: Vec<String>,
    /// The oldest Kubewarden version that runs the policy. Proviso ignores this field.
    pub minimum_kubewarden_version: Option<String>,
}

/// The way in which the host calls a module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExecutionMode {
    /// waPC, with the request and the settings.
    #[default]
    KubewardenWapc,
    /// Compiled Rego with the request as `input.request` and the settings as `data`; answers with an `AdmissionReview`.
    Opa,
    /// Compiled Rego with `input.review` and `input.parameters`; answers with violations.
    Gatekeeper,
    /// A WASI command with the request and the settings on its standard input.
    Wasi,
}

impl fmt::Display for ExecutionMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::KubewardenWapc => "kubewarden-wapc",
            Self::Opa => "opa",
            Self::Gatekeeper => "gatekeeper",
            Self::Wasi => "wasi",
        })
    }
}

/// The kind of requests that a policy evaluates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyType {
    /// Admission requests of Kubernetes.
    #[default]
    Kubernetes,
    /// Any JSON.
    Raw,
}

/// A rule that selects requests, as in a webhook configuration (`admissionregistration.k8s.io/v1`, `RuleWithOperations`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    #[serde(default)]
    pub api_groups: Vec<String>,
    #[serde(default)]
    pub api_versions: Vec<String>,
    #[serde(default)]
    pub resources: Vec<String>,
    #[serde(default)]
    pub operations: Vec<String>,
}

/// A kind of Kubernetes object that a policy reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContextAwareResource {
    pub api_version: String,
    pub kind: String,
}

impl Metadata {
    /// Reads the metadata of a module; `None` if the module has no metadata.
    ///
    /// # Errors
    /// Returns [`CompileError::Invalid`] if the bytes are not a module, or if the metadata is malformed.
    pub fn read(wasm: &[u8]) -> Result<Option<Self>, CompileError> {
        for payload in Parser::new(0).parse_all(wasm) {
            let payload = payload.map_err(|error| CompileError::Invalid(format!("the module is damaged: {error}")))?;
            if let Payload::CustomSection(section) = payload
                && section.name() == SECTION
            {
                return serde_json::from_slice(section.data())
                    .map(Some)
                    .map_err(|error| CompileError::Invalid(format!("the module's section {SECTION}: {error}")));
            }
        }
        Ok(None)
    }
}

fn default_true() -> bool {
    true
}
