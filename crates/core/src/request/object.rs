//! Kubernetes objects as requests to services: the request that an object has. See ADR 36.

mod verdict;

use std::collections::HashMap;

use serde_json::Value;
use serde_json::value::RawValue;

use super::path::{FieldPath, FieldPathError, list_index};
use super::payload::{Request, RequestError};
use crate::matching::{self, Labels};
use crate::review::{self, Operation, Review};
use crate::verdict::Verdict;

/// The fields of an object in which no payload is: Kubernetes itself owns them.
const RESERVED: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];

/// The place of a request within objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectBinding {
    payload: FieldPath,
    /// The field of the payload with the service provider; `None` if the objects do not have it.
    provider: Option<FieldPath>,
    /// The service type of all objects; `None` if the payload names it.
    service_type: Option<String>,
}

/// The error of a field path that no object has, or that policies must not change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectBindingError {
    #[error("is not valid: {0}")]
    Path(#[from] FieldPathError),
    #[error("is empty: name a field of the object, such as spec")]
    Empty,
    #[error("is within `{0}`, which request policies must not change: name another field, such as spec")]
    Reserved(String),
    #[error("has {0:?}, an index of a list: name a field of objects only")]
    ListIndex(String),
    #[error("must be a field within `{0}`, so that the policies see it and can constrain it")]
    Outside(FieldPath),
}

/// The reason why an object has no request that policies could decide about. Such an object is denied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    #[error("request policies decide about Kubernetes objects only, and this review has none")]
    NoObject,
    #[error("{0}: is missing or null, and request policies decide about it: set it to an object, such as {{}}")]
    Missing(FieldPath),
    #[error("metadata.labels: cannot be read, and the selectors of request policies need them")]
    Labels,
    #[error("{field}: {error}")]
    Payload { field: FieldPath, error: RequestError },
}

impl ObjectError {
    /// Returns the denial of the object.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        Verdict { code: Some(422), reason: Some("Invalid".to_owned()), ..Verdict::deny(self.to_string()) }
    }
}

impl ObjectBinding {
    /// Returns the binding of objects whose payload is in the field `payload`. `provider` is the path of the service provider in the
    /// object, and must be within the payload.
    ///
    /// # Errors
    /// Returns the name of the argument, and the error of its path.
    pub fn new(
        payload: &str,
        provider: Option<&str>,
        service_type: Option<String>,
    ) -> Result<Self, (&'static str, ObjectBindingError)> {
        let payload = parse(payload).map_err(|error| ("payload", error))?;
        let provider = provider.map(|provider| within(&payload, provider)).transpose();
        Ok(Self { provider: provider.map_err(|error| ("provider", error))?, payload, service_type })
    }

    /// Returns the request of an object. The user is the one who sent the object to the API server, whatever the object contains.
    /// Returns `None` for an update that changes neither the payload nor the labels: it asks for nothing, and controllers can
    /// maintain other fields, such as finalizers, of an object that violates a newer policy.
    ///
    /// # Errors
    /// Returns an error if the object has no payload, or one that policies cannot decide about.
    pub fn request(&self, review: &Review, tenant: Option<String>) -> Result<Option<Request>, ObjectError> {
        let (Some(head), Some(object)) = (review.head(), review.object_json()) else {
            return Err(ObjectError::NoObject);
        };
        if head.operation == Some(Operation::Update)
            && review.old_object_json().is_some_and(|old| self.is_same_request(object, old))
        {
            return Ok(None);
        }
        let payload = self.payload(object).ok_or_else(|| ObjectError::Missing(self.payload.clone()))?;
        let labels = matching::labels_of(object).ok_or(ObjectError::Labels)?;
        let user = Some(head.user.username.clone()).filter(|user| !user.is_empty());
        self.assemble(payload, &head.kind.kind, labels, (tenant, user))
            .map(Some)
            .map_err(|error| ObjectError::Payload { field: self.payload.clone(), error })
    }

    fn assemble(
        &self,
        payload: Value,
        kind: &str,
        labels: Labels,
        (tenant, user): (Option<String>, Option<String>),
    ) -> Result<Request, RequestError> {
        let mut request = Request::new(payload, tenant, user)?;
        if let Some(service_type) = &self.service_type {
            request = request.with_service_type(service_type.clone());
        } else if request.service_type().is_none_or(str::is_empty) {
            request = request.with_service_type(kind);
        }
        request = request.with_labels(labels);
        match &self.provider {
            Some(field) => request.with_provider_in(field.clone()),
            None => Ok(request),
        }
    }

    /// Returns true if two versions of an object have the same payload and labels.
    fn is_same_request(&self, object: &str, old: &str) -> bool {
        let labels = |object| matching::labels_of(object);
        self.payload(object) == self.payload(old) && labels(object).is_some() && labels(object) == labels(old)
    }

    /// Returns the payload of an object; `None` if it is missing or null.
    fn payload(&self, object: &str) -> Option<Value> {
        let mut value = object;
        for key in self.payload.keys() {
            let members: HashMap<String, &RawValue> = review::parse(value).ok()?;
            value = members.get(key)?.get();
        }
        review::parse(value).ok().filter(|payload: &Value| !payload.is_null())
    }
}

/// Reads the path of a field in objects.
fn parse(text: &str) -> Result<FieldPath, ObjectBindingError> {
    let path: FieldPath = text.parse()?;
    let Some(first) = path.keys().first() else { return Err(ObjectBindingError::Empty) };
    if RESERVED.contains(&first.as_str()) {
        return Err(ObjectBindingError::Reserved(first.clone()));
    }
    match path.keys().iter().find(|key| list_index(key).is_some()) {
        Some(index) => Err(ObjectBindingError::ListIndex(index.clone())),
        None => Ok(path),
    }
}

/// Reads the path of a field in objects that is within the payload. Returns its path in the payload.
fn within(payload: &FieldPath, text: &str) -> Result<FieldPath, ObjectBindingError> {
    let path = parse(text)?;
    match path.keys().strip_prefix(payload.keys()) {
        Some(keys) if !keys.is_empty() => Ok(FieldPath::from_keys(keys)),
        _ => Err(ObjectBindingError::Outside(payload.clone())),
    }
}
