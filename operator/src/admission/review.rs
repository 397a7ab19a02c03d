//! The review that the API server sends, and the answer. The objects stay text: only a child process reads what users wrote into a
//! spec (`program_check`), because a short text can take much memory as a tree of values.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use k8s_openapi::api::authentication::v1::UserInfo;
use kube::core::admission::Operation;
use proviso_crds::validation::FieldError;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// An `AdmissionReview`.
#[derive(Deserialize)]
pub(super) struct Review<'a> {
    #[serde(borrow)]
    pub request: ReviewedRequest<'a>,
}

/// The request of a review.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReviewedRequest<'a> {
    pub uid: String,
    pub kind: Kind,
    #[serde(default)]
    pub name: String,
    pub namespace: Option<String>,
    pub operation: Operation,
    /// The user who sends the request to the API server.
    #[serde(default)]
    pub user_info: UserInfo,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    old_object: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct Kind {
    pub kind: String,
}

/// The parts of an object of Proviso that the operator reads itself.
#[derive(Default, Deserialize)]
pub(super) struct Object<'a> {
    #[serde(default)]
    pub metadata: Metadata,
    #[serde(borrow)]
    pub spec: Option<&'a RawValue>,
    #[serde(borrow)]
    pub status: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
pub(super) struct Metadata {
    #[serde(default)]
    pub name: String,
}

impl<'a> ReviewedRequest<'a> {
    pub fn object(&self) -> Result<Option<Object<'a>>, String> {
        self.object.map(read).transpose()
    }

    pub fn old_object(&self) -> Result<Option<Object<'a>>, String> {
        self.old_object.map(read).transpose()
    }
}

impl<'a> Object<'a> {
    /// Returns the text of the spec; `null` if there is none.
    pub fn spec(&self) -> &'a RawValue {
        self.spec.unwrap_or(RawValue::NULL)
    }
}

/// Reads the parts of a text that `T` has.
pub(super) fn read<'a, T: Deserialize<'a>>(text: &'a RawValue) -> Result<T, String> {
    serde_json::from_str(text.get()).map_err(|error| error.to_string())
}

/// The reason to deny a request, and its HTTP status code in the answer.
pub(super) struct Refusal {
    pub code: Option<u16>,
    pub message: String,
    /// The fields whose values other objects have: the causes in the answer, each with the reason `FieldValueDuplicate`.
    pub duplicates: Vec<FieldError>,
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Self { code: None, message, duplicates: Vec::new() }
    }
}

impl Refusal {
    /// A refusal for now: the same request may be admitted later.
    pub fn busy(message: impl Into<String>) -> Self {
        let code = Some(StatusCode::SERVICE_UNAVAILABLE.as_u16());
        Self { code, message: message.into(), duplicates: Vec::new() }
    }

    /// A refusal of a user without a permission.
    pub fn forbidden(message: String) -> Self {
        Self { code: Some(StatusCode::FORBIDDEN.as_u16()), message, duplicates: Vec::new() }
    }

    /// A refusal of values that must be unique. Clients recognise it by its causes, as other validation errors of Kubernetes.
    pub fn duplicates(duplicates: Vec<FieldError>) -> Self {
        let messages: Vec<_> = duplicates.iter().map(ToString::to_string).collect();
        let code = Some(StatusCode::UNPROCESSABLE_ENTITY.as_u16());
        Self { code, message: messages.join("; "), duplicates }
    }
}

/// Returns the answer of the webhook.
pub(super) fn answer(uid: &str, refusal: Option<&Refusal>, warning: Option<String>) -> Response {
    let mut response = json!({"uid": uid, "allowed": refusal.is_none()});
    if let Some(Refusal { code, message, duplicates }) = refusal {
        response["status"] = json!({"status": "Failure", "message": message});
        if let Some(code) = code {
            response["status"]["code"] = (*code).into();
        }
        if !duplicates.is_empty() {
            let cause =
                |it: &FieldError| json!({"reason": "FieldValueDuplicate", "field": it.field, "message": it.message});
            response["status"]["reason"] = "Invalid".into();
            response["status"]["details"] = json!({"causes": duplicates.iter().map(cause).collect::<Vec<_>>()});
        }
    }
    if let Some(warning) = warning {
        response["warnings"] = Value::from(vec![warning]);
    }
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    Json(review).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_of_a_review_stay_text() {
        let text = r#"{"request": {"uid": "u", "kind": {"kind": "Policy"}, "operation": "UPDATE", "namespace": "team",
            "object": {"metadata": {"name": "a"}, "spec": {"program":  [0, 0]}}, "oldObject": null}}"#;
        let Review { request } = serde_json::from_str(text).unwrap();
        let object = request.object().unwrap().unwrap();
        assert_eq!((object.metadata.name.as_str(), object.spec().get()), ("a", r#"{"program":  [0, 0]}"#));
        assert!(request.old_object().unwrap().is_none());
        assert_eq!((request.name.as_str(), request.operation), ("", Operation::Update));
    }
}
