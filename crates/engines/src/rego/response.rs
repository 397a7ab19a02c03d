//! The response of an admission policy: an `AdmissionReview` with a `response`, or the response alone, as OPA's admission
//! policies build it.

use std::collections::BTreeMap;

use base64::Engine as _;
use json_patch::Patch;
use proviso_core::review::parse as parse_json;
use proviso_core::{Review, Verdict};
use regorus::Value;
use serde::{Deserialize, Deserializer};

use crate::patch;

#[derive(Deserialize)]
struct AdmissionReview {
    response: Response,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    allowed: bool,
    #[serde(default, deserialize_with = "or_default")]
    status: Status,
    patch_type: Option<String>,
    patch: Option<PatchText>,
    #[serde(default, deserialize_with = "or_default")]
    warnings: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    audit_annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct Status {
    message: Option<String>,
    reason: Option<String>,
    code: Option<u16>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PatchText {
    /// Base64 of a JSON Patch, as in the Kubernetes API.
    Base64(String),
    /// A JSON Patch as a list, which is easier to write in Rego.
    Plain(Patch),
}

/// Reads null like an absent field, as the API server does.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads a response. The error is the end of a sentence that begins with the name of the rule.
pub(super) fn read(value: &Value, review: &Review) -> Result<Verdict, String> {
    let not_valid = |error: serde_json::Error| format!("is not valid: {error}");
    read_json(serde_json::to_value(value).map_err(not_valid)?, review)
}

/// Reads a response from JSON.
pub(crate) fn read_json(json: serde_json::Value, review: &Review) -> Result<Verdict, String> {
    let not_valid = |error: serde_json::Error| format!("is not valid: {error}");
    let response = if json.get("response").is_some() {
        serde_json::from_value::<AdmissionReview>(json).map_err(not_valid)?.response
    } else {
        serde_json::from_value::<Response>(json).map_err(not_valid)?
    };
    if response.patch_type.is_some_and(|patch_type| patch_type != "JSONPatch") {
        return Err("has a patchType other than JSONPatch".into());
    }
    let patch = response.patch.map(PatchText::read).transpose()?;
    if let Some(patch) = patch.as_ref().filter(|_| response.allowed) {
        check_applies(patch, review)?;
    }
    Ok(Verdict {
        allowed: response.allowed,
        message: response.status.message,
        code: response.status.code,
        reason: response.status.reason,
        causes: Vec::new(),
        warnings: response.warnings,
        audit_annotations: response.audit_annotations,
        patch: patch.filter(|_| response.allowed),
    })
}

impl PatchText {
    fn read(self) -> Result<Patch, String> {
        match self {
            Self::Plain(patch) => Ok(patch),
            Self::Base64(text) => {
                let bytes = base64::engine::general_purpose::STANDARD
                    .decode(text)
                    .map_err(|error| format!("has a patch that is not base64: {error}"))?;
                serde_json::from_slice(&bytes).map_err(|error| format!("has a patch that is not a JSON Patch: {error}"))
            }
        }
    }
}

fn check_applies(operations: &Patch, review: &Review) -> Result<(), String> {
    let object = review.object_json().ok_or("has a patch, but the request has no object")?;
    let mut object = parse_json(object).map_err(|error| format!("has a patch, but the object is not JSON: {error}"))?;
    patch::apply(&mut object, operations).map_err(|error| format!("has a patch that does not apply: {error}"))
}
