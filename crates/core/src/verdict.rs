//! The verdict of a policy on a request, the enforcement of the policy's mode, and the `AdmissionReview` that answers.

use std::collections::BTreeMap;

use base64::Engine as _;
use json_patch::Patch;
use serde::Serialize;

use crate::failure::Failure;

/// The decision of a program about a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub allowed: bool,
    /// The message that the user sees on a denial.
    pub message: Option<String>,
    /// The HTTP status code of a denial. The API server uses 400 if the code is missing or below 400 (`ToStatusErr`).
    pub code: Option<u16>,
    /// The machine-readable reason of a denial (`metav1.StatusReason`).
    pub reason: Option<String>,
    pub causes: Vec<Cause>,
    /// Messages that the user sees on an allowed and on a denied request.
    pub warnings: Vec<String>,
    pub audit_annotations: BTreeMap<String, String>,
    /// A JSON Patch (RFC 6902) of the request's object.
    pub patch: Option<Patch>,
}

/// One of the causes of a denial (`metav1.StatusCause`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    pub message: String,
}

impl Failure {
    /// Returns the denial for a failed evaluation. The denial has the code 500 inside an HTTP 200 response: the API server treats
    /// an HTTP error as a failed webhook call, and may then allow the request (`failurePolicy: Ignore`).
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        Verdict { message: Some(self.message.clone()), code: Some(500), ..Verdict::default() }
    }
}

/// The enforcement mode of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Denials and mutations are enforced.
    #[default]
    Protect,
    /// Each request is allowed without mutation; warnings and audit annotations are kept.
    Monitor,
}

impl Mode {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Protect => "Protect",
            Self::Monitor => "Monitor",
        }
    }
}

/// The settings of a policy's `admission` section that apply to verdicts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enforcement {
    pub mode: Mode,
    /// True if the policy may mutate objects.
    pub mutating: bool,
    /// The message that replaces the message of each denial. The original message becomes a cause.
    pub message: Option<String>,
}

impl Enforcement {
    /// Returns the same settings in the mode [`Mode::Protect`].
    #[must_use]
    pub fn protecting(&self) -> Self {
        Self { mode: Mode::Protect, ..self.clone() }
    }
}

impl Verdict {
    #[must_use]
    pub fn allow() -> Self {
        Self { allowed: true, ..Self::default() }
    }

    #[must_use]
    pub fn deny(message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), ..Self::default() }
    }

    /// Applies mode, `mutating` and message, in this order, as Kubewarden does.
    #[must_use]
    pub fn enforce(mut self, enforcement: &Enforcement) -> Self {
        if enforcement.mode == Mode::Monitor {
            return Self {
                allowed: true,
                warnings: self.warnings,
                audit_annotations: self.audit_annotations,
                ..Self::default()
            };
        }
        if self.allowed && self.patch.is_some() && !enforcement.mutating {
            self = Self {
                warnings: self.warnings,
                audit_annotations: self.audit_annotations,
                code: Some(500),
                ..Self::deny("the policy changed the request, but it may not: spec.admission.mutating is false")
            };
        }
        if !self.allowed {
            self.patch = None;
            if let Some(message) = &enforcement.message {
                let original = self.message.replace(message.clone());
                self.causes.extend(original.map(|message| Cause { field: None, message }));
            }
        }
        self
    }

    /// Returns the `AdmissionReview` that answers the request `uid`, as JSON.
    #[must_use]
    pub fn to_review(&self, uid: &str) -> Vec<u8> {
        to_json(&ReviewOut {
            api_version: "admission.k8s.io/v1",
            kind: "AdmissionReview",
            response: self.response(uid),
        })
    }

    /// Returns the answer to a raw request as JSON: a response without the `AdmissionReview` envelope.
    #[must_use]
    pub fn to_raw_review(&self, uid: &str) -> Vec<u8> {
        #[derive(Serialize)]
        struct RawReviewOut<'a> {
            response: ResponseOut<'a>,
        }
        to_json(&RawReviewOut { response: self.response(uid) })
    }

    fn response<'a>(&'a self, uid: &'a str) -> ResponseOut<'a> {
        let has_status =
            self.message.is_some() || self.code.is_some() || self.reason.is_some() || !self.causes.is_empty();
        let patch = self.patch.as_ref().map(|patch| base64::engine::general_purpose::STANDARD.encode(to_json(patch)));
        ResponseOut {
            uid,
            allowed: self.allowed,
            status: (!self.allowed && has_status).then(|| StatusOut {
                message: self.message.as_deref(),
                reason: self.reason.as_deref(),
                code: self.code,
                details: (!self.causes.is_empty()).then_some(DetailsOut { causes: &self.causes }),
            }),
            patch_type: patch.is_some().then_some("JSONPatch"),
            patch,
            audit_annotations: &self.audit_annotations,
            warnings: &self.warnings,
        }
    }
}

/// Serializes a value to JSON. Strings, numbers, lists and maps with string keys always serialize.
fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewOut<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: ResponseOut<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResponseOut<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<StatusOut<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    audit_annotations: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
}

#[derive(Serialize)]
struct StatusOut<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<DetailsOut<'a>>,
}

#[derive(Serialize)]
struct DetailsOut<'a> {
    causes: &'a [Cause],
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn patch() -> Option<Patch> {
        serde_json::from_value(json!([{"op": "add", "path": "/a", "value": 1}])).unwrap()
    }

    fn noisy(verdict: Verdict) -> Verdict {
        Verdict { warnings: vec!["w".into()], audit_annotations: [("k".into(), "v".into())].into(), ..verdict }
    }

    #[test]
    fn monitor_mode_keeps_only_warnings_and_audit_annotations() {
        let monitor = Enforcement { mode: Mode::Monitor, message: Some("custom".into()), ..Enforcement::default() };
        for verdict in [Verdict::deny("no"), Verdict { patch: patch(), ..Verdict::allow() }] {
            assert_eq!(noisy(verdict).enforce(&monitor), noisy(Verdict::allow()));
        }
        let protected = Verdict::deny("no").enforce(&monitor.protecting());
        assert_eq!((protected.allowed, protected.message.as_deref()), (false, Some("custom")));
    }

    #[test]
    fn a_patch_is_denied_unless_the_policy_is_mutating() {
        let mutated = Verdict { patch: patch(), ..Verdict::allow() };
        let refused = mutated.clone().enforce(&Enforcement::default());
        assert!(!refused.allowed && refused.patch.is_none() && refused.code == Some(500), "{refused:?}");
        let mutating = Enforcement { mutating: true, ..Enforcement::default() };
        assert_eq!(mutated.clone().enforce(&mutating), mutated);
    }

    #[test]
    fn a_custom_message_keeps_the_original_as_cause() {
        let custom = Enforcement { message: Some("ask #platform".into()), ..Enforcement::default() };
        let verdict = Verdict::deny("label owner is missing").enforce(&custom);
        assert_eq!(verdict.message.as_deref(), Some("ask #platform"));
        assert_eq!(verdict.causes, [Cause { field: None, message: "label owner is missing".into() }]);
        assert_eq!(Verdict::allow().enforce(&custom), Verdict::allow());
    }

    #[test]
    fn a_denial_never_carries_a_patch() {
        let both = Verdict { patch: patch(), ..Verdict::deny("no") };
        let mutating = Enforcement { mutating: true, ..Enforcement::default() };
        assert_eq!(both.enforce(&mutating).patch, None);
    }

    #[test]
    fn the_review_has_the_form_that_kubernetes_expects() {
        let read = |bytes: Vec<u8>| serde_json::from_slice::<Value>(&bytes).unwrap();
        assert_eq!(
            read(Verdict::allow().to_review("u")),
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": "u", "allowed": true}})
        );
        let denied = Verdict { code: Some(422), reason: Some("Invalid".into()), ..noisy(Verdict::deny("no")) };
        assert_eq!(
            read(denied.to_review("u"))["response"],
            json!({"uid": "u", "allowed": false, "status": {"message": "no", "reason": "Invalid", "code": 422},
                   "warnings": ["w"], "auditAnnotations": {"k": "v"}})
        );
        let mutated = Verdict { patch: patch(), ..Verdict::allow() };
        let response = &read(mutated.to_raw_review(""))["response"];
        assert_eq!(response["patchType"], "JSONPatch");
        let bytes = base64::engine::general_purpose::STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
        assert_eq!(read(bytes), json!([{"op": "add", "path": "/a", "value": 1}]));
    }
}
