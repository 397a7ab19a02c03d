//! The service request that a chain decides about.

use serde_json::Value;

use super::limits::{
    MAX_NESTING, MAX_PAYLOAD_BYTES, MAX_PAYLOAD_VALUES, MAX_PROVIDER_BYTES, json_bytes, memory_of, nests_deeper,
    value_count,
};
use super::path::{FieldPath, kind_of};
use super::provider_field;
use crate::matching::{self, Labels};

/// A service request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub(super) payload: Value,
    /// The size of the payload as JSON, in bytes, and the number of its values.
    pub(super) payload_size: (usize, usize),
    pub(super) service_type: Option<String>,
    pub(super) labels: Labels,
    pub(super) tenant: Option<String>,
    pub(super) user: Option<String>,
    /// The field of the payload with the service provider; `None` if the provider is no part of the payload.
    pub(super) provider_field: Option<FieldPath>,
    /// The service provider that the caller wants.
    pub(super) provider: Option<String>,
}

/// The reason why a request cannot be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("the payload is {0}, but must be an object")]
    NotAnObject(&'static str),
    #[error("the payload has {0} bytes of JSON, but may have at most {MAX_PAYLOAD_BYTES}")]
    TooLarge(usize),
    #[error("the payload has {0} values, but may have at most {MAX_PAYLOAD_VALUES}")]
    TooManyValues(usize),
    #[error("lists and objects of the payload nest deeper than {MAX_NESTING} levels")]
    TooDeep,
    #[error("the service provider in the field `{field}` is {kind}, but must be a string")]
    ProviderKind { field: FieldPath, kind: &'static str },
    #[error("the service provider in the field `{field}` has {bytes} bytes, but may have at most {MAX_PROVIDER_BYTES}")]
    ProviderTooLarge { field: FieldPath, bytes: usize },
}

impl Request {
    /// Returns the request for a payload. The service type is the payload's `service_type`, or `serviceType`; the labels are its
    /// `metadata.labels`, and the service type as the label `service_type`, as in the published API of the DCM project.
    ///
    /// # Errors
    /// Returns an error if the payload is not an object, is larger than [`MAX_PAYLOAD_BYTES`], has more values than
    /// [`MAX_PAYLOAD_VALUES`], or nests deeper than [`MAX_NESTING`].
    pub fn new(payload: Value, tenant: Option<String>, user: Option<String>) -> Result<Self, RequestError> {
        if !payload.is_object() {
            return Err(RequestError::NotAnObject(kind_of(&payload)));
        }
        if nests_deeper(&payload, MAX_NESTING) {
            return Err(RequestError::TooDeep);
        }
        let bytes = json_bytes(&payload);
        if bytes > MAX_PAYLOAD_BYTES {
            return Err(RequestError::TooLarge(bytes));
        }
        let values = value_count(&payload);
        if values > MAX_PAYLOAD_VALUES {
            return Err(RequestError::TooManyValues(values));
        }
        let service_type =
            ["service_type", "serviceType"].into_iter().find_map(|key| payload[key].as_str()).map(ToOwned::to_owned);
        let mut labels = matching::labels(&payload["metadata"]);
        labels.extend(service_type.iter().map(|service_type| ("service_type".to_owned(), service_type.clone())));
        let payload_size = (bytes, values);
        Ok(Self { payload, payload_size, service_type, labels, tenant, user, provider_field: None, provider: None })
    }

    /// Returns this request with the service provider in a field of its payload. The value of the field is the provider that the caller
    /// wants: policies see it, may replace it, and their constraints bind it. A policy that changes the field chooses the provider, and
    /// the provider that a policy chooses is written into the field.
    ///
    /// # Errors
    /// Returns an error if the field is not a string, or longer than 1,024 bytes.
    pub fn with_provider_in(self, field: FieldPath) -> Result<Self, RequestError> {
        let provider = match provider_field::read(&field, &self.payload) {
            Ok(provider) => provider,
            Err(kind) => return Err(RequestError::ProviderKind { field, kind }),
        };
        if let Some(bytes) = provider.as_ref().map(String::len).filter(|bytes| *bytes > MAX_PROVIDER_BYTES) {
            return Err(RequestError::ProviderTooLarge { field, bytes });
        }
        Ok(Self { provider_field: Some(field), provider, ..self })
    }

    /// Returns this request with more labels. The labels of the payload and the label `service_type` stay.
    #[must_use]
    pub fn with_labels(mut self, labels: Labels) -> Self {
        for (key, value) in labels {
            self.labels.entry(key).or_insert(value);
        }
        self
    }

    /// Returns this request with another service type, for payloads that have it in another field, such as the kind of a
    /// Kubernetes object.
    #[must_use]
    pub fn with_service_type(mut self, service_type: impl Into<String>) -> Self {
        let service_type = service_type.into();
        self.labels.insert("service_type".to_owned(), service_type.clone());
        Self { service_type: Some(service_type), ..self }
    }

    #[must_use]
    pub fn payload(&self) -> &Value {
        &self.payload
    }

    /// Returns the estimated memory of the payload, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let (bytes, values) = self.payload_size;
        memory_of(bytes, values)
    }

    #[must_use]
    pub fn service_type(&self) -> Option<&str> {
        self.service_type.as_deref()
    }

    #[must_use]
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    #[must_use]
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }
}
