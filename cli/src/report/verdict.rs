//! The report about the verdict of a policy for one request. Its fields are an interface of this program.

use std::collections::BTreeMap;

use proviso_evaluation::Answer;
use serde::Serialize;
use serde_json::Value;

/// The report of `proviso run`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VerdictReport {
    pub policy: String,
    pub allowed: bool,
    /// The reason why the policy was not evaluated; `None` if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_asked: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub audit_annotations: BTreeMap<String, String>,
    /// The JSON Patch of the object (RFC 6902).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<Value>,
}

impl VerdictReport {
    #[must_use]
    pub fn new(policy: String, answer: &Answer) -> Self {
        let verdict = &answer.verdict;
        let causes = verdict.causes.iter().map(|cause| match &cause.field {
            Some(field) => format!("{field}: {}", cause.message),
            None => cause.message.clone(),
        });
        Self {
            policy,
            allowed: verdict.allowed,
            not_asked: answer.skip_reason.clone(),
            message: verdict.message.clone(),
            code: verdict.code,
            reason: verdict.reason.clone(),
            causes: causes.collect(),
            warnings: verdict.warnings.clone(),
            audit_annotations: verdict.audit_annotations.clone(),
            patch: verdict.patch.as_ref().and_then(|patch| serde_json::to_value(patch).ok()),
        }
    }
}
