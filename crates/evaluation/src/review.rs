//! Builds the review that a policy evaluates, from objects or from an `AdmissionReview` in a file.

use bytes::Bytes;
use proviso_core::Review;
use proviso_core::review::Operation;
use proviso_crds::validation::FieldError;
use serde_json::{Map, Value, json};

use crate::documents;
use crate::plural::plural;

/// The default `uid` of a request.
const UID: &str = "00000000-0000-0000-0000-000000000000";

/// The members of an `AdmissionRequest` (`admission.k8s.io/v1`).
const MEMBERS: [&str; 15] = [
    "uid",
    "kind",
    "resource",
    "subResource",
    "requestKind",
    "requestResource",
    "requestSubResource",
    "name",
    "namespace",
    "operation",
    "userInfo",
    "object",
    "oldObject",
    "dryRun",
    "options",
];

/// The parts of a request that is built from objects.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The operation. Default: DELETE with only an old object, UPDATE with both objects, CREATE otherwise.
    pub operation: Option<Operation>,
    /// The object after the request.
    pub object: Option<Value>,
    /// The object before the request.
    pub old_object: Option<Value>,
    /// The namespace of the request. Default: the namespace of the object.
    pub namespace: Option<String>,
    /// The name in the request. Default: the name of the object.
    pub name: Option<String>,
    pub sub_resource: Option<String>,
    /// `userInfo`, such as `{"username": "ann", "groups": ["dev"]}`.
    pub user: Map<String, Value>,
    pub is_dry_run: bool,
}

/// Returns whether the document is an `AdmissionReview`, and not an object.
#[must_use]
pub fn is_review(value: &Value) -> bool {
    value["kind"] == "AdmissionReview" && documents::group(value) == "admission.k8s.io"
}

/// Wraps a bare `AdmissionRequest`, as Kubewarden's tools take it, into an `AdmissionReview`; `None` for any other document.
/// The `kind` of a request is an object, and the `kind` of a Kubernetes object is a string.
#[must_use]
pub fn of_request(value: &Value) -> Option<Value> {
    let is_request = value["kind"].is_object() && value["operation"].is_string();
    is_request.then(|| json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": value}))
}

impl Request {
    /// Returns the `AdmissionReview` of this request.
    ///
    /// # Errors
    /// Returns an error if the object has no `apiVersion` or `kind`, or the operation does not match the objects.
    pub fn to_review(&self) -> Result<Value, FieldError> {
        let (object, old) = (self.object.as_ref(), self.old_object.as_ref());
        let operation = self.operation.unwrap_or(match (object, old) {
            (None, Some(_)) => Operation::Delete,
            (Some(_), Some(_)) => Operation::Update,
            _ => Operation::Create,
        });
        let (object, old) = match (operation, object, old) {
            // Users may pass the deleted object as the object.
            (Operation::Delete, Some(object), None) => (None, Some(object)),
            (Operation::Delete, Some(_), Some(_)) => {
                return Err(FieldError::new("object", "a DELETE has only an oldObject"));
            }
            (Operation::Update, Some(_), None) => {
                return Err(FieldError::new("oldObject", "is missing: an UPDATE has the object as it was before"));
            }
            (Operation::Update, None, _) => return Err(FieldError::new("object", "is missing: an UPDATE has one")),
            (Operation::Create, _, Some(_)) => return Err(FieldError::new("oldObject", "a CREATE has none")),
            objects => (objects.1, objects.2),
        };
        let Some(subject) = object.or(old) else { return Err(FieldError::new("object", "is missing")) };
        let (group, version, kind) = kind_of(subject)?;
        let text = |pointer: &str| subject.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_namespace = group.is_empty() && kind == "Namespace";
        let name = self.name.clone().unwrap_or_else(|| text("/metadata/name"));
        let namespace = self.namespace.clone().unwrap_or_else(|| {
            // The API server also sets the namespace of a Namespace to its name.
            if is_namespace { name.clone() } else { text("/metadata/namespace") }
        });
        let gvk = json!({"group": group, "version": version, "kind": kind});
        let resource = json!({"group": group, "version": version, "resource": plural(&kind)});
        let mut request = json!({
            "uid": UID, "kind": gvk, "resource": resource, "requestKind": gvk, "requestResource": resource,
            "name": name, "operation": operation.as_str(), "userInfo": self.user, "dryRun": self.is_dry_run,
            "object": object, "oldObject": old,
        });
        if !namespace.is_empty() {
            request["namespace"] = namespace.into();
        }
        if let Some(sub_resource) = &self.sub_resource {
            request["subResource"] = sub_resource.as_str().into();
            request["requestSubResource"] = sub_resource.as_str().into();
        }
        Ok(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}))
    }
}

/// Returns group, version and kind of an object.
fn kind_of(object: &Value) -> Result<(String, String, String), FieldError> {
    let (Some(version), Some(kind)) = (object["apiVersion"].as_str(), object["kind"].as_str()) else {
        return Err(FieldError::new("object", "has no apiVersion or no kind"));
    };
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    Ok((group.to_owned(), version.to_owned(), kind.to_owned()))
}

/// Completes an `AdmissionReview` from a file with the fields that an API server always sets, and that users may omit.
///
/// # Errors
/// Returns an error if the request has a member that Kubernetes does not have, or no object.
pub fn completed(review: &Value) -> Result<Value, FieldError> {
    let Some(request) = review["request"].as_object() else {
        return Err(FieldError::new("request", "is missing or not an object"));
    };
    if let Some(unknown) = request.keys().find(|key| !MEMBERS.contains(&key.as_str())) {
        return Err(FieldError::new(format!("request.{unknown}"), "is not a member of an AdmissionRequest"));
    }
    let is_there = |field: &str| request.get(field).is_some_and(|value| !value.is_null());
    if !is_there("object") && !is_there("oldObject") {
        return Err(FieldError::new("request.object", "is missing, and there is no oldObject either"));
    }
    if request.get("operation").is_some_and(|it| it == "DELETE") && !is_there("oldObject") {
        return Err(FieldError::new("request.oldObject", "is missing: a DELETE has the deleted object here"));
    }
    let mut review = review.clone();
    let uid = &mut review["request"]["uid"];
    if uid.as_str().is_none_or(str::is_empty) {
        *uid = UID.into();
    }
    review["apiVersion"] = "admission.k8s.io/v1".into();
    Ok(review)
}

/// Parses an `AdmissionReview` into a review.
///
/// # Errors
/// Returns an error if the document is not an `AdmissionReview`.
pub fn admission(review: &Value) -> Result<Review, FieldError> {
    Review::admission(Bytes::from(review.to_string())).map_err(|error| FieldError::new("request", error.message))
}

/// Parses the request of a raw policy, `{"request": <any JSON>}`, into a review.
///
/// # Errors
/// Returns an error if there is no `request`, or there are other members.
pub fn raw(body: &Value) -> Result<Review, FieldError> {
    let members = body.as_object().into_iter().flatten();
    if let Some((unknown, _)) = members.into_iter().find(|(name, _)| *name != "request") {
        return Err(FieldError::new(unknown, "is unknown: a raw request is {\"request\": <any JSON>}"));
    }
    Review::raw(Bytes::from(body.to_string())).map_err(|error| FieldError::new("request", error.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "team"}})
    }

    #[test]
    fn an_object_becomes_a_create_request() {
        let review = Request { object: Some(pod()), ..Request::default() }.to_review().unwrap();
        let review = admission(&review).unwrap();
        let head = review.head().unwrap();
        assert_eq!(
            (head.operation, head.name.as_str(), head.namespace.as_str()),
            (Some(Operation::Create), "a", "team")
        );
        assert_eq!((head.kind.kind.as_str(), head.resource.resource.as_str()), ("Pod", "pods"));
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
        let review = Request { object: Some(namespace), ..Request::default() }.to_review().unwrap();
        assert_eq!(review["request"]["namespace"], "team", "the namespace of a Namespace is its name");
    }

    #[test]
    fn the_operation_must_fit_the_objects() {
        let request = |operation, object: bool, old: bool| {
            let it = |is_there: bool| is_there.then(pod);
            Request { operation, object: it(object), old_object: it(old), ..Request::default() }.to_review()
        };
        for (object, old, wanted) in [(true, false, "CREATE"), (true, true, "UPDATE"), (false, true, "DELETE")] {
            assert_eq!(request(None, object, old).unwrap()["request"]["operation"], wanted);
        }
        let deleted = request(Some(Operation::Delete), true, false).unwrap();
        assert_eq!((&deleted["request"]["object"], &deleted["request"]["oldObject"]), (&Value::Null, &pod()));
        for (operation, object, old, field) in [
            (Operation::Update, true, false, "oldObject"),
            (Operation::Create, true, true, "oldObject"),
            (Operation::Delete, true, true, "object"),
            (Operation::Create, false, false, "object"),
        ] {
            assert_eq!(request(Some(operation), object, old).unwrap_err().field, field, "{operation:?}");
        }
    }

    #[test]
    fn a_review_from_a_file_is_completed_or_refused_with_its_field() {
        let review = |request: Value| json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        let completed = |request: Value| super::completed(&review(request));
        assert!(is_review(&review(json!({}))) && !is_review(&pod()));
        assert_eq!(admission(&completed(json!({"object": pod()})).unwrap()).unwrap().uid(), UID);
        let alone = json!({"uid": "u", "kind": {"kind": "Pod"}, "operation": "CREATE", "object": pod()});
        assert_eq!((of_request(&alone), of_request(&pod())), (Some(review(alone)), None));
        for (request, field) in [
            (json!({"uid": "u"}), "request.object"),
            (json!({"object": pod(), "opertion": "CREATE"}), "request.opertion"),
            (json!({"object": pod(), "operation": "DELETE"}), "request.oldObject"),
            (Value::Null, "request"),
        ] {
            assert_eq!(completed(request).unwrap_err().field, field);
        }
    }

    #[test]
    fn a_raw_request_has_only_the_member_request() {
        assert_eq!(raw(&json!({"request": {"uid": "7", "region": "eu-1"}})).unwrap().uid(), "7");
        for (body, field) in [(json!({"region": "eu-1"}), "region"), (json!({}), "request"), (json!([]), "request")] {
            assert_eq!(raw(&body).unwrap_err().field, field, "{body}");
        }
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {}});
        assert_eq!(raw(&review).unwrap_err().field, "apiVersion", "an AdmissionReview is not a raw request");
    }
}
