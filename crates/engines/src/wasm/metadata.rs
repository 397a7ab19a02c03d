//! What a Kubewarden policy says about itself, in a custom section of its module.

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
    /// `v1` is the only one there is.
    pub protocol_version: Option<String>,
    /// What the policy is made for. A suggestion: the policy object decides.
    #[serde(default)]
    pub rules: Vec<Rule>,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// Whether the policy may change requests. Default: false.
    #[serde(default)]
    pub mutating: bool,
    /// Whether the policy makes sense for objects that exist already. Default: true.
    #[serde(default = "yes")]
    pub background_audit: bool,
    /// Default: `kubewarden-wapc`.
    #[serde(default)]
    pub execution_mode: ExecutionMode,
    /// Default: `kubernetes`.
    #[serde(default)]
    pub policy_type: PolicyType,
    /// Kubernetes objects that the policy asks for.
    #[serde(default)]
    pub context_aware_resources: Vec<ContextAwareResource>,
    /// Host capabilities that the policy calls, as patterns such as `oci/v1/*`.
    #[serde(default)]
    pub host_capabilities: Vec<String>,
    /// The oldest Kubewarden that runs the policy. Means nothing here.
    pub minimum_kubewarden_version: Option<String>,
}

/// How a module is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExecutionMode {
    /// By waPC, with the request and the settings.
    #[default]
    KubewardenWapc,
    /// Compiled Rego with the request as `input.request` and the settings as `data`; answers with an `AdmissionReview`.
    Opa,
    /// Compiled Rego with `input.review` and `input.parameters`; answers with violations.
    Gatekeeper,
    /// As a command with the request and the settings on its standard input.
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

/// What a policy judges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyType {
    #[default]
    Kubernetes,
    /// Any JSON.
    Raw,
}

/// Requests, as a webhook configuration names them (`admissionregistration.k8s.io/v1`, `RuleWithOperations`).
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

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContextAwareResource {
    pub api_version: String,
    pub kind: String,
}

impl Metadata {
    /// Reads the metadata of a module; none where it was never annotated.
    ///
    /// # Errors
    /// When the bytes are no module, or the metadata is not what Kubewarden writes.
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

fn yes() -> bool {
    true
}
